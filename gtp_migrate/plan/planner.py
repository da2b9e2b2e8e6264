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
from gtp_migrate.plan.conflicts import conflicts
from gtp_migrate.plan.describe import describe_parallel, parallel_of
from gtp_migrate.plan.needs import KeepHusk, Need, OwnNumber
from gtp_migrate.plan.numbers import new_value
from gtp_migrate.plan.own import own_number
from gtp_migrate.plan.refused import Refused
from gtp_migrate.plan.spelling import direct_uses, one_level_up
from gtp_migrate.plan.stock import Setting, Stock
from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.interpolation import entry_of, is_one
from gtp_migrate.recipes.keys import MEGATRON_CFG, MISSING, MODEL_OVERRIDES, KeyPath, dotted
from gtp_migrate.recipes.values import Leaf, written
from gtp_migrate.runs.topology import ABSENT, TopologyError, side


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
        #: By file and change: two models may ask for the same one.
        self.changes: dict[tuple[str, str], Planned] = {}
        self.problems: dict[Problem, None] = {}
        self.blocked: set[str] = set()
        self.left: set[tuple[str, int]] = set()
        self.by_key = {setting.entry.key: setting for setting in stock.settings}
        self.shadowed = {
            hidden.key: self.by_key[own.key] for layer in self.tree.layers.values() for hidden, own in layer.shadowed
        }
        self.entries: dict[str, dict[KeyPath, Leaf]] = {}
        self.husks = {need.real for need in needs if isinstance(need, KeepHusk)}

    def plan(self) -> Plan:
        for recipe, error in self.stock.broken.items():
            file = self.tree.files[recipe]
            if not file.set_aside:
                self.blocked.add(recipe)
                # One that was not given is not ours to mend, and nobody can train it today.
                if file.given or recipe in self.tree.unknown_parents:
                    self.problems[error.problem] = None
        for conflict in conflicts(self.stock):
            self.problems[conflict.problem] = None
            self.left.add(conflict.setting.entry.key)
            self.blocked |= conflict.blocked
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
        except Refused as refused:
            what = refused.what if refused.is_whole else f"{setting.key} {refused.what}"
            self._refuse(setting, what, refused.todo, blocks=refused.blocks)

    def _look_at_typed(self, setting: Setting) -> None:
        is_ignored = self.target is Target.MODEL_OVERRIDES and setting.entry.value is not None
        if is_ignored and self.tree.files[setting.recipe].given:
            counts = next((entry for use in setting.all_uses if (entry := entry_of(use.side.size)) is not None), None)
            if counts is not None and counts.value is not None:
                # Beside a count in model_overrides, NeMo-RL would not even start.
                what = f"{dotted(setting.entry.path)} is ignored by this NeMo-RL: what counts is the {counts.path[-1]}"
                raise Refused(f"{what} ({counts.place.file_and_line})", "remove it and run again", is_whole=True)
            what = f"{dotted(setting.entry.path)} is ignored by this NeMo-RL, so GTP is off today, whatever it says"
            todo = "remove it, or write it under model_overrides if GTP is wanted"
            self.problems[Problem(setting.entry.place, what, todo)] = None

    def _entries_of(self, recipe: str) -> dict[KeyPath, Leaf]:
        """The settings of a file, by where they stand in it."""
        if recipe not in self.entries:
            self.entries[recipe] = {entry.path: entry for entry in self.tree.layers[recipe].settings}
        return self.entries[recipe]

    def _beside(self, setting: Setting) -> tuple[Setting | None, Setting | None, Setting | None]:
        """Old size, override and typed count of the same axis in the same mapping of the file, this one left out."""
        entries = self._entries_of(setting.recipe)
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
                other = f"megatron_cfg.{setting.key} (line {typed.entry.line}) says {written(typed.entry.value)}"
                what = f"says {written(value)}, and {other}"
                raise Refused(what, "keep the one that is right and run again")
            self._change(setting, Drop)
        elif value is None and size is not None and size.entry.value is not None:
            self._change(setting, Drop)
        else:
            self._change(setting, self._way_out(setting), written(value))

    def _replace_size(self, setting: Setting) -> None:
        """Form A."""
        value = setting.entry.value
        if not setting.all_uses:
            self._replace_unused(setting)
            return
        if isinstance(value, (dict, list)):
            raise Refused("is not a number", "correct it and run again")
        if isinstance(value, str) and "${" in value:
            if not is_one(value):
                raise Refused(f"has a text around its interpolation ({value})", "make it one `${…}`")
        elif value is not None and value != MISSING and (type(value) is not int or value < 1):
            raise Refused(f"must be a positive integer or null, not {written(value)}", "correct it and run again")
        if value == MISSING and self._comes_with_the_run(setting):
            what = "is ???: the run gives a size, and would have to give a number of shards"
            todo = (
                f"write {setting.axis.num_weight_shards}: ??? here and give size × {setting.axis.abbreviation} instead"
            )
            raise Refused(what, todo)
        _, override, typed = self._beside(setting)
        kind: type[Replace] | type[Move] | type[Drop] = Replace
        present = override
        if self.target is Target.MEGATRON_CFG:
            kind = self._way_out(setting)
            present = typed or override
        if present is not None:
            if present.entry.value is not None or value is None:
                # `conflicts` has seen that they agree.
                self._change(setting, Drop)
                return
            if present is typed:
                what = f"is {written(value)}, and megatron_cfg.{present.key} beside it is null"
                raise Refused(what, "keep the one that is right and run again")
            self._change(present, Drop)
        self._change(
            setting,
            kind,
            written(value) if value in (None, MISSING) else new_value(setting, self.stock, self.needs, self.style),
        )

    def _comes_with_the_run(self, setting: Setting) -> bool:
        """Whether a recipe to run has what this entry leaves missing: a base that all its heirs complete is none."""
        orders = self.tree.orders
        heirs = {each for each in self.stock.recipes if setting.recipe in orders[each] and each != setting.recipe}
        return not heirs or any(use.recipe in heirs for use in setting.all_uses)

    @staticmethod
    def _way_out(setting: Setting) -> type[Move] | type[Drop]:
        """Form C: from a shelf that is merged into a `model_overrides` nothing can move to the mapping around that. It
        goes, and the proof asks for a number of its own for each model."""
        return Move if setting.entry.path[-2:-1] == (MODEL_OVERRIDES,) else Drop

    def _replace_unused(self, setting: Setting) -> None:
        """An old key that counts for no model, but may still reach one: by `<<`, under the mapping's own word."""
        owner = self.shadowed.get(setting.entry.key)
        value = setting.entry.value
        if owner is None or not owner.all_uses or not (value is None or type(value) is int):
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
        number = "null" if value is None or len(sizes) != 1 else str(value * sizes.pop())
        self._change(setting, Replace, number)

    def _unused(self, setting: Setting) -> Refused | None:
        """Why a setting counts for no model; None where that is said of the recipe itself."""
        path = setting.entry.path
        if (MEGATRON_CFG, MODEL_OVERRIDES) in itertools.pairwise(path) and path[-3:-1] != (
            MEGATRON_CFG,
            MODEL_OVERRIDES,
        ):
            what = f"{dotted(path)} stands deeper in model_overrides than TP does"
            todo = "write the number of shards there by hand: size × TP, or size × ETP"
            return Refused(what, todo, blocks=False, is_whole=True)
        if path[-3:-1] == (MEGATRON_CFG, MODEL_OVERRIDES) and isinstance(setting.entry.value, (dict, list)):
            return Refused("must be a positive integer or null", "correct it and run again")
        orders = self.tree.orders.items()
        recipes = [recipe for recipe, order in orders if setting.recipe in order and recipe in self.stock.recipes]
        if not recipes:
            return None
        for recipe in recipes:
            for model in self.stock.runs.resolved(recipe, self.stock.runs.run(recipe).worlds[0]).models:
                size = side(model.cfg, setting.axis).size
                if size is not ABSENT and entry_of(size) is None:
                    what = f"({dotted(path)}) may be what {model.name} gets by a resolver"
                    return Refused(what, "write the number of shards there by hand: size × TP, or size × ETP")
        return Refused(
            f"({dotted(path)}) is what no model gets",
            "remove it; or, if something gets it by a computed name or is meant to, write the shards there by hand",
            blocks=False,
        )

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
        self.changes[entry.source.real, repr(change)] = Planned(
            change,
            entry.source.real,
            entry.place,
            entry.path[:-2],
            f"{setting.key}: {written(entry.value)}",
            _removed(key, value) if kind is Drop else f"{key}: {value}",
            parallel_of(setting, self.stock),
            entry.key,
            "${mul:" in value,
        )

    def _add(self, need: OwnNumber) -> None:
        add = own_number(self.stock, need, self.style)
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
        self.changes[file.found.real, repr(add)] = Planned(
            add,
            file.found.real,
            Place(file.shown),
            model.path if add.path[: len(model.path)] == model.path else add.path,
            "inherited",
            f"{add.key}: {shown}",
            describe_parallel(need.recipe, model, need.axis, self.stock, run.worlds[0]),
        )


def _removed(key: str, value: str) -> str:
    """What is said of an entry that goes: it is not needed, or had a value that stands in other places from now on."""
    return f"removed ({key} is in each model's own mapping)" if value else f"removed ({key} is set already)"


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
