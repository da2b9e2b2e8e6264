"""Everything that the reports show, as plain data: the JSON report, and what the page is made from.

`report.schema.json` beside this module says what each field means. All texts are printable: what is not is an escape.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from gtp_migrate import __version__
from gtp_migrate.outcome import ModelOutcome, Outcome, RunOutcome
from gtp_migrate.problems import Place
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.report.ranks import Dimension, dense, expert, ranks_of
from gtp_migrate.report.sides import Line, Row, hunks
from gtp_migrate.runs.layout import Layout
from gtp_migrate.runs.topology import Topology
from gtp_migrate.streams import safe_text

#: Of the schema: a major one for what breaks readers, a minor one for fields that are added.
VERSION = "1.1"


def json_report(outcome: Outcome) -> str:
    """The JSON report."""
    return json.dumps(report(outcome), indent=1) + "\n"


def report(outcome: Outcome) -> dict[str, Any]:
    """The report as plain data, as `report.schema.json` has it."""
    layouts = _Layouts()
    runs = [_run(outcome, run, layouts) for run in outcome.reported]
    data = {
        "schema": "gtp-migrate report",
        "schema_version": VERSION,
        "tool": {"name": "gtp-migrate", "version": __version__},
        "command": shlex.join(outcome.command),
        "mode": outcome.mode.value,
        "form": outcome.choice and {"name": outcome.choice.target.value, "why": outcome.choice.why},
        "counts": {
            "files": outcome.files,
            "settings": len(outcome.changes),
            "changed_files": len(outcome.edited),
            "runs": len(runs),
            "changed_runs": sum(bool(run["changed"]) for run in runs),
            "proven_runs": len(outcome.proven),
            "problems": len(outcome.problems),
            "unfit_runs": len(outcome.unfit),
        },
        "is_left": outcome.left,
        "problems": [
            {**_place(problem.place), "what": problem.what, "todo": problem.todo} for problem in outcome.problems
        ],
        "notes": list(outcome.notes),
        "settings": [
            {
                **_place(each.place),
                "mapping": dotted(each.mapping),
                "old": each.old,
                "new": each.new,
                "parallel": each.parallel,
            }
            for each in sorted(outcome.changes, key=lambda change: change.place)
        ],
        "runs": runs,
        "layouts": layouts.data,
        "files": _files(outcome),
    }
    return _printable(data)  # type: ignore[no-any-return]


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, dict):
        return {key: _printable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(inner) for inner in value]
    return value


def _place(place: Place) -> dict[str, Any]:
    """Line and column from 1; null where the file as a whole is meant."""
    return {"path": place.path, "line": place.line or None, "column": (place.line and place.column) or None}


class _Layouts:
    """Each layout once, however many models have it."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def add(self, layout: Layout) -> int:
        """The layout's number."""
        key = (layout.topology, layout.cp, layout.pp, layout.ep, layout.gpus, layout.gpus_per_node)
        if key not in self._known:
            self._known[key] = len(self.data)
            self.data.append(_layout(layout))
        return self._known[key]


def _layout(layout: Layout) -> dict[str, Any]:
    ranks = ranks_of(layout)
    return {
        **_sizes(layout.topology),
        "cp": layout.cp,
        "pp": layout.pp,
        "ep": layout.ep,
        "gpus": layout.gpus,
        "gpus_per_node": layout.gpus_per_node,
        "gpus_per_copy": layout.ranks_per_copy,
        "copies": layout.copies,
        "data_lanes": layout.data_lanes,
        "warning": layout.warning,
        "ranks": ranks,
        "dense": _dimensions(dense(layout)) if ranks else [],
        "expert": _dimensions(expert(layout)) if ranks else [],
    }


def _dimensions(dimensions: Iterable[Dimension]) -> list[dict[str, Any]]:
    return [{"name": each.name, "size": each.size, "stride": each.stride} for each in dimensions]


def _sizes(sizes: Topology) -> dict[str, int | None]:
    return {"tp": sizes.tp, "etp": sizes.etp, "gtp": sizes.gtp, "expert_gtp": sizes.expert_gtp}


def _run(outcome: Outcome, run: RunOutcome, layouts: _Layouts) -> dict[str, Any]:
    problems = problems_of(outcome, run)
    return {
        "recipe": run.recipe,
        "is_given": run.is_given,
        "state": state(run, bool(problems)),
        "layers": run.layers,
        "changed": [each.shown for each in outcome.edited if each.path in run.changed],
        "problems": problems,
        "is_open": run.is_open,
        "unknown": run.problem.what if run.problem else "",
        "models": [_model(model, layouts) for model in run.models],
    }


def problems_of(outcome: Outcome, run: RunOutcome) -> list[int]:
    """The problems of a run's files, as indices."""
    files = {run.recipe, *run.layers}
    return [
        number
        for number, problem in enumerate(outcome.problems)
        if problem.place.path in files or problem == run.problem
    ]


def state(run: RunOutcome, has_problem: bool) -> str:
    """What became of a run: `proven` (it is changed, and trains as before), `not proven` (it is changed all the same:
    somebody left it out, or not all of its files were written), `left` (it has a file that needs a person), `same`
    (nothing of it is changed)."""
    if run.is_proven:
        return "proven"
    if run.changed:
        return "not proven"
    return "left" if has_problem else "same"


def _model(model: ModelOutcome, layouts: _Layouts) -> dict[str, Any]:
    sides = {
        side: None
        if sizes is None
        else {name: "open" if name in model.open else size for name, size in _sizes(sizes).items()}
        for side, sizes in (("before", model.before), ("after", model.after))
    }
    known: Mapping[str, Place | None] = {
        "tp": model.tp_from,
        "etp": model.etp_from,
        "gtp": model.size_from,
        "expert_gtp": model.expert_size_from,
    }
    return {
        "name": model.name,
        "kind": model.kind,
        "is_on": model.is_on,
        "is_pinned": model.is_pinned,
        "has_gtp": model.has_gtp,
        **sides,
        "unknown": model.unknown,
        "shards": None if "tp" in model.open else model.shards,
        "expert_shards": None if "etp" in model.open else model.expert_shards,
        "from": {name: place and _place(place) for name, place in known.items()},
        "layout": None if model.the_layout is None else layouts.add(model.the_layout),
        "no_layout": model.no_layout,
    }


def _files(outcome: Outcome) -> list[dict[str, Any]]:
    """All files that the runs are made of, and all that are changed."""
    edited = {each.shown: each for each in outcome.edited}
    layers = (layer for run in outcome.reported for layer in run.layers)
    names = sorted({*layers, *edited})
    return [
        {
            "path": name,
            "defaults": _defaults(outcome, name),
            "hunks": [[_row(row) for row in hunk] for hunk in hunks(edited[name])] if name in edited else [],
        }
        for name in names
    ]


def _defaults(outcome: Outcome, name: str) -> dict[str, Any] | None:
    inherits = outcome.inherits.get(name)
    if inherits is None or inherits.place is None:
        return None
    return {"line": inherits.place.line or None, "parents": inherits.parents}


def _row(row: Row) -> dict[str, Any]:
    return {"changed": row.is_changed, "before": _line(row.before), "after": _line(row.after)}


def _line(line: Line | None) -> dict[str, Any] | None:
    return None if line is None else {"line": line.number, "pieces": line.pieces}
