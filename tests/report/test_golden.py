"""The reports on the fixtures, word by word.

After a change that is meant, make them anew, and look at what `git diff` shows:

    GTP_MIGRATE_REGENERATE=1 python -m pytest tests/report/test_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gtp_migrate import __version__

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("suffix", ["json", "md", "sarif"])
def test_as_looked_at(fixture_reports: Path, suffix: str) -> None:
    made = (fixture_reports / f"report.{suffix}").read_text(encoding="utf-8")
    made = made.replace(f'"{__version__}"', '"VERSION"')
    golden = GOLDEN / f"report.{suffix}"
    if os.environ.get("GTP_MIGRATE_REGENERATE"):
        golden.write_text(made, encoding="utf-8")
    assert made == golden.read_text(encoding="utf-8"), "looked at? then: GTP_MIGRATE_REGENERATE=1"
