"""A run that is stopped at any moment leaves every file whole, every recipe as it trained, and a tree that a
second run finishes."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import gtp_migrate.order
import gtp_migrate.write_all
from gtp_migrate.recipes.discover import UNFINISHED
from tests.conftest import MORE
from tests.rewriter import oracle
from tests.rewriter.test_properties import (
    TARGETS,
    Choices,
    assert_same_meaning,
    choices,
    contents,
    meanings,
    on_disk,
    put,
    run,
)
from tests.rewriter.trees import RecipeTree, trees


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


@contextlib.contextmanager
def stopped_after(count: int | None) -> Iterator[list[tuple[str, bytes]]]:
    """Lets `count` writes through and raises at the next; all that is written is noted."""
    real = gtp_migrate.write_all.write
    written: list[tuple[str, bytes]] = []

    def write(path: str, shown: str, expected: bytes, new: bytes) -> None:
        if count is not None and len(written) == count:
            raise Stopped
        real(path, shown, expected, new)
        written.append((path, new))

    gtp_migrate.write_all.write = write
    try:
        yield written
    finally:
        gtp_migrate.write_all.write = real


@contextlib.contextmanager
def circles_noted() -> Iterator[list[object]]:
    """Notes where two files are layers of one recipe in one order and of another in the other."""
    real = gtp_migrate.order._order_with_circles
    circles: list[object] = []

    def order(first: dict[str, set[str]]) -> list[str]:
        circles.append(first)
        return real(first)

    gtp_migrate.order._order_with_circles = order
    try:
        yield circles
    finally:
        gtp_migrate.order._order_with_circles = real


def check_a_stop(root: Path, tree: RecipeTree, choices: Choices, moments: Any = None) -> int:
    """Stops a run after each of its writes, or after those that `moments` picks of them; returns how many
    writes there are."""
    before = meanings(root, tree.files, choices)
    with stopped_after(None) as writes, circles_noted() as circles:
        undisturbed = run(root, *choices.arguments())
    finished = contents(root)
    allowed = {name: {data} for name, data in tree.files.items()}
    for path, new in writes:
        allowed[Path(path).relative_to(root).as_posix()].add(new)
    for moment in range(len(writes)) if moments is None else moments(len(writes)):
        put(root, tree)
        with stopped_after(moment), pytest.raises(Stopped):
            run(root, *choices.arguments())
        for name, data in contents(root).items():
            assert data in allowed[name], f"{name} is torn after {moment} writes"
        half = contents(root)
        if not circles:
            assert_same_meaning(before, meanings(root, tree.files, choices), choices)
        again = run(root, *choices.arguments())
        told = f"after {moment} of {len(writes)} writes: {half} → {again.output}"
        assert again.exit_code == undisturbed.exit_code, told
        assert contents(root) == finished, told
        assert not left_behind(root), told
        assert_same_meaning(before, meanings(root, tree.files, choices), choices)
        checked = run(root, "--check", *choices.arguments()).exit_code
        assert checked in ((1, 3) if again.exit_code else (0,)), told
    return len(writes)


HOLDER = """\
policy:
  megatron_cfg:
    tensor_model_parallel_size: {tp}
    model_overrides:
      gtp_weight_remat_size: {size}
"""
SIZE = """\
policy:
  megatron_cfg:
    model_overrides:
      gtp_weight_remat_size: {size}
"""
OTHER_TP = """\
defaults: {parent}
policy:
  megatron_cfg:
    tensor_model_parallel_size: {tp}
