"""Why one model's numbers are what they are: what it gets from where, and what each form would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gtp_migrate.ask.everywhere import Everywhere, Meant
from gtp_migrate.forms import Form, Target
from gtp_migrate.outcome import ModelOutcome
from gtp_migrate.plan.conflicts import Conflict
from gtp_migrate.problems import Place
from gtp_migrate.recipes.interpolation import Computed, Unresolved, entry_of, value_of
from gtp_migrate.recipes.keys import EP, ETP, MISSING, MODEL_OVERRIDES, TP
from gtp_migrate.runs.models import Kind
from gtp_migrate.runs.topology import Side, Topology, TopologyError, gtp_size, parallel_size, side, topology
from gtp_migrate.shards import AXES, DENSE, EXPERT, Axis, shards_from_size

_NOT_ACTIVE = "set, but not active there: whole weights"
_CRASHES = "every worker crashes: no such field"
_REJECTED = "rejects it: ValueError"
_OPEN = "GTP depends on what comes with the run"
#: What a NeMo-RL that takes one form does with those that it does not hand over.
_NOT_HANDED_OVER = {
    Target.MODEL_OVERRIDES: {Form.TYPED: "never reads it: GTP off, silently"},
    Target.MEGATRON_CFG: {Form.OVERRIDE: _REJECTED},
}


class Bridge(Enum):
    """The two Bridges that a recipe may meet."""

    #: 0.6.2 and older: takes the old size.
    RELEASED = "released Bridge"
    #: Takes shard counts alone, and derives the size from them.
    NEW = "new Bridge"


@dataclass(frozen=True)
class Entry:
    """A key that a model gets, and where it stands."""

    #: Below its `megatron_cfg`: `tensor_model_parallel_size`, `model_overrides.gtp_weight_remat_size`.
    key: str
    value: str
    #: None where no file says it: an option does, or NeMo-RL fills it in.
    place: Place | None
    #: Whether another file than the recipe's own says it.
    is_inherited: bool
    #: Why it has no value yet: it comes with the run, say.
    why_open: str = ""
    #: The option that says it.
    option: str = ""


@dataclass(frozen=True)
class FormEffect:
    """What a model's GTP would look like in one form, and what would become of it."""

    form: Form
    #: What there would be to write, below `megatron_cfg`.
    entries: tuple[str, ...]
    #: On each Bridge, once NeMo-RL hands it over.
    released: str
    new: str
    #: What NeMo-RL does with it, and whether Bridge gets to see it.
    nemo_rl: str
    is_handed_over: bool
    #: Whether the recipe says it this way now, and whether the rewriter writes it this way.
    is_now: bool
    is_right: bool


@dataclass(frozen=True)
class SideBySide:
    """More than one form at once, as a model has them now."""

    forms: tuple[Form, ...]
    #: As they stand.
    entries: tuple[str, ...]
    nemo_rl: str
    released: str
    new: str
    #: What each of them asks for, where they do not ask for the same.
    asks: tuple[str, ...]


@dataclass(frozen=True)
class ModelExplained:
    """One model of the run."""

    #: Sizes before and after, and the layout.
    outcome: ModelOutcome
    #: TP and ETP with where they come from.
    parallel: tuple[str, str]
    entries: tuple[Entry, ...]
    #: Of forms that stand alone; none where GTP is not set: there is nothing to write.
    forms: tuple[FormEffect, ...]
    side_by_side: SideBySide | None
    #: What a person can write, where one has to choose: what it means, and the entry.
    choices: tuple[tuple[str, str], ...]
    #: Where a size comes with the run: what it trains with all the same, and TP and GTP as numbers or by name.
    open: tuple[str, str, str] | None
    is_always_built: bool


