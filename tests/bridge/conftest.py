"""These tests run against the real Bridge and Core; they fail where the packages are missing."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import bridge_machine

bridge_machine.start()
