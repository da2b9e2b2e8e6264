"""All that there is to say about a run of the rewriter, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from gtp_migrate.plan.planner import Planned
from gtp_migrate.problems import Problem
from gtp_migrate.runs.layout import Layout
from gtp_migrate.runs.nemo_rl import Choice


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


@dataclass
class Outcome:
    """What was found out, and what became of it."""

    #: Files that were looked at.
    files: int = 0
    choice: Choice | None = None
    #: What is changed, in the order of writing, and the changes in it.
    edited: list[Edited] = field(default_factory=list)
    changes: list[Planned] = field(default_factory=list)
    #: What needs a person.
    problems: list[Problem] = field(default_factory=list)
    #: What a person may want to know, and need not act on.
    notes: list[str] = field(default_factory=list)
    #: Links that lead out of the given folders, and where they lead.
    not_followed: list[tuple[str, str]] = field(default_factory=list)
    #: Whether an old setting stays in the given files that a person has to migrate.
    left: bool = False
    #: The layouts of the models with GTP on, by the recipe's name.
    layouts: list[tuple[str, Layout]] = field(default_factory=list)
    #: Recipes whose run was compared and holds, by name, with the files that are changed for each.
    proven: dict[str, frozenset[str]] = field(default_factory=dict)
    #: Groups of files that inherit from each other: written as a whole or not at all.
    groups: list[list[Edited]] = field(default_factory=list)
