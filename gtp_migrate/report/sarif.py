"""What needs a person, as SARIF 2.1.0, which code scanning and editors read.

Where nothing is written, the settings that are left to migrate are results as well: as warnings, by a rule of their
own.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from typing import Any
from urllib.parse import quote

from gtp_migrate import __version__
from gtp_migrate.forms import Mode
from gtp_migrate.outcome import Outcome
from gtp_migrate.problems import Place
from gtp_migrate.report.names import Names
from gtp_migrate.report.words import sentence
from gtp_migrate.streams import safe_text

_RULES = (
    (
        "needs-a-person",
        "A GTP setting that cannot be migrated without a person",
        "What is concerned was left as it is: a change that cannot be proven safe is never written.",
        "error",
    ),
    (
        "left-to-migrate",
        "An old GTP setting that gtp-migrate would rewrite",
        "Run gtp-migrate without --check to rewrite it.",
        "warning",
    ),
)


def sarif_report(outcome: Outcome) -> str:
    """The SARIF log."""
    names = Names(outcome, os.environ.get("GITHUB_WORKSPACE"))
    results = [_result(0, problem.place, f"{problem.what}; {problem.todo}", names) for problem in outcome.problems]
    if outcome.mode is not Mode.WRITE:
        for each in sorted(outcome.changes, key=lambda change: change.place):
            results.append(_result(1, each.place, sentence(each, outcome.mode), names))
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gtp-migrate",
                        "semanticVersion": __version__,
                        "rules": [_rule(*rule) for rule in _RULES],
                    }
                },
                "invocations": [
                    {"executionSuccessful": True, "commandLine": safe_text(shlex.join(outcome.command))},
                ],
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=1) + "\n"


def _rule(name: str, short: str, full: str, level: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": short},
        "fullDescription": {"text": full},
        "defaultConfiguration": {"level": level},
    }


def _result(rule: int, place: Place, text: str, names: Names) -> dict[str, Any]:
    name, *_, level = _RULES[rule]
    path = names.of(place.path)
    location: dict[str, Any] = {"artifactLocation": _artifact(path)}
    if place.line:
        location["region"] = {"startLine": place.line}
        if place.column:
            location["region"]["startColumn"] = place.column
    # Lines move; what is wrong with which file stays.
    fingerprint = hashlib.sha256(f"{name}\n{path}\n{text}".encode("utf-8", "surrogateescape")).hexdigest()
    return {
        "ruleId": name,
        "ruleIndex": rule,
        "level": level,
        "message": {"text": _message(text)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"gtpMigrate/v1": fingerprint},
    }


def _artifact(path: str) -> dict[str, Any]:
    """A URI; what is not absolute is relative to the root of the sources."""
    uri = quote(os.fsencode(path), safe="/")
    if os.path.isabs(path):
        return {"uri": "file://" + uri}
    return {"uri": uri, "uriBaseId": "%SRCROOT%"}


def _message(text: str) -> str:
    """A text without what a viewer would take for a link, `[…](…)`."""
    return safe_text(text).replace("](", "] (")
