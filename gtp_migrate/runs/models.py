"""A resolved recipe → the models that its run builds, each with the `megatron_cfg` that it really gets.

NeMo-RL builds most models from a mapping named `megatron_cfg`, and some in Python from `policy.megatron_cfg`: the
teachers of on-policy distillation, and the model that generates with the Megatron backend.

Source, all in NeMo-RL: `models/policy/teacher_worker_group.py` and `algorithms/opd.py` (teachers);
`models/generation/megatron/config.py` and `build_inference_model` in `models/megatron/setup.py` (generation);
`algorithms/grpo.py`, `algorithms/distillation.py` (who builds them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gtp_migrate.recipes.interpolation import Resolution, value_of
from gtp_migrate.recipes.keys import CP, EP, ETP, MEGATRON_CFG, PP, TP, KeyPath, dotted
from gtp_migrate.recipes.values import at, landmarks, mapping_at, truth

POLICY_CFG: KeyPath = ("policy", MEGATRON_CFG)
GENERATION_CFG: KeyPath = ("policy", "generation", "mcore_generation_config")
TEACHERS: KeyPath = ("on_policy_distillation", "non_colocated_teachers")
DEFAULT_TEACHER: KeyPath = (*TEACHERS, "default_teacher_cfg")
TEACHER_OVERRIDES: KeyPath = (*TEACHERS, "teacher_overrides")
MEGATRON_CFG_OVERRIDES = "megatron_cfg_overrides"
GENERATION: KeyPath = GENERATION_CFG[:-1]
IS_COLOCATED: KeyPath = (*GENERATION, "colocated", "enabled")
_ALIASES: KeyPath = (*TEACHERS[:1], "teacher_model_by_agent_name")
_DEDUPLICATE = "deduplicate_shared_teacher_checkpoints"

#: Stands for a parallel size that may be any.
ANY_SIZE = object()
#: See :func:`switches`.
_SWITCHES: dict[KeyPath, dict[KeyPath, Any]] = {
    GENERATION: {("backend",): "megatron", (GENERATION_CFG[-1], TP): ANY_SIZE},
    (*GENERATION, "backend"): {(): "megatron"},
    IS_COLOCATED[:-1]: {("enabled",): True},
    IS_COLOCATED: {(): True},
    GENERATION_CFG: {(TP,): ANY_SIZE},
    TEACHERS[:1]: {
        ("enabled",): True,
        (_ALIASES[-1], "a"): "a",
        (TEACHERS[-1], "enabled"): True,
        (TEACHERS[-1], DEFAULT_TEACHER[-1], TP): ANY_SIZE,
    },
    (*TEACHERS[:1], "enabled"): {(): True},
    (*TEACHERS[:1], _DEDUPLICATE): {(): False},
    _ALIASES: {("a",): "a"},
    TEACHERS: {("enabled",): True, (DEFAULT_TEACHER[-1], TP): ANY_SIZE},
    (*TEACHERS, "enabled"): {(): True},
    DEFAULT_TEACHER: {(TP,): ANY_SIZE},
}

#: The top-level section that names the algorithm, and so the launchers that can run a recipe.
ALGORITHMS = ("grpo", "ppo", "sft", "distillation", "dpo", "rm", "eval")
#: Those that generate with the Megatron backend. (That distillation refuses a model of its own today is no reason to
#: leave that one's settings behind.)
_GENERATE = frozenset({"grpo", "distillation"})
_TEACH = frozenset({"grpo"})
#: Mappings that an algorithm needs beside the policy's.
_DEMANDED: dict[str, KeyPath] = {"ppo": ("value", MEGATRON_CFG), "distillation": ("teacher", MEGATRON_CFG)}

#: What NeMo-RL knows of a teacher; whatever else stands there goes into its `megatron_cfg` as it is.
_TEACHER_SIZES = {TP: 1, PP: 1, CP: 1, EP: 1}
_TEACHER_KEYS: dict[str, Any] = {
    **_TEACHER_SIZES,
    "num_nodes": 1,
    "gpus_per_node": 8,
    "precision": "bf16",
    "micro_batch_size": 4,
    MEGATRON_CFG_OVERRIDES: {},
}
#: More models than any run has.
_MOST_MODELS = 100_000


_CONCERNS = frozenset({MEGATRON_CFG, "generation", "on_policy_distillation", "cluster", "reward_model", "env_name"})


class TooManyModelsError(Exception):
    """There are more mappings named `megatron_cfg` than any recipe has, as aliases may make them."""


class Kind(Enum):
    """How a model comes about."""

    #: From a mapping named `megatron_cfg`.
    MAPPING = "mapping"
    #: From `policy.megatron_cfg` and what is said of a teacher.
    TEACHER = "teacher"
    #: From `policy.megatron_cfg` and `mcore_generation_config`.
    GENERATION = "generation"
    #: A deep copy of the policy's finished model config with other parallel sizes: its counts ride along.
    COPY = "copy"


@dataclass(frozen=True)
class Model:
    """One model of a run."""

    #: For people: the path of its mapping, `teacher math`, `generation`.
    name: str
    kind: Kind
    #: The mapping in the recipe that it is built from: a `megatron_cfg`.
    path: KeyPath
    #: The `megatron_cfg` that it gets; its values are those of a resolved recipe.
    cfg: dict[Any, Any]
    #: Whether it is built at all: false where Megatron is switched off.
    is_on: bool = True
    #: Of a teacher: its alias, and what it is given to run on.
    alias: str = ""
    resources: dict[Any, Any] = field(default_factory=dict)


def has_to_have_sizes(path: KeyPath, which: frozenset[str]) -> bool:
    """Whether a run does not start without the parallel sizes of a mapping, so that the command line gives those that
    no file does. What an algorithm does not build needs none; where no section tells the algorithm, any may be built.

    Source: each algorithm's `MasterConfig` in NeMo-RL (`nemo_rl/algorithms/*.py`).
    """
    return not which or any(path == POLICY_CFG or path == _DEMANDED.get(name) for name in which)


def algorithms(recipe: dict[Any, Any]) -> frozenset[str]:
    """The algorithms that a recipe has a section of."""
    return frozenset(name for name in ALGORITHMS if name in recipe)


def mappings(
    resolution: Resolution, tree: dict[Any, Any], known: Iterable[KeyPath]
) -> list[tuple[KeyPath, dict[Any, Any]]]:
    """Every mapping named `megatron_cfg` of a resolved recipe, by its path.

    Args:
        resolution: of the recipe.
        tree: the recipe.
        known: where they stand in the merged recipe.

    Raises:
        TooManyModelsError: no recipe has so many.
    """
    found: dict[KeyPath, dict[Any, Any]] = {}
    for path in known:
        cfg = mapping_at(tree, path)
        if cfg is not None:
            found[path] = cfg
    for path, value in resolution.placed:
        try:
            below = landmarks(value).mappings
        except OverflowError:
            raise TooManyModelsError from None
        if path[-1] == MEGATRON_CFG and isinstance(value, dict):
            found[path] = value
        found.update(((*path, *inner), at(value, inner)) for inner in below)
    if len(found) > _MOST_MODELS:
        raise TooManyModelsError
    return list(found.items())


def switches(recipe: dict[Any, Any]) -> Iterator[tuple[KeyPath, dict[KeyPath, Any]]]:
    """What decides which models are made in Python: the path of each value, and what to put there or below it so that
    as many are made as can be; :data:`ANY_SIZE` where any parallel size may stand."""
    yield from _SWITCHES.items()
    aliases = mapping_at(recipe, _ALIASES) or {}
    for alias in aliases:
        # As many teachers as can be: no two of one checkpoint.
        yield (*_ALIASES, alias), {(): f"of_{alias}"}
        yield (*TEACHER_OVERRIDES, alias), {(TP,): ANY_SIZE}
    yield TEACHER_OVERRIDES, {(alias, TP): ANY_SIZE for alias in aliases}
    for path in (("policy", MEGATRON_CFG), ("value", MEGATRON_CFG), ("teacher", MEGATRON_CFG)):
        if mapping_at(recipe, path) is not None:
            yield (*path, "enabled"), {(): True}


def sizes_of_python_models(recipe: dict[Any, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Parallel sizes that models made in Python have of their own: the mapping and the key."""
    teachers = at(recipe, TEACHER_OVERRIDES)
    entries = [(*TEACHER_OVERRIDES, alias) for alias in teachers] if isinstance(teachers, dict) else []
    for path in (GENERATION_CFG, DEFAULT_TEACHER, *entries):
        for mapping in (path, (*path, MEGATRON_CFG_OVERRIDES)):
            for key in (TP, ETP, EP):
                yield mapping, key