class ModelExplainer:
    """Explains one model."""

    def __init__(
        self, model: Everywhere, outcome: ModelOutcome, training: Everywhere | None, conflicts: list[Conflict]
    ) -> None:
        """
        Args:
            model: in all worlds.
            outcome: what the rewriter says of it.
            training: the model that a copy is made of, whose counts it gets.
            conflicts: its settings that nobody can tell what to make of.
        """
        self.model = model
        self.outcome = outcome
        # A copy gets the counts of the training model, whatever its own TP.
        self.whose = training if model.first.kind is Kind.COPY and training is not None else model
        self.conflicts = conflicts
        self.target = model.stock.target
        self.right = Form.TYPED if self.target is Target.MEGATRON_CFG else Form.OVERRIDE
        self.sides = [side(model.first.cfg, axis) for axis in AXES]
        found = ((axis, self.whose.meant(axis, self.target)) for axis in self._set_axes())
        self.meant: dict[Axis, Meant] = {axis: meant for axis, meant in found if meant is not None}

    def explain(self) -> ModelExplained:
        model, outcome = self.model, self.outcome
        now = self._forms_now()
        side_by_side = self._side_by_side(now) if len(now) > 1 and not outcome.is_pinned else None
        # Where a person has to choose, none of them is right yet.
        has_forms = not outcome.is_pinned and not (side_by_side and self.conflicts)
        return ModelExplained(
            outcome=outcome,
            parallel=(model.parallel(DENSE), model.parallel(EXPERT)),
            entries=tuple(self._entries()),
            forms=tuple(self._forms(now)) if has_forms else (),
            side_by_side=side_by_side,
            choices=tuple(dict.fromkeys(self._choices())),
            open=self._open() if model.is_open(self.target) else None,
            is_always_built=model.is_always_built,
        )

    def _open(self) -> tuple[str, str, str]:
        gtp = self.model.gtp(DENSE, self.target)
        named = gtp if gtp.isdigit() else f"({gtp})" if " / " in gtp else "GTP"
        return self.model.trains_with(self.target), self.model.size_of(DENSE), named

    # -- what it gets ----------------------------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        cfg = self.model.first.cfg
        for key in (TP, ETP, EP, *(axis.num_weight_shards for axis in AXES)):
            if key in cfg:
                yield from self._entry(key, cfg[key], self.model.plain.cfg.get(key), self.model.why_key_is_open(key))
        overrides = value_of(cfg.get(MODEL_OVERRIDES))
        for key, value in overrides.items() if isinstance(overrides, dict) else ():
            if any(key in (axis.gtp_size, axis.num_weight_shards) for axis in AXES):
                yield from self._entry(f"{MODEL_OVERRIDES}.{key}", value, value, self.model.why_value_is_open(value))

    def _entry(self, key: str, value: Any, plain: Any, why_open: str) -> Iterator[Entry]:
        entry = entry_of(plain if why_open else value)
        if entry is None and why_open:
            return  # no file says it, and `parallel` does
        text = str(entry.value) if why_open and entry is not None else _text(value)
        runs = self.model.stock.runs
        is_assumed = entry is None and key in (TP, ETP, EP) and any(path[-1] == key for path, _ in self._supplied())
        option = f"--{_OPTIONS[key]}" if is_assumed and runs.assumed.of(key) is not None else ""
        here = self.model.stock.tree.files[self.model.recipe].found.real
        is_inherited = entry is not None and entry.source.real != here
        yield Entry(key, text, entry.place if entry is not None else None, is_inherited, why_open, option)

    def _supplied(self) -> tuple[tuple[Any, Any], ...]:
        return self.model.world.supplied if self.model.first.kind is Kind.MAPPING else ()

    # -- forms -----------------------------------------------------------------------------------------

    def _set_axes(self) -> list[Axis]:
        return [axis for axis in AXES if not side(self.whose.first.cfg, axis).is_silent]

    def _forms_now(self) -> tuple[Form, ...]:
        said = {form for each in self.sides for form, value in _said(each) if value is not None}
        return tuple(form for form in Form if form in said)

    def _forms(self, now: tuple[Form, ...]) -> Iterator[FormEffect]:
        """What each form would do, with the GTP that the model has."""
        if not now or len(self.meant) < len(self._set_axes()):
            return
        not_handed_over = _NOT_HANDED_OVER[self.target]
        for form in Form:
            yield FormEffect(
                form=form,
                entries=tuple(_written(form, axis, meant) for axis, meant in self.meant.items()),
                released=self._effect(form, Bridge.RELEASED),
                new=self._effect(form, Bridge.NEW),
                nemo_rl=not_handed_over.get(form, "hands it to Bridge"),
                is_handed_over=form not in not_handed_over,
                is_now=now == (form,),
                is_right=form is self.right and not self.conflicts,
            )

    def _effect(self, form: Form, bridge: Bridge) -> str:
        """What a Bridge makes of a form, once NeMo-RL hands it over."""
        if form is Form.SIZE and bridge is Bridge.NEW:
            return _CRASHES
        is_copy = self.whose is not self.model
        if is_copy and form is not Form.SIZE and not all(meant.count.isdigit() for meant in self.meant.values()):
            return _OPEN
        if not all(meant.size.isdigit() for meant in self.meant.values()):
            return self._by_name(bridge)
        target = Target.MEGATRON_CFG if form is Form.TYPED else Target.MODEL_OVERRIDES
        effects = set()
        for world, model in self.model.models.items():
            training = self.model.model_beside(world, self.whose.first.name) or model
            try:
                effects.add(_sizes(_in_form(model.cfg, form, self._wanted(training.cfg)), target, bridge))
            except TopologyError as error:
                effects.add(f"ValueError: {error}")
        return effects.pop() if len(effects) == 1 else _OPEN

    def _by_name(self, bridge: Bridge) -> str:
        """A GTP that is known by what it is made of alone."""
        gtp = [
            f"{'' if axis is DENSE else 'expert '}GTP {meant.size}"
            + (" (ValueError where not whole)" if " / " in meant.size else "")
            for axis, meant in self.meant.items()
        ]
        return _with_note(", ".join(gtp), bridge)

    def _wanted(self, cfg: dict[Any, Any]) -> dict[Axis, tuple[int, int]]:
        """In one world: the GTP size that is meant, and the parallel size beside it."""
        wanted = {}
        for axis in self.meant:
            target = Target.MEGATRON_CFG if value_of(side(cfg, axis).typed) is not None else self.target
            size = gtp_size(cfg, axis, target, before=True)
            if size is None:
                raise TopologyError("still to be given")
            wanted[axis] = size, parallel_size(cfg, axis)
        return wanted

    # -- more than one form at once --------------------------------------------------------------------

    def _side_by_side(self, now: tuple[Form, ...]) -> SideBySide:
        keys = {key for axis in AXES for key in (axis.gtp_size, axis.num_weight_shards)}
        entries = tuple(
            f"{entry.key}: {entry.value}" for entry in self._entries() if entry.key.rpartition(".")[2] in keys
        )
        typed = Form.TYPED in now
        is_rejected = self._is_rejected(now)
        nemo_rl = "hands them to Bridge"
        if is_rejected:
            nemo_rl = _REJECTED
        elif typed and self.target is Target.MODEL_OVERRIDES:
            others = " and ".join(form.value for form in now if form is not Form.TYPED)
            nemo_rl = f"hands {others} to Bridge, and never reads {Form.TYPED.value}"
        released, new = (self._together(now, bridge) for bridge in Bridge)
        return SideBySide(
            now,
            entries,
            nemo_rl,
            "not reached" if is_rejected else released,
            "not reached" if is_rejected else new,
            tuple(text for axis in AXES for text in self._asks(axis)),
        )

    def _is_rejected(self, now: tuple[Form, ...]) -> bool:
        """Whether NeMo-RL rejects them: `_validate_model_override_conflicts`."""
        is_twice = any({Form.OVERRIDE, Form.TYPED} <= {form for form, value in _said(of) if value is not None}
                       for of in self.sides)  # fmt: skip
        return is_twice or (self.target is Target.MEGATRON_CFG and Form.OVERRIDE in now)

    def _together(self, now: tuple[Form, ...], bridge: Bridge) -> str:
        if bridge is Bridge.NEW and Form.SIZE in now:
            return _CRASHES
        effects = set()
        for model in self.model.models.values():
            try:
                effects.add(_sizes(model.cfg, self.target, bridge))
            except TopologyError as error:
                effects.add(f"ValueError: {error}")
        text = effects.pop() if len(effects) == 1 else self._by_name(bridge)
        is_ignored = any(
            dict(_said(of))[Form.SIZE] is not None and _count_that_is_read(of, self.target) is not None
            for of in self.sides
        )
        return f"{text}; the count decides, the old size beside it is ignored" if is_ignored else text

    def _asks(self, axis: Axis) -> Iterator[str]:
        asked = self._asked(axis)
        if len({meant.size if meant is not None else who for who, meant in asked}) > 1:
            for who, meant in asked:
                prefix = "" if axis is DENSE else "expert "
                yield f"{who} is {prefix}GTP {meant.size}" if meant is not None else f"{who} is a ValueError"

    def _asked(self, axis: Axis) -> list[tuple[str, Meant | None]]:
        """What each entry of one axis asks for, by itself; None where no run could have it."""
        name = axis.abbreviation
        parallel = self.whose.size_of(axis)
        asked: list[tuple[str, Meant | None]] = []
        for form, value in _said(side(self.whose.first.cfg, axis)):
            if type(value) is not int or value < 1:
                continue
            if form is Form.SIZE:
                count = str(shards_from_size(value, int(parallel))) if parallel.isdigit() else f"{value} × {name}"
                asked.append((f"size {value}", Meant(str(value), count)))
            elif not parallel.isdigit():
                asked.append((f"a count of {value}", Meant(f"{value} / {name}", str(value))))
            else:
                size, rest = divmod(value, int(parallel))
                meant = Meant(str(size), str(value)) if not rest else None
                asked.append((f"a count of {value} at {name} {parallel}", meant))
        return asked

    def _choices(self) -> Iterator[tuple[str, str]]:
        """What a person can write: each GTP that is asked for, in the form that is right."""
        for axis in dict.fromkeys(conflict.use.side.axis for conflict in self.conflicts):
            now = self.whose.gtp(axis, self.target)
            gtp = "GTP" if axis is DENSE else "expert GTP"
            asked = self._asked(axis)
            of = side(self.whose.first.cfg, axis)
            # Beside form B, NeMo-RL rejects a null of form C as well.
            new = of.typed if self.right is Form.TYPED else of.override
            if entry_of(new) is not None and value_of(new) is None:
                asked.append(("null", Meant("off", "null")))
            for who, meant in asked:
                if meant is not None:
                    today = ", which is what counts today" if meant.size == now else ""
                    yield f"{gtp} {meant.size}, as {who} says{today}", _written(self.right, axis, meant)


