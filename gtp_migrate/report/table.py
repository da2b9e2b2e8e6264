"""The summary for people, on stderr: what was changed, the layouts, what needs a person."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from gtp_migrate.outcome import Outcome
from gtp_migrate.plan.planner import Planned
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.report.problems import problem_lines
from gtp_migrate.report.words import copies, count, done, fit
from gtp_migrate.runs.layout import Layout
from gtp_migrate.streams import safe_text

#: Columns where there is no terminal that limits them.
_UNLIMITED = 10_000
#: Recipes named for one layout; `-v` names all.
_NAMED = 4
#: Notes printed; `-v` prints all.
_NOTES = 5
#: Settings listed; `-v` lists all.
_LISTED = 200


class Verbosity(IntEnum):
    """How much is said."""

    NORMAL = 1
    VERBOSE = 2


def make_console(stream: TextIO | None = None) -> Console:
    """stderr, or another; as wide as it needs to be where it is not a terminal, so that no name is cut."""
    stream = stream or sys.stderr
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNLIMITED
    return Console(file=stream, width=width, soft_wrap=False, highlight=False, emoji=False)


def print_summary(console: Console, outcome: Outcome, verbosity: Verbosity, *, has_problems: bool = True) -> None:
    """
    Args:
        console: where to.
        outcome: of the run.
        verbosity: how much of it.
        has_problems: print the problems; false where they have been said in another way.
    """
    if outcome.changes:
        _print_changes(console, outcome.changes, verbosity)
    _print_layouts(console, _layouts(outcome), verbosity)
    for line in problem_lines(outcome.problems, every=verbosity is Verbosity.VERBOSE) if has_problems else ():
        console.print(line, style="red", markup=False, soft_wrap=True)
    _print_notes(console, outcome.notes, verbosity)
    _print_end(console, outcome)


def _print_notes(console: Console, notes: list[str], verbosity: Verbosity) -> None:
    cut = len(notes) if verbosity is Verbosity.VERBOSE else _NOTES
    for note in notes[:cut]:
        _print_line(console, note)
    if len(notes) > cut:
        _print_line(console, f"… and {len(notes) - cut} more notes (-v lists all)")


def _print_changes(console: Console, changes: list[Planned], verbosity: Verbosity) -> None:
    shown = sorted(changes, key=lambda change: change.place)
    cut = len(shown) if verbosity is Verbosity.VERBOSE else _LISTED
    table = Table(title="Settings", title_justify="left", pad_edge=False)
    for column in ("where", "in", "old", "new", "TP or ETP, and where it comes from"):
        table.add_column(column)
    for change in shown[:cut]:
        cells = (change.place.file_and_line, dotted(change.mapping), change.old, change.new, change.parallel)
        table.add_row(*(escape(safe_text(cell)) for cell in cells))
    if _fits(console, table):
        console.print(table)
    else:
        for change in shown[:cut]:
            _print_line(console, change.place.file_and_line, style="bold")
            _print_line(console, f"  {change.old} → {change.new}")
            _print_line(console, f"  {dotted(change.mapping)}, {change.parallel}")
    if len(shown) > cut:
        console.print(f"… and {len(shown) - cut} more settings (-v lists all)")


def _layouts(outcome: Outcome) -> list[tuple[str, Layout]]:
    """Those of the models with GTP on, and of what such a run makes in Python."""
    return [
        (run.recipe, model.layout)
        for run in outcome.runs
        if run.is_given and not run.is_open and any(model.is_on and model.has_gtp for model in run.models)
        for model in run.models
        if model.layout is not None and (model.has_gtp or model.kind != "mapping")
    ]


def _print_layouts(console: Console, layouts: Iterable[tuple[str, Layout]], verbosity: Verbosity) -> None:
    recipes: dict[Layout, list[str]] = {}
    for recipe, layout in layouts:
        recipes.setdefault(layout, []).append(recipe)
    table = Table(title="Layouts with GTP on", title_justify="left", pad_edge=False)
    table.add_column("recipe")
    table.add_column("model")
    table.add_column("GPUs", justify="right")
    table.add_column("TP × GTP × CP × PP")
    table.add_column("ETP × EP × expert GTP")
    table.add_column("copies", justify="right")
    table.add_column("data lanes", justify="right")
    table.add_column("warning")
    named = {layout: _named(names, verbosity) for layout, names in recipes.items()}
    for layout, names in named.items():
        sizes = layout.topology
        table.add_row(
            escape("\n".join(map(safe_text, names))),
            escape(safe_text(layout.model)),
            _text(layout.gpus),
            _dense(layout),
            f"{_text(sizes.etp)} × {layout.ep} × {_text(sizes.expert_gtp)}",
            _text(layout.copies),
            _text(layout.data_lanes),
            f"[yellow]{escape(layout.warning)}[/]" if layout.warning else "",
        )
    if not table.row_count:
        return
    if _fits(console, table):
        console.print(table)
        return
    for layout, names in named.items():
        for name in names:
            _print_line(console, name, style="bold")
        _print_line(
            console,
            f"  {layout.model}: {_count(layout.gpus, 'GPU')}, TP × GTP × CP × PP = {_dense(layout)}, "
            f"{copies(layout.copies)}, {_count(layout.data_lanes, 'data lane')}",
        )
        if layout.warning:
            _print_line(console, f"  {layout.warning}", style="yellow")


def _named(recipes: list[str], verbosity: Verbosity) -> list[str]:
    cut = len(recipes) if verbosity is Verbosity.VERBOSE or len(recipes) == _NAMED + 1 else _NAMED
    more = [f"… and {len(recipes) - cut} more"] if len(recipes) > cut else []
    return [*recipes[:cut], *more]


def _dense(layout: Layout) -> str:
    return f"{layout.topology.tp} × {_text(layout.topology.gtp)} × {layout.cp} × {layout.pp}"


def _fits(console: Console, table: Table) -> bool:
    """Whether no cell is broken: a path in two pieces can be neither searched for nor opened."""
    unlimited = console.options.update(max_width=_UNLIMITED)
    return Measurement.get(console, unlimited, table).maximum <= console.width


def _print_line(console: Console, text: str, style: str | None = None) -> None:
    console.print(safe_text(text), style=style, markup=False, soft_wrap=True)


def _text(value: int | None) -> str:
    return "?" if value is None else str(value)


def _count(value: int | None, noun: str) -> str:
    return f"? {noun}s" if value is None else count(value, noun)


def _print_end(console: Console, outcome: Outcome) -> None:
    if outcome.choice and (outcome.changes or outcome.problems):
        console.print(f"Form: {outcome.choice.target.value} ({outcome.choice.why})", markup=False, soft_wrap=True)
    if outcome.changes:
        settings, files = len(outcome.changes), len(outcome.edited)
        console.print(
            f"{count(settings, 'setting')} in {count(files, 'file')} {done(outcome)}; "
            f"{count(len(outcome.proven), 'recipe')} proven to train with the same topology."
        )
    elif not outcome.problems:
        console.print(f"Nothing to migrate in {count(outcome.files, 'file')}.")
    if unfit := fit(outcome):
        console.print(unfit, style="yellow")
    if outcome.problems:
        console.print(f"{count(len(outcome.problems), 'problem')} to look at: what is concerned was left as it is.")
