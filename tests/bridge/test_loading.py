"""What `--explain` says of a checkpoint's config, against the real Bridge and Core, and against the shim itself."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest
import yaml
from bridge_machine import checkpoints
from bridge_machine.checkpoints import MODEL, MOE

from gtp_migrate import shim
from gtp_migrate.ask.loading import EVERYWHERE, loads
from gtp_migrate.ask.run_config import read_run_config
from gtp_migrate.shards import AXES

SAVED = [
    {"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 12},
    {"tensor_model_parallel_size": 4, "gtp_weight_remat_size": 3},
    {"tensor_model_parallel_size": 4},
    {"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 4},
    {
        "tensor_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_num_weight_shards": 2,
        **MOE,
    },
    {
        "tensor_model_parallel_size": 2,
        "expert_tensor_parallel_size": 2,
        "gtp_weight_remat_size": 2,
        "expert_gtp_weight_remat_size": 3,
        **MOE,
    },
]


def loaded(bridge, section, tp, etp, ep, with_shim):
    """The GTP sizes of a provider as Bridge makes it of a saved section, with this run's parallel sizes; None where
    `finalize()` raises."""
    fields = {name: field for name, field in bridge.provider.__dataclass_fields__.items() if field.init}
    known = {name: value for name, value in section.items() if name in fields and not isinstance(value, (dict, list))}
    provider = bridge.provider(**known)
    for name, value in (("tensor", tp), ("expert_tensor", etp), ("expert_model", ep)):
        field = f"{name}_model_parallel_size" if name == "tensor" else f"{name}_parallel_size"
        if value is not None:
            setattr(provider, field, value)
    provider.sequence_parallel = False
    if with_shim:
        shim.reset_weight_shards(provider, deepcopy(section))
    try:
        provider.finalize()
    except ValueError:
        return None
    return {axis: getattr(provider, axis.gtp_size) for axis in AXES}


@pytest.mark.parametrize("fields", SAVED, ids=lambda fields: "-".join(map(str, fields.values()))[:40])
@pytest.mark.parametrize("bridge", [checkpoints.RELEASED, checkpoints.NEW], ids=lambda bridge: bridge.name)
def test_every_load(tmp_path: Path, bridge, fields) -> None:
    """Saved by the released Bridge, loaded by both at every TP, with and without the shim: GTP is what is said."""
    folder = checkpoints.save(checkpoints.RELEASED.provider(**MODEL, **fields), tmp_path / "checkpoint")
    data = Path(folder, "run_config.yaml").read_bytes()
    section = yaml.safe_load(data)["model"]
    saved = read_run_config(data, "run_config.yaml")
    assert saved is not None
    is_moe = "num_moe_experts" in fields
    for tp, etp, ep in product(
        (None, 1, 2, 4, 8), (None, 1, 2) if is_moe else (None,), (None, 1) if is_moe else (None,)
    ):
        found = {load.axis: load.results for load in loads(saved, tp, etp, ep)}
        for index, where in enumerate(EVERYWHERE):
            if where.is_new is (bridge is checkpoints.NEW):
                results = {axis: each[index] for axis, each in found.items()}
                real = loaded(bridge, section, tp, etp, ep, where.has_shim)
                assert (real is None) is any(result.error for result in results.values()), (tp, etp, ep, where)
                if real is not None:
                    assert {axis: result.gtp for axis, result in results.items()} == {
                        axis: real[axis] for axis in results
                    }, (tp, etp, ep, where)
