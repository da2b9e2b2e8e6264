"""What a config loaded from a checkpoint remembers until it is finalized, and how its counts are decided.

The counts stay in their fields as Bridge loaded them, plain numbers, so that whoever reads, copies, pickles
or saves the config meets nothing new. Beside them, in the instance's ``__dict__``, lies a plain dict: what
the checkpoint saved, and which counts this run has set since. It needs no gtp_migrate to be unpickled.

Two doors need watching, and :class:`CountField`, a descriptor put on the class in place of the field's
default, watches both. Setting a count by attribute is noted, whatever the value. And
``dataclasses.replace``, which NeMo-RL rebuilds a provider with to merge ``model_overrides``
(``_merge_model_overrides`` in ``nemo_rl/models/megatron/setup.py``), would hand a loaded count to the new
provider as if this run had set it, and lose the memory: what it reads of a loaded count is a parcel of the
count and the memory, which the new provider's field unpacks. It reads only what its caller did not give.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import CodeType
from typing import Any, NamedTuple

from gtp_migrate.shards import AXES, DENSE, EXPERT
from gtp_migrate.shim import settings
from gtp_migrate.shim.log import say
from gtp_migrate.shim.reset import apply, differing
from gtp_migrate.shim.topology import (
    COUNTS,
    FIELDS,
    SavedTopology,
    Side,
    model_section,
    read_yaml,
    transformer_config,
)

MEMORY = "_gtp_migrate_loaded"
#: By the id of the model section, which is kept so that its id stays its own; Bridge caches what it reads as well.
_read: dict[int, Read] = {}


class Read(NamedTuple):
    """A model section that Bridge read from a run_config.yaml."""

    section: Mapping[str, Any]
    #: The file it was read from.
    path: str
    #: What the file recorded before Bridge stripped it, see :func:`counts_of`.
    recorded: dict[str, Any]


_SIZES = (DENSE.gtp_size, EXPERT.gtp_size)
#: Ids of the configs whose finalize() or __post_init__() is running in this context: there, sizes are derived.
_deriving: ContextVar[tuple[int, ...]] = ContextVar("gtp_migrate_deriving", default=())
#: Every field of a config is being set again with what was read from it, changed or not.
_repeating: ContextVar[bool] = ContextVar("gtp_migrate_repeating", default=False)

#: The functions behind ``dataclasses.replace`` and ``copy.replace`` that read the fields.
_REPLACE: frozenset[CodeType] = frozenset(
    function.__code__
    for function in (dataclasses.replace, getattr(dataclasses, "_replace", None))
    if function is not None
)


class _Parcel:
    """A loaded count on its way through ``dataclasses.replace``, with the memory of its config."""

    def __init__(self, count: Any, memory: dict[str, Any]) -> None:
        self.count = count
        self.memory = memory


class CountField:
    """Stands in for the default of a count field on a config class; the value lies where it always did."""

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default

    def __get__(self, config: Any, owner: type | None = None) -> Any:
        if config is None:
            return self.default
        state = vars(config)
        value = state.get(self.name, self.default)
        memory = state.get(MEMORY)
        if (
            memory is not None
            and self.name not in memory["set"]
            and sys._getframe(1).f_code in _REPLACE
            and self.name not in differing(config, {self.name: memory["values"].get(self.name, value)})
        ):
            return _Parcel(value, memory)
        return value

    def __set__(self, config: Any, value: Any) -> None:
        state = vars(config)
        if isinstance(value, _Parcel):
            # Counts without a parcel were given to replace(): by this run, wherever they come in the order.
            memory = state.get(MEMORY) or {**value.memory, "set": list(COUNTS)}
            memory = {**memory, "set": [name for name in memory["set"] if name != self.name]}
            state[self.name] = value.count
        else:
            memory = state.get(MEMORY)
            if memory is not None and self.name not in memory["set"]:
                if self.name in _SIZES and _deriving.get():
                    # Derived, also where the config that derives it is another one: a student in distillation
                    # sets all it is set on its teacher too (DistillationProvider.__setattr__).
                    memory = {**memory, "values": {**memory["values"], self.name: value}}
                elif not (_repeating.get() and state.get(self.name, self.default) == value):
                    memory = {**memory, "set": [*memory["set"], self.name]}
            state[self.name] = value
        if memory is not None:
            # Last in order, since Bridge's __deepcopy__ sets attribute by attribute: on the copy, too,
            # the counts come before there is a memory to note them in.
            state.pop(MEMORY, None)
            state[MEMORY] = memory


def counts_of(section: Any) -> dict[str, Any]:
    """The topology fields of a serialized model config, with those of nested configs under their names."""
    found: dict[str, Any] = {}
    if isinstance(section, Mapping):
        for name, value in section.items():
            if name in FIELDS:
                found[name] = value
            elif isinstance(value, Mapping) and (nested := counts_of(value)):
                found[name] = nested
    return found


def keep_read(run_config: Mapping[str, Any], path: str, recorded: dict[str, Any] | None) -> None:
    """Note that Bridge read ``run_config`` from ``path``, for :func:`read_as`.

    Args:
        recorded: what the file recorded, see :func:`counts_of`; None where Bridge read and cached it, and
            may have stripped it, before the hooks were on.
    """
    section = run_config.get("model")
    if not isinstance(section, Mapping) or id(section) in _read:
        return
    if recorded is None:
        recorded = counts_of(section)
        counts = transformer_config(recorded)
        if any(axis.gtp_size not in counts and counts.get(axis.num_weight_shards) is None for axis in AXES):
            try:
                recorded = counts_of(model_section(read_yaml(path)))
            except (OSError, ValueError) as error:
                say(logging.WARNING, f"{path}: a GTP size recorded without a shard count may be missed: {error}")
    _read[id(section)] = Read(section, path, recorded)


def read_as(section: Any) -> Read | None:
    """Where ``section`` was read from, if it is the very model section of a run_config that Bridge read."""
    return _read.get(id(section))


def has_counts(config: Any) -> bool:
    """Whether this is a config object with a shard count field."""
    return DENSE.num_weight_shards in getattr(type(config), "__dataclass_fields__", ())


def remember(config: Any, recorded: Mapping[str, Any], checkpoint: str, watch: Callable[[type], None]) -> None:
    """Make ``config`` and the configs nested in it remember what the checkpoint recorded.

    Args:
        config: as Bridge loaded it.
        recorded: see :func:`counts_of`. What it lacks, the config itself says.
        checkpoint: its folder, for messages.
        watch: puts the :class:`CountField` descriptors on a class.
    """
    if has_counts(config):
        own = {name: getattr(config, name, default) for name, default in FIELDS.items()}
        own.update((name, recorded[name]) for name in FIELDS if name in recorded)
        saved = SavedTopology.of_config(own, checkpoint)
        watch(type(config))
        vars(config)[MEMORY] = {
            "checkpoint": checkpoint,
            "sides": [[side.parallel_size, side.num_weight_shards, side.gtp_size] for side in saved.sides],
            "set": [],
            # What the file says, should this run have changed what it read before the config was made of it.
            "values": {**_values(config), **{name: own[name] for name in _settings(config)}},
            "said": [],
        }
    for name, nested in recorded.items():
        if isinstance(nested, Mapping) and hasattr(child := vars(config).get(name), "__dict__"):
            remember(child, nested, checkpoint, watch)


def settle(config: Any) -> None:
    """Decide the counts of a loaded config by its present parallel sizes; any other config is left alone.

    Never raises: what cannot be decided is left as loaded, with a warning.
    """
    memory = getattr(config, "__dict__", {}).get(MEMORY)
    if memory is None:
        return
    try:
        _settle(config, memory)
    except Exception as error:
        say(logging.WARNING, f"shard counts are left as they are: {error!r}")


def _settle(config: Any, memory: dict[str, Any]) -> None:
    dense, expert = memory["sides"]
    saved = SavedTopology(Side(DENSE, *dense), Side(EXPERT, *expert), memory["checkpoint"])
    set_by_run = set(memory["set"])
    if id(config) not in _deriving.get():
        # Set where no descriptor saw it: through __dict__, or while the hooks were off.
        set_by_run |= differing(config, memory["values"])
    _, lines = apply(config, saved, keep_gtp=settings.keep_gtp(), set_by_run=set_by_run & _settings(config))
    for level, line in lines:
        if line not in memory["said"]:
            say(level, line)
    said = [line for _, line in lines]
    vars(config)[MEMORY] = {**memory, "set": sorted(set_by_run), "values": _values(config), "said": said}


def _settings(config: Any) -> set[str]:
    """The counts that the config's class takes; what it does not take it derives."""
    fields = type(config).__dataclass_fields__
    return {name for name in COUNTS if name in fields and fields[name].init}


def _values(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name, default) for name, default in COUNTS.items()}


def settle_all(config: Any) -> None:
    """Settle ``config`` and the configs nested in it."""
    settle(config)
    for nested in list(getattr(config, "__dict__", {}).values()):
        if MEMORY in getattr(nested, "__dict__", ()):
            settle(nested)


@contextlib.contextmanager
def deriving(config: Any) -> Iterator[None]:
    """While ``config`` derives its fields, a GTP size that is set is no setting of this run."""
    token = _deriving.set((*_deriving.get(), id(config)))
    try:
        yield
    finally:
        _deriving.reset(token)


@contextlib.contextmanager
def repeating() -> Iterator[None]:
    """While fields are read and set again wholesale, an unchanged count is no setting of this run."""
    token = _repeating.set(True)
    try:
        yield
    finally:
        _repeating.reset(token)
