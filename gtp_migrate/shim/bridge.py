"""The hooks into Megatron-Bridge and Megatron-Core: one small wrapper a target, listed in :data:`HOOKS`.

They sit where each way into a checkpoint passes at the moment of the call, not at its public front:
``load_model_config`` looks its helpers up when it runs, so whoever bound it by name before the hooks were
put on is covered as well. Read in Bridge 0.6.2 and Core 0.19.2.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

import wrapt

from gtp_migrate.shim import loaded, weights
from gtp_migrate.shim.loaded import counts_of
from gtp_migrate.shim.log import logger, say
from gtp_migrate.shim.patches import Patches
from gtp_migrate.shim.topology import COUNTS, model_section, read_yaml, run_config_path, transformer_config

BUILT_FOR = "megatron-bridge 0.6.2 and main of September 2026"
LOAD = "load"
DECIDE = "decide"
READ_WEIGHTS = "read weights"

_TRAINING = "megatron.bridge.training"
_CONFIGS = "megatron.bridge.models.transformer_config"

#: Where the recorded counts travel from rank 0 to the others; no caller of read_run_config sees it.
_RECORDED = "_gtp_migrate_recorded"

_reading: ContextVar[bool] = ContextVar("gtp_migrate_reading", default=False)
_last_args: ContextVar[tuple[str, Any] | None] = ContextVar("gtp_migrate_args", default=None)
_yaml: ContextVar[str | None] = ContextVar("gtp_migrate_yaml", default=None)

#: Guards the list of patches against threads that install, uninstall, load or import at the same time.
lock = threading.RLock()
#: The hooks, while they are on.
installation: Installation | None = None
#: Modules with a post-import hook that has not fired; wrapt's cannot be taken back.
_awaited: set[str] = set()


def _first(args: Any, kwargs: Any, name: str) -> Any:
    return args[0] if args else kwargs.get(name)


def _folder(path: str) -> str:
    return os.path.dirname(path) or os.curdir


# What a config is loaded from.


def _recorded_before_stripping(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``read_run_config`` strips fields a class does not take, the GTP size of old checkpoints among them.

    It does so on rank 0 and broadcasts the result: what was recorded travels in it, as plain data.
    """
    raw = _first(args, kwargs, "config_dict")
    run_config = wrapped(*args, **kwargs)
    if _reading.get() and isinstance(raw, Mapping) and isinstance(run_config, dict):
        run_config[_RECORDED] = counts_of(raw.get("model"))
    return run_config


