"""What needs a person, as lines of text; imports nothing that draws."""

from __future__ import annotations

from collections.abc import Iterator

from gtp_migrate.problems import Problem
from gtp_migrate.streams import safe_text

#: Recipes named that have the same problem, beside the first.
_NAMED = 2


def problem_lines(problems: list[Problem], *, every: bool = False) -> Iterator[str]:
    """A line for each cause: recipes that have the same one are named together.

    Args:
        problems: in their order.
        every: name all of the recipes, not the first few.
    """
    same: dict[tuple[str, str, object], list[Problem]] = {}
    for problem in problems:
        # A cause that has a place of its own is one by itself.
        own = problem.place if problem.place.line else None
        same.setdefault((problem.what, problem.todo, own), []).append(problem)
    for first, *others in same.values():
        more = ""
        if others:
            cut = len(others) if every else _NAMED
            names = [other.place.path for other in others[:cut]]
            left = f" and {len(others) - cut:,} more (-v names all)" if len(others) > cut else ""
            more = f" (so do {len(others):,} more: {', '.join(names)}{left})"
        yield f"{safe_text(str(first.place))}: {safe_text(first.what + more)}; {safe_text(first.todo)}"
