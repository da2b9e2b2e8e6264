"""The trees under `fixtures/`: what the README's first command runs on, and what it must make of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from . import oracle
from .conftest import Ran, read_files, run

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECIPES = FIXTURES / "recipes"
MIGRATED = FIXTURES / "migrated"
NEEDS_A_PERSON = FIXTURES / "needs_a_person"

NAMES = sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.rglob("*.yaml"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of `fixtures/recipes` in a folder `recipes` of its own."""
    shutil.copytree(RECIPES, tmp_path / "recipes")
    return tmp_path


def migrate_copy(source: Path, tmp_path: Path, *args: str) -> Ran:
    shutil.copytree(source, tmp_path / source.name)
    return run(tmp_path, *args, source.name)


def test_every_file_becomes_the_expected_bytes(tree: Path) -> None:
    ran = run(tree, "recipes")
    assert ran.code == 0, ran.stderr
    assert ran.stdout == ""
    assert {path.relative_to(tree / "recipes").as_posix(): path.read_bytes() for path in files(tree / "recipes")} == {
        path.relative_to(MIGRATED).as_posix(): path.read_bytes() for path in files(MIGRATED)
    }


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_first_command_of_a_newcomer(tree: Path) -> None:
    before = read_files(tree)
    ran = run(tree, "--dry-run", "recipes")
    assert ran.code == 0
    assert ran.files == before
    assert ran.problems == []
    for line in (
        "--- a/recipes/grpo_dense.yaml",
        "+++ b/recipes/grpo_dense.yaml",
        "-      gtp_weight_remat_size: 3  # 4 × 3 = 12 ranks hold a weight",
        "+      tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}"
        "  # 4 × 3 = 12 ranks hold a weight",
    ):
        assert line in ran.stdout.split("\n")


def test_the_diff_applies_to_the_expected_bytes(tree: Path) -> None:
    ran = run(tree, "--dry-run", "recipes")
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "apply"], cwd=tree, check=True, input=ran.stdout.encode())
    for name in NAMES:
        assert (tree / "recipes" / name).read_bytes() == (MIGRATED / name).read_bytes(), name


@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
@pytest.mark.parametrize("style", ["auto", "literal", "interpolation"])
def test_every_recipe_runs_as_before(style: str, target: str, tmp_path: Path) -> None:
    """By the tests' own reading of the whole files, TP 6 put in where none is set; what is left is said, file by file."""
    ran = migrate_copy(RECIPES, tmp_path, "--style", style, "--target", target)
    typed = target == "megatron-cfg"
    left = []
    for name in NAMES:
        before, after = RECIPES / name, tmp_path / "recipes" / name
        if oracle.old_keys(after):
            assert after.read_bytes() == before.read_bytes()
            left += [name] if b"gtp_weight_remat_size" in before.read_bytes() else []
            continue
        assert oracle.old_keys(after) == []
        if name != "shapes/gtp3.yaml":  # an ingredient: nothing starts it by itself
            assert oracle.topologies(after, typed=typed, tp=6) == oracle.topologies(before, typed=typed, tp=6), name
            oracle.assert_runs_as_before(before, after, typed=typed, tp=6)
    told = {line.split(":")[0].removeprefix("recipes/") for line in ran.problems}
    assert set(left) <= told
    assert (ran.code == 0) == (not left)
    assert style != "auto" or not left


#: Where nobody knows whether there is a resolver.
UNKNOWN = {
    "bom_no_newline.yaml",
    "dpo.yaml",
    "judges.yaml",
    "llm/dpo-tp4.yaml",
    "llm/moe-30b-etp2.yaml",
    "moe.yaml",
    "odd_indents.yaml",
    "saved_on_windows.yaml",
    "shared_overrides.yaml",
}


def test_interpolations_are_refused_where_the_launcher_may_not_resolve_them(tree: Path) -> None:
    ran = run(tree, "--style", "interpolation", "recipes")
    assert ran.code == 3
    told = {line.split(":")[0].removeprefix("recipes/") for line in ran.problems}
    assert told == UNKNOWN - {"llm/dpo-tp4.yaml"}
    for line in ran.problems:
        assert line.endswith("; write the numbers with --style literal")
    unchanged = {name for name in NAMES if (tree / "recipes" / name).read_bytes() == (RECIPES / name).read_bytes()}
    old = {name for name in NAMES if oracle.old_keys(RECIPES / name)}
    assert unchanged & old >= UNKNOWN


