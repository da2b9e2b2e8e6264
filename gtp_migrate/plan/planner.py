"""Decides for each setting what becomes of it: a pure function of the stock and of what the proof has asked for.

The new value is size x parallel size, for every size. What is decided here is only how that is spelled, and which
settings cannot be changed safely.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from gtp_migrate.forms import Form, Style, Target
from gtp_migrate.plan.changes import Add, Change, Drop, Move, Replace, Spot
from gtp_migrate.plan.describe import describe_parallel, parallel_of
from gtp_migrate.plan.needs import KeepHusk, Need, NoInterpolation, OwnNumber
from gtp_migrate.plan.own import own_number
from gtp_migrate.plan.spelling import (
    as_interpolation,
    as_number,
    direct_uses,
    fixed_numbers,
    one_level_up,
    stands_beside,
    written,
)
from gtp_migrate.plan.stock import Setting, Stock, Use
from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.interpolation import entry_of, is_one, value_of
from gtp_migrate.recipes.keys import MEGATRON_CFG, MISSING, MODEL_OVERRIDES, OLD_KEY_TEXT, TP, KeyPath, dotted
from gtp_migrate.recipes.layer import Leaf
from gtp_migrate.runs.topology import TopologyError, effective_ep, old_size
from gtp_migrate.shards import DENSE


@dataclass(frozen=True)
class Planned:
    """One change to one file, and what people want to know of it."""

    change: Change
    #: The file behind all links, and its name.
    real: str
    place: Place
    #: The mapping that it is in.
    mapping: KeyPath
    #: What stands there now, and what will.
    old: str
    new: str
    #: The parallel size that was multiplied with, and where it comes from.
    parallel: str
    #: Of the entry that is changed; None for one that is added.
    setting: tuple[str, int] | None = None
    is_interpolation: bool = False


@dataclass(frozen=True)
class Plan:
    """All changes, what is left for a person, and the files that have to stay as they are for it."""

    changes: tuple[Planned, ...]
    problems: tuple[Problem, ...]
    #: Recipes that keep the files they are made of from being changed.
    blocked: frozenset[str]
    #: Settings that stay as they are.
    left: frozenset[tuple[str, int]]

    def by_file(self) -> dict[str, list[Planned]]:
        """The changes of each file, by its real path."""
        files: dict[str, list[Planned]] = {}
        for each in self.changes:
            files.setdefault(each.real, []).append(each)
        return files


class _Refused(Exception):
    """A setting that needs a person: what is wrong with it, and what to do."""

    def __init__(self, what: str, todo: str, *, blocks: bool = True, is_whole: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        #: Whether the file cannot be changed at all for it.
        self.blocks = blocks
        #: Whether `what` names the setting itself.
        self.is_whole = is_whole


def plan(stock: Stock, needs: frozenset[Need], style: Style) -> Plan:
    """Plans all changes.

    Args:
        stock: all settings, and what they count for.
        needs: what the proof of earlier plans has asked for.
        style: how new values are spelled.
    """
    return _Planner(stock, needs, style).plan()


class _Planner:
    def __init__(self, stock: Stock, needs: frozenset[Need], style: Style) -> None:
        self.stock = stock
        self.tree = stock.tree
        self.target = stock.target
        self.needs = needs
        self.style = style
        self.changes: dict[Change | tuple[str, Change], Planned] = {}
        self.problems: dict[Problem, None] = {}
        self.blocked: set[str] = set()
        self.left: set[tuple[str, int]] = set()
        self.by_key = {setting.entry.key: setting for setting in stock.settings}
        self.shadowed = {
            hidden.key: self.by_key[own.key] for layer in self.tree.layers.values() for hidden, own in layer.shadowed
        }
        self.husks = {need.real for need in needs if isinstance(need, KeepHusk)}

    def plan(self) -> Plan:
        for recipe, error in self.stock.broken.items():
            file = self.tree.files[recipe]
            if not file.set_aside:
                self.blocked.add(recipe)
                # One that was not given is not ours to mend, and nobody can train it today.
                if file.given or recipe in self.tree.unknown_parents:
                    self.problems[error.problem] = None
        self._compare_old_and_new()
        for setting in self.stock.settings:
            self._decide(setting)
        for need in sorted((need for need in self.needs if isinstance(need, OwnNumber)), key=repr):
            self._add(need)
        return Plan(tuple(self.changes.values()), tuple(self.problems), frozenset(self.blocked), frozenset(self.left))

    def _refuse(self, setting: Setting, what: str, todo: str, *, blocks: bool) -> None:
        self.problems[Problem(setting.entry.place, what, todo)] = None
        self.left.add(setting.entry.key)
        if blocks:
            self.blocked.add(setting.recipe)

    # -- old and new setting for one model -------------------------------------------------------------

    def _compare_old_and_new(self) -> None:
        """They agree, or the new one is the later word, or nobody can say."""
        seen: set[tuple[str, str, str]] = set()
        for setting in self.stock.settings:
            for use in (*setting.uses, *setting.overruled) if setting.form is Form.SIZE else ():
                known = (use.recipe, use.model.name, use.side.axis.name)
                if known not in seen:
                    seen.add(known)
                    self._compare(use)

    def _compare(self, use: Use) -> None:
        of = use.side
        old = entry_of(of.size)
        try:
            if old is None or (size := old_size(of)) is None:
                return
        except TopologyError:
            return  # said where the setting itself is decided
        try:
            needed = (
                use.shards() if len(self.stock.runs.run(use.recipe).worlds) == 1 or not use.world.supplied else None
            )
        except TopologyError:
            needed = None
        override, typed = entry_of(of.override), entry_of(of.typed)
        counts = typed if self.target is Target.MEGATRON_CFG and typed else override
        for new, value in ((override, of.override), (typed, of.typed)):
            if new is None:
                continue
            shards = value_of(value)
            is_later = self._is_later(use.recipe, new, old)
            if new.value is None:
                # Core takes the size where the count is null; whoever wrote null over a size meant off.
                agree = not is_later
                if new is typed and self.target is Target.MODEL_OVERRIDES:
                    self._typed_null(use, old, new)
                    return
            else:
                agree = (shards == needed and needed is not None) or (new is counts and is_later)
            if not agree:
                self._conflict(use, old, new, size, shards)
                return

    def _is_later(self, recipe: str, one: Leaf, other: Leaf) -> bool:
        """Whether `one` stands in a later layer of the recipe than `other`, so that it has the last word."""
        reals = [self.tree.files[layer].found.real for layer in self.tree.orders[recipe]][::-1]
        return reals.index(one.source.real) < reals.index(other.source.real)

    def _conflict(self, use: Use, old: Leaf, new: Leaf, size: int, shards: object) -> None:
        is_same_file = old.source.real == new.source.real
        where = f"line {new.line}" if is_same_file else new.place.file_and_line
        setting = self.by_key[old.key]
        whose = (
            "" if old.source.real == self.tree.files[use.recipe].found.real else f" in {self.tree.shown(use.recipe)}"
        )
        what = (
            f"the old setting (size {size}) and the new one ({'null' if shards is None else shards} shards, {where}) "
            f"say different things{whose}"
        )
        self._refuse(setting, what, "keep the one that is right and run again", blocks=True)
        self.blocked.update((use.recipe, self.by_key[new.key].recipe if new.key in self.by_key else use.recipe))

    def _typed_null(self, use: Use, old: Leaf, new: Leaf) -> None:
        setting = self.by_key[old.key]
        what = (
            f"cannot become model_overrides.{setting.axis.num_weight_shards}: {new.place.file_and_line} has the same "
            f"key in {MEGATRON_CFG}, and NeMo-RL rejects the one beside the other"
        )
        todo = f"remove the null of {new.place.file_and_line}, or give --target {Target.MEGATRON_CFG.value}"
        self._refuse(setting, what, todo, blocks=True)

    # -- one setting -----------------------------------------------------------------------------------

    def _decide(self, setting: Setting) -> None:
        if setting.entry.key in self.left:
            return
        try:
            if setting.form is Form.TYPED:
                self._look_at_typed(setting)
            elif setting.form is Form.OVERRIDE and self.target is Target.MODEL_OVERRIDES:
                pass
            elif not self.tree.files[setting.recipe].given:
                pass  # what is left of it for the given recipes is said in the end
            elif setting.form is Form.OVERRIDE:
                if setting.all_uses:
                    self._move_override(setting)
            else:
                self._replace_size(setting)
        except _Refused as refused:
            what = refused.what if refused.is_whole else f"{setting.key} {refused.what}"
            self._refuse(setting, what, refused.todo, blocks=refused.blocks)

    def _look_at_typed(self, setting: Setting) -> None:
        is_ignored = self.target is Target.MODEL_OVERRIDES and setting.entry.value is not None
        if is_ignored and self.tree.files[setting.recipe].given:
            what = f"{dotted(setting.entry.path)} is ignored by this NeMo-RL, so GTP is off today, whatever it says"
            todo = "remove it, or write it under model_overrides if GTP is wanted"
            self.problems[Problem(setting.entry.place, what, todo)] = None

    def _beside(self, setting: Setting) -> tuple[Setting | None, Setting | None, Setting | None]:
        """Old size, override and typed count of the same axis in the same mapping of the file, this one left out."""
        entries = {entry.path: entry for entry in self.tree.layers[setting.recipe].settings}
        overrides = setting.entry.path[:-1]

        def find(path: KeyPath) -> Setting | None:
            entry = entries.get(path)
            return self.by_key[entry.key] if entry is not None and entry.key != setting.entry.key else None

        axis = setting.axis
        typed = find((*overrides[:-1], axis.num_weight_shards)) if overrides[-1:] == (MODEL_OVERRIDES,) else None
        return find((*overrides, axis.gtp_size)), find((*overrides, axis.num_weight_shards)), typed

    def _move_override(self, setting: Setting) -> None:
        """Form B, where NeMo-RL takes form C."""
        value = setting.entry.value
        size, _, typed = self._beside(setting)
        if typed is not None:
            if typed.entry.value not in (None, value):
                what = (
                    f"says {value}, and megatron_cfg.{setting.key} (line {typed.entry.line}) says {typed.entry.value}"
                )
                raise _Refused(what, "keep the one that is right and run again")
            self._change(setting, Drop)
        elif value is None and size is not None and size.entry.value is not None:
            self._change(setting, Drop)
        else:
            self._change(setting, Move, written(value))

    def _replace_size(self, setting: Setting) -> None:
        """Form A."""
        value = setting.entry.value
        if not setting.all_uses:
            self._replace_unused(setting)
            return
        if isinstance(value, (dict, list)):
            raise _Refused("is not a number", "correct it and run again")
        if isinstance(value, str) and "${" in value:
            if not is_one(value):
                raise _Refused(f"has a text around its interpolation ({value})", "make it one `${…}`")
        elif value is not None and value != MISSING and (type(value) is not int or value < 1):
            raise _Refused(f"must be a positive integer or null, not {written(value)}", "correct it and run again")
        _, override, typed = self._beside(setting)
        kind: type[Replace] | type[Move] = Replace
        present = override
        if self.target is Target.MEGATRON_CFG:
            kind = Move
            present = typed or override
        if present is not None:
            if present.entry.value is not None or value is None:
                # `_compare` has seen that they agree.
                self._change(setting, Drop)
                return
            if present is typed:
                what = f"is {value}, and megatron_cfg.{present.key} beside it is null"
                raise _Refused(what, "keep the one that is right and run again")
            self._change(present, Drop)
        self._change(setting, kind, written(value) if value in (None, MISSING) else self._shards(setting))

    def _replace_unused(self, setting: Setting) -> None:
        """An old key that counts for no model, but may still reach one: by `<<`, under the mapping's own word."""
        owner = self.shadowed.get(setting.entry.key)
        if owner is None or not owner.all_uses or type(setting.entry.value) is not int:
            refused = self._unused(setting)
            if refused is None:
                self.left.add(setting.entry.key)
                return
            raise refused
        if self.target is Target.MEGATRON_CFG:
            self._change(setting, Drop)
            return
        try:
            sizes = {use.parallel() for use in direct_uses(owner)}
        except TopologyError:
            sizes = set()
        self._change(setting, Replace, str(setting.entry.value * sizes.pop()) if len(sizes) == 1 else "null")

    def _unused(self, setting: Setting) -> _Refused | None:
        """Why a setting counts for no model; None where that is said of the recipe itself."""
        path = setting.entry.path
        if (MEGATRON_CFG, MODEL_OVERRIDES) in itertools.pairwise(path) and path[-3:-1] != (
            MEGATRON_CFG,
            MODEL_OVERRIDES,
        ):
            what = f"{dotted(path)} stands deeper in model_overrides than TP does"
            todo = "write the number of shards there by hand: size × TP, or size × ETP"
            return _Refused(what, todo, blocks=False, is_whole=True)
        recipes = [recipe for recipe, order in self.tree.orders.items() if setting.recipe in order]
        if not any(recipe in self.stock.recipes for recipe in recipes):
            return None
        return _Refused(
            f"({dotted(path)}) is what no model gets",
            "remove it; or, if something is meant to get it, write the number of shards there by hand",
            blocks=False,
        )

    def _shards(self, setting: Setting) -> str:
        """The new value of an old size."""
        value = setting.entry.value
        uses = direct_uses(setting)
        try:
            sizes = {old_size(use.side) for use in uses}
            fixed = fixed_numbers(uses)
            number = as_number(setting, fixed)
            size = str(value)
            if isinstance(value, str) and OLD_KEY_TEXT in value:
                # What it refers to is about to go: only the number itself can stay.
                if len(sizes) > 1:
                    raise _Refused(f"({value}) differs from recipe to recipe", "migrate it by hand")
                size = str(next(iter(sizes)))
            interpolation = as_interpolation(setting, size, self.stock)
            is_beside = stands_beside(setting, self.stock)
        except TopologyError as error:
            off = next((use.model.name for use in uses if not use.model.is_on and TP not in use.model.cfg), None)
            if off is not None:
                what = f"is for {off}, which has no TP and Megatron switched off"
                raise _Refused(what, "give --tp N, or set TP beside it") from None
            raise _Refused(f"cannot be computed: {error}", "correct it and run again") from None
        if None in sizes:
            # Whatever sets it one day would then be taken for a number of shards.
            raise _Refused(f"({value}) is null in a recipe that gets it", "write null there, or the size itself")
        self._refuse_derived_from_surroundings(setting)
        without = self._without_resolvers(setting)
        is_open = None in fixed.values()
        literal = None if number is None or is_open else str(number)
        is_right = not is_open and len(set(fixed.values())) == 1
        usable = None if without and interpolation is not None and "${mul:" in interpolation else interpolation
        if self.style is Style.LITERAL:
            spelled = literal
        elif self.style is Style.INTERPOLATION:
            spelled = usable
        elif literal is not None and is_right and size.isdigit() and is_beside:
            spelled = literal
        else:
            spelled = usable or literal
        if spelled is None:
            raise self._why_not(setting, interpolation, without)
        return spelled

    def _without_resolvers(self, setting: Setting) -> str | None:
        """Why no interpolation can be written: the proof has seen it fail, or a recipe whose launcher has no `mul`."""
        if NoInterpolation(setting.entry.key) in self.needs:
            return "ends up in a place where an interpolation has no parallel size to refer to"
        for use in setting.all_uses:
            run = self.stock.runs.run(use.recipe)
            if not run.has_resolvers or "mul" not in run.resolvers:
                return f"is used by {self.tree.shown(use.recipe)}, whose launcher is not known to have the resolver mul"
        return None

    def _open_key(self, setting: Setting, reason: str) -> str | None:
        """The key that the parallel size comes from, where that is open for this reason."""
        for use in direct_uses(setting):
            keys = [setting.axis.parallel_size]
            if setting.axis is not DENSE and value_of(use.model.cfg.get(setting.axis.parallel_size)) is None:
                keys += ["expert_model_parallel_size", TP]
            opened = self.stock.runs.run(use.recipe).open_keys.get(use.model.path, {})
            for key in keys:
                if opened.get(key) == reason:
                    return key
        return None

    def _refuse_derived_from_surroundings(self, setting: Setting) -> None:
        key = self._open_key(setting, "environment")
        if key is None or key == setting.axis.parallel_size == TP:
            return
        nulls = self._may_be_null(setting, key)
        if key == setting.axis.parallel_size and not nulls:
            return
        try:
            if key == TP and all(effective_ep(use.model.cfg) == 1 for use in direct_uses(setting)):
                return  # `${..tensor_model_parallel_size}` follows it
        except TopologyError:
            pass
        what = f"needs {setting.axis.abbreviation}, and {key} takes it from the environment"
        raise _Refused(what, f"set {setting.axis.parallel_size} and run again")

    def _may_be_null(self, setting: Setting, key: str) -> bool:
        """Whether a value that comes from the environment is null today, so that it may be a number tomorrow."""
        for use in direct_uses(setting):
            first = self.stock.runs.resolved(
                use.recipe, type(use.world)(use.world.other_reading, use.world.as_launched)
            )
            model = first.model(use.model.name)
            if model is not None and key in model.cfg and value_of(model.cfg[key]) is None:
                return True
        return False

    def _why_not(self, setting: Setting, interpolation: str | None, without: str | None) -> _Refused:
        name = setting.axis.abbreviation
        key = setting.axis.parallel_size
        if self.style is not Style.LITERAL and without and interpolation is not None:
            todo = "write the numbers with --style literal"
            if any(self.tree.is_ambiguous(use.recipe) for use in direct_uses(setting)):
                without += f", and gets a {name} from `<<: [*A, *B]` that PyYAML 6.0.3 and 6.0.4 read differently"
                todo = f"set {key} in the mapping itself"
            elif any(len(self.stock.runs.run(use.recipe).worlds) > 1 for use in direct_uses(setting)):
                todo = f"set {key} in a file, or give --{name.lower()} N"
            return _Refused(without, todo)
        if self._open_key(setting, "environment"):
            return _Refused(f"has its {name} from the environment, which no number follows", "use --style auto")
        if any(use.world.supplied for use in direct_uses(setting)):
            return _Refused(
                f"gets no {name} from any file, so the number of shards is not known",
                f"set {key} in a file, or give --{name.lower()} N",
            )
        if any(self.tree.is_ambiguous(use.recipe) for use in direct_uses(setting)):
            what = f"has a {name} from `<<: [*A, *B]` that PyYAML 6.0.3 and 6.0.4 read differently"
            return _Refused(what, f"set {key} in the mapping itself")
        if self.style is Style.INTERPOLATION:
            return _Refused(
                f"has no key for {name} that every recipe which gets it sets", "write the numbers with --style literal"
            )
        return _Refused(f"needs different numbers of shards, and has no key for {name}", "migrate it by hand")

    # -- changes ---------------------------------------------------------------------------------------

    def _change(self, setting: Setting, kind: type[Replace] | type[Move] | type[Drop], value: str = "") -> None:
        entry = setting.entry
        spot = Spot(entry.offset, entry.line, entry.column)
        is_null = kind is not Drop and value == "null"
        keeps_husk = entry.source.real in self.husks
        key = setting.axis.num_weight_shards
        change: Change
        if kind is Drop:
            change = Drop(spot, setting.key, keep_husk=keeps_husk)
        elif kind is Move:
            value = one_level_up(value)
            text = None if value == written(entry.value) else value
            change = Move(spot, setting.key, key, text, is_null, keeps_husk)
        else:
            change = Replace(spot, setting.key, key, None if value == written(entry.value) else value, is_null)
        self.changes[entry.source.real, change] = Planned(
            change,
            entry.source.real,
            entry.place,
            entry.path[:-2],
            f"{setting.key}: {written(entry.value)}",
            f"removed ({key} is set already)" if kind is Drop else f"{key}: {value}",
            parallel_of(setting, self.stock),
            entry.key,
            "${mul:" in value,
        )

    def _add(self, need: OwnNumber) -> None:
        add = own_number(self.stock, need)
        if add is None:
            return
        file = self.tree.files[need.recipe]
        if any(
            planned.real == file.found.real
            and isinstance(planned.change, (Replace, Move))
            and not _differs(planned, add)
            for planned in self.changes.values()
        ):
            return
        shown = _shown(add.value)
        run = self.stock.runs.run(need.recipe)
        model = self.stock.runs.resolved(need.recipe, run.worlds[0]).model(need.model)
        assert model is not None
        self.changes[file.found.real, _frozen(add)] = Planned(
            add,
            file.found.real,
            Place(file.shown),
            model.path if add.path[: len(model.path)] == model.path else add.path,
            "inherited",
            f"{add.key}: {shown}",
            describe_parallel(need.recipe, model, need.axis, self.stock, run.worlds[0]),
        )


def _shown(value: Any) -> str:
    """A value to write, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return value if isinstance(value, str) else written(value)


def _differs(planned: Planned, add: Add) -> bool:
    """Whether an added entry stands in another place than one that is changed."""
    change = planned.change
    assert isinstance(change, (Replace, Move))
    mapping = planned.mapping if isinstance(change, Move) else (*planned.mapping, MODEL_OVERRIDES)
    return change.new_key != add.key or mapping != add.path


def _frozen(add: Add) -> Change:
    """The same with a value that can be hashed: only to find equal ones."""
    return Add(add.path, add.key, repr(add.value), add.after)
