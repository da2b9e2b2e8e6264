"""These tests run against the real Bridge and Core; they fail where the packages are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import bridge_machine

from gtp_migrate import shim

bridge_machine.start()


@pytest.fixture(scope="session", params=["released", "new"])
def bridge(request):
    """The classes of released Bridge, and of one that derives GTP sizes from shard counts."""
    from bridge_machine import checkpoints

    return {"released": checkpoints.RELEASED, "new": checkpoints.NEW}[request.param]


@pytest.fixture(autouse=True)
def _hooks_off(monkeypatch):
    """Each test starts and ends with the hooks off, and with nothing in the environment or Bridge's cache."""
    from megatron.bridge.training.utils.checkpoint_utils import read_run_config

    monkeypatch.delenv("GTP_MIGRATE_ALLOW_RESHARD", raising=False)
    shim.uninstall()
    read_run_config.cache_clear()
    yield
    shim.uninstall()


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A checkpoint saved with TP 4, written once however many tests load it."""
    from bridge_machine.checkpoints import MODEL, save

    folders = {}

    def saved(cls, counts, **kwargs):
        """A size in ``counts`` goes into the file, as an older Bridge wrote it."""
        key = repr((cls, counts, kwargs))
        if key not in folders:
            sizes = {name: value for name, value in counts.items() if name == "gtp_weight_remat_size"}
            shards = {name: value for name, value in counts.items() if name not in sizes}
            model = cls(**{**MODEL, **kwargs}, tensor_model_parallel_size=4, **shards)
            folders[key] = save(model, tmp_path_factory.mktemp("saved"), **sizes)
        return folders[key]

    return saved


@pytest.fixture
def hooked():
    with shim.installed():
        yield