#: What is written by hand in the fixtures: (TP, ETP, GTP, expert GTP) of each holder.
TOPOLOGIES = {
    "grpo_dense.yaml": {"policy": (4, 4, 3, 1)},
    "llm/grpo-dense-8b-tp8.yaml": {"policy": (8, 8, 3, 1)},
    "llm/grpo-dense-8b-1n8g.yaml": {"policy": (4, 4, 3, 1)},
    "llm/grpo-dense-8b-plain.yaml": {"policy": (4, 4, 1, 1)},
    "llm/grpo-dense-8b-other-engine.yaml": {"policy": (2, 2, 2, 1)},
    "llm/sft-3b-gtp2.yaml": {"policy": (2, 2, 2, 1)},
    "llm/sft-3b-size1.yaml": {"policy": (4, 4, 1, 1)},
    "llm/sft-3b-two-parents.yaml": {"policy": (2, 2, 3, 1)},
    "distillation.yaml": {"policy": (2, 2, 2, 1), "teacher": (8, 8, 2, 1)},
    "ppo_value.yaml": {"policy": (4, 4, 2, 1), "value": (2, 2, 4, 1)},
    "shared_overrides.yaml": {"policy": (2, 2, 2, 1), "reference": (4, 4, 2, 1)},
    "dpo.yaml": {"policy": (2, 2, 3, 1)},
    "llm/dpo-tp4.yaml": {"policy": (4, 4, 3, 1)},
    "opd_teachers.yaml": {"policy": (4, 1, 3, 1)},
    "generation.yaml": {"policy": (2, 1, 2, 1)},
    "from_elsewhere.yaml": {"policy": (4, 4, 2, 1), "value": (8, 8, 2, 1), "reward": (2, 2, 2, 1)},
    "moe.yaml": {"policy": (4, 1, 2, 2)},
    "llm/moe-30b-etp2.yaml": {"policy": (4, 2, 2, 4)},
    "half_migrated.yaml": {"policy": (4, 4, 3, 1), "value": (2, 2, 2, 1)},
}


#: The same of the models that no mapping shows, with EP: (TP, ETP, EP, GTP, expert GTP).
IN_PYTHON = {
    "opd_teachers.yaml": {"teacher math": (8, 1, 1, 3, 1), "teacher code": (8, 1, 1, 3, 1)},
    "generation.yaml": {"generation": (8, 1, 1, 2, 1)},
}


@pytest.mark.parametrize("folder", [RECIPES, MIGRATED], ids=["before", "after"])
@pytest.mark.parametrize("name", IN_PYTHON)
def test_the_models_made_in_python_are_the_ones_meant(name: str, folder: Path) -> None:
    for as_launched in (True, False):
        ways = {"registered": True, "as_launched": as_launched}
        found = oracle.models(folder / name, migrated=folder is MIGRATED, **ways)
        assert found is not None
        assert {model: sizes for model, sizes in found.items() if model != "policy"} == IN_PYTHON[name]


