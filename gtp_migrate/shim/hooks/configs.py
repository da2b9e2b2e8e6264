"""Model configs: where a checkpoint's counts are read, and where it is decided what becomes of them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from gtp_migrate.shards import AXES
from gtp_migrate.shim.reset import read_yaml
from gtp_migrate.shim.saved import (
    SavedCount,
    counts,
    decide,
    decide_all,
    dump_as_numbers,
    mark_config,
    marked,
    with_counts,
)

Original = Callable[..., Any]
#: In the __dict__ of a config that was made with recorded counts.
_MADE = "_gtp_migrate_made"


def before_stripping(original: Original, config_dict: Any, *args: Any, **kwargs: Any) -> Any:
    """``apply_run_config_backward_compat(config_dict)``; its result is broadcast, in plain numbers."""
    if isinstance(config_dict, Mapping) and "model" in config_dict:
        config_dict = {**config_dict, "model": with_counts(config_dict["model"])}
    return original(config_dict, *args, **kwargs)


def read_run_config(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``read_run_config(run_config_filename)``. What Bridge keeps in its cache stays as it is."""
    run_config = original(*args, **kwargs)
    if isinstance(run_config, dict) and "model" in run_config:
        path = args[0] if args else kwargs["run_config_filename"]
        return {**run_config, "model": _marked(run_config["model"], path)}
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
        section = vars(model) if hasattr(model, "__dict__") else {}
    if isinstance(section, Mapping):
        mark_config(model, _marked(section, path))
    return container


def from_megatron_lm(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``_transformer_config_from_args(args)``; Core's class is finalized when it is made."""
    config = original(*args, **kwargs)
    mark_config(config, _marked(vars(config), "the Megatron-LM checkpoint/"))
    return config


def _marked(section: Any, path: Any) -> Any:
    import yaml

    dump_as_numbers(yaml)
    return marked(section, os.path.dirname(os.fspath(path)) or os.curdir)


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
    elif any(isinstance(value, SavedCount) for value in counts(config).values()):
        vars(config)[_MADE] = True
    return original(config, *args, **kwargs)


def decide_first(original: Original, *args: Any, **kwargs: Any) -> Any:
    """``_get_model(args, provider, model_cfg)`` and ``ConfigContainer.to_dict()``."""
    for argument in (*args, *kwargs.values()):
        decide_all(getattr(argument, "model", argument))
    return original(*args, **kwargs)
