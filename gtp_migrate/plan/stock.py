"""Taking stock: which settings there are, and which models of which runs each of them counts for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gtp_migrate.forms import Form, Target
from gtp_migrate.problems import RecipeError
from gtp_migrate.recipes.interpolation import Lookup, entry_of
from gtp_migrate.recipes.keys import MEGATRON_CFG, MODEL_OVERRIDES, NEW_KEYS, KeyPath
from gtp_migrate.recipes.survey import Progress
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.recipes.values import Leaf
from gtp_migrate.runs.models import Kind, Model
from gtp_migrate.runs.runs import Runs, World, is_built
from gtp_migrate.runs.topology import (
    ABSENT,
    Side,
    TopologyError,
    old_size,
    parallel_size,
    shard_count,
    side,
)
from gtp_migrate.shards import AXES, Axis, shards_from_size


@dataclass(frozen=True)
class Use:
    """A model of a run that gets a setting, in one world."""

    recipe: str
    world: World
    model: Model
    side: Side
    #: Where the model's mapping and its `model_overrides` really stand in the merged recipe; None for a model made in
    #: Python, and where a resolver makes the overrides.
    mapping: KeyPath | None
    overrides: KeyPath | None

    @property
    def is_direct(self) -> bool:
        """Whether the setting stands in the model's own mapping, beside its parallel sizes."""
        return self.mapping is not None and self.overrides == (*self.mapping, MODEL_OVERRIDES)

    def is_supplied(self, key: str) -> bool:
        """Whether a parallel size of the model comes from the world, not from a file."""
        return self.mapping is not None and any(path == (*self.mapping, key) for path, _ in self.world.supplied)

    def parallel(self) -> int:
        """TP or ETP of the model.

        Raises:
            TopologyError: it is not known.
        """
        return parallel_size(self.model.cfg, self.side.axis)

    def shards(self) -> int | None:
        """Shards per weight that the model needs by its old size; None for none.

        Raises:
            TopologyError: a number is not known, or none that NeMo-RL would accept.
        """
        size = old_size(self.side)
        return None if size is None else shards_from_size(size, self.parallel())


@dataclass
class Setting:
    """An entry of a file that is a setting, with all models that it counts for."""

    #: A recipe that the file is by itself: the given one, where it has several names.
    recipe: str
    entry: Leaf
    form: Form
    axis: Axis
    uses: list[Use] = field(default_factory=list)
    #: Models that get the old size, but for which a count beside it is what counts.
    overruled: list[Use] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name in the file."""
        return str(self.entry.path[-1])

    @property
    def all_uses(self) -> list[Use]:
        """The models that it counts for, else those for which another word counts."""
        return self.uses or self.overruled


@dataclass(frozen=True)
class Stock:
    """All settings of a tree, and all that is known of its runs."""

    tree: Tree
    runs: Runs
    target: Target
    #: Models that the run itself keeps without GTP, whatever a recipe says.
    pins_copies: bool
    settings: tuple[Setting, ...]
    #: Recipes that can be loaded.
    recipes: tuple[str, ...]
    #: Recipes that cannot, and why.
    broken: dict[str, RecipeError]


def form_of(path: KeyPath) -> Form:
    """The form of an entry by where it stands."""
    if path[-1] not in NEW_KEYS:
        return Form.SIZE
    return Form.TYPED if len(path) > 1 and path[-2] == MEGATRON_CFG else Form.OVERRIDE


def is_pinned(model: Model, pins_copies: bool) -> bool:
    """Whether the run keeps the model's weights whole: a NeMo-RL that types the fields does, and so does the shim."""
    return model.kind is Kind.COPY and pins_copies


def take_stock(
    tree: Tree, runs: Runs, target: Target, *, pins_copies: bool, progress: Progress = lambda *_: None
) -> Stock:
    """Reads all runs of the tree; calls `progress` for each."""
    settings: dict[tuple[str, int], Setting] = {}
    for recipe, layer in tree.layers.items():
        for entry in layer.settings:
            axis = next(axis for axis in AXES if entry.path[-1] in (axis.gtp_size, axis.num_weight_shards))
            known = settings.setdefault(entry.key, Setting(recipe, entry, form_of(entry.path), axis))
            if tree.files[recipe].given and not tree.files[known.recipe].given:
                known.recipe = recipe
    readable, broken = [], {}
    for done, recipe in enumerate(tree.recipes):
        progress("planning", done, len(tree.recipes))
        try:
            if recipe in tree.broken:
                raise RecipeError(tree.broken[recipe])
            worlds = runs.run(recipe).worlds
            found = [(world, runs.resolved(recipe, world)) for world in worlds]
        except RecipeError as error:
            broken[recipe] = error
            continue
        readable.append(recipe)
        for world, resolved in found:
            for model in resolved.models:
                if not is_pinned(model, pins_copies) and is_built(runs.run(recipe), model):
                    for use in _uses(recipe, world, model, resolved.resolution.lookup):
                        _enter(settings, use, target)
    order = sorted(settings.values(), key=lambda each: (each.entry.source.shown, each.entry.offset))
    return Stock(tree, runs, target, pins_copies, tuple(order), tuple(readable), broken)


def _uses(recipe: str, world: World, model: Model, lookup: Lookup) -> Iterable[Use]:
    mapping = overrides = None
    if model.kind is Kind.MAPPING:
        mapping = lookup.find(model.path)[0]
        if isinstance(model.cfg.get(MODEL_OVERRIDES), dict):
            overrides = lookup.find((*model.path, MODEL_OVERRIDES))[0]
    for axis in AXES:
        yield Use(recipe, world, model, side(model.cfg, axis), mapping, overrides)


def _enter(settings: dict[tuple[str, int], Setting], use: Use, target: Target) -> None:
    of = use.side
    for value, form in ((of.size, Form.SIZE), (of.override, Form.OVERRIDE), (of.typed, Form.TYPED)):
        entry = entry_of(value)
        setting = settings.get(entry.key) if entry is not None else None
        if setting is None:
            continue
        if form is not Form.SIZE:
            setting.form = form
        elif _is_overruled(of, target):
            setting.overruled.append(use)
            continue
        setting.uses.append(use)


def _is_overruled(of: Side, target: Target) -> bool:
    """Whether a count makes the old size beside it of no effect."""
    try:
        return of.size is not ABSENT and shard_count(of, target, before=True) is not None
    except TopologyError:
        return False
