"""A count that knows where it belongs: what a checkpoint recorded, as an int that carries its parallel size.

Where Bridge reads a ``run_config.yaml``, each recorded shard count and GTP size becomes a :class:`SavedCount`, which
goes wherever the number goes: through ``dataclasses.replace``, copies, pickles and providers built anew by hand.
:func:`decide` keeps it where this run has the parallel size it was saved with and resets it where not. A number that
is none of these was set by this run, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from gtp_migrate import shards as rule
from gtp_migrate.shards import AXES, DENSE, EXPERT, Axis, ShardsError
from gtp_migrate.shim.install import warn_once


class SavedCount(int):
    """A recorded number and its ``origin``: the TP or effective ETP of the run that saved it, the checkpoint's folder
    for messages, and whether the checkpoint recorded a GTP size beside the count."""

    origin: tuple[int, str, bool]

    def __new__(cls, number_and_origin: tuple[int, tuple[int, str, bool]]) -> SavedCount:
        self = super().__new__(cls, number_and_origin[0])
        self.origin = number_and_origin[1]
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Rebuilt by this class if it is there; without this package by itemgetter(0): the plain number."""
        import pydoc  # its locate() gives None for what cannot be imported

        module = _ThereAndThen(pydoc.locate, __name__)
        return _ThereAndThen(getattr, module, "SavedCount", itemgetter(0)), ((int(self), self.origin),)


class _ThereAndThen:
    """Pickles as a call that is made where and when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __call__(self, number_and_origin: Any) -> SavedCount:
        """As copy does, which takes nothing apart; pickle only wants to see something callable."""
        return SavedCount(number_and_origin)

    def __reduce__(self) -> Any:
        return self._call


def parallel_sizes(config: Any) -> dict[Axis, Any]:
    """The parallel size on each axis of ``config``, a mapping or an object; ETP is the effective one.

    Bridge's classes (those with ``finalize``) and serialized configs take ETP 1 where EP > 1, Core's take TP.
    """
    get: Any = config.get if isinstance(config, Mapping) else lambda name: getattr(config, name, None)
    tp, etp, ep = get(DENSE.parallel_size) or 1, get(EXPERT.parallel_size), get("expert_model_parallel_size")
    bridge = isinstance(config, Mapping) or hasattr(config, "finalize")
    return {DENSE: tp, EXPERT: rule.expert_parallel_size(etp, ep if bridge and isinstance(ep, int) else 1, tp)}


def marked(section: Any, checkpoint: str | None) -> Any:
    """A copy of a serialized config whose counts are :class:`SavedCount`, nested configs included.

    A side that records only a GTP size gets the shard count that says the same: Bridge versions that derive the size
    would drop it. Numbers that make no sense stay as they are, with a warning, for Bridge to judge.

    Args:
        checkpoint: its folder. None: the counts stay plain numbers.
    """
    if not isinstance(section, Mapping):
        return section
    section = {name: marked(value, checkpoint) for name, value in section.items()}
    for axis, parallel_size in parallel_sizes(section).items():
        shards, size = section.get(axis.num_weight_shards), section.get(axis.gtp_size, 1)
        if shards is None and size == 1:
            continue
        try:
            shards = rule.shards_from_size(size, parallel_size) if shards is None else shards
            rule.size_from_shards(shards, parallel_size)
        except ShardsError as error:
            warn_once(f"{checkpoint or 'a checkpoint'}: its {axis.name} side is left as loaded: {error}")
            continue
        origin = parallel_size, checkpoint or "", axis.gtp_size in section
        section[axis.num_weight_shards] = shards
        for name in (axis.num_weight_shards, axis.gtp_size) if checkpoint else ():
            if isinstance(section.get(name), int):
                section[name] = SavedCount((section[name], origin))
    return section


def mark_config(config: Any, recorded: Mapping[str, Any], checkpoint: str) -> None:
    """Mark, as :func:`marked` does, the counts of a config made from ``recorded`` that still are as recorded."""
    fields = getattr(type(config), "__dataclass_fields__", {})
    for name, value in marked(recorded, checkpoint).items():
        if isinstance(value, Mapping):
            mark_config(getattr(config, "__dict__", {}).get(name), recorded[name], checkpoint)
        elif not isinstance(value, SavedCount) or name not in fields or not fields[name].init:
            continue  # what is no init field, the class derives
        elif getattr(config, name) == recorded.get(name, fields[name].default):
            vars(config)[name] = value


def counts(config: Any) -> dict[str, Any]:
    """The numbers of ``config`` that may be recorded, by their fields."""
    names = [name for axis in AXES for name in (axis.num_weight_shards, axis.gtp_size)]
    return {name: getattr(config, "__dict__", {}).get(name, getattr(type(config), name, None)) for name in names}


def has_recorded(config: Any) -> bool:
    """Whether a number of ``config`` is a checkpoint's."""
    return any(isinstance(number, SavedCount) for number in counts(config).values())


def decide(config: Any) -> None:
    """Give each recorded count of ``config`` its due in this run; afterwards its numbers are plain."""
    if has_recorded(config):
        for axis, parallel_size in parallel_sizes(config).items():
            # Into __dict__: a distillation student would set on its teacher whatever is set on it.
            vars(config).update(_decided(config, axis, parallel_size))


def _decided(config: Any, axis: Axis, parallel_size: Any) -> dict[str, Any]:
    shards, size = (counts(config)[name] for name in (axis.num_weight_shards, axis.gtp_size))
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
