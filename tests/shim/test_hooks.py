"""The hooks themselves: on, off, and what is left of them; and the count that they put in."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import yaml
from bridge_machine.checkpoints import MODEL, RELEASED
from megatron.bridge.models import gpt_provider
from megatron.bridge.training import model_load_save
from megatron.bridge.training.model_load_save import load_model_config  # bound before the hooks are on
from megatron.core.model_parallel_config import ModelParallelConfig

from gtp_migrate import shim
from gtp_migrate.shards import AXES
from gtp_migrate.shim.hooks import HOOKS, INSTALLATION
from gtp_migrate.shim.install import Hook, Installation, allow_gtp_reshard

COUNTS = [name for axis in AXES for name in (axis.num_weight_shards, axis.gtp_size)]
NEMO_RL = "nemo_rl.models.megatron.setup"
ON_BRIDGE = [hook for hook in HOOKS if hook.module != NEMO_RL]


def place(hook):
    owner = importlib.import_module(hook.module)
    *path, name = hook.target.partition(":")[2].split(".")
    for step in path:
        owner = getattr(owner, step)
    return owner, name


def everything():
    """All attributes of all hooked modules and of the classes they and the hooks concern."""
    owners = [importlib.import_module(hook.module) for hook in ON_BRIDGE] + [model_load_save, gpt_provider]
    owners += [value for owner in list(owners) for value in vars(owner).values() if isinstance(value, type)]
    owners += ModelParallelConfig.__subclasses__()
    return {
        (id(owner), name): value
        for owner in owners
        for name, value in vars(owner).items()
        if name not in ("__dict__", "__weakref__", "__doc__")
    }


def changed(before, after):
    return [key for key in before if before[key] is not after.get(key)]


def test_uninstall_puts_the_very_same_objects_back(bridge, saved):
    folder = saved(bridge.provider, {})
    before = everything()
    shim.install()
    load_model_config(folder)
    assert len(changed(before, everything())) >= len(ON_BRIDGE)
    shim.uninstall()
    after = everything()
    assert before.keys() == after.keys()
    assert changed(before, after) == []
    assert INSTALLATION not in sys.meta_path


@pytest.mark.parametrize("hook", ON_BRIDGE, ids=lambda hook: hook.target)
def test_every_hook_finds_its_place_in_this_bridge(hook):
    owner, name = place(hook)
    plain = vars(owner)[name]
    described = inspect.signature(getattr(owner, name)), getattr(owner, name).__doc__, getattr(owner, name).__qualname__
    with shim.installed():
        assert vars(owner)[name] is not plain
        hooked = getattr(owner, name)
        assert (inspect.signature(hooked), hooked.__doc__, hooked.__qualname__) == described
        if hooked.__module__ == hook.module:
            assert pickle.loads(pickle.dumps(hooked)) == hooked
    assert hook.why


def test_install_is_idempotent():
    shim.install()
    first = everything()
    shim.install(allow_gtp_reshard=True)
    assert changed(first, everything()) == []
    assert sys.meta_path.count(INSTALLATION) == 1
    shim.uninstall()
    shim.uninstall()
    assert not INSTALLATION.on


def test_install_from_many_threads():
    before = everything()
    start = threading.Barrier(8)
    failures = []

    def run(number):
        try:
            start.wait()
            for _ in range(20):
                if number % 2:
                    with shim.installed():
                        assert INSTALLATION.on
                else:
                    shim.install()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert INSTALLATION.on
    shim.uninstall()
    assert changed(before, everything()) == []


def test_eight_threads_that_load_at_the_same_time(bridge, saved, hooked):
    folders = {
        tp: saved(bridge.provider, {"tensor_parallel_num_weight_shards": 4 * size}) for tp, size in ((4, 3), (2, 2))
    }
    wrong = []

    def run(number):
        tp = (4, 2)[number % 2]
        for _ in range(3):
            config, _ = load_model_config(folders[tp])
            config.tensor_model_parallel_size = tp
            config.finalize()
            if config.gtp_weight_remat_size != {4: 3, 2: 1}[tp]:
                wrong.append(config.gtp_weight_remat_size)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_installed_leaves_things_as_they_were(monkeypatch):
    with pytest.raises(RuntimeError), shim.installed():
        raise RuntimeError
    assert not INSTALLATION.on
    shim.install()
    with shim.installed(allow_gtp_reshard=True):
        assert allow_gtp_reshard()
        with shim.installed():
            assert allow_gtp_reshard()
        with shim.installed(allow_gtp_reshard=False):
            assert not allow_gtp_reshard()
    assert INSTALLATION.on
    assert not allow_gtp_reshard()
    monkeypatch.setenv("GTP_MIGRATE_ALLOW_RESHARD", "1")
    assert allow_gtp_reshard()
    shim.install(allow_gtp_reshard=False)
    assert not allow_gtp_reshard()


def test_after_uninstall_a_config_holds_what_bridge_loaded(bridge, saved):
    folder = saved(bridge.provider, {"tensor_parallel_num_weight_shards": 12})
    plain, _ = load_model_config(folder)
    with shim.installed():
        config, _ = load_model_config(folder)
    for one in (config, copy.deepcopy(config)):
        assert [getattr(one, name) for name in COUNTS] == [getattr(plain, name) for name in COUNTS]
    config.finalize()
    plain.finalize()
    assert [getattr(config, name) for name in COUNTS] == [getattr(plain, name) for name in COUNTS]


def test_a_name_bound_while_the_hooks_are_on_passes_through_once_they_are_off(saved):
    from megatron.bridge.training.utils import checkpoint_utils

    folder = saved(RELEASED.provider, {"tensor_parallel_num_weight_shards": 12})
    with shim.installed():
        kept = checkpoint_utils.read_run_config
        count = kept(f"{folder}/run_config.yaml")["model"]["tensor_parallel_num_weight_shards"]
        assert type(count) is not int
    assert type(kept(f"{folder}/run_config.yaml")["model"]["tensor_parallel_num_weight_shards"]) is int


def test_what_somebody_put_over_a_hook_stays(tmp_path, monkeypatch):
    (tmp_path / "some_module.py").write_text("def f(): return 'original'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installation = Installation((Hook("some_module:f", lambda original: "hooked", ""),))
    installation.put_on()
    module = importlib.import_module("some_module")
    hooked = module.f
    assert hooked() == "hooked"
    module.f = lambda: f"theirs over {hooked()}"
    installation.take_off()
    assert module.f() == "theirs over original"
    del sys.modules["some_module"]


def test_two_installations_at_the_same_time(tmp_path, monkeypatch):
    (tmp_path / "some_module.py").write_text("def f(): return 'original'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first, second = (
        Installation((Hook("some_module:f", lambda original, name=name: f"{name} over {original()}", ""),))
        for name in ("first", "second")
    )
    first.put_on()
    second.put_on()
    module = importlib.import_module("some_module")
    assert module.f() in ("first over second over original", "second over first over original")
    first.take_off()
    second.take_off()
    assert module.f() == "original"
    del sys.modules["some_module"]


def test_a_module_that_somebody_blocked_stays_blocked(monkeypatch):
    monkeypatch.setitem(sys.modules, "some_module", None)
    installation = Installation((Hook("some_module:f", lambda original: None, ""),))
    installation.put_on()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("some_module")
    installation.take_off()


def test_a_missing_target_is_skipped_and_named(caplog):
    caplog.set_level(logging.DEBUG, "gtp_migrate.shim")
    gone = Hook("megatron.bridge.training.checkpointing:no_longer_there", lambda original: None, "")
    installation = Installation((gone,))
    installation.put_on()
    installation.take_off()
    (record,) = [record for record in caplog.records if record.name == "gtp_migrate.shim"]
    assert record.levelno == logging.DEBUG
    assert "no_longer_there" in record.getMessage()


def test_with_this_bridge_nothing_is_said(caplog):
    caplog.set_level(logging.DEBUG, "gtp_migrate.shim")
    shim.install()
    assert [record for record in caplog.records if record.name == "gtp_migrate.shim"] == []


@pytest.fixture
def count(saved, hooked):
    return load_model_config(saved(RELEASED.provider, {"tensor_parallel_num_weight_shards": 12}))[
        0
    ].tensor_parallel_num_weight_shards


class TestCount:
    def test_is_the_number_it_was(self, count):
        assert (count, repr(count), str(count), f"{count:03d}", hash(count)) == (12, "12", "12", "012", hash(12))
        assert type(count + 1) is int
        assert json.dumps({"a": count}) == '{"a": 12}'
        assert yaml.safe_dump([count]) == yaml.dump([count]) == "- 12\n"

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_a_process_with_the_package_gets_the_same(self, count, protocol):
        for again in (pickle.loads(pickle.dumps(count, protocol)), copy.copy(count), copy.deepcopy(count)):
            assert (type(again), again, again.origin) == (type(count), count, count.origin)

    def test_a_process_without_the_package_gets_a_plain_number(self, count, tmp_path):
        code = "import pickle, sys; n = pickle.load(sys.stdin.buffer); print(n, [type(v).__name__ for v in n.values()])"
        done = subprocess.run(
            [str(Path(sys.base_prefix) / "bin" / "python3"), "-I", "-c", code],
            input=pickle.dumps({"count": count}),
            capture_output=True,
            check=True,
        )
        assert done.stdout.decode() == "{'count': 12} ['int']\n"


def test_a_class_defined_while_the_hooks_are_on(saved, hooked):
    class Late(gpt_provider.GPTModelProvider):
        def finalize(self):
            self.seen = self.tensor_parallel_num_weight_shards
            super().finalize()

    config, _ = load_model_config(saved(RELEASED.provider, {"tensor_parallel_num_weight_shards": 12}))
    built = Late(**{**MODEL, "tensor_parallel_num_weight_shards": config.tensor_parallel_num_weight_shards})
    built.tensor_model_parallel_size = 8
    built.finalize()
    assert built.seen is None
    shim.uninstall()
    assert type(vars(Late)["finalize"]) is types.FunctionType
    assert not hasattr(vars(Late)["finalize"], "__wrapped__")


def test_importing_and_installing_imports_nothing_heavy():
    code = "import sys; from gtp_migrate import shim; shim.install(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {"torch", "megatron", "typer", "ruamel", "rich", "omegaconf", "yaml", "wrapt", "asyncio", "numpy"}
    assert "gtp_migrate" in imported
    assert imported & heavy == set()


BEFORE = """
import sys; sys.path.insert(0, sys.argv[1])
import gtp_migrate.autoshim
import bridge_machine
bridge_machine.start()
from megatron.bridge.training.model_load_save import load_model_config
for tp in (4, 2, 8):
    config, _ = load_model_config(sys.argv[2])
    config.tensor_model_parallel_size = tp
    config.finalize()
    print("got", tp, config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size)
"""


def test_installed_before_bridge_is_imported(saved):
    folder = saved(RELEASED.provider, {"tensor_parallel_num_weight_shards": 12})
    arguments = [sys.executable, "-W", "ignore", "-c", BEFORE, str(Path(__file__).parents[1]), folder]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("got")] == [
        "got 4 12 3",
        "got 2 None 1",
        "got 8 None 1",
    ]
