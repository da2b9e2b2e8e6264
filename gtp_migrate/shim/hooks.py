"""Every hook of the shim: what is done there, and in one table where, why, and which versions have the place."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from gtp_migrate.shards import AXES
from gtp_migrate.shim.install import Hook, Installation
from gtp_migrate.shim.reset import read_yaml
from gtp_migrate.shim.saved import SavedCount, decide, has_recorded, mark_config, marked, parallel_sizes
from gtp_migrate.shim.weights import load

Original = Callable[..., Any]
#: In the __dict__ of a config that was made with recorded counts.
_MADE = "_gtp_migrate_made"


def before_stripping(original: Original, config_dict: Any, *args: Any, **kwargs: Any) -> Any:
    """``apply_run_config_backward_compat(config_dict)``; its result is broadcast, in plain numbers."""
    return original(marked(config_dict, None), *args, **kwargs)


def read_run_config(original: Original, run_config_filename: Any, *args: Any, **kwargs: Any) -> Any:
    """What Bridge keeps in its cache stays as it is."""
    return marked(original(run_config_filename, *args, **kwargs), _folder(run_config_filename))


def from_yaml(original: Original, cls: type, yaml_path: Any, *args: Any, **kwargs: Any) -> Any:
    """The file is read once more: the container knows nothing of a size that the class does not take."""
    container = original(cls, yaml_path, *args, **kwargs)
    try:
        recorded = read_yaml(yaml_path)
    except (OSError, ValueError):  # no plain file: what the config holds has to do
        recorded = {"model": getattr(getattr(container, "model", None), "__dict__", None)}
    mark_config(container, recorded, _folder(yaml_path))
    return container


def from_megatron_lm(original: Original, *args: Any, **kwargs: Any) -> Any:
    """Core's class is finalized when it is made: it holds what the arguments recorded."""
    config = original(*args, **kwargs)
    mark_config(config, vars(config), _folder("the Megatron-LM checkpoint/"))
    return config


def _folder(path: Any) -> str:
    """The checkpoint's folder. From here on there are recorded counts, which PyYAML writes as the numbers they are."""
    import yaml

    for dumper in (yaml.representer.SafeRepresenter, yaml.SafeDumper, yaml.representer.Representer, yaml.Dumper):
        dumper.add_representer(SavedCount, lambda dumper, count: dumper.represent_int(int(count)))
    return os.path.dirname(os.fspath(path)) or os.curdir


def to_omegaconf(original: Original, *args: Any, **kwargs: Any) -> Any:
    """A recorded count goes in as an interpolation of itself, and comes out as what it was, unless an override has
    put a number in its place."""
    value = original(*args, **kwargs)
    if not isinstance(value, SavedCount):
        return value
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("gtp_migrate.saved", lambda text: pickle.loads(bytes.fromhex(text)), replace=True)
    return f"${{gtp_migrate.saved:'{pickle.dumps(value).hex()}'}}"


def finalize(original: Original, config: Any, *args: Any, **kwargs: Any) -> Any:
    """Here it is decided."""
    decide(config)
    # A distillation student sets on its teacher whatever is set on it, the sizes it derives too.
    teacher = getattr(getattr(config, "__dict__", {}).get("teacher"), "__dict__", {})
    own = {axis.gtp_size: teacher[axis.gtp_size] for axis in AXES if axis.gtp_size in teacher}
    result = original(config, *args, **kwargs)
    teacher.update(own)
    return result


def constructed(original: Original, config: Any, *args: Any, **kwargs: Any) -> Any:
    """Called by ``__init__``, before this run has set anything, and by NeMo-RL, which without overrides does not call
    ``finalize()``."""
    for cls in type(config).__mro__:
        INSTALLATION.wrap(cls, "finalize", finalize)
    if vars(config).get(_MADE):
        decide(config)
    elif has_recorded(config):
        vars(config)[_MADE] = True
    return original(config, *args, **kwargs)


def decide_first(original: Original, *args: Any, **kwargs: Any) -> Any:
    """For the configs in the arguments, nested ones included."""
    for argument in (*args, *kwargs.values()):
        config = getattr(argument, "model", argument)
        for part in (config, *getattr(config, "__dict__", {}).values()):
            decide(part)
    return original(*args, **kwargs)


