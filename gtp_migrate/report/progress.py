"""What is being done, for whoever waits: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gtp_migrate.recipes.survey import Progress

#: Seconds before anything is said, on a terminal; and between lines elsewhere.
_PATIENCE = 1
_BETWEEN_LINES = 5


@contextmanager
def show_progress(quiet: bool) -> Iterator[Progress]:
    """Something to call now and then; what takes no time says nothing."""
    if quiet:
        yield lambda *_: None
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield lines(time.monotonic, lambda line: print(line, file=sys.stderr, flush=True))


def lines(clock: Callable[[], float], say: Callable[[str], None]) -> Progress:
    """Progress as lines, for a log.

    Args:
        clock: seconds.
        say: prints a line.
    """
    said = clock()

    def show(what: str, done: int, total: int) -> None:
        nonlocal said
        if clock() - said >= _BETWEEN_LINES:
            said = clock()
            how_far = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
            say(f"{what}{how_far} …")

    return show


@contextmanager
def _bar() -> Iterator[Progress]:
    started = time.monotonic()
    bar: Any = None
    task: Any = None

    def show(what: str, done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - started < _PATIENCE:
                return
            bar, task = _start(what)
        bar.update(task, description=what, completed=done, total=total or None)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _start(what: str) -> tuple[Any, Any]:
    from rich.progress import Progress as Bar

    from gtp_migrate.report.table import make_console

    bar = Bar(console=make_console(), transient=True)
    bar.start()
    return bar, bar.add_task(what, total=None)