@pytest.mark.parametrize("folder", [RECIPES, MIGRATED], ids=["before", "after"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_topologies_are_the_ones_meant(name: str, folder: Path) -> None:
    found = oracle.topologies(folder / name)
    assert {str(path[0]): sizes for path, sizes in found.items()} == TOPOLOGIES[name]


def test_running_again_changes_nothing(tree: Path) -> None:
    first = run(tree, "recipes")
    second = run(tree, "recipes")
    assert second.code == 0
    assert second.files == first.files
    assert "Nothing to migrate in 27 files." in second.stderr


def test_check_before_and_after(tree: Path) -> None:
    assert run(tree, "--check", "recipes").code == 1
    run(tree, "recipes")
    assert run(tree, "--check", "recipes").code == 0


def test_half_of_the_tree_can_be_finished_later(tree: Path) -> None:
    """Later layers are written, what they inherit from is not. (A null over an old size stays ambiguous.)"""
    for name in NAMES:
        if name.startswith("llm/") and "plain" not in name:
            shutil.copyfile(MIGRATED / name, tree / "recipes" / name)
    ran = run(tree, "recipes")
    assert ran.code == 0, ran.stderr
    for name in NAMES:
        assert (tree / "recipes" / name).read_bytes() == (MIGRATED / name).read_bytes(), name


def test_megatron_cfg_moves_all(tree: Path) -> None:
    """One `model_overrides` under two models too: each gets its own number."""
    ran = run(tree, "--target", "megatron-cfg", "recipes")
    assert (ran.code, ran.problems) == (0, [])
    for name in NAMES:
        after = tree / "recipes" / name
        assert oracle.topologies(after, typed=True, tp=6) == oracle.topologies(RECIPES / name, tp=6), name
        assert oracle.old_keys(after) == []


def test_literal_adds_the_numbers_that_are_needed(tree: Path) -> None:
    ran = run(tree, "--style", "literal", "recipes")
    text = (tree / "recipes" / "grpo_dense.yaml").read_text(encoding="utf-8")
    assert "      tensor_parallel_num_weight_shards: 12  # 4 × 3 = 12 ranks hold a weight\n" in text
    text = (tree / "recipes" / "llm/grpo-dense-8b-tp8.yaml").read_text(encoding="utf-8")
    assert text == (
        "# Takes the size from its parent and a TP of its own.\n"
        "defaults: ../grpo_dense.yaml\n"
        "policy:\n"
        "  megatron_cfg:\n"
        "    tensor_model_parallel_size: 8\n"
        "    model_overrides:\n"
        "      tensor_parallel_num_weight_shards: 24\n"
    )
    for name in NAMES:
        after = tree / "recipes" / name
        assert oracle.topologies(after) == oracle.topologies(RECIPES / name), (name, ran.stderr)


PROBLEMS = {
    "bad_sizes.yaml:6:7": "gtp_weight_remat_size must be a positive integer or null, not 0",
    "bad_sizes.yaml:7:7": "expert_gtp_weight_remat_size must be a positive integer or null, not 2.5",
    "bad_sizes.yaml:12:7": 'gtp_weight_remat_size must be a positive integer or null, not "2"',
    "bad_sizes.yaml:17:7": "gtp_weight_remat_size must be a positive integer or null, not true",
    "conflict.yaml:6:7": "(size 3) and the new one (8 shards, line 7)",
    "ignored.yaml:5:5": "is ignored by this NeMo-RL",
    "missing_parent.yaml:1:1": "inherits from no_such_base.yaml, which cannot be read",
    "circle_a.yaml:1:1": "inherits from itself",
    "unparsable.yaml:6:6": "is not YAML",
    "twice.yaml:6:7": "gtp_weight_remat_size twice",
    "refers_to_it.yaml:3:3": "policy.train_global_batch_size refers to an old key",
    "latin1.yaml:4:10": "is not UTF-8",
    "out_of_reach.yaml:2:8": "mentions gtp_weight_remat_size in a text or a longer key, and 1 more",
    "out_of_reach.yaml:10:3": "gtp_weight_remat_size (sweep.gtp_weight_remat_size) is what no model gets",
    "out_of_reach.yaml:14:5": "(policy.megatron_cfg.expert_gtp_weight_remat_size) is what no model gets",
}


def test_what_needs_a_person(tmp_path: Path) -> None:
    ran = migrate_copy(NEEDS_A_PERSON, tmp_path)
    assert ran.code == 3
    found = {line.split(": ")[0].removeprefix("needs_a_person/"): line for line in ran.problems}
    assert found.keys() == PROBLEMS.keys()
    for place, what in PROBLEMS.items():
        assert what in found[place]
    for path in files(NEEDS_A_PERSON):
        if path.name != "fine.yaml":
            assert (tmp_path / "needs_a_person" / path.name).read_bytes() == path.read_bytes(), path.name
    fine = (tmp_path / "needs_a_person" / "fine.yaml").read_text(encoding="utf-8")
    assert fine.endswith("      tensor_parallel_num_weight_shards: 12\n")


def test_only_what_was_proven_is_called_proven(tmp_path: Path) -> None:
    ran = migrate_copy(NEEDS_A_PERSON, tmp_path)
    assert "1 setting in 1 file migrated; 1 recipe proven to train with the same topology." in ran.stderr


def test_the_readme_names_every_file() -> None:
    text = (FIXTURES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []
    assert [path.name for path in files(NEEDS_A_PERSON) if f"`{path.name}`" not in text] == []
