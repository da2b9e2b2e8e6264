"""Names of files as those who keep the checkout know them: from its top, wherever the command runs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gtp_migrate.outcome import Outcome
from gtp_migrate.recipes.checkout import surroundings


class Names:
    """The names of all files that a report points at."""

    def __init__(self, outcome: Outcome, workspace: str | None) -> None:
        """
        Args:
            outcome: of the run.
            workspace: the top of the checkout that files are named from; None where nobody says.
        """
        paths = {each.place.path for each in outcome.problems} | {each.place.path for each in outcome.changes}
        top = os.path.realpath(workspace) if workspace else _top(paths)
        here = os.path.realpath(os.curdir)
        self._bases = [here] if top is None else [top, here]

    def of(self, path: str) -> str:
        """Relative to the top of the checkout, else to the current folder; absolute for a file outside of both."""
        absolute = os.path.abspath(path)
        folder, name = os.path.split(absolute)
        for base in self._bases:
            # A link that leads out of the checkout is a file of it all the same.
            for real in (os.path.realpath(absolute), os.path.join(os.path.realpath(folder), name)):
                if real.startswith(os.path.join(base, "")):
                    return os.path.relpath(real, base).replace(os.sep, "/")
        return absolute.replace(os.sep, "/")


def _top(paths: Iterable[str]) -> str | None:
    """The checkout around all files, where there is one."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths}
    roots = surroundings(folders).roots
    outer = min(roots, key=len, default=None)
    is_around_all = outer is not None and all(
        os.path.join(root, "").startswith(os.path.join(outer, "")) for root in roots
    )
    return outer if is_around_all else None
