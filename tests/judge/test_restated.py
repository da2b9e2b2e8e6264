"""The restatement that machines without NeMo-RL judge by, held against NeMo-RL, Bridge and Core themselves."""

from __future__ import annotations

import ast
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from rewriter import restated

from gtp_migrate.judge import Answer, Judge, Request

from .conftest import FIXTURES, NEMO_RL, NEW_BRIDGE, REAL_TREE, SHARED, needs_nemo_rl
from .random_recipes import write_tree

pytestmark = needs_nemo_rl

#: The ways to run a recipe that one process can judge: (resolvers, master_config, new_bridge).
WAYS = list(itertools.product((True, False), repeat=3))
#: A launcher, and each of the three the other way round.
EACH_WAY = [(True, True, False), (False, True, False), (True, False, False), (True, True, True)]

NEITHER = "does not load or resolve"


def said_by(answer: Answer) -> Any:
    if answer.failure is not None:
        return NEITHER
    return {
        name: None if model.sizes is None else (*vars(model.sizes).values(),) for name, model in answer.models.items()
    }


def restated_models(recipe: Path, resolvers: bool, versions: restated.Versions) -> Any:
    try:
        return restated.models(recipe, resolvers=resolvers, versions=versions)
    except Exception:
        return NEITHER


def disagreements(judge: Judge, recipes: list[Path], ways: list[tuple[bool, bool, bool]], typed_counts: bool = False):
    """Every recipe and way where the two differ, and how many models were looked at."""
    differing, count = {}, 0
    for recipe, (resolvers, master_config, new_bridge) in itertools.product(recipes, ways):
        request = Request(
            str(recipe), resolvers=resolvers, typed=master_config, provider=NEW_BRIDGE if new_bridge else ""
        )
        real = said_by(judge.ask(request))
        ours = restated_models(recipe, resolvers, restated.Versions(typed_counts, new_bridge, master_config))
        if real != ours:
            differing[(str(recipe), resolvers, master_config, new_bridge)] = (real, ours)
        count += 0 if real == NEITHER else sum(sizes is not None for sizes in real.values())
    return differing, count


def test_fixtures_and_cases(judge: Judge) -> None:
    recipes = sorted([*FIXTURES.rglob("*.yaml"), *SHARED.joinpath("cases").rglob("*.yaml")])
    differing, count = disagreements(judge, recipes, EACH_WAY)
    assert not differing
    assert count > 50


def test_fixtures_and_cases_where_the_counts_are_typed(typing_judge: Judge) -> None:
    recipes = sorted([*FIXTURES.rglob("*.yaml"), *SHARED.joinpath("cases").rglob("*.yaml")])
    differing, count = disagreements(typing_judge, recipes, [EACH_WAY[0], EACH_WAY[-1]], typed_counts=True)
    assert not differing
    assert count > 50


@pytest.mark.slow
def test_the_real_tree(judge: Judge) -> None:
    differing, count = disagreements(judge, sorted(REAL_TREE.rglob("*.yaml")), [(True, True, False)])
    assert not differing
    assert count > 300


def test_some_of_the_real_tree(judge: Judge) -> None:
    recipes = random.Random(6).sample(sorted(REAL_TREE.rglob("*.yaml")), 20)
    differing, count = disagreements(judge, recipes, [(True, True, True), (False, True, False)])
    assert not differing
    assert count


@pytest.mark.parametrize("seed", range(4))
def test_random_recipes(judge: Judge, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    recipes = [recipe for number in range(30) for recipe in write_tree(rng, tmp_path / str(number))]
    differing, count = disagreements(judge, recipes, rng.sample(WAYS, 3))
    assert not differing
    assert count > 50


@pytest.mark.parametrize("seed", range(4, 6))
def test_random_recipes_where_the_counts_are_typed(typing_judge: Judge, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    recipes = [recipe for number in range(30) for recipe in write_tree(rng, tmp_path / str(number))]
    differing, count = disagreements(typing_judge, recipes, rng.sample(WAYS, 3), typed_counts=True)
    assert not differing
    assert count > 50


def test_the_names_that_nemo_rl_types() -> None:
    tree = ast.parse((NEMO_RL / "nemo_rl" / "models" / "policy" / "__init__.py").read_text())
    [typed] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "MegatronConfig"]
    names = {node.target.id for node in typed.body if isinstance(node, ast.AnnAssign)}
    assert names == restated.MEGATRON_CONFIG
