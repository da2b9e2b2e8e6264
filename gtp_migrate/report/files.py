"""`--report FILE`: which report, by the suffix, and its way to the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable

from gtp_migrate.outcome import Outcome


class ReportError(Exception):
    """A report that cannot be written; the message says why and what to do."""


def _html(outcome: Outcome, paths: tuple[str, ...]) -> str:
    from gtp_migrate.report.html import html_report

    return html_report(outcome)


def _json(outcome: Outcome, paths: tuple[str, ...]) -> str:
    from gtp_migrate.report.data import json_report

    return json_report(outcome)


def _markdown(outcome: Outcome, paths: tuple[str, ...]) -> str:
    from gtp_migrate.report.diff import base_folder
    from gtp_migrate.report.markdown import markdown_report

    return markdown_report(outcome, base_folder(outcome.edited, paths))


def _sarif(outcome: Outcome, paths: tuple[str, ...]) -> str:
    from gtp_migrate.report.sarif import sarif_report

    return sarif_report(outcome)


#: Imported when asked for: nobody else waits for a template engine.
_REPORTS: dict[str, Callable[[Outcome, tuple[str, ...]], str]] = {
    ".html": _html,
    ".json": _json,
    ".md": _markdown,
    ".sarif": _sarif,
}


def check_reports(files: Iterable[str]) -> None:
    """Before anything is worked out or written.

    Raises:
        ReportError: the suffix names no report, or there is no such folder.
    """
    for file in files:
        if _suffix(file) not in _REPORTS:
            *others, last = _REPORTS
            raise ReportError(f"--report {file}: the name must end in {', '.join(others)} or {last}")
        folder = os.path.dirname(file) or "."
        if not os.path.isdir(folder):
            raise ReportError(f"--report {file}: there is no folder {folder}; make it first")
        if os.path.isdir(file):
            raise ReportError(f"--report {file}: is a folder; name a file")


def write_reports(outcome: Outcome, files: Iterable[str], paths: Iterable[str]) -> None:
    """Writes all reports, each whole or not at all.

    Args:
        outcome: of the run.
        files: the reports; their suffixes say which.
        paths: that were given to the command.

    Raises:
        ReportError: a report cannot be written.
    """
    given = tuple(paths)
    for file in files:
        text = _REPORTS[_suffix(file)](outcome, given)
        try:
            _write(file, text.encode("utf-8"))
        except OSError as error:
            why = f"--report {file}: cannot be written ({error.strerror}); give a place that can be"
            raise ReportError(why) from None


def _suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def _write(file: str, data: bytes) -> None:
    if os.path.exists(file) and not os.path.isfile(file):
        # A pipe or a device is written to as it is.
        with open(file, "wb") as stream:
            stream.write(data)
        return
    file = os.path.realpath(file)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(file), prefix=".gtp-migrate-")
    try:
        with open(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
