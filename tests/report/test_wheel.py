"""The wheel, installed into a fresh environment, makes every report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from .conftest import FIXTURES, SUFFIXES

REPOSITORY = FIXTURES.parent


@pytest.mark.slow
def test_wheel(tmp_path: Path, fixture_reports: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copytree(REPOSITORY / "gtp_migrate", source / "gtp_migrate")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source / name)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_REQUIRE"))}
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", wheels, source], check=True, env=clean)
    [wheel] = wheels.glob("gtp_migrate-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    subprocess.run([binaries / "python", "-m", "pip", "install", "-q", wheel], check=True, env=clean, cwd=tmp_path)

    work = tmp_path / "work"
    shutil.copytree(FIXTURES, work / "fixtures")
    (work / "report").mkdir()
    reports = [word for suffix in SUFFIXES for word in ("--report", f"report/report.{suffix}")]
    command = [binaries / "gtp-migrate", "--dry-run", *reports, "fixtures/recipes", "fixtures/needs_a_person"]
    ran = subprocess.run(command, cwd=work, env=clean, capture_output=True, text=True, check=False)
    assert ran.returncode == 3, ran.stderr
    for suffix in SUFFIXES:
        made, expected = (folder / f"report.{suffix}" for folder in (work / "report", fixture_reports))
        assert made.read_bytes() == expected.read_bytes(), suffix
    [schema] = (tmp_path / "venv").rglob("report.schema.json")
    assert schema.read_bytes() == (REPOSITORY / "gtp_migrate" / "report" / "report.schema.json").read_bytes()
