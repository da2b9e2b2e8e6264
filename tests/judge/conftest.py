"""These tests run NeMo-RL's own functions on the real Bridge and Core. NeMo-RL is on no package index: its source is
looked for in ``../shared`` beside the checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gtp_migrate.judge import Judge

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS.parent / "fixtures"
SHARED = TESTS.parents[1] / "shared"
NEMO_RL = SHARED / "corpus" / "nemo_rl_source"
REAL_TREE = SHARED / "corpus" / "nemo_rl" / "examples"

#: In the judge's process, ``tests`` is where the stand-ins are.
ENV = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(NEMO_RL)])}
NEW_BRIDGE = "bridge_machine.new_bridge:NewGPTModelProvider"

needs_nemo_rl = pytest.mark.skipif(not NEMO_RL.is_dir(), reason=f"NeMo-RL's source is not in {NEMO_RL}")


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """NeMo-RL as it is; importing it takes many seconds, so one for all tests."""
    with Judge(sys.executable, prepare=["bridge_machine:start"], env=ENV) as judge:
        yield judge


@pytest.fixture(scope="session")
def typing_judge() -> Iterator[Judge]:
    """NeMo-RL that types the shard counts."""
    with Judge(sys.executable, prepare=["bridge_machine.typed_nemo_rl:start"], env=ENV) as judge:
        yield judge
