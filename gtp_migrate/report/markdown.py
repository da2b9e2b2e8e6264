"""The report for a pull request's description: what changes, what needs a person, folded where it is long."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from gtp_migrate.forms import Mode
from gtp_migrate.outcome import ModelOutcome, Outcome, RunOutcome
from gtp_migrate.problems import Place
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.report.data import problems_of, state
from gtp_migrate.report.diff import unified_diff
from gtp_migrate.report.words import STATES, count, fit, headline, verdict
from gtp_migrate.runs.topology import Topology
from gtp_migrate.streams import safe_text

#: GitHub takes no longer description; a little is left for what people write around it.
_LONGEST = 60_000
#: A longer list is folded.
_FOLDED = 12

#: What a code span takes as it is, in a table too.
_PLAIN = re.compile(r"[\w ./:;×=,+(){}\[\]#@*!%~^$\"'→?-]+")
#: What may be markup in prose; an underscore but within a word, a colon only where a link or an emoji may come of it.
_MARKUP = re.compile(r"[^\w :.,;()/'\"={}+×→–…-]|(?<![^\W_])_|_(?![^\W_])|:(?=[^\s\d])")


def markdown_report(outcome: Outcome, base: str) -> str:
    """The report.

    Args:
        outcome: of the run.
        base: the folder that the names in the diff are relative to.
    """
    said = " ".join(filter(None, (verdict(outcome), fit(outcome))))
    head = f"### gtp-migrate: {_prose(headline(outcome))}\n\n{_prose(said)}\n"
    tail = _how(outcome)
    room = _LONGEST - len(head) - len(tail)
    parts = [head]
    for title, header, lines in (_person(outcome), _runs(outcome), _settings(outcome)):
        if lines:
            # What comes later has less to say that is not said already.
            parts.append(_section(title, header, lines, room * 2 // 3))
            room -= len(parts[-1])
    return "\n".join([*parts, tail, *_diffs(outcome, base, room)])


_Section = tuple[str, str, list[str]]


def _section(title: str, header: str, lines: list[str], room: int) -> str:
    """A part with as many lines as there is room for, folded where they are many."""
    kept = list(lines)
    while kept and sum(map(len, kept)) > room:
        kept = kept[: len(kept) * 9 // 10]
    left = len(lines) - len(kept)
    more = f"\n…and {left:,} more than a description holds: see the page (`--report report.html`)\n" if left else ""
    return _folded(f"{title} ({len(lines):,})", header + "".join(kept) + more, is_open=len(lines) <= _FOLDED)


def _person(outcome: Outcome) -> _Section:
    lines = [f"- {_place(each.place)}: {_prose(each.what)}; {_prose(each.todo)}\n" for each in outcome.problems]
    return "Needs a person", "", lines


def _runs(outcome: Outcome) -> _Section:
    """A line a run, of one line a model."""
    header = ("recipe", "", "model", "TP · ETP · GTP · expert GTP", "GPUs", "copies", "data lanes", "fit")
    return "Runs", _header(header), ["".join(map(_line, _rows(outcome, run))) for run in outcome.reported]


def _rows(outcome: Outcome, run: RunOutcome) -> Iterator[tuple[str, ...]]:
    became = STATES[state(run, bool(problems_of(outcome, run)))]
    if not run.models:
        yield _code(run.recipe), became, "", _prose(run.problem.what if run.problem else "no model"), "", "", "", ""
    for number, model in enumerate(run.models):
        layout = model.the_layout
        numbers = (layout.gpus, layout.copies, layout.data_lanes) if layout else (None,) * 3
        fit = "" if layout is None else _prose(layout.warning) if layout.warning else "fits" if layout.gpus else ""
        yield (
            _code(run.recipe) if number == 0 else "",
            became if number == 0 else "",
            _code(model.name),
            _before_and_after(model),
            *("" if each is None else f"{each:,}" for each in numbers),
            fit,
        )


def _before_and_after(model: ModelOutcome) -> str:
    if model.before is None or model.after is None:
        return _prose(model.unknown)
    before, after = (_sizes(sizes, model.open) for sizes in (model.before, model.after))
    return before if before == after else f"{before} → **{after}**"


def _sizes(sizes: Topology, is_open: frozenset[str]) -> str:
    names = ("tp", "etp", "gtp", "expert_gtp")
    known = (("run" if name in is_open else getattr(sizes, name)) for name in names)
    return " · ".join("?" if size is None else str(size) for size in known)


def _settings(outcome: Outcome) -> _Section:
    header = ("where", "in", "old", "new", "TP or ETP, and where it comes from")
    rows = [
        (_place(each.place), _code(dotted(each.mapping)), _code(each.old), _code(each.new), _prose(each.parallel))
        for each in sorted(outcome.changes, key=lambda change: change.place)
    ]
    return "Settings", _header(header), list(map(_line, rows))


def _how(outcome: Outcome) -> str:
    lines = []
    if outcome.command:
        lines.append(f"Command: {_code(shlex.join(outcome.command))}")
    if outcome.choice:
        lines.append(f"Form: {_prose(outcome.choice.target.value)} ({_prose(outcome.choice.why)})")
    lines += [_prose(note) for note in outcome.notes]
    return "".join(f"- {line}\n" for line in lines)


def _diffs(outcome: Outcome, base: str, room: int) -> Iterator[str]:
    """As many files as there is room for."""
    if not outcome.edited:
        return
    shown: list[str] = []
    for file in unified_diff(outcome.edited, base):
        lines = file.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
        text = "\n".join(safe_text(line.removesuffix("\r").expandtabs()) for line in lines) + "\n"
        room -= len(text)
        if room < 200:
            break
        shown.append(text)
    done = "changed" if outcome.mode is Mode.WRITE else "that would change"
    left = len(outcome.edited) - len(shown)
    more = f", {left:,} of them left out: more than a description holds" if left else ""
    body = "".join(shown)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    title = f"{count(len(outcome.edited), 'file')} {done}{more}"
    yield _folded(title, f"{fence}diff\n{body}{fence}\n" if shown else "")


def _folded(title: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}>\n<summary>{title}</summary>\n\n{body}\n</details>\n"


def _header(cells: Sequence[str]) -> str:
    return _line(cells) + _line(["---"] * len(cells))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _place(place: Place) -> str:
    return _code(str(place))


def _code(text: str) -> str:
    """A name or a value, in a way that nothing in it is markup, in a table neither."""
    text = safe_text(text)
    if not text:
        return ""
    if _PLAIN.fullmatch(text) and text == text.strip():
        return f"`{text}`"
    return f"<code>{''.join(char if char.isalnum() else f'&#{ord(char)};' for char in text)}</code>"


def _prose(text: str) -> str:
    """Text with nothing in it that is markup."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", safe_text(text))
