"""The new value of an old size, as it is written; or why there is none."""

from __future__ import annotations

from gtp_migrate.forms import Style
from gtp_migrate.plan.needs import Need, NoInterpolation
from gtp_migrate.plan.refused import Refused
from gtp_migrate.plan.spelling import as_interpolation, as_number, direct_uses, fixed_numbers, stands_beside
from gtp_migrate.plan.stock import Setting, Stock
from gtp_migrate.recipes.interpolation import Computed, value_of
from gtp_migrate.recipes.keys import EP, OLD_KEY_TEXT, TP
from gtp_migrate.runs.runs import World, open_leaves
from gtp_migrate.runs.topology import TopologyError, effective_ep, old_size
from gtp_migrate.shards import DENSE

_READ_TWO_WAYS = "from `<<: [*A, *B]` that PyYAML 6.0.3 and 6.0.4 read differently"


def new_value(setting: Setting, stock: Stock, needs: frozenset[Need], style: Style) -> str:
    """A number, or an interpolation.

    Raises:
        Refused: neither is right for all that get it.
    """
    return _Speller(setting, stock, needs, style).new_value()


class _Speller:
    def __init__(self, setting: Setting, stock: Stock, needs: frozenset[Need], style: Style) -> None:
        self.setting = setting
        self.stock = stock
        self.needs = needs
        self.style = style
        self.uses = direct_uses(setting)

    def new_value(self) -> str:
        setting, uses = self.setting, self.uses
        try:
            size = self._size()
            fixed = fixed_numbers(uses)
            number = as_number(setting, fixed, self.stock)
            interpolation = as_interpolation(setting, size, self.stock)
            is_beside = stands_beside(setting, self.stock)
        except TopologyError as error:
            raise self._unknown(error) from None
        self._refuse_derived_from_surroundings()
        without = self._without_resolvers()
        is_open = None in fixed.values() or self._has_open_size()
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
            raise self._why_not(interpolation, without)
        return spelled

    def _size(self) -> str:
        """The old size, as it stands in an interpolation."""
        value = self.setting.entry.value
        sizes = {old_size(use.side) for use in self.uses}
        if None in sizes:
            # Whatever sets it one day would then be taken for a number of shards.
            raise Refused(f"({value}) is null in a recipe that gets it", "write null there, or the size itself")
        if isinstance(value, str) and OLD_KEY_TEXT in value:
            # What it refers to is about to go: only the number itself can stay.
            if len(sizes) > 1:
                raise Refused(f"({value}) differs from recipe to recipe", "migrate it by hand")
            return str(next(iter(sizes)))
        return str(value)

    def _unknown(self, error: TopologyError) -> Refused:
        without = next((use.model for use in self.uses if TP not in use.model.cfg), None)
        if without is not None:
            why = "this run does not build" if without.is_on else "has Megatron switched off"
            what = f"is for {without.name}, which has no TP and {why}"
            return Refused(what, "give --tp N, or set TP beside it")
        todo = "correct it and run again"
        if "Unsupported interpolation type" in str(error):
            todo = "write the number itself: what a resolver of your own says is not known here"
        return Refused(f"cannot be computed: {error}", todo)

    def _has_open_size(self) -> bool:
        """Whether the environment, or a resolver that is not known here, has a say in the size itself."""
        return any(
            isinstance(use.side.size, Computed)
            and open_leaves(self.stock.runs.resolved(use.recipe, use.world).resolution, use.side.size)
            for use in self.uses
        )

    def _without_resolvers(self) -> str | None:
        """Why no interpolation can be written: the proof has seen it fail, or a recipe whose launcher has no `mul`."""
        if NoInterpolation(self.setting.entry.key) in self.needs:
            return "ends up in a place where an interpolation has no parallel size to refer to"
        for use in self.setting.all_uses:
            run = self.stock.runs.run(use.recipe)
            if not run.has_resolvers or "mul" not in run.resolvers:
                shown = self.stock.tree.shown(use.recipe)
                return f"is used by {shown}, whose launcher is not known to have the resolver mul"
        return None

    def _open_key(self, reason: str) -> str | None:
        """The key that the parallel size comes from, where that is open for this reason."""
        for use in self.uses:
            keys = [self.setting.axis.parallel_size]
            if self.setting.axis is not DENSE and value_of(use.model.cfg.get(self.setting.axis.parallel_size)) is None:
                keys += [EP, TP]
            opened = self.stock.runs.run(use.recipe).open_keys.get(use.model.path, {})
            for key in keys:
                if opened.get(key) == reason:
                    return key
        return None

    def _refuse_derived_from_surroundings(self) -> None:
        key = self._open_key("environment")
        if key is None or key == self.setting.axis.parallel_size == TP:
            return
        nulls = self._may_be_null(key)
        if key == self.setting.axis.parallel_size and not nulls:
            return
        try:
            if key == TP and all(effective_ep(use.model.cfg) == 1 for use in self.uses):
                return  # `${..tensor_model_parallel_size}` follows it
        except TopologyError:
            pass
        what = f"needs {self.setting.axis.abbreviation}, and {key} takes it from the environment"
        raise Refused(what, f"set {self.setting.axis.parallel_size} and run again")

    def _may_be_null(self, key: str) -> bool:
        """Whether a value that comes from the environment is null today, so that it may be a number tomorrow."""
        for use in self.uses:
            first = self.stock.runs.resolved(use.recipe, World(use.world.other_reading, use.world.as_launched))
            model = first.model(use.model.name)
            if model is not None and key in model.cfg and value_of(model.cfg[key]) is None:
                return True
        return False

    def _why_not(self, interpolation: str | None, without: str | None) -> Refused:
        name = self.setting.axis.abbreviation
        key = self.setting.axis.parallel_size
        if self._has_open_size():
            return Refused("comes from the environment, which no number follows", "write the number itself")
        as_a_number = f"write {key} as a number and run again"
        if self.style is not Style.LITERAL and without and interpolation is not None:
            todo = "write the numbers with --style literal"
            if any(self.stock.tree.is_ambiguous(use.recipe) for use in self.uses):
                without += f", and gets a {name} {_READ_TWO_WAYS}"
                todo = f"set {key} in the mapping itself"
            elif self._open_key("environment"):
                without += f", and has its {name} from the environment, which no number follows"
                todo = as_a_number
            elif any(self.stock.runs.run(use.recipe).is_open for use in self.uses):
                todo = f"set {key} in a file, or give --{name.lower()} N"
                todo += " and --style literal" if self.style is Style.INTERPOLATION else ""
            return Refused(without, todo)
        if self._open_key("environment"):
            todo = as_a_number if without else "use --style auto"
            return Refused(f"has its {name} from the environment, which no number follows", todo)
        if any(use.world.supplied for use in self.uses):
            return Refused(
                f"gets no {name} from any file, so the number of shards is not known",
                f"set {key} in a file, or give --{name.lower()} N",
            )
        if any(self.stock.tree.is_ambiguous(use.recipe) for use in self.uses):
            what = f"has a {name} {_READ_TWO_WAYS}"
            return Refused(what, f"set {key} in the mapping itself")
        if self.style is Style.INTERPOLATION:
            return Refused(
                f"has no key for {name} that every recipe which gets it sets", "write the numbers with --style literal"
            )
        return Refused(f"needs different numbers of shards, and has no key for {name}", "migrate it by hand")
