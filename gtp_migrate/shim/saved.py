"""A count that knows where it belongs: what a checkpoint recorded, as an int that carries its parallel size.

Where Bridge reads a ``run_config.yaml``, each recorded shard count and GTP size becomes a :class:`SavedCount`. It
is the number it was for whoever computes, compares, prints or saves it, and goes wherever the number goes: through
``dataclasses.replace``, copies, pickles and providers built anew by hand. :func:`decide`, called when a config is
finalized, keeps it where this run has the parallel size it was saved with and resets it where not. A number
that is none of these was set by this run, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from gtp_migrate import shards as rule
from gtp_migrate.shards import AXES, DENSE, EXPERT, Axis, ShardsError
from gtp_migrate.shim.options import warn_once


class Origin(NamedTuple):
    """Where a count belongs."""

    #: TP or effective ETP of the run that saved it.
    parallel_size: int
    #: The checkpoint's folder, for messages.
    checkpoint: str
    #: Whether the checkpoint recorded a GTP size beside the count.
    has_size: bool


class SavedCount(int):
    """A recorded number and its origin."""

    origin: Origin

    def __new__(cls, value: int, origin: Origin) -> SavedCount:
        self = super().__new__(cls, value)
        self.origin = origin
        return self

    def __deepcopy__(self, memo: Any = None) -> SavedCount:
        return self

    __copy__ = __deepcopy__

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Rebuilt by :func:`rebuild` if it is there; without this package by itemgetter(0): the plain number."""
        import pydoc  # its locate() gives None for what cannot be imported

        module = _ThereAndThen(pydoc.locate, __name__)
        return _ThereAndThen(getattr, module, "rebuild", itemgetter(0)), ((int(self), *self.origin),)


