"""The hooks themselves: on, off, and what is left of them."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from bridge_machine.checkpoints import MODEL, save
from megatron.bridge.models import gpt_provider, transformer_config
from megatron.bridge.models.mamba.mamba_provider import MambaModelProvider
from megatron.bridge.training import model_load_save
from megatron.bridge.training.model_load_save import load_model_config  # bound before the hooks are on
from megatron.core.model_parallel_config import ModelParallelConfig

from gtp_migrate import shim
from gtp_migrate.shim import bridge as hooks
from gtp_migrate.shim.bridge import HOOKS
from gtp_migrate.shim.patches import Patches, Wrapper
from gtp_migrate.shim.topology import COUNTS

SIZE = "gtp_weight_remat_size"
TESTS = str(Path(__file__).parents[1])


def everything():
    """All attributes of all hooked modules and of the classes they and the hooks concern."""
    owners = [importlib.import_module(hook.module) for hook in HOOKS]
    owners += [importlib.import_module(name) for name in ("megatron.bridge.models.transformer_config",)]
    owners += [model_load_save, gpt_provider]
    owners += [value for owner in list(owners) for value in vars(owner).values() if isinstance(value, type)]
    owners += [*ModelParallelConfig.__subclasses__(), MambaModelProvider]
    return {
        (id(owner), name): value
        for owner in owners
        for name, value in vars(owner).items()
        if name not in ("__dict__", "__weakref__", "__doc__")
    }


def count_fields():
    return {name: vars(ModelParallelConfig)[name] for name in COUNTS}


def test_uninstall_puts_the_very_same_objects_back(bridge, tmp_path):
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4), tmp_path)
    before = everything()
    shim.install()
    load_model_config(folder)
    during = everything()
    assert sum(before[key] is not during.get(key) for key in before) >= len(HOOKS)
    shim.uninstall()
    after = everything()
    assert before.keys() == after.keys()
    assert [key for key in before if before[key] is not after[key]] == []
    assert count_fields() == COUNTS


def test_every_hook_finds_its_place_in_this_bridge():
    with shim.installed():
        assert hooks.installation.waiting == []
        assert hooks.installation.load_hooks_on == sum(hook.role == hooks.LOAD for hook in HOOKS)
        for hook in HOOKS:
            owner = importlib.import_module(hook.module)
            *path, name = hook.target.partition(":")[2].split(".")
            for step in path:
                owner = getattr(owner, step)
            assert type(vars(owner)[name]) is Wrapper, hook.target


def test_install_is_idempotent():
    shim.install()
    first = everything()
    shim.install(keep_gtp=True)
    again = everything()
    assert [key for key in first if first[key] is not again[key]] == []
    shim.uninstall()
    shim.uninstall()
    assert hooks.installation is None


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
                        assert hooks.installation is not None
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
    assert hooks.installation is not None
    shim.uninstall()
    after = everything()
    assert [key for key in before if before[key] is not after[key]] == []


def test_installed_leaves_things_as_they_were():
    with pytest.raises(RuntimeError), shim.installed():
        raise RuntimeError
    assert hooks.installation is None
    shim.install()
    with shim.installed(keep_gtp=True):
        assert shim.settings.keep_gtp()
        with shim.installed():
            assert shim.settings.keep_gtp()
    assert hooks.installation is not None
    assert not shim.settings.keep_gtp()


def test_options_last_as_long_as_who_asked_for_them():
    with shim.installed(keep_gtp=False):
        shim.install(keep_gtp=True)
        assert shim.settings.keep_gtp(), "the later call counts"
        with shim.installed(keep_gtp=False, allow_gtp_reshard=True):
            assert not shim.settings.keep_gtp()
        assert not shim.settings.allow_gtp_reshard()
    shim.install(allow_gtp_reshard=True)
    assert shim.settings.keep_gtp()
    assert shim.settings.allow_gtp_reshard()
    shim.uninstall()
    shim.install()
    assert not shim.settings.keep_gtp()
    assert not shim.settings.allow_gtp_reshard()


def test_options_of_one_thread_do_not_outlive_it_in_another():
    shim.install()
    first, second = shim.installed(keep_gtp=True), shim.installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not shim.settings.keep_gtp()
    second.__exit__(None, None, None)
    assert not shim.settings.keep_gtp()
    assert hooks.installation is not None


@pytest.mark.parametrize("recorded", ["shards", "size"])
def test_after_uninstall_a_config_holds_what_bridge_loaded(bridge, tmp_path, recorded):
    shards, size = ({"tensor_parallel_num_weight_shards": 12}, {}) if recorded == "shards" else ({}, {SIZE: 3})
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4, **shards), tmp_path, **size)
    plain, _ = load_model_config(folder)

    def counts(config):
        return {name: getattr(config, name) for name in COUNTS}

    with shim.installed():
        config, _ = load_model_config(folder)
        assert counts(config) == counts(plain)
    assert counts(config) == counts(plain)
    assert counts(copy.deepcopy(config)) == counts(plain)
    config.finalize()
    plain.finalize()
    assert counts(config) == counts(plain) != {}


def test_signatures_and_docstrings_stay():
    def described():
        result = {}
        for hook in HOOKS:
            owner = importlib.import_module(hook.module)
            *path, name = hook.target.partition(":")[2].split(".")
            for step in path:
                owner = getattr(owner, step)
            function = getattr(owner, name)
            result[hook.target] = (
                inspect.signature(function),
                function.__doc__,
                function.__name__,
                function.__qualname__,
                function.__module__,
            )
        for cls in (gpt_provider.GPTModelProvider, transformer_config.TransformerConfig):
            result[cls] = inspect.signature(cls), inspect.signature(cls.finalize), cls.finalize.__doc__
        return result

    before = described()
    with shim.installed():
        assert described() == before


def test_hooked_functions_pickle_by_name():
    from megatron.bridge.utils import instantiate_utils

    with shim.installed():
        data = pickle.dumps(instantiate_utils.instantiate)
        assert type(instantiate_utils.instantiate) is Wrapper
    assert callable(pickle.loads(data))
    assert type(pickle.loads(data)) is not Wrapper


def test_a_name_bound_while_the_hooks_are_on_is_put_back_too():
    from megatron.bridge.utils import instantiate_utils

    module = types.ModuleType("bound_meanwhile")
    original = instantiate_utils.instantiate
    sys.modules[module.__name__] = module
    try:
        with shim.installed():
            module.instantiate = kept = instantiate_utils.instantiate
        assert module.instantiate is original
        assert kept({"_target_": "megatron.core.enums.ModelType", "_call_": False}).__name__ == "ModelType"
    finally:
        del sys.modules[module.__name__]


def test_what_somebody_put_over_a_hook_stays():
    owner = types.SimpleNamespace(f=lambda: "original")
    patches = Patches()
    assert patches.wrap(owner, "f", lambda wrapped, instance, args, kwargs: "hooked")
    hooked = owner.f
    owner.f = lambda: f"theirs over {hooked()}"
    assert owner.f() == "theirs over hooked"
    patches.restore()
    assert owner.f() == "theirs over original"


def test_a_class_defined_while_the_hooks_are_on(tmp_path):
    with shim.installed():

        class Late(gpt_provider.GPTModelProvider):
            def finalize(self):
                self.seen = self.tensor_parallel_num_weight_shards
                super().finalize()

        provider = gpt_provider.GPTModelProvider(
            **MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
        )
        config, _ = load_model_config(save(provider, tmp_path))
        config.__class__ = Late
        config.tensor_model_parallel_size = 8
        config.finalize()
        assert config.seen is None
    assert type(vars(Late)["finalize"]) is types.FunctionType


def test_a_missing_target_is_skipped_and_named(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "gtp_migrate.shim")
    gone = hooks.Hook(hooks.DECIDE, "megatron.bridge.training.checkpointing:no_longer_there", lambda *a: None)
    monkeypatch.setattr(hooks, "HOOKS", (gone, *HOOKS))
    shim.install()
    (record,) = [record for record in caplog.records if record.name == "gtp_migrate.shim"]
    assert record.levelno == logging.DEBUG
    assert "no_longer_there" in record.getMessage()


@pytest.mark.parametrize("target", ["megatron.bridge.training.checkpointing:gone", "megatron.bridge.gone:gone"])
def test_where_no_load_hook_fits_it_warns(monkeypatch, caplog, target):
    monkeypatch.setattr(hooks, "HOOKS", (hooks.Hook(hooks.LOAD, target, lambda *a: None),))
    shim.install()
    (record,) = [record for record in caplog.records if record.name == "gtp_migrate.shim"]
    assert record.levelno == logging.WARNING
    assert "0.6.2" in record.getMessage()
    assert hooks.BUILT_FOR in record.getMessage()


@pytest.mark.parametrize(("tp", "right"), [(4, 3), (2, 1), (8, 1)])
@pytest.mark.parametrize("raw", [{"tensor_parallel_num_weight_shards": 12}, {"gtp_weight_remat_size": 3}])
def test_load_model_config_is_a_net_of_its_own(bridge, tmp_path, monkeypatch, raw, tp, right):
    """As if a later Bridge had moved all it calls."""
    own = "megatron.bridge.training.model_load_save:load_model_config"
    kept = tuple(hook for hook in HOOKS if hook.role == hooks.DECIDE or hook.target == own)
    monkeypatch.setattr(hooks, "HOOKS", kept)
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4), tmp_path, **raw)
    with shim.installed():
        config, _ = model_load_save.load_model_config(folder)
        config.tensor_model_parallel_size = tp
        config.finalize()
    assert config.gtp_weight_remat_size == right


def test_with_this_bridge_it_does_not_warn(caplog):
    shim.install()
    assert [record for record in caplog.records if record.name == "gtp_migrate.shim"] == []


def python(code):
    """Run code in a fresh interpreter, where Bridge is not imported."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=TESTS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_shim_imports_nothing_heavy():
    code = "import sys, gtp_migrate.shim; print(*sys.modules)"
    imported = {name.partition(".")[0] for name in python(code).split()}
    heavy = {"torch", "megatron", "typer", "ruamel", "rich", "omegaconf", "yaml", "wrapt", "asyncio", "numpy"}
    assert "gtp_migrate" in imported
    assert imported & heavy == set()


