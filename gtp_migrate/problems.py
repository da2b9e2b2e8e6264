"""What a person has to look at: `path:line:column: what is wrong; what to do`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Place:
    """A place in a file as an editor counts it: line and column from 1, 0 where the whole file is meant."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.path
        return f"{self.path}:{self.line}:{self.column}"

    @property
    def file_and_line(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True)
class Problem:
    """One thing that was left as it was, why, and the way out."""

    place: Place
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.todo}"


class ProblemError(Exception):
    """Something that a person has to look at. Carries the `Problem` to show."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class RecipeError(ProblemError):
    """A recipe file that cannot be read, parsed or resolved."""


class JudgeError(Exception):
    """NeMo-RL or Bridge is not there, or its process ended. The message says what to do."""


def one_line(error: BaseException | str) -> str:
    """The first sentence of a library's error, without its positions and hints on further lines."""
    text = str(error)
    for line in text.splitlines():
        if line.strip():
            return line.strip().rstrip(".")
    return type(error).__name__
