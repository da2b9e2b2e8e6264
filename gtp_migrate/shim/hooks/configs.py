"""Model configs: where a checkpoint's counts are read, and where it is decided what becomes of them."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gtp_migrate.shards import AXES
from gtp_migrate.shim.reset import read_yaml
from gtp_migrate.shim.saved import SavedCount, decide, has_recorded, mark_config, marked, parallel_sizes

Original = Callable[..., Any]
#: In the __dict__ of a config that was made with recorded counts.
_MADE = "_gtp_migrate_made"


def before_stripping(original: Original, config_dict: Any, *args: Any, **kwargs: Any) -> Any:
    """``apply_run_config_backward_compat(config_dict)``; its result is broadcast, in plain numbers."""
    if isinstance(config_dict, Mapping) and "model" in config_dict:
        config_dict = {**config_dict, "model": marked(config_dict["model"], None)}
    return original(config_dict, *args, **kwargs)


def read_run_config(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``read_run_config(run_config_filename)``. What Bridge keeps in its cache stays as it is."""
    run_config = original(*args, **kwargs)
    if isinstance(run_config, dict) and "model" in run_config:
        folder = _folder(args[0] if args else kwargs["run_config_filename"])
        return {**run_config, "model": marked(run_config["model"], folder)}
    return run_config


def from_yaml(original: Original, cls: type, *args: Any, **kwargs: Any) -> Any:
    """``ConfigContainer.from_yaml(yaml_path)``. The file is read once more: the container knows nothing of a size
    that the class does not take."""
    container = original(cls, *args, **kwargs)
    path = args[0] if args else kwargs["yaml_path"]
    model = getattr(container, "model", None)
    try:
        section = read_yaml(path)["model"]
    except (OSError, ValueError, KeyError, TypeError):  # no plain file: what the config holds has to do
        section = getattr(model, "__dict__", None)
    if isinstance(section, Mapping):
        mark_config(model, section, _folder(path))
    return container


def from_megatron_lm(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``_transformer_config_from_args(args)``; Core's class is finalized when it is made."""
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
    """``_dataclass_to_omegaconf_dict(value)``: a recorded count goes in as an interpolation of itself.

    It comes out as what it was, unless an override has put a number in its place.
    """
    value = original(*args, **kwargs)
    if not isinstance(value, SavedCount):
        return value
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("gtp_migrate.saved", lambda text: pickle.loads(bytes.fromhex(text)), replace=True)
    return f"${{gtp_migrate.saved:'{pickle.dumps(value).hex()}'}}"


def finalize(original: Original, config: Any, *args: Any, **kwargs: Any) -> Any:
    """``finalize()`` and ``ModelParallelConfig.__post_init__()``."""
    decide(config)
    # A distillation student sets on its teacher whatever is set on it, the sizes it derives too.
    teacher = getattr(getattr(config, "__dict__", {}).get("teacher"), "__dict__", {})
    own = {axis.gtp_size: teacher[axis.gtp_size] for axis in AXES if axis.gtp_size in teacher}
    result = original(config, *args, **kwargs)
    teacher.update(own)
    return result


def constructed(original: Original, config: Any, *args: Any, **kwargs: Any) -> Any:
    """``__post_init__()`` of Bridge's config classes: by ``__init__``, before this run has set anything, and by
    NeMo-RL, which without overrides does not call ``finalize()``."""
    from gtp_migrate.shim.hooks import INSTALLATION

    for cls in type(config).__mro__:
        INSTALLATION.wrap(cls, "finalize", finalize)
    if vars(config).get(_MADE):
        decide(config)
    elif has_recorded(config):
        vars(config)[_MADE] = True
    return original(config, *args, **kwargs)


def decide_first(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``_get_model(args, provider, model_cfg)`` and ``ConfigContainer.to_dict()``, nested configs included."""
    for argument in (*args, *kwargs.values()):
        config = getattr(argument, "model", argument)
        for part in (config, *getattr(config, "__dict__", {}).values()):
            decide(part)
    return original(*args, **kwargs)


def build_inference_model(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``build_inference_model(policy_cfg, megatron_cfg, initial_model_provider)``: the colocated generation model of
    NeMo-RL, a deep copy of the training provider at another TP, ETP and EP, has whole weights.

    The counts of the training run ride along with the copy: 12 shards of TP 4 become GTP 12 at TP 1. They are
    pinned to the copy's own TP and ETP, as NeMo-RL's pull request 3857 does, unless the generation config
    sets them (``mcore_generation_config``, or its ``model_overrides``).
    """
    policy_cfg = args[0] if args else kwargs["policy_cfg"]
    provider = args[2] if len(args) > 2 else kwargs["initial_model_provider"]
    if not _done_by_nemo_rl(original):
        asked = (policy_cfg.get("generation") or {}).get("mcore_generation_config") or {}
        asked = {**(asked.get("model_overrides") or {}), **asked}
        for axis, parallel_size in parallel_sizes(policy_cfg["megatron_cfg"]).items():
            setattr(provider, axis.num_weight_shards, asked.get(axis.num_weight_shards) or parallel_size)
    return original(*args, **kwargs)


def _done_by_nemo_rl(build: Any) -> bool:
    """Whether NeMo-RL has typed the counts (3857 does both at once), or its function handles them itself."""
    policy = getattr(sys.modules.get("nemo_rl.models.policy"), "MegatronConfig", None)
    code = getattr(build, "__code__", None)
    known = {*getattr(policy, "__annotations__", ()), *getattr(code, "co_names", ()), *getattr(code, "co_consts", ())}
    return any(axis.num_weight_shards in known for axis in AXES)
