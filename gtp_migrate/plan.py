"""What to change, where, and why: one `Change` per setting, and a `Problem` for each that needs a person.

The new value is size x parallel size, for every size. What is decided here is only how it is spelled, and
which settings cannot be changed safely. Nothing is read or written but through the tree.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gtp_migrate.forms import Style, Target
from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.recipes.keys import (
    EP,
    ETP,
    MEGATRON_CFG,
    MODEL_OVERRIDES,
    NEW_KEYS,
    OLD_KEYS,
    OVERRIDE_MARKER,
    TP,
    KeyPath,
    dotted,
)
from gtp_migrate.recipes.layer import Entry, Layer, mentions_old_key, read_layer
from gtp_migrate.recipes.resolve import ABSENT, Holder, Resolver, Settings, Unresolved, of_axis
from gtp_migrate.recipes.tree import RecipeFile, Tree
from gtp_migrate.shards import AXES, DENSE, Axis
from gtp_migrate.topology import TopologyError, old_size, parallel_size, shard_count

_SINGLE_INTERPOLATION = re.compile(r"\$\{.*\}", re.S)


class Kind(Enum):
    """What is done to the text."""

    #: Another key and value in the same place.
    REPLACE = "replace"
    #: Out of `model_overrides`, into the `megatron_cfg` around it.
    MOVE = "move"
    #: Away: the new setting stands beside it already.
    DROP = "drop"
    #: A new entry in a recipe that needs a number of its own.
    ADD = "add"


@dataclass(frozen=True)
class Change:
    """One change to one file."""

    #: Recipe id of the file, and its name.
    file: str
    shown: str
    kind: Kind
    axis: Axis
    #: Where the changed entry's key starts: an offset in the text without a byte order mark. None for ADD.
    offset: int | None
    #: The `megatron_cfg` it is in, as the file has it.
    holder: KeyPath
    #: The key and the value to write, the value as a plain YAML scalar; no use for DROP.
    key: str
    value: str
    place: Place
    #: For people: what stood there, and the parallel size it was multiplied with and where that comes from.
    old: str
    parallel: str

    @property
    def new(self) -> str:
        if self.kind is Kind.DROP:
            return f"removed ({self.key} is set already)"
        return f"{self.key}: {self.value}"


@dataclass
class Plan:
    """All changes, all problems, and the files that have to stay as they are."""

    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    #: Recipe ids of files that a problem keeps from being changed.
    blocked: set[str] = field(default_factory=set)
    #: Recipes that can change when a file does: all that is to be proven.
    recipes: list[str] = field(default_factory=list)
    #: How often each setting was decided to be a number or an interpolation, for the summary.
    left: int = 0


class Form(Enum):
    """Which of the three ways an entry is written in."""

    SIZE = "A"
    OVERRIDE = "B"
    TYPED = "C"


@dataclass(frozen=True)
class _Use:
    """A recipe in which a setting is the one that counts."""

    recipe: str
    holder: Holder
    axis: Axis

    @property
    def is_complete(self) -> bool:
        """Whether the recipe says, or was told, its TP."""
        return len(self.holder.cases) == 1

    @property
    def settings(self) -> Settings:
        return self.holder.settings

    def shards(self) -> int | None:
        """Shards per weight that the recipe needs; None for none. Raises `TopologyError`."""
        size = old_size(self.settings, self.axis)
        return None if size is None else size * parallel_size(self.settings, self.axis)


@dataclass
class _Setting:
    """An entry that stands for a setting, with all the recipes it counts in."""

    file: str
    entry: Entry
    form: Form
    axis: Axis
    #: Where the file has it: several where an anchor or a merge key repeats it.
    paths: list[KeyPath]
    uses: list[_Use] = field(default_factory=list)
    #: Of an old size: recipes that get it, but have a count that is the later word.
    overruled: list[_Use] = field(default_factory=list)


class Planner:
    """Plans the migration of one tree to one target."""

    def __init__(self, tree: Tree, resolver: Resolver, target: Target, style: Style, assumed_tp: int | None) -> None:
        self.tree = tree
        self.resolver = resolver
        self.target = target
        self.style = style
        self.plan = Plan()
        self._assumed_tp = assumed_tp
        self._settings: dict[tuple[str, int], _Setting] = {}

    def draft(self, recipes: Iterable[str]) -> Plan:
        """Plans all changes to the files of these recipes.

        Args:
            recipes: ids of all recipes that have a layer with a setting.
        """
        self.plan.recipes = sorted(recipes, key=lambda identity: self.tree.file(identity).shown)
        collected: set[str] = set()
        for identity in self.plan.recipes:
            try:
                order = self.tree.order(identity)
                resolved = self.resolver.resolve(identity)
            except RecipeError as error:
                self._unresolvable(identity, error)
                continue
            for layer_id in order:
                if layer_id not in collected:
                    collected.add(layer_id)
                    self._collect(layer_id)
            for holder in resolved.holders:
                for axis in AXES:
                    self._use(identity, holder, axis)
        for setting in self._settings.values():
            setting.uses = setting.uses or setting.overruled
        for setting in sorted(self._settings.values(), key=lambda s: (self.tree.file(s.file).shown, s.entry.offset)):
            self._decide(setting)
        self._find_references()
        return self.plan

    # -- what is there ---------------------------------------------------------------------------------

    def _collect(self, identity: str) -> None:
        layer = self.tree.layer(identity)
        for path, entry in layer.entries.items():
            form = _form(path)
            if form:
                self._setting(identity, path, entry, form)

    def _setting(self, identity: str, path: KeyPath, entry: Entry, form: Form) -> _Setting:
        axis = next(axis for axis in AXES if path[-1] in (axis.gtp_size, axis.num_weight_shards))
        # A file that is reached by two names is one text.
        key = (self.tree.file(identity).found.real, entry.offset)
        setting = self._settings.get(key)
        if setting is None:
            setting = self._settings[key] = _Setting(identity, entry, form, axis, [])
        if path not in setting.paths:
            setting.paths.append(path)
        return setting

    def provider(self, recipe: str, path: KeyPath) -> tuple[str, Entry] | None:
        """The layer, and the entry in it, that gives a recipe its value at `path`."""
        unfilled = None
        for identity in reversed(self.tree.order(recipe)):
            layer = self.tree.layer(identity)
            entry = layer.entries.get(path)
            if entry is not None:
                if entry.value != "???":
                    return identity, entry
                unfilled = unfilled or (identity, entry)
            if _drops(layer, path):
                break
        return unfilled

    def _place(self, identity: str, entry: Entry) -> Place:
        return Place(self.tree.file(identity).shown, entry.line, entry.column)

    def _use(self, recipe: str, holder: Holder, axis: Axis) -> None:
        size = of_axis(holder.settings.size, axis)
        override = of_axis(holder.settings.override_shards, axis)
        typed = of_axis(holder.settings.typed_shards, axis)
        for value, parent, key, form in (
            (size, holder.overrides, axis.gtp_size, Form.SIZE),
            (override, holder.overrides, axis.num_weight_shards, Form.OVERRIDE),
            (typed, holder.real, axis.num_weight_shards, Form.TYPED),
        ):
            if value is ABSENT or parent is None:
                continue
            source = self.provider(recipe, (*parent, key))
            if source is None:
                self._block(
                    recipe,
                    Problem(
                        Place(self.tree.file(recipe).shown),
                        f"gets {key} of {dotted(holder.path)} from a place that could not be found",
                        "migrate it by hand",
                    ),
                )
                continue
            setting = self._setting(source[0], (*parent, key), source[1], form)
            use = _Use(recipe, holder, axis)
            if form is Form.SIZE and self._is_overruled(holder.settings, axis):
                setting.overruled.append(use)
            else:
                setting.uses.append(use)
        self._check_both(recipe, holder, axis)

    def _is_overruled(self, settings: Settings, axis: Axis) -> bool:
        """Whether a count makes the old size beside it of no effect."""
        with contextlib.suppress(TopologyError):
            return shard_count(settings, axis, self.target, before=True) is not None
        return False

    def _check_both(self, recipe: str, holder: Holder, axis: Axis) -> None:
        """Old and new setting in one recipe: they agree, or the new one is the later word, or nobody can say."""
        settings = holder.settings
        try:
            size = old_size(settings, axis)
            if size is None or holder.overrides is None:
                return
            new_key = axis.num_weight_shards
            old = self.provider(recipe, (*holder.overrides, axis.gtp_size))
            override = self.provider(recipe, (*holder.overrides, new_key))
            typed = self.provider(recipe, (*holder.real, new_key))
            new = override if self.target is Target.MODEL_OVERRIDES or not typed else typed
            for candidate in (override, typed):
                if candidate is None or old is None:
                    continue
                value = candidate[1].value
                if value is None:
                    # Core takes the size where the count is null; whoever wrote null over a size meant off.
                    if self._is_later(recipe, candidate, old):
                        self._conflict(recipe, old, candidate, size, None)
                        return
                    continue
                count = of_axis(settings.override_shards if candidate is override else settings.typed_shards, axis)
                if count == size * parallel_size(settings, axis) and len(holder.cases) == 1:
                    continue
                if candidate is not new or not self._is_later(recipe, candidate, old):
                    self._conflict(recipe, old, candidate, size, count)
                    return
        except TopologyError:
            return  # reported where the setting itself is decided, or by the proof

    def _is_later(self, recipe: str, one: tuple[str, Entry], other: tuple[str, Entry]) -> bool:
        if one[0] == other[0]:
            return False
        order = self.tree.order(recipe)[::-1]
        return order.index(one[0]) < order.index(other[0])

    def _conflict(self, recipe: str, old: tuple[str, Entry], new: tuple[str, Entry], size: int, count: object) -> None:
        place = self._place(*old)
        text = "null" if count is None else count
        same_file = old[0] == new[0]
        where = f"line {new[1].line}" if same_file else self._place(*new).file_and_line
        whose = "" if old[0] == recipe else f" in {self.tree.file(recipe).shown}"
        problem = Problem(
            place,
            f"the old setting (size {size}) and the new one ({text} shards, {where}) say different things{whose}",
            "keep the one that is right and run again",
        )
        self._block(recipe, problem)
        for identity in (old[0], new[0]):
            self.plan.blocked.add(identity)

    # -- what to do with it ----------------------------------------------------------------------------

    def _decide(self, setting: _Setting) -> None:
        file = self.tree.file(setting.file)
        is_old = setting.form is Form.SIZE
        to_move = setting.form is Form.OVERRIDE and self.target is Target.MEGATRON_CFG
        if setting.form is Form.TYPED:
            self._report_ignored(setting)
            return
        if not (is_old or to_move):
            return
        if not file.given:
            heirs = sorted(self.tree.file(recipe).shown for recipe in self._given_heirs(setting))
            if heirs:
                more = f" and {len(heirs) - 1} more" if len(heirs) > 1 else ""
                self._problem(
                    Problem(
                        self._place(setting.file, setting.entry),
                        f"holds {setting.axis.gtp_size if is_old else setting.axis.num_weight_shards} for "
                        f"{heirs[0]}{more}, and is outside the given paths",
                        "give this file too",
                    )
                )
            return
        if setting.entry.is_container:
            self._refuse(setting, "is not a number", "correct it and run again")
            return
        paths_ok = all(
            use.holder.overrides is not None and use.holder.overrides[-2:] == (MEGATRON_CFG, MODEL_OVERRIDES)
            for use in setting.uses
        )
        beside = self._beside(setting)
        if to_move:
            if beside.typed is not None:
                if beside.typed.entry.value is None or beside.typed.entry.value == setting.entry.value:
                    self._change(setting, Kind.DROP, "")
                    return
                self._refuse(
                    setting,
                    f"says {setting.entry.value}, and megatron_cfg.{setting.axis.num_weight_shards} "
                    f"(line {beside.typed.entry.line}) says {beside.typed.entry.value}",
                    "keep the one that is right and run again",
                )
                return
            if beside.old is not None and beside.old.entry.value is not None and setting.entry.value is None:
                self._change(setting, Kind.DROP, "")
                return
            self._change(setting, Kind.MOVE, _spelled(setting.entry.value))
            return
        self._decide_size(setting, beside, paths_ok)

    def _given_heirs(self, setting: _Setting) -> Iterator[str]:
        """The given recipes that get the setting's key, be it with a value of their own."""

        def value(settings: Settings) -> object:
            pair = settings.size if setting.form is Form.SIZE else settings.override_shards
            return of_axis(pair, setting.axis)

        for recipe in self._readable():
            if self._is_given(recipe) and setting.file in self.tree.order(recipe):
                with contextlib.suppress(RecipeError):
                    holders = self.resolver.resolve(recipe).holders
                    if any(value(holder.settings) is not ABSENT for holder in holders):
                        yield recipe

    def _decide_size(self, setting: _Setting, beside: _Beside, paths_ok: bool) -> None:
        value = setting.entry.value
        if isinstance(value, str) and "${" in value:
            if not _is_single_interpolation(value):
                self._refuse(setting, f"has a text around its interpolation ({value})", "make it one `${…}`")
                return
        elif value is not None and value != "???" and (type(value) is not int or value < 1):
            self._refuse(
                setting,
                f"must be a positive integer or null, not {_written(value)}",
                "correct it and run again",
            )
            return
        kind = Kind.REPLACE if self.target is Target.MODEL_OVERRIDES else Kind.MOVE
        present = beside.override if self.target is Target.MODEL_OVERRIDES else (beside.typed or beside.override)
        if present is not None:
            if present.entry.value is not None or value is None:
                # `_check_both` has seen that they agree.
                self._change(setting, Kind.DROP, "")
                return
            if present.form is Form.TYPED:
                self._refuse(
                    setting,
                    f"is {value}, and megatron_cfg.{setting.axis.num_weight_shards} beside it is null",
                    "keep the one that is right and run again",
                )
                return
            self._change(present, Kind.DROP, "")
        if value is None or value == "???":
            self._change(setting, kind, _spelled(value))
            return
        self._write_size(setting, kind, paths_ok)

    def _write_size(self, setting: _Setting, kind: Kind, paths_ok: bool) -> None:
        value = setting.entry.value
        complete = [use for use in setting.uses if use.is_complete]
        try:
            sizes = {old_size(case, setting.axis) for use in setting.uses for case in use.holder.cases[0]}
            needs = [use.shards() for use in complete]
        except TopologyError as error:
            self._refuse(setting, f"cannot be computed: {error}", "correct it and run again")
            return
        if not setting.uses:
            self._refuse(setting, "counts in no recipe that could be resolved", "migrate it by hand")
            return
        if isinstance(value, str):
            if sizes == {None}:
                self._change(setting, kind, value)
                return
            if None in sizes:
                self._refuse(setting, f"({value}) is null in some recipes", "migrate it by hand")
                return
        size_text = str(value)
        if mentions_old_key(value):
            # What it refers to is about to go: only the number itself can stay.
            if len(sizes) > 1:
                self._refuse(setting, f"({value}) differs from recipe to recipe", "migrate it by hand")
                return
            size_text = str(next(iter(sizes)))
        number = self._number(setting, complete, needs)
        spelled = self._interpolation(setting, complete, size_text) if paths_ok else None
        if self.style is Style.INTERPOLATION:
            text = spelled
        elif self.style is Style.LITERAL:
            text = None if number is None else str(number)
        else:
            right = number is not None and len(set(needs)) == 1 and len(complete) == len(setting.uses)
            stays = right and size_text.isdigit() and self._is_written_here(setting)
            text = str(number) if stays else spelled
            if text is None and number is not None:
                text = str(number)
        if text is None:
            self._refuse(setting, *self._why_not(setting, complete))
            return
        self._change(setting, kind, text)

    def _why_not(self, setting: _Setting, complete: list[_Use]) -> tuple[str, str]:
        name = setting.axis.abbreviation
        if not complete:
            return (
                f"gets no {name} from any file, so the number of shards is not known",
                f"give --{name.lower()} N, or use --style interpolation",
            )
        if self.style is Style.INTERPOLATION:
            return f"has no key for {name} that every recipe which gets it sets", "use another --style"
        return f"needs different numbers of shards, and has no key for {name} to refer to", "migrate it by hand"

    def _number(self, setting: _Setting, complete: list[_Use], needs: list[int | None]) -> int | None:
        """The number for the mapping that it stands in, else the one that most of its recipes need."""
        for use, need in zip(complete, needs, strict=True):
            if use.recipe == setting.file and use.holder.overrides == setting.paths[0][:-1]:
                return need
        counted = Counter(needs).most_common(1)
        return counted[0][0] if counted else None

    def _interpolation(self, setting: _Setting, complete: list[_Use], size: str) -> str | None:
        """`${mul:size,${..TP}}` as it stands in `model_overrides`; None where no key holds the parallel size."""
        axis = setting.axis
        dots = ".."
        if axis is DENSE:
            return f"${{mul:{size},${{{dots}{TP}}}}}"
        given = {use.holder.etp_is_set for use in complete} or {use.holder.etp_is_set for use in setting.uses}
        if not complete or given == {True}:
            return f"${{mul:{size},${{{dots}{ETP}}}}}"
        if given == {False}:
            # ETP is derived: 1 where EP > 1, else TP.
            spreads = {_ep(use.settings) > 1 for use in complete}
            if any(parallel_size(use.settings, axis) != _derived_etp(use.settings) for use in complete):
                return None  # --etp: the number is all that is known
            if spreads == {True}:
                return size
            if spreads == {False}:
                return f"${{mul:{size},${{{dots}{TP}}}}}"
        return None

    def _is_written_here(self, setting: _Setting) -> bool:
        """Whether the parallel size stands as a plain number in the setting's own file."""
        layer = self.tree.layer(setting.file)
        for path in setting.paths:
            holder = path[:-2]
            keys = [TP] if setting.axis is DENSE else [ETP]
            if setting.axis is not DENSE and not _plain(layer, (*holder, ETP)):
                keys = [TP]
                if any(use.holder.etp_is_set for use in setting.uses):
                    return False
                if any(_ep(use.settings) > 1 for use in setting.uses):
                    keys = [EP]
            if not all(_plain(layer, (*holder, key)) for key in keys):
                # Nobody says it but the command line.
                if any(use.holder.tp_is_set for use in setting.uses) or self._assumed_tp is None:
                    if not (setting.axis is not DENSE and self.resolver.assumed.etp is not None and keys == [TP]):
                        return False
        return True

    def _beside(self, setting: _Setting) -> _Beside:
        """The other settings of the same axis in the same mapping of the same file."""
        beside = _Beside()
        if setting.paths[0][-2] != MODEL_OVERRIDES:
            return beside
        layer = self.tree.layer(setting.file)
        overrides = setting.paths[0][:-1]
        for form, path in (
            (Form.SIZE, (*overrides, setting.axis.gtp_size)),
            (Form.OVERRIDE, (*overrides, setting.axis.num_weight_shards)),
            (Form.TYPED, (*overrides[:-1], setting.axis.num_weight_shards)),
        ):
            entry = layer.entries.get(path)
            if entry is not None and entry.offset != setting.entry.offset:
                found = self._setting(setting.file, path, entry, form)
                setattr(beside, {Form.SIZE: "old", Form.OVERRIDE: "override", Form.TYPED: "typed"}[form], found)
        return beside

    def _report_ignored(self, setting: _Setting) -> None:
        if self.target is Target.MEGATRON_CFG or setting.entry.value is None:
            return
        if not self.tree.file(setting.file).given:
            return
        self._problem(
            Problem(
                self._place(setting.file, setting.entry),
                f"{dotted(setting.paths[0])} is ignored by this NeMo-RL, so GTP is off today, whatever it says",
                "remove it, or write it under model_overrides if GTP is wanted",
            )
        )

    def _find_references(self) -> None:
        """Interpolations that use an old key which is about to go."""
        for identity in sorted({each for recipe in self._readable() for each in self.tree.order(recipe)}):
            file = self.tree.file(identity)
            if file.data is None or not _REFERENCE.search(file.data):
                continue
            layer = read_layer(self.tree.text(identity), file.shown, everything=True)
            for path, entry in layer.entries.items():
                if mentions_old_key(entry.value) and _form(path) is not Form.SIZE:
                    self._block(
                        identity,
                        Problem(
                            self._place(identity, entry),
                            f"{dotted(path)} refers to an old key ({entry.value})",
                            "give it the value itself and run again",
                        ),
                    )

    def _readable(self) -> Iterator[str]:
        for recipe in self.plan.recipes:
            with contextlib.suppress(RecipeError):
                self.tree.order(recipe)
                yield recipe

    # -- saying it -------------------------------------------------------------------------------------

    def _is_given(self, identity: str) -> bool:
        return self.tree.file(identity).given

    def _unresolvable(self, identity: str, error: RecipeError) -> None:
        if not self._is_given(identity):
            # Not ours to mend, and not a recipe that anybody can train today.
            return
        self._problem(error.problem)
        self.plan.blocked.add(identity)

    def _problem(self, problem: Problem) -> None:
        if problem not in self.plan.problems:
            self.plan.problems.append(problem)

    def _block(self, identity: str, problem: Problem) -> None:
        self._problem(problem)
        self.plan.blocked.add(identity)

    def _refuse(self, setting: _Setting, what: str, todo: str) -> None:
        key = setting.axis.gtp_size if setting.form is Form.SIZE else setting.axis.num_weight_shards
        self._block(setting.file, Problem(self._place(setting.file, setting.entry), f"{key} {what}", todo))

    def _change(self, setting: _Setting, kind: Kind, value: str) -> None:
        if kind is Kind.MOVE:
            value = one_level_up(value)
        axis = setting.axis
        key = axis.gtp_size if setting.form is Form.SIZE else axis.num_weight_shards
        change = Change(
            setting.file,
            self.tree.file(setting.file).shown,
            kind,
            axis,
            setting.entry.offset,
            setting.paths[0][:-2],
            axis.num_weight_shards,
            value,
            self._place(setting.file, setting.entry),
            f"{key}: {_written(setting.entry.value)}",
            self._parallel(setting),
        )
        if change not in self.plan.changes:
            self.plan.changes.append(change)

    def _parallel(self, setting: _Setting) -> str:
        """`TP 4 (base.yaml:12)`, and the other values that other recipes have."""
        said: dict[str, None] = {}
        uses = sorted(setting.uses, key=lambda use: use.recipe != setting.file)
        for use in uses:
            said[self.describe_parallel(use.recipe, use.holder, setting.axis)] = None
        texts = list(said)
        return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")

    def describe_parallel(self, recipe: str, holder: Holder, axis: Axis) -> str:
        """The parallel size of a recipe and where it comes from: `TP 4 (base.yaml:12)`."""
        name = axis.abbreviation
        if len(holder.cases) > 1:
            return f"{name} not set"
        try:
            value = parallel_size(holder.settings, axis)
        except TopologyError as error:
            return str(error)
        source = self.provider(recipe, (*holder.real, axis.parallel_size))
        if source is None or source[1].value is None:
            if axis is not DENSE and self.resolver.assumed.etp is None:
                reason = "EP > 1" if _ep(holder.settings) > 1 else "as TP"
                return f"{name} {value} ({reason})"
            return f"{name} {value} (--{name.lower()})"
        return f"{name} {value} ({self._place(*source).file_and_line})"

    # -- recipes that need a number of their own -------------------------------------------------------

    def add(self, recipe: str, holder: Holder, axis: Axis) -> bool:
        """Adds the setting that a recipe needs for itself, as its layers give it another one.

        Returns:
            False where it cannot be added.
        """
        if not self._is_given(recipe) or len(holder.cases) > 1 or holder.path != holder.real:
            return False
        in_overrides = self.target is Target.MODEL_OVERRIDES
        own = (*holder.path, *([MODEL_OVERRIDES] if in_overrides else []), axis.num_weight_shards)
        if own in self.tree.layer(recipe).entries or any(
            (change.file, change.axis, change.holder) == (recipe, axis, holder.path) and change.kind is not Kind.DROP
            for change in self.plan.changes
        ):
            return False
        try:
            need = _Use(recipe, holder, axis).shards()
        except TopologyError:
            return False
        change = Change(
            recipe,
            self.tree.file(recipe).shown,
            Kind.ADD,
            axis,
            None,
            holder.path,
            axis.num_weight_shards,
            "null" if need is None else str(need),
            Place(self.tree.file(recipe).shown),
            "inherited",
            self.describe_parallel(recipe, holder, axis),
        )
        self.plan.changes.append(change)
        return True


