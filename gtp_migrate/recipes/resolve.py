"""The layers of a recipe → what the trainer would see, for each of its `megatron_cfg`s.

OmegaConf merges and resolves, as it does for NeMo-RL. Two recipes whose layers say the same about their
`megatron_cfg`s are one piece of work.

Source: `merge_with_override` and `register_omegaconf_resolvers` in NeMo-RL (`nemo_rl/utils/config.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gtp_migrate.problems import Place, Problem, RecipeError, one_line
from gtp_migrate.recipes.keys import (
    CP,
    EP,
    ETP,
    MEGATRON_CFG,
    MODEL_OVERRIDES,
    OVERRIDE_MARKER,
    PP,
    TP,
    KeyPath,
)
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.shards import AXES, Axis


@dataclass(frozen=True)
class Unresolved:
    """A value that is there but cannot be known here: an interpolation that fails, a `???`."""

    why: str

    def __repr__(self) -> str:
        return f"unknown ({self.why})"


#: The key is not there at all.
ABSENT = Unresolved("not set")
#: The key is there, its value still to be given.
MISSING = Unresolved("???")


@dataclass(frozen=True)
class Assumed:
    """Parallel sizes to take where no file of a recipe says (`--tp`, `--etp`)."""

    tp: int | None = None
    etp: int | None = None


@dataclass(frozen=True)
class Settings:
    """One `megatron_cfg` of a recipe as the trainer would see it. A value is what OmegaConf resolves."""

    tp: Any
    etp: Any
    ep: Any
    pp: Any
    cp: Any
    #: By axis: `model_overrides`' old size, its shard count, and the typed shard count.
    size: tuple[Any, Any]
    override_shards: tuple[Any, Any]
    typed_shards: tuple[Any, Any]


@dataclass(frozen=True)
class Holder:
    """A mapping named `megatron_cfg` in a recipe."""

    #: Where the recipe has it, and where it really stands, which differs behind an interpolation.
    path: KeyPath
    real: KeyPath
    #: Where its `model_overrides` really stand; None where it has none.
    overrides: KeyPath | None
    #: What the trainer sees. Several where no file sets TP: one for each of several TPs that somebody may
    #: supply, and of each the ways in which the ETP may be supplied; one of these must hold.
    cases: tuple[tuple[Settings, ...], ...]
    #: Whether a file says TP and ETP, be it by an interpolation that fails here.
    tp_is_set: bool
    etp_is_set: bool
    #: Whether Megatron is on (`enabled`).
    is_on: bool
    #: False where Megatron is switched off, but a setting cannot be resolved as it stands: NeMo-RL resolves all.
    loads: bool

    @property
    def settings(self) -> Settings:
        return self.cases[0][0]


@dataclass(frozen=True)
class Resolved:
    """A recipe as the trainer would see it."""

    holders: tuple[Holder, ...]
    gpus_per_node: Any
    num_nodes: Any
    colocated: Any
    generation_gpus_per_node: Any
    generation_nodes: Any


#: Values nobody sets by accident in both, and that differ: what holds for both TPs holds for all.
_ANY_TP = (2, 3)
_ANY_ETP = (5, 7)


class Resolver:
    """Resolves the recipes of one tree."""

    def __init__(self, tree: Tree, assumed: Assumed, sections: frozenset[Any] | None) -> None:
        """
        Args:
            tree: the files.
            assumed: what to take where no file says.
            sections: the keys at the top level that matter; the others are left out. None for all.
        """
        register_resolvers()
        self.tree = tree
        self.assumed = assumed
        self.sections = sections
        self._signatures: dict[str, int] = {}
        # By content, whatever the tree.
        self._numbers: dict[Any, int] = {}
        self._merged: dict[int, DictConfig | RecipeError] = {}
        self._resolved: dict[int, Resolved] = {}

    def on(self, tree: Tree) -> Resolver:
        """The same for another tree of the same recipes, which knows already what this one has worked out."""
        other = Resolver(tree, self.assumed, self.sections)
        other._numbers, other._merged, other._resolved = self._numbers, self._merged, self._resolved
        return other

    def signature(self, identity: str) -> int:
        """A number that two recipes share only where they resolve to the same.

        Raises:
            RecipeError: a layer of the recipe cannot be read.
        """
        known = self._signatures.get(identity)
        if known is not None:
            return known
        self.tree.order(identity)
        parents = tuple(self.signature(parent) for parent in self.tree.parents(identity))
        own = repr(self._sections_of(identity))
        number = self._numbers.setdefault((own, parents), len(self._numbers))
        self._signatures[identity] = number
        return number

    def _sections_of(self, identity: str) -> dict[Any, Any]:
        data = self.tree.layer(identity).data
        if self.sections is None:
            return data
        return {key: data[key] for key in data if key in self.sections}

    def resolve(self, identity: str) -> Resolved:
        """What the trainer would see.

        Raises:
            RecipeError: NeMo-RL could not load the recipe.
        """
        number = self.signature(identity)
        if number not in self._resolved:
            self._resolved[number] = self._read(self._merge(identity))
        return self._resolved[number]

    def _merge(self, identity: str) -> DictConfig:
        number = self.signature(identity)
        merged = self._merged.get(number)
        if merged is None:
            try:
                merged = self._merge_anew(identity)
            except RecipeError as error:
                merged = error
            self._merged[number] = merged
        if isinstance(merged, RecipeError):
            raise merged
        return merged

    def _merge_anew(self, identity: str) -> DictConfig:
        parents = self.tree.parents(identity)
        try:
            own = OmegaConf.create(self._sections_of(identity))
            if not parents:
                return own
            base = OmegaConf.create({})
            for parent in parents:
                above = self._merge(parent)
                base = (
                    merge_with_override(base, copy.deepcopy(above)) if len(parents) > 1 or _is_marked(above) else above
                )
            return merge_with_override(base, own)
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            raise RecipeError(
                Problem(
                    Place(self.tree.file(identity).shown),
                    f"cannot be merged as NeMo-RL merges it ({one_line(error)})",
                    "correct it and run again",
                )
            ) from None

    def _read(self, config: DictConfig) -> Resolved:
        return Resolved(
            tuple(self._holder(config, path) for path in _holder_paths(config)),
            *(
                _descend(config, path)
                for path in (
                    ("cluster", "gpus_per_node"),
                    ("cluster", "num_nodes"),
                    ("policy", "generation", "colocated", "enabled"),
                    ("policy", "generation", "colocated", "resources", "gpus_per_node"),
                    ("policy", "generation", "colocated", "resources", "num_nodes"),
                )
            ),
        )

    def _holder(self, config: DictConfig, path: KeyPath) -> Holder:
        holder = _descend(config, path)
        overrides = value_of(holder, MODEL_OVERRIDES)
        tp, etp = value_of(holder, TP), value_of(holder, ETP)
        tp_is_set = tp not in (ABSENT, MISSING)
        etp_is_set = etp not in (ABSENT, MISSING, None)
        is_on = value_of(holder, "enabled") is not False
        assumed = self.assumed
        assumed_etps: tuple[int | None, ...] = (None,)
        # Null is known: ETP follows from EP and TP.
        if etp in (ABSENT, MISSING) and assumed.etp is not None:
            assumed_etps = (assumed.etp,)
        cases: list[tuple[Settings, ...]] = []
        if not isinstance(tp, Unresolved):
            cases.append((_settings(config, path, None, assumed_etps[0]),))
        else:
            tps = (assumed.tp,) if assumed.tp and not tp_is_set else _ANY_TP
            for tp, any_etp in zip(tps, _ANY_ETP, strict=False):
                etps = assumed_etps
                if not etp_is_set and assumed.etp is None:
                    etps = (None, any_etp)
                cases.append(tuple(_settings(config, path, tp, etp) for etp in etps))
        return Holder(
            path,
            _path_of(holder),
            _path_of(overrides) if isinstance(overrides, DictConfig) else None,
            tuple(cases),
            tp_is_set,
            etp_is_set,
            is_on,
            is_on or _loads(_settings(config, path, None, None)),
        )


def _settings(config: DictConfig, path: KeyPath, tp: int | None, etp: int | None) -> Settings:
    """Reads a `megatron_cfg`, with a TP or an ETP put in that no file sets."""
    holder = _descend(config, path)
    if tp is not None or etp is not None:
        config = copy.deepcopy(config)
        holder = _descend(config, path)
        for key, value in ((TP, tp), (ETP, etp)):
            if value is not None:
                holder[key] = value
    overrides = value_of(holder, MODEL_OVERRIDES)

    def by_axis(mapping: Any, name: str) -> tuple[Any, Any]:
        dense, expert = (value_of(mapping, getattr(axis, name)) for axis in AXES)
        return dense, expert

    tp_value, etp_value, ep, pp, cp = (value_of(holder, key) for key in (TP, ETP, EP, PP, CP))
    return Settings(
        tp=tp_value,
        etp=etp_value,
        ep=ep,
        pp=pp,
        cp=cp,
        size=by_axis(overrides, "gtp_size"),
        override_shards=by_axis(overrides, "num_weight_shards"),
        typed_shards=by_axis(holder, "num_weight_shards"),
    )


def _loads(settings: Settings) -> bool:
    return not any(
        isinstance(value, Unresolved) and value not in (ABSENT, MISSING)
        for value in (*settings.size, *settings.override_shards, *settings.typed_shards)
    )


def of_axis(values: tuple[Any, Any], axis: Axis) -> Any:
    """The one of a pair of values, dense and expert, that belongs to the axis."""
    return values[AXES.index(axis)]


def register_resolvers() -> None:
    """Registers the resolvers that NeMo-RL registers."""
    for name, resolver in {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "max": lambda a, b: max(a, b),
    }.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, resolver)


def merge_with_override(base: DictConfig, child: DictConfig) -> DictConfig:
    """`child` over `base`; a mapping at the top of `child` that is marked `_override_` replaces the base's.

    `child` loses its marks. Raises what OmegaConf raises.
    """
    if _is_marked(child):
        base = copy.deepcopy(base)
    for key in list(child.keys()):
        if OmegaConf.is_missing(child, key):
            continue
        section = child[key]
        if isinstance(section, DictConfig) and section.get(OVERRIDE_MARKER, False):
            section.pop(OVERRIDE_MARKER)
            if key in base:
                base.pop(key)
    merged = OmegaConf.merge(base, child)
    assert isinstance(merged, DictConfig)
    return merged


def _is_marked(config: DictConfig) -> bool:
    """Whether a mapping at the top of a recipe has an `_override_`, be it false."""
    return any(isinstance(node, DictConfig) and OVERRIDE_MARKER in node for _, node in config.items_ex(resolve=False))


def value_of(mapping: Any, key: Any) -> Any:
    """A value of a mapping, resolved; `ABSENT` or another `Unresolved` where there is none."""
    if not isinstance(mapping, (DictConfig, ListConfig)):
        return ABSENT
    try:
        if isinstance(mapping, DictConfig):
            if mapping._is_none() or mapping._is_missing() or key not in mapping.keys():  # noqa: SIM118
                return ABSENT
            if OmegaConf.is_missing(mapping, key):
                return MISSING
        return mapping[key]
    except RecursionError:
        return Unresolved("an interpolation that refers to itself")
    except Exception as error:  # a resolver may raise anything
        return Unresolved(one_line(error))


def _descend(config: DictConfig, path: KeyPath) -> Any:
    node: Any = config
    for key in path:
        node = value_of(node, key)
    return node


def _holder_paths(config: DictConfig) -> Iterator[KeyPath]:
    pending: list[tuple[KeyPath, Any]] = [((), config)]
    visited = 0
    while pending:
        path, node = pending.pop()
        visited += 1
        if len(path) > 50 or visited > 20_000:  # interpolations that lead round in a circle
            continue
        if isinstance(node, DictConfig):
            if node._is_none() or node._is_missing():
                continue
            keys: list[Any] = list(node.keys())
        else:
            keys = list(range(len(node)))
        for key in reversed(keys):
            value = value_of(node, key)
            child = (*path, key)
            if key == MEGATRON_CFG and isinstance(value, DictConfig) and not value._is_none():
                yield child
            if isinstance(value, (DictConfig, ListConfig)) and not value._is_none():
                pending.append((child, value))


def _path_of(node: Any) -> KeyPath:
    keys: list[Any] = []
    while node is not None and node._get_parent() is not None:
        keys.append(node._key())
        node = node._get_parent()
    return tuple(reversed(keys))