class _ThereAndThen:
    """Pickles as a call that is made where and when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __call__(self) -> Any:
        return self._call[0](*self._call[1])

    def __reduce__(self) -> Any:
        return self._call


def rebuild(parts: tuple[int, int, str, bool]) -> SavedCount:
    """A :class:`SavedCount` out of a pickle."""
    return SavedCount(parts[0], Origin(*parts[1:]))


def dump_as_numbers(yaml: Any) -> None:
    """Let PyYAML write a :class:`SavedCount` as the number it is."""
    for dumper in (yaml.representer.SafeRepresenter, yaml.SafeDumper, yaml.representer.Representer, yaml.Dumper):
        dumper.add_representer(SavedCount, lambda dumper, count: dumper.represent_int(int(count)))


def parallel_sizes(config: Any) -> dict[Axis, Any]:
    """The parallel size on each axis of ``config``, a mapping or an object; ETP is the effective one.

    Bridge's classes (those with ``finalize``) and serialized configs take ETP 1 where EP > 1, Core's take TP.
    """
    names = DENSE.parallel_size, EXPERT.parallel_size, "expert_model_parallel_size"
    found = config if isinstance(config, Mapping) else {name: getattr(config, name, None) for name in names}
    tp, etp, ep = (found.get(name) for name in names)
    tp = tp or 1
    bridge = isinstance(config, Mapping) or hasattr(config, "finalize")
    return {DENSE: tp, EXPERT: rule.expert_parallel_size(etp, ep if bridge and isinstance(ep, int) else 1, tp)}


def with_counts(section: Any) -> Any:
    """A copy of a serialized model config where a side that records only a GTP size says it as a shard count.

    Bridge versions that derive the size would drop it. Numbers that make no sense stay as they are.
    """
    if not isinstance(section, Mapping):
        return section
    section = {name: with_counts(value) for name, value in section.items()}
    for axis, parallel_size in parallel_sizes(section).items():
        if section.get(axis.num_weight_shards) is None and section.get(axis.gtp_size, 1) != 1:
            try:
                section[axis.num_weight_shards] = rule.shards_from_size(section[axis.gtp_size], parallel_size)
            except ShardsError as error:
                warn_once(f"a checkpoint's GTP size on the {axis.name} side is left as loaded: {error}")
    return section


def marked(section: Any, checkpoint: str) -> Any:
    """A copy of a serialized model config whose counts are :class:`SavedCount`, nested configs included.

    Numbers that make no sense stay as they are, with a warning, for Bridge to judge.
    """
    if not isinstance(section, Mapping):
        return section
    section = {name: marked(value, checkpoint) for name, value in with_counts(section).items()}
    for axis, parallel_size in parallel_sizes(section).items():
        if section.get(axis.num_weight_shards) is None:
            continue
        try:
            rule.size_from_shards(section[axis.num_weight_shards], parallel_size)
        except ShardsError as error:
            warn_once(f"{checkpoint}: the {axis.name} side's shard count is left as loaded: {error}")
            continue
        origin = Origin(parallel_size, checkpoint, axis.gtp_size in section)
        for name in (axis.num_weight_shards, axis.gtp_size):
            if isinstance(section.get(name), int):
                section[name] = SavedCount(section[name], origin)
    return section


def mark_config(config: Any, section: Any, unless_changed_from: Any = None) -> None:
    """Put the counts of a :func:`marked` section into the config that was made from it.

    Args:
        config: a config object, nested configs included.
        section: what it was made from.
        unless_changed_from: the section as recorded; a number of ``config`` that is not the recorded one stays.
    """
    fields = getattr(type(config), "__dataclass_fields__", {})
    for name, value in section.items():
        if isinstance(value, Mapping) and hasattr(child := getattr(config, "__dict__", {}).get(name), "__dict__"):
            mark_config(child, value)
        elif isinstance(value, SavedCount) and name in fields and fields[name].init:  # else the class derives it
            recorded = value if unless_changed_from is None else unless_changed_from.get(name, fields[name].default)
            if unless_changed_from is None or getattr(config, name) == recorded:
                vars(config)[name] = value


def counts(config: Any) -> dict[str, Any]:
    """The numbers of ``config`` that may be recorded, by their fields."""
    return {name: getattr(config, name, None) for axis in AXES for name in (axis.num_weight_shards, axis.gtp_size)}


def decide(config: Any) -> None:
    """Give each recorded count of ``config`` its due in this run; afterwards its numbers are plain."""
    if hasattr(config, "__dict__") and any(isinstance(value, SavedCount) for value in counts(config).values()):
        for axis, parallel_size in parallel_sizes(config).items():
            shards, size = (vars(config).get(name) for name in (axis.num_weight_shards, axis.gtp_size))
            # Into __dict__: a distillation student would set on its teacher whatever is set on it.
            vars(config).update(_decided(config, axis, shards, size, parallel_size))


def _decided(config: Any, axis: Axis, shards: Any, size: Any, parallel_size: Any) -> dict[str, Any]:
    if not isinstance(shards, SavedCount):
        if not isinstance(size, SavedCount):
            return {}
        # This run set the count, null too: a recorded size goes with the recorded count.
        derived = isinstance(shards, int) and isinstance(parallel_size, int) and parallel_size > 0
        return {axis.gtp_size: max(shards // parallel_size, 1) if derived else 1}
    saved_with, checkpoint, has_size = shards.origin
    field = type(config).__dataclass_fields__.get(axis.gtp_size)
    if field is not None and field.init and type(size) is int and (has_size or size != field.default):
        return {axis.num_weight_shards: None}  # this run set the size; Core would let the recorded count win
    if saved_with == parallel_size:
        return {axis.num_weight_shards: int(shards), axis.gtp_size: shards // parallel_size}
    if shards > saved_with:
        warn_once(
            f"{checkpoint} was saved with {axis.abbreviation} {saved_with} and {shards} weight shards (GTP size "
            f"{shards // saved_with}); this run has {axis.abbreviation} {parallel_size}: its count is reset, GTP is "
            f"off on the {axis.name} side; to turn it on, set {axis.num_weight_shards}"
        )
    return {axis.num_weight_shards: None, axis.gtp_size: 1}


def decide_all(config: Any) -> None:
    """:func:`decide` for ``config`` and the configs nested in it."""
    for part in (config, *getattr(config, "__dict__", {}).values()):
        if DENSE.num_weight_shards in getattr(type(part), "__dataclass_fields__", ()):
            decide(part)
