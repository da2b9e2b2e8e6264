"""Annotations on the lines of a pull request, as GitHub Actions reads them from a step's output.

Errors are what needs a person and, with `--check`, what is left to migrate; other changes are notices.

Source: GitHub's workflow commands, `::error file=…,line=…,col=…,title=…::message`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gtp_migrate.forms import Mode
from gtp_migrate.outcome import Outcome
from gtp_migrate.problems import Place
from gtp_migrate.report.names import Names
from gtp_migrate.report.words import sentence
from gtp_migrate.streams import safe_text


def workflow_commands(outcome: Outcome, workspace: str | None) -> Iterator[str]:
    """A line each.

    Args:
        outcome: of the run.
        workspace: the top of the checkout that GitHub names files from; None where nobody says.
    """
    names = Names(outcome, workspace)
    for problem in outcome.problems:
        yield _line("error", "needs a person", problem.place, f"{problem.what}; {problem.todo}", names)
    level = "error" if outcome.mode is Mode.CHECK else "notice"
    title = "migrated" if outcome.mode is Mode.WRITE else "left to migrate"
    for each in sorted(outcome.changes, key=lambda change: change.place):
        yield _line(level, title, each.place, sentence(each, outcome.mode), names)


def _line(level: str, title: str, place: Place, message: str, names: Names) -> str:
    properties = {"file": safe_text(names.of(place.path)), "line": place.line, "col": place.line and place.column}
    known = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value)
    text = _data(safe_text(f"{place}: {message}"))
    return f"::{level} {known},title={_property(f'gtp-migrate: {title}')}::{text}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