def makes_models(path: KeyPath) -> bool:
    """Whether the value at a path of a recipe has a say in its models and their layout."""
    return not _CONCERNS.isdisjoint(path)


def models(
    recipe: dict[Any, Any], found: Iterable[tuple[KeyPath, dict[Any, Any]]], *, as_launched: bool
) -> list[Model]:
    """All models of a run, in the order of the recipe, those made in Python last.

    Args:
        recipe: resolved.
        found: its mappings named `megatron_cfg`.
        as_launched: a launcher fills in the defaults of every teacher before it merges them, so that an alias with an
            entry of its own gets none of the default teacher's sizes; the functions that make teachers, called with the
            recipe's own mappings, do not.
    """
    built = [
        Model(dotted(path), Kind.MAPPING, path, cfg, truth(value_of(cfg.get("enabled"))) is not False)
        for path, cfg in found
    ]
    policy = mapping_at(recipe, POLICY_CFG)
    if policy is not None:
        which = algorithms(recipe)
        if not which or which & _TEACH:
            built += _teachers(recipe, policy, as_launched)
        if not which or which & _GENERATE:
            built += _generation(recipe, policy)
    return built


def _teachers(recipe: dict[Any, Any], policy: dict[Any, Any], as_launched: bool) -> Iterator[Model]:
    section = mapping_at(recipe, TEACHERS[:1]) or {}
    teachers = mapping_at(recipe, TEACHERS) or {}
    if not truth(value_of(section.get("enabled"))) or not truth(value_of(teachers.get("enabled"))):
        return
    default = teachers.get(DEFAULT_TEACHER[-1])
    default = default if isinstance(default, dict) else {}
    overrides = teachers.get(TEACHER_OVERRIDES[-1])
    overrides = overrides if isinstance(overrides, dict) else {}
    aliases = section.get(_ALIASES[-1])
    seen: set[Any] = set()
    for alias, checkpoint in aliases.items() if isinstance(aliases, dict) else ():
        checkpoint = str(value_of(checkpoint))
        if checkpoint in seen and truth(value_of(section.get(_DEDUPLICATE))) is not False:
            continue
        seen.add(checkpoint)
        own = overrides.get(alias)
        if not isinstance(own, dict):
            merged = _filled_in(default) if as_launched else default
        elif as_launched:
            merged = {**_filled_in(default), **_filled_in(own)}
        else:
            merged = {**default, **own}
        cfg = {**policy, "enabled": True}
        cfg.update({key: merged.get(key, size) for key, size in _TEACHER_SIZES.items()})
        cfg.update({key: value for key, value in merged.items() if key not in _TEACHER_KEYS})
        more = merged.get(MEGATRON_CFG_OVERRIDES)
        cfg.update(more if isinstance(more, dict) else {})
        resources = {key: merged.get(key, _TEACHER_KEYS[key]) for key in ("num_nodes", "gpus_per_node")}
        yield Model(f"teacher {alias}", Kind.TEACHER, POLICY_CFG, cfg, alias=str(alias), resources=resources)


