"""Decides for each setting what becomes of it.

The new value is size x parallel size, for every size. What is decided here is only how that is spelled, and which
settings cannot be changed safely.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gtp_migrate.forms import Style, Target
from gtp_migrate.plan.changes import Change, Kind, Plan
from gtp_migrate.plan.settings import Beside, Form, Inventory, Setting, Source, Use, form_of
from gtp_migrate.plan.spelling import (
    as_interpolation,
    as_number,
    is_one_interpolation,
    is_right_for_all,
    one_level_up,
    stands_beside,
    written,
)
from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.recipes.keys import EP, MODEL_OVERRIDES, TP, dotted
from gtp_migrate.recipes.layer import mentions_old_key, read_layer
from gtp_migrate.recipes.resolve import Holder, Resolver, of_axis
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.shards import AXES, DENSE, Axis
from gtp_migrate.topology import TopologyError, effective_ep, old_size

_REFERENCE = re.compile(rb"\$\{[^\n]*gtp_weight_remat_size")


class _Refused(Exception):
    """A setting that needs a person: what is wrong with it, and what to do."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo


class Planner:
    """Plans the migration of one tree to one target."""

    def __init__(self, tree: Tree, resolver: Resolver, target: Target, style: Style) -> None:
        self.tree = tree
        self.target = target
        self.style = style
        self.inventory = Inventory(tree, resolver, target)
        self.plan = Plan([])

    def draft(self, recipes: Iterable[str]) -> Plan:
        """Plans all changes to the files of these recipes.

        Args:
            recipes: ids of all recipes that have a layer with a setting.
        """
        self.plan.recipes = sorted(recipes, key=lambda identity: self.tree.file(identity).shown)
        for recipe in self.plan.recipes:
            try:
                for holder, _, key in self.inventory.take(recipe):
                    what = f"gets {key} of {dotted(holder.path)} from a place that could not be found"
                    place = Place(self.tree.file(recipe).shown)
                    self.plan.block(Problem(place, what, "migrate it by hand"), recipe)
            except RecipeError as error:
                # One that was not given is not ours to mend, and nobody can train it today.
                if self.tree.file(recipe).given:
                    self.plan.block(error.problem, recipe)
                continue
            for holder in self.inventory.resolver.resolve(recipe).holders:
                for axis in AXES:
                    self._compare_old_and_new(Use(recipe, holder, axis))
        for setting in self.inventory.settings():
            self._decide(setting)
        self._find_references()
        return self.plan

    # -- old and new setting in one recipe -------------------------------------------------------------

    def _compare_old_and_new(self, use: Use) -> None:
        """They agree, or the new one is the later word, or nobody can say."""
        holder, axis = use.holder, use.axis
        try:
            size = old_size(use.settings, axis)
            if size is None or holder.overrides is None:
                return
            needed = use.shards() if use.is_complete else None
        except TopologyError:
            return  # said where the setting itself is decided, or by the proof
        old = self.inventory.source(use.recipe, (*holder.overrides, axis.gtp_size))
        override = self.inventory.source(use.recipe, (*holder.overrides, axis.num_weight_shards))
        typed = self.inventory.source(use.recipe, (*holder.real, axis.num_weight_shards))
        counts = typed if self.target is Target.MEGATRON_CFG and typed else override
        for new, values in ((override, use.settings.override_shards), (typed, use.settings.typed_shards)):
            if old is None or new is None:
                continue
            shards = of_axis(values, axis)
            is_later = self.inventory.is_later(use.recipe, new, old)
            if new.entry.value is None:
                # Core takes the size where the count is null; whoever wrote null over a size meant off.
                agree = not is_later
            else:
                agree = (shards == needed and needed is not None) or (new is counts and is_later)
            if not agree:
                self._conflict(use, old, new, size, shards)
                return

    def _conflict(self, use: Use, old: Source, new: Source, size: int, shards: object) -> None:
        is_same_file = old.file == new.file
        where = f"line {new.entry.line}" if is_same_file else self.inventory.place(*new).file_and_line
        whose = "" if old.file == use.recipe else f" in {self.tree.file(use.recipe).shown}"
        problem = Problem(
            self.inventory.place(*old),
            f"the old setting (size {size}) and the new one ({'null' if shards is None else shards} shards, {where}) "
            f"say different things{whose}",
            "keep the one that is right and run again",
        )
        self.plan.block(problem, use.recipe, old.file, new.file)

    # -- one setting -----------------------------------------------------------------------------------

    def _decide(self, setting: Setting) -> None:
        is_given = self.tree.file(setting.file).given
        place = self.inventory.place(setting.file, setting.entry)
        if setting.form is Form.TYPED:
            if self.target is Target.MODEL_OVERRIDES and setting.entry.value is not None and is_given:
                what = f"{dotted(setting.paths[0])} is ignored by this NeMo-RL, so GTP is off today, whatever it says"
                todo = "remove it, or write it under model_overrides if GTP is wanted"
                self.plan.report(Problem(place, what, todo))
            return
        if setting.form is Form.OVERRIDE and self.target is Target.MODEL_OVERRIDES:
            return
        if not is_given:
            heirs = sorted(self.tree.file(recipe).shown for recipe in self.inventory.given_heirs(setting))
            if heirs:
                more = f" and {len(heirs) - 1} more" if len(heirs) > 1 else ""
                what = f"holds {setting.key} for {heirs[0]}{more}, and is outside the given paths"
                self.plan.report(Problem(place, what, "give this file too"))
            return
        try:
            if setting.entry.is_container:
                raise _Refused("is not a number", "correct it and run again")
            beside = self.inventory.beside(setting)
            if setting.form is Form.OVERRIDE:
                self._move_override(setting, beside)
            else:
                self._replace_size(setting, beside)
        except _Refused as refused:
            self.plan.block(Problem(place, f"{setting.key} {refused.what}", refused.todo), setting.file)

    def _move_override(self, setting: Setting, beside: Beside) -> None:
        """Form B, where NeMo-RL takes form C."""
        value = setting.entry.value
        if beside.typed is not None:
            if beside.typed.entry.value not in (None, value):
                raise _Refused(
                    f"says {value}, and megatron_cfg.{setting.key} (line {beside.typed.entry.line}) says "
                    f"{beside.typed.entry.value}",
                    "keep the one that is right and run again",
                )
            self._change(setting, Kind.DROP)
        elif value is None and beside.size is not None and beside.size.entry.value is not None:
            self._change(setting, Kind.DROP)
        else:
            self._change(setting, Kind.MOVE, written(value))

    def _replace_size(self, setting: Setting, beside: Beside) -> None:
        """Form A."""
        value = setting.entry.value
        if isinstance(value, str) and "${" in value:
            if not is_one_interpolation(value):
                raise _Refused(f"has a text around its interpolation ({value})", "make it one `${…}`")
        elif value is not None and value != "???" and (type(value) is not int or value < 1):
            raise _Refused(f"must be a positive integer or null, not {written(value)}", "correct it and run again")
        kind = Kind.REPLACE
        present = beside.override
        if self.target is Target.MEGATRON_CFG:
            kind = Kind.MOVE
            present = beside.typed or beside.override
        if present is not None:
            if present.entry.value is not None or value is None:
                # `_compare_old_and_new` has seen that they agree.
                self._change(setting, Kind.DROP)
                return
            if present.form is Form.TYPED:
                what = f"is {value}, and megatron_cfg.{present.key} beside it is null"
                raise _Refused(what, "keep the one that is right and run again")
            self._change(present, Kind.DROP)
        self._change(setting, kind, written(value) if value in (None, "???") else self._shards(setting))

    def _shards(self, setting: Setting) -> str:
        """The new value of an old size."""
        value = setting.entry.value
        if not setting.uses:
            raise _Refused("counts in no recipe that could be resolved", "migrate it by hand")
        try:
            sizes = {old_size(case, setting.axis) for use in setting.uses for case in use.holder.cases[0]}
            number = as_number(setting)
            is_right = is_right_for_all(setting)
        except TopologyError as error:
            raise _Refused(f"cannot be computed: {error}", "correct it and run again") from None
        if None in sizes:
            # Whatever sets it one day would then be taken for a number of shards.
            raise _Refused(f"({value}) is null in a recipe that gets it", "write null there, or the size itself")
        varying = self._varying(setting)
        if varying and (varying != setting.axis.parallel_size or not self._is_set(setting)):
            what = f"needs {setting.axis.abbreviation}, and {varying} takes it from the environment"
            raise _Refused(what, f"set {setting.axis.parallel_size} and run again")
        size = str(value)
        if mentions_old_key(value):
            # What it refers to is about to go: only the number itself can stay.
            if len(sizes) > 1:
                raise _Refused(f"({value}) differs from recipe to recipe", "migrate it by hand")
            size = str(sizes.pop())
        literal = None if number is None or varying else str(number)
        interpolation = as_interpolation(setting, size)
        if self.style is Style.LITERAL:
            spelled = literal
        elif self.style is Style.INTERPOLATION:
            spelled = interpolation
        elif is_right and size.isdigit() and stands_beside(self.inventory, setting):
            spelled = literal
        else:
            spelled = interpolation or literal
        if spelled is None:
            raise self._why_not(setting)
        return spelled

    def _varying(self, setting: Setting) -> str | None:
        """The key that the parallel size comes from, where that depends on the environment."""
        for use in setting.uses:
            keys = [setting.axis.parallel_size]
            if setting.axis is not DENSE and not use.holder.etp_is_set:
                keys += [EP, TP] if effective_ep(use.settings) > 1 else [EP]
            for key in keys:
                if self.inventory.is_from_environment(use.recipe, (*use.holder.real, key)):
                    return key
        return None

    @staticmethod
    def _is_set(setting: Setting) -> bool:
        """Whether every recipe has the parallel size itself, so that an interpolation can name it."""
        return setting.axis is DENSE or all(use.holder.etp_is_set for use in setting.uses)

    def _why_not(self, setting: Setting) -> _Refused:
        name = setting.axis.abbreviation
        if self._varying(setting):
            return _Refused(f"has its {name} from the environment, which no number follows", "use --style auto")
        if not any(use.is_complete for use in setting.uses):
            return _Refused(
                f"gets no {name} from any file, so the number of shards is not known",
                f"give --{name.lower()} N, or use --style interpolation",
            )
        if self.style is Style.INTERPOLATION:
            return _Refused(f"has no key for {name} that every recipe which gets it sets", "use another --style")
        return _Refused(f"needs different numbers of shards, and has no key for {name}", "migrate it by hand")

    def _change(self, setting: Setting, kind: Kind, value: str = "") -> None:
        change = Change(
            file=setting.file,
            shown=self.tree.file(setting.file).shown,
            kind=kind,
            axis=setting.axis,
            offset=setting.entry.offset,
            holder=setting.paths[0][:-2],
            value=one_level_up(value) if kind is Kind.MOVE else value,
            place=self.inventory.place(setting.file, setting.entry),
            old_key=setting.key,
            old_value=written(setting.entry.value),
            parallel=self.inventory.parallel(setting),
        )
        if change not in self.plan.changes:
            self.plan.changes.append(change)

    def _find_references(self) -> None:
        """Interpolations that use an old key which is about to go."""
        layers = {identity for recipe in self.inventory.recipes for identity in self.tree.order(recipe)}
        for identity in sorted(layers):
            file = self.tree.file(identity)
            if file.data is None or not _REFERENCE.search(file.data):
                continue
            layer = read_layer(self.tree.text(identity), file.shown, everything=True)
            for path, entry in layer.entries.items():
                if mentions_old_key(entry.value) and form_of(path) is not Form.SIZE:
                    what = f"{dotted(path)} refers to an old key ({entry.value})"
                    place = self.inventory.place(identity, entry)
                    self.plan.block(Problem(place, what, "give it the value itself and run again"), identity)

    # -- recipes that need a number of their own -------------------------------------------------------

    def add(self, recipe: str, holder: Holder, axis: Axis) -> bool:
        """Adds the setting that a recipe needs for itself, as its layers give it another one.

        Returns:
            False where it cannot be added.
        """
        use = Use(recipe, holder, axis)
        if not self.tree.file(recipe).given or not use.is_complete or holder.path != holder.real:
            return False
        overrides = (MODEL_OVERRIDES,) if self.target is Target.MODEL_OVERRIDES else ()
        if (*holder.path, *overrides, axis.num_weight_shards) in self.tree.layer(recipe).entries:
            return False
        # A file that is reached by two names is one text.
        there = (self.tree.file(recipe).found.real, axis, holder.path)
        if any(
            (self.tree.file(change.file).found.real, change.axis, change.holder) == there
            and change.kind is not Kind.DROP
            for change in self.plan.changes
        ):
            return False
        try:
            needed = use.shards()
        except TopologyError:
            return False
        shown = self.tree.file(recipe).shown
        self.plan.changes.append(
            Change(
                file=recipe,
                shown=shown,
                kind=Kind.ADD,
                axis=axis,
                offset=None,
                holder=holder.path,
                value=written(needed),
                place=Place(shown),
                old_key=None,
                old_value="",
                parallel=self.inventory.describe_parallel(use),
            )
        )
        return True