"""

TREES = {
    "a child overrides the size": {
        "base.yaml": HOLDER.format(tp=4, size=3),
        "child.yaml": "defaults: base.yaml\n" + SIZE.format(size=2),
        "grandchild.yaml": "defaults: child.yaml\n" + SIZE.format(size=5),
    },
    "a child switches off": {
        "base.yaml": HOLDER.format(tp=4, size=3),
        "child.yaml": "defaults: base.yaml\n" + SIZE.format(size="null"),
    },
    "off and on again": {
        "base.yaml": HOLDER.format(tp=4, size=3),
        "off.yaml": "defaults: base.yaml\n" + SIZE.format(size="null"),
        "on.yaml": "defaults: off.yaml\n" + SIZE.format(size=2),
        "off_again.yaml": "defaults: on.yaml\n" + SIZE.format(size="null"),
    },
    "two parents in both orders": {
        "one.yaml": HOLDER.format(tp=4, size=3),
        "two.yaml": HOLDER.format(tp=4, size=2),
        "child_a.yaml": "defaults: [one.yaml, two.yaml]\n",
        "child_b.yaml": "defaults: [two.yaml, one.yaml]\n",
    },
    "two parents in both orders, one of them off": {
        "one.yaml": HOLDER.format(tp=4, size=3),
        "two.yaml": HOLDER.format(tp=4, size="null"),
        "child_a.yaml": "defaults: [one.yaml, two.yaml]\n",
        "child_b.yaml": "defaults:\n- two.yaml\n- one.yaml\n",
    },
    "a diamond": {
        "base.yaml": HOLDER.format(tp=4, size=3),
        "left.yaml": "defaults: base.yaml\n" + SIZE.format(size="null"),
        "right.yaml": "defaults: base.yaml\n" + SIZE.format(size=2),
        "both.yaml": "defaults: [left.yaml, right.yaml]\n",
    },
    "a child of another TP": {
        "base.yaml": HOLDER.format(tp=4, size=3),
        "child.yaml": OTHER_TP.format(parent="base.yaml", tp=8),
        "off.yaml": OTHER_TP.format(parent="base.yaml", tp=2)
        + "    model_overrides:\n      gtp_weight_remat_size: null\n",
        "grandchild.yaml": OTHER_TP.format(parent="child.yaml", tp=2),
    },
    "others beside": {
        "base.yaml": HOLDER.format(tp=4, size=3) + "      moe_router_dtype: fp32\n",
        "child.yaml": "defaults: base.yaml\n" + SIZE.format(size=2) + "      expert_gtp_weight_remat_size: null\n",
        "wiped.yaml": "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides: null\n",
        "again.yaml": "defaults: wiped.yaml\n" + SIZE.format(size=1),
    },
    "in one file by a merge key": {
        "base.yaml": HOLDER.format(tp=4, size=3).replace("megatron_cfg:", "megatron_cfg: &BASE")
        + "teacher:\n  megatron_cfg:\n    <<: *BASE\n    tensor_model_parallel_size: 2\n",
        "child.yaml": "defaults: base.yaml\n"
        + SIZE.format(size="null")
        + SIZE.format(size=2).replace("policy", "teacher"),
    },
}

#: Their files are layers of one recipe in one order and of another in the other.
IN_A_CIRCLE = {"two parents in both orders", "two parents in both orders, one of them off", "a diamond"}


def launched(text: str, style: str) -> str:
    """With the section of a launcher that registers resolvers, where the style asks for them."""
    return text if style == "literal" else text + "grpo: {max_num_steps: 1}\n"


@pytest.mark.parametrize(
    ("name", "style", "target"),
    [
        *itertools.product(TREES, ("auto", "literal"), TARGETS),
        *itertools.product(("a child overrides the size", "a child of another TP"), ("interpolation",), TARGETS),
    ],
)
def test_stopped_after_each_write(name: str, style: str, target: str) -> None:
    tree = RecipeTree({file: launched(text, style).encode() for file, text in TREES[name].items()})
    with on_disk(tree) as root:
        assert check_a_stop(root, tree, Choices(target, style)) > 0


@pytest.mark.slow
@settings(
    max_examples=15 * MORE,
    # A case takes many runs: shrinking one would take longer than reading it.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(trees(), choices(), st.randoms(use_true_random=False))
def test_random_trees_stopped_after_some_write(tree: RecipeTree, choices: Choices, chance: random.Random) -> None:
    with on_disk(tree) as root:
        writes = check_a_stop(root, tree, choices, lambda count: chance.sample(range(count), min(count, 2)))
        assume(writes > 1)


# -- a real kill -----------------------------------------------------------------------------------------

COPIES = 6


def bulk_tree(way: Choices) -> RecipeTree:
    """Some hundred recipes that inherit from each other, all cases of the small trees among them."""
    files = {}
    for number in range(COPIES):
        for kind, (title, tree) in enumerate(TREES.items()):
            if title not in IN_A_CIRCLE:
                files.update({f"{kind}/{number}/{name}": text.encode() for name, text in tree.items()})
    return RecipeTree(files)


def topologies(root: Path, names: Any, typed: bool) -> dict[str, Any]:
    known: oracle.Known = {}
    return {name: oracle.topologies(root / name, typed=typed, known=known) for name in names}


def start(root: Path, choices: Choices) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gtp_migrate", ".", *choices.arguments()]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def changed(paths: dict[Path, int]) -> int:
    return sum(path.stat().st_mtime_ns != time_before for path, time_before in paths.items())


def left_behind(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.suffix != ".yaml"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_random_moments() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    halves = 0
    ways = [Choices(target, style) for target in TARGETS for style in ("auto", "literal")]
    finished = {}
    for number in range(8 * MORE):
        way = ways[number % len(ways)]
        tree = bulk_tree(way)
        assert len(tree.files) > 100
        if way not in finished:
            with on_disk(tree) as root:
                assert run(root, *way.arguments()).exit_code == 0
                finished[way] = contents(root)
        with on_disk(tree) as root:
            before = topologies(root, tree.files, way.typed)
            times = {root / name: (root / name).stat().st_mtime_ns for name in tree.files}
            some = chance.randrange(len(tree.files) // 2)
            process = start(root, way)
            try:
                while process.poll() is None and changed(times) <= some:
                    time.sleep(0.001)
                time.sleep(chance.random() * 0.005)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            told = f"killed after {changed(times)} files, {way}"
            halves += changed(times) > 0 and contents(root, tree.files) != finished[way]
            for name, data in contents(root, tree.files).items():
                assert data in (tree.files[name], finished[way][name]) or is_meanwhile(data, tree.files[name]), told
            assert topologies(root, tree.files, way.typed) == before, told
            rest = left_behind(root)
            # A file that was being written, and what is to be written beside the first of its group.
            assert len([name for name in rest if not name.endswith(UNFINISHED)]) <= 1, told
            assert len(rest) <= 2, told
            again = run(root, *way.arguments())
            assert again.exit_code == 0, told + again.output
            assert contents(root) == finished[way], told
            assert left_behind(root) <= {name for name in rest if not name.endswith(UNFINISHED)}, told
    assert halves, "no run was killed half way"


def is_meanwhile(data: bytes, before: bytes) -> bool:
    """Whether a file has a new null beside its old one, and nothing else that is odd."""
    old = [line for line in before.splitlines() if b"gtp_weight_remat_size: null" in line]
    return bool(old) and all(line in data.splitlines() for line in old) and b"num_weight_shards: null" in data


def test_a_kill_while_a_file_is_written_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the very moment between the temporary file and its rename."""
    path = tmp_path / "a.yaml"
    text = HOLDER.format(tp=4, size=3)
    path.write_text(text)

    def replace(*_: Any) -> None:
        assert len(list(tmp_path.iterdir())) == 2
        raise Stopped

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Stopped):
        run(tmp_path, "--target", "model-overrides")
    assert path.read_text() == text
    monkeypatch.undo()
    assert run(tmp_path, "--target", "model-overrides").exit_code == 0
    assert "tensor_parallel_num_weight_shards: 12" in path.read_text()