_OPTIONS = {TP: "tp", ETP: "etp", EP: "ep"}


def _text(value: Any) -> str:
    """A value as it is, and as it is written where that is an interpolation."""
    is_computed = isinstance(value, Computed)
    entry, value = entry_of(value), value_of(value)
    shown = f"not known: {value.why}" if isinstance(value, Unresolved) else "null" if value is None else str(value)
    return f"{shown} ({entry.value})" if is_computed and entry is not None else shown


def _said(of: Side) -> Iterator[tuple[Form, Any]]:
    for form, value in ((Form.SIZE, of.size), (Form.OVERRIDE, of.override), (Form.TYPED, of.typed)):
        found = value_of(value)
        yield form, None if isinstance(found, Unresolved) and found.why == "not set" else found


def _count_that_is_read(of: Side, target: Target) -> Any:
    said = dict(_said(of))
    typed = said[Form.TYPED] if target is Target.MEGATRON_CFG else None
    return typed if typed is not None else said[Form.OVERRIDE]


def _key(form: Form, axis: Axis) -> str:
    return axis.gtp_size if form is Form.SIZE else axis.num_weight_shards


def _written(form: Form, axis: Axis, meant: Meant) -> str:
    prefix = "" if form is Form.TYPED else f"{MODEL_OVERRIDES}."
    return f"{prefix}{_key(form, axis)}: {meant.size if form is Form.SIZE else meant.count}"


