"""An outcome with as many runs as somebody likes: those of the fixtures, again and again by other names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gtp_migrate.migrate import Options, migrate
from gtp_migrate.outcome import Outcome
from gtp_migrate.recipes.survey import survey


def many_runs(folder: Path, count: int) -> Outcome:
    """
    Args:
        folder: with the recipes that are repeated.
        count: of the runs.
    """
    paths = (str(folder),)
    outcome = migrate(Options(paths), survey(paths))
    runs = [run for run in outcome.runs if run.is_given]
    edited, changes = outcome.edited, outcome.changes
    changed = {each.path: each for each in edited}
    outcome.runs, outcome.edited, outcome.changes = [], [], []
    for number in range(count):
        run = runs[number % len(runs)]
        prefix = f"copy-{number // len(runs):03}/"
        outcome.runs.append(
            replace(
                run,
                recipe=prefix + run.recipe,
                layers=tuple(prefix + layer for layer in run.layers),
                changed=frozenset(prefix + path for path in run.changed),
            )
        )
    for number in range(-(-count // len(runs))):
        prefix = f"copy-{number:03}/"
        outcome.edited += [
            replace(each, path=prefix + each.path, shown=prefix + each.shown) for each in changed.values()
        ]
        outcome.changes += [
            replace(each, real=prefix + each.real, place=replace(each.place, path=prefix + each.place.path))
            for each in changes
        ]
    return outcome