@pytest.mark.parametrize("line", ["from gtp_migrate import shim; shim.install()", "import gtp_migrate.autoshim"])
def test_installing_leaves_bridge_unimported(line):
    imported = python(f"import sys; {line}; print(*sys.modules)").split()
    assert "gtp_migrate.shim.bridge" in imported
    assert {name for name in imported if name.split(".")[0] in ("megatron", "torch")} == set()


BEFORE = """
import gtp_migrate.autoshim
import bridge_machine
bridge_machine.start()
from gtp_migrate import shim
from gtp_migrate.shim import bridge
from gtp_migrate.shim.patches import Wrapper
from megatron.bridge.training import checkpointing
from megatron.bridge.training.utils import checkpoint_utils
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.model_load_save import load_model_config
from bridge_machine.checkpoints import MODEL, save
import megatron.bridge.training.mlm_compat.model, megatron.bridge.training.utils.omegaconf_utils
import sys, tempfile, pathlib

print("waiting", len(bridge.installation.waiting))
folder = save(
    GPTModelProvider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12),
    pathlib.Path(tempfile.mkdtemp()),
)
for tp in (4, 2, 8):
    config, _ = load_model_config(folder)
    config.tensor_model_parallel_size = tp
    config.finalize()
    print(tp, config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size)
shim.uninstall()
print(checkpointing.read_run_config is checkpoint_utils.read_run_config)
print([name for module in sys.modules.values() for name in vars(module) if type(vars(module)[name]) is Wrapper])
"""


def test_installed_before_bridge_is_imported():
    said = [line for line in python(BEFORE).splitlines() if not line.startswith("INFO:")]
    assert said[-6:] == [
        "waiting 0",
        "4 12 3",
        "2 None 1",
        "8 None 1",
        "True",
        "[]",
    ]