def _in_form(cfg: dict[Any, Any], form: Form, wanted: dict[Axis, tuple[int, int]]) -> dict[Any, Any]:
    """A model's mapping with its GTP written in this form and no other."""
    ours = {key for axis in AXES for key in (axis.gtp_size, axis.num_weight_shards)}
    overrides = value_of(cfg.get(MODEL_OVERRIDES))
    overrides = (
        {key: value for key, value in overrides.items() if key not in ours} if isinstance(overrides, dict) else {}
    )
    changed = {key: value for key, value in cfg.items() if key not in ours}
    where = changed if form is Form.TYPED else overrides
    for axis, (size, parallel) in wanted.items():
        where[_key(form, axis)] = size if form is Form.SIZE else shards_from_size(size, parallel)
    return {**changed, MODEL_OVERRIDES: overrides}


def _sizes(cfg: dict[Any, Any], target: Target, bridge: Bridge) -> str:
    """What a Bridge makes of a mapping: `GTP 3`, `GTP off, expert GTP 2`.

    Raises:
        TopologyError: nothing; no run could be started.
    """
    sizes = topology(cfg, target, before=bridge is Bridge.RELEASED)
    dense = f"GTP {_size(sizes.gtp)}"
    has_expert = not side(cfg, EXPERT).is_silent
    return _with_note(f"{dense}, expert GTP {_size(sizes.expert_gtp)}" if has_expert else dense, bridge, sizes)


def _with_note(text: str, bridge: Bridge, sizes: Topology | None = None) -> str:
    """What is set is not what a released Bridge does (:mod:`gtp_migrate.ask.doctor` reads that in its source)."""
    is_off = sizes is not None and sizes.gtp == sizes.expert_gtp == 1
    return text if bridge is Bridge.NEW or is_off else f"{text} ({_NOT_ACTIVE})"


def _size(size: int | None) -> str:
    return MISSING if size is None else "off" if size == 1 else str(size)
