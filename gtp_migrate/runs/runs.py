"""The runs of a tree: for each recipe its launcher's resolvers, and its models in every world that has to hold.

What a recipe leaves open (a TP that comes with the command line or the environment, a list of merges that two
versions of PyYAML read differently, how a teacher is made) is tried in several ways: each is a world. What holds for
a model is what holds in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.recipes.interpolation import (
    MISSING_VALUE,
    RESOLVERS,
    Computed,
    Resolution,
    Unresolved,
    parse,
    value_of,
)
from gtp_migrate.recipes.keys import EP, ETP, MISSING, TP, KeyPath
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.recipes.values import Leaf, at, mapping_at, raw
from gtp_migrate.runs.models import (
    ANY_SIZE,
    IS_COLOCATED,
    TEACHERS,
    Kind,
    Model,
    TooManyModelsError,
    algorithms,
    has_to_have_sizes,
    makes_models,
    mappings,
    models,
    sizes_of_python_models,
    switches,
)
from gtp_migrate.runs.nemo_rl import Launchers

#: Values nobody sets by accident in two places, and that differ from world to world: what holds for both holds for all.
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)


@dataclass(frozen=True)
class Assumed:
    """Parallel sizes to take where no file of a recipe says (`--tp`, `--etp`, `--ep`)."""

    tp: int | None = None
    etp: int | None = None
    ep: int | None = None

    def of(self, key: str) -> int | None:
        """The one of a field."""
        return {TP: self.tp, ETP: self.etp, EP: self.ep}[key]


@dataclass(frozen=True)
class World:
    """One way in which all that a recipe leaves open may turn out."""

    #: Lists of merges as PyYAML 6.0.4 reads them.
    other_reading: bool = False
    #: Teachers as a launcher makes them (:func:`gtp_migrate.runs.models.models`).
    as_launched: bool = True
    #: Values that come from elsewhere, by their paths: parallel sizes, and what decides whether a model is built.
    supplied: tuple[tuple[KeyPath, Any], ...] = ()


@dataclass(frozen=True)
class Run:
    """One recipe as a launcher starts it."""

    recipe: str
    #: The names that its launcher registers; what the recipe itself uses is among them.
    resolvers: frozenset[str]
    #: Whether its launcher is known to register those.
    has_resolvers: bool
    #: False for a file that no launcher starts, but recipes that inherit from it.
    is_started: bool
    worlds: tuple[World, ...]
    #: Keys whose value the environment, the command line or an unknown resolver has a say in, by the mapping's path.
    open_keys: dict[KeyPath, dict[str, str]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether what the files leave open may turn out in more than one way."""
        return len({world.supplied for world in self.worlds}) > 1


@dataclass(frozen=True)
class Resolved:
    """A run in one world."""

    resolution: Resolution
    tree: dict[Any, Any]
    models: tuple[Model, ...]

    def model(self, name: str) -> Model | None:
        """The model of this name."""
        return next((model for model in self.models if model.name == name), None)


def is_built(run: Run, model: Model) -> bool:
    """Whether a run has the model: not where nobody starts it and it has no TP, so that it is up to its heirs."""
    return run.is_started or TP in model.cfg


