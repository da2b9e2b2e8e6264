"""Random recipes with teachers, generation and launchers of all kinds: whatever a run writes, every run stays what it is.

The judge is the restatement of NeMo-RL beside this file; where NeMo-RL itself is there, `tests/judge` tries its own.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, event, given, note, settings
from hypothesis import strategies as st

from tests.conftest import MORE
from tests.judge import random_recipes
from tests.rewriter import oracle, run_trees
from tests.rewriter.test_kill import Stopped, stopped_after
from tests.rewriter.test_properties import STYLES, TARGETS, Choices, contents, run

OLD = b"gtp_weight_remat_size"

ways = st.builds(
    Choices,
    st.sampled_from(TARGETS),
    st.sampled_from(STYLES),
    st.sampled_from([None, None, 4]),
    st.sampled_from([None, None, None, 3]),
)
seeds = st.integers(0, 2**32 - 1)
#: A seed does not shrink.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@contextmanager
def random_tree(seed: int, write: Any = run_trees.write_tree) -> Iterator[tuple[Path, Path]]:
    """A random tree, as it is and to work on."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder).resolve() / "before", Path(folder).resolve() / "after"
        write(random.Random(seed), before)
        shutil.copytree(before, after)
        (after / ".git").mkdir()
        for path in sorted(before.iterdir()):
            note(f"--- {path.name}\n{path.read_text()}")
        yield before, after


def layers(path: Path) -> set[str]:
    """A recipe and all that it inherits from, by name."""
    config = oracle.OmegaConf.load(path)
    parents = config.get("defaults", [])
    names = [parents] if isinstance(parents, str) else list(parents)
    return {path.name}.union(*(layers(path.parent / name) for name in names))


def assert_all_run_as_before(before: Path, after: Path, choices: Choices, *, migrated: bool = True) -> None:
    """Every recipe of which a layer is another than before; on a Bridge that takes both, all of them."""
    order = {path.name: layers(path) for path in before.iterdir()}
    sections = oracle.WITH_RESOLVERS | oracle.WITHOUT_RESOLVERS
    for name, below in order.items():
        if migrated and all((before / each).read_bytes() == (after / each).read_bytes() for each in below):
            continue
        try:
            config = oracle.load(before / name)
        except Exception:
            continue  # it could not be started
        by = None
        if not sections & set(config) and any(name in more and other != name for other, more in order.items()):
            by = (True,)  # an ingredient: its heirs decide
        for environment in environments(*(before / each for each in below)):
            with mock.patch.dict(os.environ, environment):
                for tp in (choices.tp,) if choices.tp else (5, 7):
                    oracle.assert_runs_as_before(
                        before / name,
                        after / name,
                        typed=choices.typed,
                        tp=tp,
                        etp=choices.etp,
                        migrated=migrated,
                        by=by,
                    )


def environments(*files: Path) -> Iterator[dict[str, str]]:
    """Every way in which what these files take from the environment may turn out."""
    text = "".join(path.read_text() for path in files)
    taken = {name: values for name, values in run_trees.ENVIRONMENT.items() if name in text}
    for values in product(*taken.values()):
        yield dict(zip(taken, values, strict=True))


@settings(max_examples=40 * MORE, phases=PHASES)
@given(seeds, ways)
def test_every_run_stays_what_it_is(seed: int, choices: Choices) -> None:
    check_a_run(seed, choices, run_trees.write_tree)


@settings(max_examples=30 * MORE, phases=PHASES)
@given(seeds, ways)
def test_every_run_stays_what_it_is_where_much_is_wrong(seed: int, choices: Choices) -> None:
    check_a_run(seed, choices, random_recipes.write_tree)


def check_a_run(seed: int, choices: Choices, write: Any) -> None:
    with random_tree(seed, write) as (before, after):
        result = run(after, *choices.arguments())
        written = contents(after)
        note(result.output)
        event(f"exit {result.exit_code}, {'something' if written != contents(before) else 'nothing'} written")
        assert result.exit_code in (0, 3)
        assert_all_run_as_before(before, after, choices)
        if result.exit_code == 0:
            assert not [name for name, data in written.items() if OLD in data]
        else:
            assert result.stderr
        again = run(after, *choices.arguments())
        assert (again.exit_code, contents(after)) == (result.exit_code, written)
        checked = run(after, "--check", *choices.arguments())
        assert (checked.exit_code == 0) == (result.exit_code == 0)


def stop_after_each_write(seed: int, choices: Choices) -> int:
    """Returns how many writes there are."""
    with random_tree(seed) as (before, after):
        with stopped_after(None) as writes:
            undisturbed = run(after, *choices.arguments())
        finished = contents(after)
        for moment in range(1, len(writes)):
            shutil.rmtree(after)
            shutil.copytree(before, after)
            (after / ".git").mkdir()
            with stopped_after(moment), pytest.raises(Stopped):
                run(after, *choices.arguments())
            again = run(after, *choices.arguments())
            note(f"after {moment} of {len(writes)} writes: {again.output}")
            assert (again.exit_code, contents(after)) == (undisturbed.exit_code, finished)
        return len(writes)


@pytest.mark.slow
@settings(max_examples=40 * MORE, phases=PHASES)
@given(seeds, ways)
def test_stopped_between_two_writes(seed: int, choices: Choices) -> None:
    event(f"{stop_after_each_write(seed, choices)} writes")
