"""The page for a reviewer: one file, no network, all of its data inside.

What is read first stands in the page itself: the verdict, what needs a person, the table of runs. What belongs to one
recipe is made by the page's script when somebody opens it, from the data of the JSON report.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gtp_migrate.outcome import Outcome
from gtp_migrate.report.data import report
from gtp_migrate.report.words import STATES, done, headline, is_alike, verdict

#: Runs in the table at first: a browser lays out so many at once. The filter looks at all of them.
_MOST_SHOWN = 400
#: Problems that are all shown at once; of more, half as many, and the rest on demand.
_MOST_PROBLEMS = 20


def html_report(outcome: Outcome) -> str:
    """The page."""
    loader = PackageLoader("gtp_migrate.report", "page")
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    script, style = (_source(page, name) for name in ("page.js", "page.css"))
    data = report(outcome)
    return page.get_template("page.html").render(
        data=data,
        most_shown=_MOST_SHOWN,
        most_problems=_MOST_PROBLEMS,
        payload=Markup(_inert(data)),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(style),
        states=STATES,
        headline=headline(outcome),
        verdict=verdict(outcome),
        done=done(outcome),
        is_alike=is_alike(outcome),
    )


def _source(page: Environment, name: str) -> str:
    assert page.loader is not None
    return page.loader.get_source(page, name)[0]


def _inert(data: dict[str, Any]) -> str:
    """JSON that ends no script element and opens none, whatever the names in it are."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