class Runs:
    """All runs of a tree, worked out when asked for."""

    def __init__(self, tree: Tree, assumed: Assumed, launchers: Launchers) -> None:
        """
        Args:
            tree: the recipes.
            assumed: what to take where no file says.
            launchers: which of them register which resolvers.
        """
        self.tree = tree
        self.assumed = assumed
        self.launchers = launchers
        self._runs: dict[str, Run] = {}
        self._resolved: dict[tuple[str, World, tuple[int, ...]], Resolved] = {}
        self._with_section: set[str] | None = None

    def on(self, tree: Tree) -> Runs:
        """The same runs on another state of the same tree: its worlds stay those of before."""
        other = Runs(tree, self.assumed, self.launchers)
        other._runs, other._resolved = self._runs, self._resolved
        return other

    def run(self, recipe: str) -> Run:
        """
        Raises:
            RecipeError: NeMo-RL could not load the recipe.
        """
        if recipe not in self._runs:
            self._runs[recipe] = self._work_out(recipe)
        return self._runs[recipe]

    def resolved(self, recipe: str, world: World) -> Resolved:
        """
        Raises:
            RecipeError: NeMo-RL could not load the recipe.
        """
        known = (recipe, world, self.tree.state(recipe))
        if known not in self._resolved:
            self._resolved[known] = self._resolve(recipe, world, self.run(recipe).resolvers)
        return self._resolved[known]

    def _resolve(self, recipe: str, world: World, resolvers: frozenset[str]) -> Resolved:
        merged = self.tree.merged(recipe, world.other_reading)
        root, holes = merged.root, merged.landmarks.holes
        for path, value in world.supplied:
            root = _with(root, path, value)
            holes = tuple(hole for hole in holes if hole[0] != path[: len(hole[0])])
        resolution = Resolution(root, holes, resolvers)
        tree = resolution.tree(makes_models)
        try:
            found = models(tree, mappings(resolution, tree, merged.landmarks.mappings), as_launched=world.as_launched)
        except TooManyModelsError:
            what = "has more than 100,000 mappings named megatron_cfg"
            problem = Problem(Place(self.tree.shown(recipe)), what, "take out those that nothing uses")
            raise RecipeError(problem) from None
        return Resolved(resolution, tree, tuple(found))

    # -- launchers -------------------------------------------------------------------------------------

    def _work_out(self, recipe: str) -> Run:
        resolvers, is_known = self._resolvers(recipe)
        is_started = bool(algorithms(self.tree.merged(recipe).root)) or recipe not in self._ingredients()
        plain = World()
        first = self._resolve(recipe, plain, resolvers)
        open_keys = {
            model.path: keys
            for model in first.models
            if model.kind is Kind.MAPPING and (keys := dict(self._open_keys(first, model, is_started)))
        }
        supplies = list(self._supplies(first, open_keys))
        readings = (False, True) if self.tree.is_ambiguous(recipe) else (False,)
        # Also where what is open decides whether there are teachers.
        makings = (True, False) if mapping_at(first.tree, TEACHERS) is not None else (True,)
        worlds = tuple(
            World(reading, making, supplied) for supplied in supplies for making in makings for reading in readings
        )
        run = Run(recipe, resolvers, is_known, is_started, worlds, open_keys)
        if worlds[0] == plain:
            self._resolved[recipe, plain, self.tree.state(recipe)] = first
        return run

    def _resolvers(self, recipe: str) -> tuple[frozenset[str], bool]:
        """What the launcher of a recipe registers, and whether that is known.

        A file without a section of any algorithm is started by no launcher of NeMo-RL: what inherits from it decides.
        """
        merged = self.tree.merged(recipe)
        used = {name for _, leaf in merged.landmarks.holes for name in parse(leaf.value).resolvers}
        if used & RESOLVERS.keys():
            return self.launchers.resolvers | (used & RESOLVERS.keys() & self.launchers.resolvers), True
        which = algorithms(merged.root)
        if which:
            if all(self.launchers.registers(algorithm) for algorithm in which):
                return self.launchers.resolvers, True
            return frozenset(), False
        if recipe in self._ingredients():
            return self.launchers.resolvers, True
        return frozenset(), False

    def _ingredients(self) -> set[str]:
        """Recipes that another one with a section of an algorithm inherits from."""
        if self._with_section is None:
            self._with_section = set()
            for heir in self.tree.recipes:
                order = self.tree.orders.get(heir, ())
                if any(algorithms(self.tree.layers[layer].data) for layer in order):
                    self._with_section.update(order[:-1])
        return self._with_section

    # -- what is open ----------------------------------------------------------------------------------

    def _open_keys(self, resolved: Resolved, model: Model, is_started: bool) -> Iterator[tuple[str, str]]:
        """Keys of a `megatron_cfg` whose value may be another one in the run, and why."""
        for key in (TP, ETP, EP):
            value = model.cfg.get(key)
            if isinstance(value, Computed):
                if value.leaf.value.startswith("${oc.env:"):
                    continue  # a text, whatever it says
                if open_leaves(resolved.resolution, value):
                    is_missing = isinstance(value.value, Unresolved) and MISSING_VALUE in value.value.why
                    yield key, "missing" if is_missing else "environment"
            elif value_of(value) == MISSING:
                yield key, "missing"
            elif key != TP or key in model.cfg or not is_started:
                continue
            elif has_to_have_sizes(model.path, algorithms(resolved.tree)):
                yield key, "absent"

    def _supplies(
        self, first: Resolved, open_keys: dict[KeyPath, dict[str, str]]
    ) -> Iterator[tuple[tuple[KeyPath, Any], ...]]:
        """What may be supplied for all that is open: two numbers for each size, with all the models that there may be
        and with those that there are as it stands."""
        fixed: dict[KeyPath, Any] = {}
        tried: dict[KeyPath, tuple[Any, Any]] = {}
        for model in first.models:
            if model.kind is Kind.MAPPING:
                self._supply_mapping(first, model, open_keys.get(model.path, {}), fixed, tried)
        for path, key in sizes_of_python_models(first.tree):
            value = at(first.tree, (*path, key))
            if isinstance(value, Computed) and not value.leaf.value.startswith("${oc.env:"):
                _try_both(tried, open_leaves(first.resolution, value), key)
            elif value_of(value) == MISSING:
                _try_both(tried, [first.resolution.lookup.find((*path, key))[0]], key)
        made = dict(self._supply_switches(first, tried))
        ways: list[dict[KeyPath, Any]] = [{}]
        if made:
            # What is open decides which models there are: once all of them, and once as it stands.
            ways = [made, {}]
            apart = {path: False for path in made if path[-2:] == IS_COLOCATED[-2:]}
            ways[1:1] = [{**made, **apart}] if apart else []
        for index in (0, 1) if tried else (0,):
            chosen = {path: values[index] for path, values in tried.items()}
            for way in ways:
                supplied = {**chosen, **fixed, **way}.items()
                said = ((path, value) for path, value in supplied if value is not None)
                yield tuple(sorted(said, key=lambda item: [str(key) for key in item[0]]))

    def _supply_switches(self, first: Resolved, tried: dict[KeyPath, tuple[Any, Any]]) -> Iterator[tuple[KeyPath, Any]]:
        """What makes as many models as can be, in all places that are open and have a say in that."""
        for path, values in switches(first.tree):
            value = at(first.tree, path)
            if isinstance(value, Computed) and open_leaves(first.resolution, value):
                real = value.path
            elif value_of(value) == MISSING:
                real, _ = first.resolution.lookup.find(path)
            else:
                continue
            for below, supplied in values.items():
                if supplied is ANY_SIZE:
                    _try_both(tried, [(*real, *below)], TP)
                else:
                    yield (*real, *below), supplied

    def _supply_mapping(
        self,
        first: Resolved,
        model: Model,
        why: dict[str, str],
        fixed: dict[KeyPath, Any],
        tried: dict[KeyPath, tuple[Any, Any]],
    ) -> None:
        real, _ = first.resolution.lookup.find(model.path)
        for key in (TP, ETP, EP):
            assumed = self.assumed.of(key)
            value = model.cfg.get(key)
            if (key not in model.cfg or value_of(value) == MISSING) and assumed is not None:
                fixed[_of(real, key)] = assumed
            elif key in why and (model.is_on or isinstance(value, Computed)):
                # Where it is open, so that all that follows it follows.
                leaves = open_leaves(first.resolution, value) if isinstance(value, Computed) else {_of(real, key)}
                _try_both(tried, leaves, key)
        is_absent = TP not in model.cfg and _of(real, TP) in tried
        if model.is_on and is_absent and ETP not in model.cfg and not self._etp_is_derived(model):
            # Whoever supplies the TP may supply an ETP as well.
            tried[_of(real, ETP)] = (None, _PRIMES[(2 * len(tried) + 1) % len(_PRIMES)])

    def _etp_is_derived(self, model: Model) -> bool:
        """Whether an absent ETP is 1, whatever is supplied: EP is more than 1."""
        ep = value_of(model.cfg.get(EP, self.assumed.ep))
        return self.assumed.etp is not None or (type(ep) is int and ep > 1)