def _filled_in(teacher: dict[Any, Any]) -> dict[Any, Any]:
    """What a launcher makes of a teacher's mapping: every known key, and no other that is null."""
    more = {key: value for key, value in teacher.items() if key not in _TEACHER_KEYS and value_of(value) is not None}
    return {**{key: teacher.get(key, default) for key, default in _TEACHER_KEYS.items()}, **more}


def _generation(recipe: dict[Any, Any], policy: dict[Any, Any]) -> Iterator[Model]:
    generation = mapping_at(recipe, ("policy", "generation")) or {}
    if value_of(generation.get("backend")) != "megatron":
        return
    own = generation.get("mcore_generation_config")
    merged = {**policy, **(own if isinstance(own, dict) else {})}
    colocated = generation.get("colocated")
    if not isinstance(colocated, dict) or not truth(value_of(colocated.get("enabled"))):
        yield Model("generation", Kind.GENERATION, POLICY_CFG, merged)
        return
    merged[CP] = 1
    sizes = (TP, PP, EP, ETP, CP)
    differ = any(value_of(merged.get(key, 1)) != value_of(policy.get(key, 1)) for key in (*sizes, "transformer_impl"))
    if differ:
        cfg = {**policy, **{key: merged[key] for key in sizes if key in merged}}
        yield Model("generation", Kind.COPY, POLICY_CFG, cfg)
