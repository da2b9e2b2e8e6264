"""What a recipe trains with, worked out the long way: whole files, plain OmegaConf, nothing of the package.

Restates what NeMo-RL, Bridge and Core do, so that the package's own answer can be held against it. The resolvers are
there while something is worked out here and at no other time: the package's own are never these.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer

from . import restated

OLD = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")
NEW = ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards")

#: Algorithms of which the launchers register resolvers, and those of which they do not.
WITH_RESOLVERS = {"grpo", "ppo", "sft", "distillation"}
WITHOUT_RESOLVERS = {"dpo", "rm", "eval"}

_RESOLVERS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}


@contextlib.contextmanager
def resolvers(*, registered: bool = True) -> Iterator[None]:
    """NeMo-RL's resolvers as restated here, or none; afterwards those that were there before."""
    before = dict(BaseContainer._resolvers)
    try:
        OmegaConf.clear_resolvers()
        for name, resolver in _RESOLVERS.items() if registered else ():
            OmegaConf.register_new_resolver(name, resolver)
        yield
    finally:
        BaseContainer._resolvers.clear()
        BaseContainer._resolvers.update(before)


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


@resolvers()
def _load(path: Path, known: Known | None) -> DictConfig:
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    if "defaults" not in config:
        return config
    parents = config.pop("defaults")
    base = OmegaConf.create({})
    for parent in [parents] if isinstance(parents, str) else list(parents):
        base = restated.merge_with_override(base, load(Path(os.path.join(path.parent, parent)), known))
    return restated.merge_with_override(base, config)


def holders(node: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], DictConfig]:
    """Every mapping named `megatron_cfg`, by its path. Their values are looked at with `resolvers`."""
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


@resolvers()
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


@resolvers()
def old_keys(path: Path, known: Known | None = None) -> list[tuple[Any, ...]]:
    """The old keys that a recipe would hand to Bridge."""
    return [
        (*where, key)
        for where, holder in holders(load(path, known)).items()
        for key in OLD
        if key in (holder.get("model_overrides") or {})
    ]


# -- whole runs --------------------------------------------------------------------------------------------


def launchers(path: Path, known: Known | None = None) -> tuple[bool, ...]:
    """Whether the launchers that can start a recipe register resolvers; both where no section names one."""
    sections = set(load(path, known))
    ways = {name in WITH_RESOLVERS for name in sections & (WITH_RESOLVERS | WITHOUT_RESOLVERS)}
    return tuple(sorted(ways)) or (False, True)


def models(
    path: Path,
    *,
    registered: bool,
    migrated: bool = False,
    typed: bool = False,
    tp: int | None = None,
    etp: int | None = None,
    as_launched: bool = True,
    known: Known | None = None,
) -> dict[str, restated.Sizes] | None:
    """Each model of a recipe's run, by name, as (TP, ETP, EP, GTP, expert GTP) or None where it cannot be built; None
    where the run dies at its start.

    Args:
        path: the recipe.
        registered: whether the launcher registers resolvers.
        migrated: on the Bridge that takes no sizes any more; a NeMo-RL that types the fields only then.
        typed: the recipe is for a NeMo-RL that types the fields.
        tp: what to supply where a `megatron_cfg` has no TP.
        etp: the same for ETP; a null is one, which follows from EP and TP.
        as_launched: teachers as a launcher makes them, by way of its MasterConfig.
        known: see `load`.
    """
    config = load(path, known)
    with resolvers(registered=registered):
        try:
            for holder in holders(config).values():
                if tp is not None and (OmegaConf.is_missing(holder, restated.TP) or holder.get(restated.TP) is None):
                    holder[restated.TP] = tp
                if etp is not None and (restated.ETP not in holder or OmegaConf.is_missing(holder, restated.ETP)):
                    holder[restated.ETP] = etp
            plain = OmegaConf.to_container(config, resolve=True)
        except Exception:
            return None
    assert isinstance(plain, dict)
    # Before: a NeMo-RL that types the fields already, if the recipe has one.
    versions = restated.Versions(typed and (migrated or _has_typed(plain)), migrated, as_launched)
    return dict(restated.models_of(plain, versions))


def _has_typed(config: dict[str, Any]) -> bool:
    return any(cfg.get(key) is not None for _, cfg in restated.megatron_cfgs(config, "") for key in NEW)


def assert_runs_as_before(
    before: Path,
    after: Path,
    *,
    typed: bool = False,
    tp: int | None = None,
    etp: int | None = None,
    migrated: bool = True,
    by: tuple[bool, ...] | None = None,
    known: tuple[Known, Known] | None = None,
) -> None:
    """A run that started starts, and every model that it built it builds again with the same sizes.

    With fields that NeMo-RL types the counts of generation are its own affair: it pins them.

    Args:
        before, after: the recipe, before and after.
        typed, tp, etp: see `models`.
        migrated: on the Bridge that takes no sizes any more; else on the one before, as a tree that is half written.
        by: whether the launchers that start it register resolvers; None for what its sections say.
        known: see `load`.
    """
    old_known, new_known = known or (None, None)
    for registered in launchers(before, old_known) if by is None else by:
        for as_launched in (True, False):
            ways = {"registered": registered, "typed": typed, "tp": tp, "etp": etp, "as_launched": as_launched}
            old = models(before, known=old_known, **ways)
            if old is None:
                continue
            new = models(after, migrated=migrated, known=new_known, **ways)
            assert new is not None, f"{after} would die at its start ({ways})"
            for each in (old, new) if typed else ():
                each.pop("generation", None)
            assert new.keys() == old.keys(), after
            for name, sizes in old.items():
                if sizes is not None:
                    assert new[name] == sizes, (after, name, ways)