def _of(mapping: KeyPath, key: str) -> KeyPath:
    return (*mapping, key)


def _try_both(tried: dict[KeyPath, tuple[Any, Any]], leaves: Iterable[KeyPath], key: str) -> None:
    """Two values that are nowhere else for each of these places."""
    for leaf in sorted(leaves, key=str):
        if leaf not in tried:
            index = 2 * len(tried) % len(_PRIMES)
            tried[leaf] = (1 if key == EP else _PRIMES[index], _PRIMES[index + 1])


def open_leaves(resolution: Resolution, value: Computed) -> set[KeyPath]:
    """Where a value is open: the places that it comes from at which the environment, the command line or a resolver
    that is not known here has a say."""
    pure = {*RESOLVERS, "oc.decode"}
    found: set[KeyPath] = set()
    for path in (value.path, *resolution.reach(value.path)):
        if not path:
            return {value.path}
        real, node = resolution.lookup.find(path)
        if raw(node) == MISSING or (
            isinstance(node, Leaf) and node.is_interpolation and not parse(node.value).resolvers <= pure
        ):
            found.add(real)
    if not found and isinstance(value.value, Unresolved):
        return {value.path}
    return found


def _with(root: Any, path: KeyPath, value: Any) -> Any:
    """The recipe with one value put in, and the mappings around it where there are none."""
    if not path:
        return root
    key, *rest = path
    copy: Any = list(root) if isinstance(root, list) else dict(root) if isinstance(root, dict) else {}
    if rest:
        copy[key] = _with(copy[key] if isinstance(root, list) else copy.get(key), tuple(rest), value)
    else:
        copy[key] = value
    return copy