def build_inference_model(
    original: Original, policy_cfg: Any, megatron_cfg: Any, initial_model_provider: Any, *args: Any, **kwargs: Any
) -> Any:
    """The counts of the training run ride along with the copy: 12 shards of TP 4 become GTP 12 at TP 1. They are
    pinned to the copy's own TP and ETP, as NeMo-RL's pull request 3857 does, unless the generation config sets them.
    """
    # Whether NeMo-RL has typed the counts (3857 does both at once), or its function handles them itself.
    typed = getattr(sys.modules.get("nemo_rl.models.policy"), "MegatronConfig", None)
    code = getattr(original, "__code__", None)
    known = {*getattr(typed, "__annotations__", ()), *getattr(code, "co_names", ()), *getattr(code, "co_consts", ())}
    if known.isdisjoint(axis.num_weight_shards for axis in AXES):
        asked = (policy_cfg.get("generation") or {}).get("mcore_generation_config") or {}
        asked = {**(asked.get("model_overrides") or {}), **asked}
        for axis, parallel_size in parallel_sizes(policy_cfg["megatron_cfg"]).items():
            setattr(initial_model_provider, axis.num_weight_shards, asked.get(axis.num_weight_shards) or parallel_size)
    return original(policy_cfg, megatron_cfg, initial_model_provider, *args, **kwargs)


_BRIDGE = "megatron.bridge.training."
_UTILS = _BRIDGE + "utils."
_CONTAINER = "megatron.training.config.container:ConfigContainerBase."
_CONFIGS = [
    f"megatron.bridge.models.transformer_config:{name}TransformerConfig." for name in ("", "MLA", "Heterogeneous")
]
_CKPT = "megatron.core.dist_checkpointing"

#: Read in Bridge 0.6.2, the oldest looked at, with Core 0.19.2, in Bridge main of September 2026, and in NeMo-RL at
#: 7ea279ab: all of them have the places. A target that is not there is skipped and named at DEBUG.
HOOKS = (
    # A recorded count becomes one that knows where it belongs.
    Hook(_UTILS + "checkpoint_utils:apply_run_config_backward_compat", before_stripping,
         "drops, on rank 0, what a class does not take: a GTP size without a count would be lost"),
    Hook(_UTILS + "checkpoint_utils:read_run_config", read_run_config,
         "load_model_config, load_megatron_model, AutoBridge and NeMo-RL read run_config.yaml with it"),
    Hook(_BRIDGE + "checkpointing:read_run_config", read_run_config, "load_model_config imports it from here"),
    Hook(_CONTAINER + "from_yaml", from_yaml, "reads run_config.yaml by itself"),
    Hook(_BRIDGE + "mlm_compat.arguments:_transformer_config_from_args", from_megatron_lm,
         "the config of a Megatron-LM checkpoint comes from its saved arguments"),
    Hook(_UTILS + "omegaconf_utils:_dataclass_to_omegaconf_dict", to_omegaconf,
         "command-line overrides go through OmegaConf, which takes no subclass of int"),
    # It is decided what becomes of it.
    *[Hook(config + "finalize", finalize, "this run's sizes are set; new Bridge derives GTP sizes here")
      for config in _CONFIGS],
    *[Hook(config + "__post_init__", constructed, "finds subclasses: their finalize() looks at counts first")
      for config in _CONFIGS],
    Hook("megatron.core.model_parallel_config:ModelParallelConfig.__post_init__", finalize,
         "Core's own classes derive the GTP sizes here"),
    Hook(_BRIDGE + "mlm_compat.model:_get_model", decide_first,
         "nobody finalizes the config of a Megatron-LM checkpoint again once this run's TP is set"),
    Hook(_CONTAINER + "to_dict", decide_first, "writes run_config.yaml, finalized or not"),
    # Weights.
    Hook(_CKPT + ".serialization:load", load, "every read of a torch_dist checkpoint, adapters included"),
    Hook(_CKPT + ":load", load, "the same function, by the name that Bridge and NeMo-RL call"),
    Hook("nemo_rl.models.megatron.setup:build_inference_model", build_inference_model,
         "the colocated generation model is a copy of the training provider at another TP; stands back where NeMo-RL "
         "has pull request 3857"),
)  # fmt: skip
INSTALLATION = Installation(HOOKS)
