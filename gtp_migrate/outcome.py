"""All that there is to say about a run of the rewriter, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from gtp_migrate.forms import Mode
from gtp_migrate.plan.planner import Planned
from gtp_migrate.problems import Place, Problem
from gtp_migrate.runs.layout import Layout
from gtp_migrate.runs.nemo_rl import Choice
from gtp_migrate.runs.topology import Topology


@dataclass(frozen=True)
class Inherits:
    """What one file inherits from."""

    #: By name, in the order of `defaults:`; one that cannot be read is named as it would be found.
    parents: tuple[str, ...]
    #: Where `defaults:` stands; None where there is none.
    place: Place | None


@dataclass(frozen=True)
class Edited:
    """One file, before and after."""

    #: The file behind all links, and its name.
    path: str
    shown: str
    before: bytes
    after: bytes
    #: What to have on the disk until all other files are written; None where that is `after`.
    meanwhile: bytes | None = None


@dataclass(frozen=True)
class ModelOutcome:
    """One model of a run, before and after."""

    #: `policy.megatron_cfg`, `teacher math`, `generation`.
    name: str
    #: How it comes about: `mapping`, `teacher`, `generation`, `copy` (:class:`gtp_migrate.runs.models.Kind`).
    kind: str
    #: False where Megatron is switched off.
    is_on: bool
    #: Whether the run itself keeps its weights whole, whatever its counts: then these are not compared.
    is_pinned: bool
    #: None where it is not known: why.
    before: Topology | None
    after: Topology | None
    unknown: str
    #: The sizes that come with the run, by their field in `Topology`: what is shown of them is one way of several.
    open: frozenset[str]
    #: Over the GPUs; None where the recipe does not say enough. Of a model that is open, one way of several.
    layout: Layout | None
    #: Why there is none, or not one alone.
    no_layout: str
    #: Where TP, ETP and the settings stood that it had before.
    tp_from: Place | None
    etp_from: Place | None
    size_from: Place | None
    expert_size_from: Place | None
    #: Shards per weight that it has now, dense and expert.
    shards: int | None
    expert_shards: int | None

    @property
    def the_layout(self) -> Layout | None:
        """The one that it has, whatever comes with the run."""
        return None if self.open else self.layout

    @property
    def has_gtp(self) -> bool:
        """Whether GTP is on, on either axis."""
        return any(
            (sizes.gtp or 1) > 1 or (sizes.expert_gtp or 1) > 1
            for sizes in (self.before, self.after)
            if sizes is not None
        )


@dataclass(frozen=True)
class RunOutcome:
    """One recipe as a launcher starts it, before and after."""

    recipe: str
    #: The files that it is made of, by name, earliest first, itself last.
    layers: tuple[str, ...]
    #: Those of them that are changed, by real path.
    changed: frozenset[str]
    is_given: bool
    #: Whether it is changed, and every model has the same topology as before.
    is_proven: bool
    #: Whether some of its parallel sizes come with the run: what is shown of them is one way of several.
    is_open: bool
    models: tuple[ModelOutcome, ...]
    #: Why it cannot be loaded, and so has no models here; None where it can.
    problem: Problem | None = None

    @property
    def is_unfit(self) -> bool:
        """Whether its GPUs cannot hold one of its models."""
        return any(model.the_layout is not None and model.the_layout.warning for model in self.models)


@dataclass
class Outcome:
    """What was found out, and what became of it."""

    #: Files that were looked at.
    files: int = 0
    #: The command that was run, word by word, and what it was to do with the changes.
    command: tuple[str, ...] = ()
    mode: Mode = Mode.WRITE
    choice: Choice | None = None
    #: What is changed, in the order of writing, and the changes in it.
    edited: list[Edited] = field(default_factory=list)
    changes: list[Planned] = field(default_factory=list)
    #: What needs a person.
    problems: list[Problem] = field(default_factory=list)
    #: What a person may want to know, and need not act on.
    notes: list[str] = field(default_factory=list)
    #: Whether an old setting stays in the given files that a person has to migrate.
    left: bool = False
    #: Every run that has a layer with a setting and can be loaded.
    runs: list[RunOutcome] = field(default_factory=list)
    #: The given recipes that cannot be loaded.
    unread: list[RunOutcome] = field(default_factory=list)
    #: Groups of files that inherit from each other: written as a whole or not at all.
    groups: list[list[Edited]] = field(default_factory=list)
    #: What each file that a run is made of inherits from, by name.
    inherits: dict[str, Inherits] = field(default_factory=dict)

    @property
    def reported(self) -> list[RunOutcome]:
        """The runs to show: of all given recipes, and of the others that are changed."""
        runs = [run for run in self.runs if run.is_given or run.changed]
        return sorted([*runs, *self.unread], key=lambda run: run.recipe)

    @property
    def proven(self) -> list[RunOutcome]:
        """The runs that are changed and hold."""
        return [run for run in self.runs if run.is_proven]

    @property
    def unfit(self) -> list[RunOutcome]:
        """The given runs, and those that are changed, whose GPUs cannot hold a model."""
        return [run for run in self.runs if (run.is_given or run.changed) and run.is_unfit]