@dataclass
class _Beside:
    old: _Setting | None = None
    override: _Setting | None = None
    typed: _Setting | None = None


_REFERENCE = re.compile(rb"\$\{[^\n]*gtp_weight_remat_size")


def _form(path: KeyPath) -> Form | None:
    if len(path) >= 3 and path[-3:-1] == (MEGATRON_CFG, MODEL_OVERRIDES):
        if path[-1] in OLD_KEYS:
            return Form.SIZE
        if path[-1] in NEW_KEYS:
            return Form.OVERRIDE
    if len(path) >= 2 and path[-2] == MEGATRON_CFG and path[-1] in NEW_KEYS:
        return Form.TYPED
    return None


def _drops(layer: Layer, path: KeyPath) -> bool:
    """Whether nothing below this layer can reach `path`: it replaces a mapping on the way to it."""
    marker = layer.entries.get((path[0], OVERRIDE_MARKER))
    if marker is not None and marker.value:
        return True
    return any(
        (entry := layer.entries.get(path[:length])) is not None and not entry.is_container and entry.value != "???"
        for length in range(1, len(path))
    )


def _plain(layer: Layer, path: KeyPath) -> bool:
    entry = layer.entries.get(path)
    return entry is not None and isinstance(entry.value, int) and not isinstance(entry.value, bool)


