"""Names and values that try to break out of a format."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest
from markdown_it import MarkdownIt
from rewriter.conftest import Ran

from .conftest import make_reports, sarif_schema

#: Each tries to be something else in one of the formats.
NAMES = [
    "<script>document.title='owned'<",
    "--><img src=x onerror=alert(1)>",
    "`````",
    "| a | b |",
    "[a](http://b.c)![d](e) @user #1",
    "</details> <h1>",
    "{{ 7*7 }}{% raw %}{0}",
    "::error file=x,line=1::owned%0A",
    "red\x1b[31m",
    "two\nlines\r\n::error::x",
    "\u202egnp.exe\u2066",
    "שלום",
    "\udcff\udcfe",
    'back\\slash\' "quote"',
    "&amp;&lt;script&gt;",
    "$E=mc^2$ _a_ *b* ~c~",
    "x/__init__.py __a__",
    "x" * 230,
]


def tree(name: str) -> dict[str, Any]:
    """Recipes with the name for a file, a key, a value and a comment: one that migrates, one that needs a person."""
    quoted = json.dumps(name.encode("utf-8", "replace").decode())
    comment = re.sub(r"[^\x20-\x7e\u05d0-\u05ea]", "?", name)
    good = f"""\
{quoted}:
  megatron_cfg:
    tensor_model_parallel_size: 4  # {comment}
    model_overrides:
      # </script><script>document.title='owned'</script> ```` {comment}
      gtp_weight_remat_size: 3  # {comment}
notes: |
 ````
 <h1>
"""
    bad = f"""\
{quoted}:
  megatron_cfg:
    tensor_model_parallel_size: 4
    model_overrides: {{gtp_weight_remat_size: {quoted}}}
"""
    return {f"{name}.yaml": good.encode(), f"bad/{name}.yaml": bad.encode()}


@pytest.fixture(params=NAMES, ids=lambda name: ascii(name)[:24])
def ran(request: pytest.FixtureRequest, tmp_path: Path) -> Ran:
    ran = make_reports(tmp_path, tree(request.param), "--dry-run", "--format", "github")
    assert ran.code == 3, ran.stderr
    return ran


def report(ran: Ran, suffix: str) -> str:
    text = ran.files[f"report/report.{suffix}"]
    assert isinstance(text, str)
    return text


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes.update(name for name, _ in attrs)


def test_page(ran: Ran) -> None:
    elements = Elements()
    elements.feed(report(ran, "html"))
    assert elements.found.count("script") == 2
    assert not {"img", "iframe", "object", "a href"} & set(elements.found)
    assert not [name for name in elements.attributes if name.startswith("on")]
    assert "49" not in re.findall(r"<bdi>(.*?)</bdi>", report(ran, "html"))


def test_json(ran: Ran) -> None:
    text = report(ran, "json")
    assert text.isascii()
    data = json.loads(text)
    json.dumps(data, ensure_ascii=False).encode()  # no half of a surrogate pair
    assert data["counts"]["settings"] == 1


def test_sarif(ran: Ran) -> None:
    log = json.loads(report(ran, "sarif"))
    jsonschema.Draft7Validator(sarif_schema()).validate(log)
    for result in log["runs"][0]["results"]:
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.isascii()
        assert not re.search(r"[\s<>\"`{}|\\^]", uri)
        parts = urlsplit(uri)
        assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
        assert unquote(parts.path, errors="surrogateescape") in ran.files
        assert not re.search(r"\]\(", result["message"]["text"])


def test_markdown(ran: Ran) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(report(ran, "md"))
    inline = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in [*tokens, *inline]}
    assert not kinds & {"link_open", "image", "em_open", "strong_open", "s_open", "code_block", "hardbreak"}
    html = "".join(token.content for token in [*tokens, *inline] if token.type in ("html_block", "html_inline"))
    assert set(re.findall(r"</?(\w+)", html)) <= {"details", "summary", "code"}
    assert [token.info for token in tokens if token.type == "fence"] == ["diff"]
    assert html.count("<details") == html.count("</details>") == 4
    for token in tokens:
        if token.type == "inline":
            assert not re.search(r"(?<![&\w])[@#]\w", re.sub(r"`[^`]*`", "", token.content))
    cells = _cells(tokens)
    data = json.loads(report(ran, "json"))
    [setting] = data["settings"]
    assert f"{setting['path']}:{setting['line']}:{setting['column']}" in cells
    assert setting["mapping"] in cells
    assert {run["recipe"] for run in data["runs"]} <= set(cells)


def _cells(tokens: list[Any]) -> list[str]:
    """What people read in the cells of tables."""
    inner = [token for outer, token in itertools.pairwise(tokens) if outer.type == "td_open"]
    return ["".join(child.content for child in token.children if child.type != "html_inline") for token in inner]


def test_annotations(ran: Ran) -> None:
    lines = [line for line in ran.stderr.splitlines() if line.startswith("::")]
    pattern = re.compile(r"::(error|notice) file=[^:,]+,line=\d+,col=\d+,title=gtp-migrate%3A [a-z ]+::[^\x00-\x1f]+")
    assert all(pattern.fullmatch(line) for line in lines), lines
    assert len(lines) == 2
    assert "\x1b" not in ran.stderr
