"""Writes what an outcome says, group by group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from gtp_migrate.outcome import Edited, Outcome
from gtp_migrate.streams import Tally, uninterrupted
from gtp_migrate.unfinished import put_down
from gtp_migrate.write import WriteError, check_unchanged, check_writable, write


def write_all(outcome: Outcome, tally: Tally) -> None:
    """Writes the edited files. What is not written is taken out of the outcome, and said.

    A group of files that inherit from each other is checked as a whole before the first of it is written.

    Args:
        outcome: of the run.
        tally: counts what is written, for whoever interrupts it.
    """
    tally.planned = len(outcome.edited)
    written: list[Edited] = []

    def done(edited: Edited) -> None:
        written.append(edited)
        tally.written = len(written)

    try:
        for group in outcome.groups:
            try:
                _check(group)
                with put_down(group) if len(group) > 1 else contextlib.nullcontext():
                    _write_group(group, done)
            except WriteError as error:
                outcome.problems.append(error.problem)
                outcome.left = True
    finally:
        _only_written(outcome, {edited.path for edited in written})


def _check(group: list[Edited]) -> None:
    """Finds what keeps a group from being written, before the first of it is."""
    for edited in group:
        check_writable(edited.path, edited.shown)
        check_unchanged(edited.path, edited.shown, edited.before)


def _write_group(group: list[Edited], done: Callable[[Edited], None]) -> None:
    """Writes files, those with something to have on the disk meanwhile last."""
    last: list[Edited] = []
    for edited in group:
        meanwhile = edited.meanwhile if len(group) > 1 else None
        _write(edited, edited.before, meanwhile or edited.after, None if meanwhile else done)
        if meanwhile:
            last.append(edited)
    for edited in last:
        assert edited.meanwhile is not None
        _write(edited, edited.meanwhile, edited.after, done)


def _write(edited: Edited, before: bytes, after: bytes, done: Callable[[Edited], None] | None) -> None:
    # What is written and what is noted as written are the same, whoever interrupts.
    with uninterrupted():
        write(edited.path, edited.shown, before, after)
        if done is not None:
            done(edited)


def _only_written(outcome: Outcome, paths: set[str]) -> None:
    """Only what was written counts as done, and as proven."""
    outcome.edited = [edited for edited in outcome.edited if edited.path in paths]
    outcome.changes = [planned for planned in outcome.changes if planned.real in paths]
    outcome.runs = [replace(run, is_proven=run.is_proven and run.changed <= paths) for run in outcome.runs]