def _read_run_config(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    token = _reading.set(True)
    try:
        run_config = wrapped(*args, **kwargs)
    finally:
        _reading.reset(token)
    if isinstance(run_config, dict):
        recorded = run_config.pop(_RECORDED, None)
        loaded.keep_read(run_config, str(_first(args, kwargs, "run_config_filename")), recorded)
    return run_config


def _build_from_model_section(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``instantiate`` and ``ModelConfig.from_dict``, where given the model section of a file Bridge read."""
    config = wrapped(*args, **kwargs)
    for argument in (*args, *kwargs.values()):
        read = loaded.read_as(argument)
        if read is not None:
            _remember(config, read.recorded, _folder(read.path))
    return config


def _from_yaml(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    token = _yaml.set(str(_first(args, kwargs, "yaml_path")))
    try:
        return wrapped(*args, **kwargs)
    finally:
        _yaml.reset(token)


def _from_dict(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``ConfigContainer.from_dict``, where ``from_yaml`` calls it."""
    path = _yaml.get()
    _yaml.set(None)
    container = wrapped(*args, **kwargs)
    raw = _first(args, kwargs, "config_dict")
    if path is not None and isinstance(raw, Mapping):
        _remember(getattr(container, "model", None), counts_of(raw.get("model")), _folder(path))
    return container


def _load_args(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    saved_args = wrapped(*args, **kwargs)
    _last_args.set((str(_first(args, kwargs, "checkpoint_path")), saved_args))
    return saved_args


def _config_from_args(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Megatron-LM's saved args: Core's config class finalizes itself, so it says all there is to know."""
    config = wrapped(*args, **kwargs)
    last = _last_args.get()
    known = last is not None and last[1] is _first(args, kwargs, "args")
    _remember(config, {}, last[0] if known and last is not None else "the Megatron-LM checkpoint")
    return config


def _load_model_config(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A second net, should a later Bridge look the helpers above up where they are not hooked."""
    result = wrapped(*args, **kwargs)
    config = result[0] if isinstance(result, tuple) and result else result
    if loaded.MEMORY not in getattr(transformer_config(config), "__dict__", ()):
        checkpoint = str(_first(args, kwargs, "checkpoint_path"))
        try:
            recorded = counts_of(model_section(read_yaml(run_config_path(checkpoint))))
        except (OSError, ValueError):
            recorded = {}
        _remember(config, recorded, checkpoint)
    return result


def _remember(config: Any, recorded: Mapping[str, Any], checkpoint: str) -> None:
    if not hasattr(config, "__dict__"):
        return
    try:
        loaded.remember(config, recorded, checkpoint, _watch_counts)
    except Exception as error:  # a load that worked must not fail by this
        say(logging.WARNING, f"{checkpoint}: shard counts are left as loaded: {error!r}")


# When it is decided.


def _derive(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``finalize`` and ``__post_init__``. NeMo-RL may call only the latter before it uses the config."""
    if loaded.MEMORY not in getattr(instance, "__dict__", ()):
        return wrapped(*args, **kwargs)
    loaded.settle(instance)
    with loaded.deriving(instance):
        return wrapped(*args, **kwargs)


def _settle_argument(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_get_model``: nobody finalizes the config of a Megatron-LM checkpoint again once TP is set."""
    loaded.settle_all(kwargs.get("model_cfg", args[2] if len(args) > 2 else None))
    return wrapped(*args, **kwargs)


def _settle_model(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``ConfigContainer.to_dict`` writes run_config.yaml, whether or not the model config was finalized."""
    loaded.settle_all(getattr(instance, "model", None))
    return wrapped(*args, **kwargs)


def _repeat(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_apply_overrides`` sets every field again after merging command-line overrides."""
    with loaded.repeating():
        return wrapped(*args, **kwargs)


@dataclass(frozen=True)
class Hook:
    """One function to wrap: ``module:attribute`` or ``module:Class.attribute``."""

    role: str
    target: str
    wrapper: Callable[..., Any]

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def put_on(self, patches: Patches) -> bool:
        """Wrap the target in its imported module; False where it is not there."""
        owner: Any = sys.modules[self.module]
        *path, name = self.target.partition(":")[2].split(".")
        for step in path:
            owner = getattr(owner, step, None)
        return owner is not None and patches.wrap(owner, name, self.wrapper)


HOOKS = (
    Hook(LOAD, f"{_TRAINING}.utils.checkpoint_utils:read_run_config", _read_run_config),
    Hook(LOAD, f"{_TRAINING}.checkpointing:read_run_config", _read_run_config),
    Hook(
        LOAD,
        f"{_TRAINING}.utils.checkpoint_utils:apply_run_config_backward_compat",
        _recorded_before_stripping,
    ),
    Hook(LOAD, "megatron.bridge.utils.instantiate_utils:instantiate", _build_from_model_section),
    Hook(LOAD, "megatron.training.models.base:ModelConfig.from_dict", _build_from_model_section),
    Hook(LOAD, "megatron.training.config.container:ConfigContainerBase.from_yaml", _from_yaml),
    Hook(LOAD, "megatron.training.config.container:ConfigContainerBase.from_dict", _from_dict),
    Hook(LOAD, f"{_TRAINING}.mlm_compat.arguments:_load_args_from_checkpoint", _load_args),
    Hook(LOAD, f"{_TRAINING}.mlm_compat.arguments:_transformer_config_from_args", _config_from_args),
    Hook(LOAD, f"{_TRAINING}.model_load_save:load_model_config", _load_model_config),
    Hook(DECIDE, "megatron.core.model_parallel_config:ModelParallelConfig.__post_init__", _derive),
    Hook(DECIDE, f"{_TRAINING}.mlm_compat.model:_get_model", _settle_argument),
    Hook(DECIDE, "megatron.training.config.container:ConfigContainerBase.to_dict", _settle_model),
    Hook(DECIDE, f"{_TRAINING}.utils.omegaconf_utils:_apply_overrides", _repeat),
    Hook(
        READ_WEIGHTS,
        f"{_TRAINING}.checkpointing:_load_model_weights_from_checkpoint",
        weights.before_model_weights,
    ),
    Hook(READ_WEIGHTS, f"{_TRAINING}.checkpointing:_load_base_checkpoint", weights.after_base_checkpoint),
)


class Installation:
    """The hooks while they are on: put on as their modules are imported, taken off all at once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.waiting = list(HOOKS)
        self.classes_wait = True
        self.load_hooks_on = 0
        self.warned = False

    def put_on(self, just_imported: str | None = None) -> None:
        """Hook every module that is imported and was not at the last call."""

        def ready(module: str) -> bool:
            spec = getattr(sys.modules.get(module), "__spec__", None)
            return module == just_imported or (spec is not None and not getattr(spec, "_initializing", False))

        for hook in [hook for hook in self.waiting if ready(hook.module)]:
            self.waiting.remove(hook)
            if not hook.put_on(self.patches):
                logger.debug("skipped: this Bridge has no %s", hook.target)
            elif hook.role == LOAD:
                self.load_hooks_on += 1
        if self.classes_wait and ready(_CONFIGS):
            self.classes_wait = False
            self._hook_config_classes()
        if ready("megatron.bridge") and not self.warned and not self.load_hooks_on:
            self._warn_if_nothing_fits()

    def watch_counts(self, cls: type) -> None:
        """Put the descriptors on ``cls`` and its bases, wherever a count field has its default."""
        for base in cls.__mro__:
            for name in COUNTS:
                default = vars(base).get(name, self)
                if default is not self and not isinstance(default, loaded.CountField):
                    self.patches.put(base, name, loaded.CountField(name, default))

    def _hook_config_classes(self) -> None:
        """Bridge's config classes and all below them, those defined later too: each with a ``finalize()`` or
        ``__post_init__()`` of its own may look at the counts before it calls its base's."""
        base: Any = getattr(sys.modules[_CONFIGS], "TransformerConfig", None)
        if not inspect.isclass(base):
            logger.debug("skipped: this Bridge has no %s:TransformerConfig", _CONFIGS)
            return

        def hook(cls: type) -> None:
            for name in ("finalize", "__post_init__"):
                self.patches.wrap(cls, name, _derive)

        def init_subclass(cls: type, /, **kwargs: Any) -> None:
            super(base, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
            with lock:
                if self.patches.on:
                    hook(cls)

        classes: list[Any] = [base]
        for cls in classes:
            hook(cls)
            self.watch_counts(cls)
            classes += [below for below in cls.__subclasses__() if below not in classes]
        self.patches.put(base, "__init_subclass__", classmethod(init_subclass))

    def _warn_if_nothing_fits(self) -> None:
        if any(hook.role == LOAD and _exists(hook.module) for hook in self.waiting):
            return
        self.warned = True
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("megatron-bridge")
        except PackageNotFoundError:
            found = "of unknown version"
        say(
            logging.WARNING,
            f"megatron-bridge {found} has none of the places where gtp-migrate hooks into the loading of "
            f"checkpoints (it was built for {BUILT_FOR}): shard counts are not reset",
        )


def _exists(module: str) -> bool:
    """Whether the module could be imported, found without importing anything."""
    path = None
    for name in itertools.accumulate(module.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def _watch_counts(cls: type) -> None:
    with lock:
        if installation is not None:
            installation.watch_counts(cls)


def put_on() -> None:
    """Hook what is imported, and the rest once it is. Does nothing where the hooks are on."""
    global installation
    modules = dict.fromkeys([*(hook.module for hook in HOOKS), _CONFIGS, "megatron.bridge"])
    for name in modules:
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            importlib.import_module(name)  # another thread is at it: wait, before taking the lock it may need
    with lock:
        if installation is None:
            installation = Installation()
        installation.put_on()
        missing = [name for name in modules if name not in sys.modules and name not in _awaited]
        _awaited.update(missing)
    for name in missing:
        wrapt.register_post_import_hook(_imported, name)


def take_off() -> None:
    """Put everything back. Does nothing where the hooks are off."""
    global installation
    with lock:
        if installation is not None:
            installation.patches.restore()
            installation = None


def _imported(module: Any) -> None:
    with lock:
        _awaited.discard(module.__name__)
        if installation is not None:
            installation.put_on(module.__name__)