def _ep(settings: Settings) -> int:
    value = settings.ep
    return value if isinstance(value, int) and not isinstance(value, Unresolved) else 1


def _derived_etp(settings: Settings) -> object:
    return 1 if _ep(settings) > 1 else settings.tp


def _is_single_interpolation(text: str) -> bool:
    if not _SINGLE_INTERPOLATION.fullmatch(text):
        return False
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0 and char == "}" and index != len(text) - 1:
            return False
    return depth == 0


def one_level_up(text: str) -> str:
    """An interpolation of `model_overrides`, as it must be spelled in the `megatron_cfg` around it."""

    def shorter(match: re.Match[str]) -> str:
        dots = match[1]
        return "${" + (dots[1:] if len(dots) > 1 else f".{MODEL_OVERRIDES}.")

    return re.sub(r"\$\{(\.+)", shorter, text)


def _spelled(value: Any) -> str:
    return "null" if value is None else str(value)


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and "${" not in value and value != "???":
        return f'"{value}"'
    return str(value)


def has_setting(layer: Layer, text: str, file: RecipeFile, target: Target) -> bool:
    """Whether a file holds a setting that this target has something to say about.

    An old key in a mapping that is not a `model_overrides` may become one, through an interpolation.
    """
    for path, entry in layer.entries.items():
        form = _form(path)
        if form is Form.SIZE:
            return True
        if form is Form.OVERRIDE and target is Target.MEGATRON_CFG:
            return True
        if form is Form.TYPED and target is Target.MODEL_OVERRIDES and entry.value is not None:
            return True
    if not file.glance.old:
        return False
    return any(path[-1] in OLD_KEYS for path in read_layer(text, file.shown, everything=True).entries)
