"""What a recipe trains with, worked out the long way: whole files, plain OmegaConf, nothing of the package.

Restates what NeMo-RL, Bridge and Core do, so that the package's own answer can be held against it.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

OLD = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")
NEW = ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards")

for _name, _resolver in {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}.items():
    if not OmegaConf.has_resolver(_name):
        OmegaConf.register_new_resolver(_name, _resolver)


Known = dict[Path, DictConfig]


def load(path: Path, known: Known | None = None) -> DictConfig:
    """A recipe with all that it inherits.

    Args:
        path: the file.
        known: recipes loaded before, by path: only for a tree in which nothing changes in the meantime.
    """
    path = Path(os.path.normpath(path))
    if known is None:
        return _load(path, None)
    if path not in known:
        known[path] = _load(path, known)
    return copy.deepcopy(known[path])


def _load(path: Path, known: Known | None) -> DictConfig:
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    if "defaults" not in config:
        return config
    parents = config.pop("defaults")
    base = OmegaConf.create({})
    for parent in [parents] if isinstance(parents, str) else list(parents):
        base = _over(base, load(Path(os.path.join(path.parent, parent)), known))
    return _over(base, config)


def _over(base: DictConfig, child: DictConfig) -> DictConfig:
    for key in list(child):
        if OmegaConf.is_missing(child, key):
            continue
        value = child[key]
        if isinstance(value, DictConfig) and value.get("_override_", False):
            value.pop("_override_")
            base.pop(key, None)
    return OmegaConf.merge(base, child)


def holders(node: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], DictConfig]:
    """Every mapping named `megatron_cfg`, by its path."""
    found = {}
    if isinstance(node, DictConfig):
        keys: list[Any] = [key for key in node if not OmegaConf.is_missing(node, key)]
    else:
        keys = list(range(len(node)))
    for key in keys:
        try:
            value = node[key]
        except Exception:
            continue
        if OmegaConf.is_config(value) and value._value() is not None:
            if key == "megatron_cfg":
                found[(*path, key)] = value
            found.update(holders(value, (*path, key)))
    return found


def topologies(
    path: Path, *, typed: bool = False, tp: int | None = None, known: Known | None = None
) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """(TP, ETP, GTP, expert GTP) of each `megatron_cfg` of a recipe that sets a TP, or of all with `tp`."""
    result = {}
    for where, holder in holders(load(path, known)).items():
        if holder.get("tensor_model_parallel_size") is None:
            if tp is None:
                continue
            holder["tensor_model_parallel_size"] = tp
        result[where] = topology(holder, typed)
    return result


def topology(holder: DictConfig, typed: bool) -> tuple[int, ...]:
    """Core's rule over Bridge's defaults over what NeMo-RL passes on."""
    tp = holder["tensor_model_parallel_size"]
    etp = holder.get("expert_tensor_parallel_size")
    if etp is None:
        etp = 1 if (holder.get("expert_model_parallel_size") or 1) > 1 else tp
    overrides = holder.get("model_overrides") or {}
    sizes = []
    for old, new, parallel in zip(OLD, NEW, (tp, etp), strict=True):
        shards = overrides.get(new)
        if typed and holder.get(new) is not None:
            shards = holder[new]
        size = overrides.get(old) or 1
        if shards is not None:
            assert type(shards) is int, shards
            assert shards % parallel == 0, (shards, parallel)
            size = shards // parallel
        sizes.append(size)
    return tp, etp, *sizes


def old_keys(path: Path, known: Known | None = None) -> list[tuple[Any, ...]]:
    """The old keys that a recipe would hand to Bridge."""
    return [
        (*where, key)
        for where, holder in holders(load(path, known)).items()
        for key in OLD
        if key in (holder.get("model_overrides") or {})
    ]
