"""The outcome of planning: one `Change` a setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.keys import KeyPath
from gtp_migrate.shards import Axis


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
    #: The value to write, as a plain YAML scalar; no use for DROP.
    value: str
    place: Place
    #: The key and the value that stand there now; None for ADD.
    old_key: str | None
    old_value: str
    #: For people: the parallel size that was multiplied with, and where it comes from.
    parallel: str

    @property
    def key(self) -> str:
        """The key to write."""
        return self.axis.num_weight_shards

    @property
    def keeps_value(self) -> bool:
        """Whether only the key is another one: null stays null."""
        return self.value == self.old_value

    @property
    def is_null(self) -> bool:
        """Whether an old null becomes a new one."""
        return self.kind in (Kind.REPLACE, Kind.MOVE) and self.value == "null"

    @property
    def old(self) -> str:
        """For people: what stands there now."""
        return f"{self.old_key}: {self.old_value}" if self.old_key else "inherited"

    @property
    def new(self) -> str:
        """For people: what will stand there."""
        if self.kind is Kind.DROP:
            return f"removed ({self.key} is set already)"
        return f"{self.key}: {self.value}"


@dataclass
class Plan:
    """All changes, all problems, and the files that have to stay as they are."""

    #: Recipes that can change when a file does: all that is to be proven.
    recipes: list[str]
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    #: Recipe ids of files that a problem keeps from being changed.
    blocked: set[str] = field(default_factory=set)

    def report(self, problem: Problem) -> None:
        """Notes what needs a person, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def block(self, problem: Problem, *files: str) -> None:
        """Notes what needs a person, and that these files stay as they are for it."""
        self.report(problem)
        self.blocked.update(files)
