"""Files that were not given, but that given ones inherit from: a glance at them decides whether there is more to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gtp_migrate.recipes.survey import survey

from .conftest import Content, Migrate, write_files

BASE = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    model_overrides: {KEY: 12}\n"
OLD = BASE.replace("KEY", "gtp_weight_remat_size")
NEW = BASE.replace("KEY", "tensor_parallel_num_weight_shards")
PLAIN = BASE.replace("KEY", "other")
CHAIN: dict[str, Content] = {
    "given/a.yaml": "defaults: ../b.yaml\n",
    "b.yaml": "defaults: [c.yaml, deep/d.yaml]\n",
    "c.yaml": "x: 1\n",
    "deep/d.yaml": "defaults: ../e.yaml\n",
}


def may_inherit(folder: Path, files: dict[str, Content]) -> bool:
    write_files(folder, files)
    return survey([str(folder / "given")]).inherits_from_outside()


@pytest.mark.parametrize(("last", "expected"), [(OLD, True), (NEW, True), (PLAIN, False), (b"\xff\xfe\0", False)])
@pytest.mark.parametrize("where", ["b.yaml", "c.yaml", "deep/d.yaml", "e.yaml"])
def test_at_any_distance(tmp_path: Path, where: str, last: Content, expected: bool) -> None:
    assert may_inherit(tmp_path, {**CHAIN, where: last}) is expected


def test_what_only_a_parser_can_tell(tmp_path: Path) -> None:
    assert may_inherit(tmp_path, {**CHAIN, "e.yaml": "? defaults\n: &x f.yaml\n"})


@pytest.mark.parametrize("end", ["b.yaml", "deep/d.yaml", "given/a.yaml", "e.yaml", "not_there.yaml"])
def test_circles_and_what_is_missing(tmp_path: Path, end: str) -> None:
    assert not may_inherit(tmp_path, {**CHAIN, "e.yaml": f"defaults: {end}\n"})


def test_it_is_said(migrate: Migrate) -> None:
    ran = migrate({**CHAIN, "e.yaml": OLD}, paths=("given",))
    assert ran.code == 3
    assert ran.problems[0].startswith("e.yaml:4:")
    assert "give this file too" in ran.stderr
    assert migrate({**CHAIN, "e.yaml": PLAIN}, paths=("given",)).stderr == "Nothing to migrate in 1 file.\n"


def test_through_a_folder_that_stands_for_another(migrate: Migrate) -> None:
    files: dict[str, Content] = {"given/a.yaml": "defaults: /opt/not/there/b.yaml\n", "b.yaml": OLD}
    assert migrate(files, paths=("given",)).code == 0
    ran = migrate(files, "--map", "/opt/not/there=.", paths=("given",))
    assert ran.code == 3
    assert ran.problems[0].startswith("b.yaml:4:")
    assert "holds gtp_weight_remat_size for given/a.yaml" in ran.stderr


AT_8: Content = "dpo: {}\n" + OLD.replace("_size: 4", "_size: 8")
CHILD = "dpo: {}\ndefaults: DEFAULTS\npolicy:\n  megatron_cfg:\n    model_overrides: {gtp_weight_remat_size: 3}\n"


@pytest.mark.parametrize("to", [".", "", "./", "nemo/..", "ABSOLUTE"])
@pytest.mark.parametrize("written", ["/opt/rl/base.yaml", "/opt//rl/./base.yaml", "/opt/rl/sub/../base.yaml"])
def test_the_folder_is_relative_to_where_the_command_runs(
    migrate: Migrate, tmp_path: Path, to: str, written: str
) -> None:
    """Not to the recipe, beside which there may be a file of that name."""
    files = {
        "base.yaml": PLAIN,
        "recipes/base.yaml": AT_8,
        "recipes/mine.yaml": CHILD.replace("DEFAULTS", written),
    }
    folder = str(tmp_path / "work") if to == "ABSOLUTE" else to
    ran = migrate(files, "--map", f"/opt/rl={folder or './'}", paths=("recipes/mine.yaml",))
    assert ran.code == 0, ran.stderr
    assert "tensor_parallel_num_weight_shards: 12" in ran.files["recipes/mine.yaml"]


def test_the_longest_folder_counts(migrate: Migrate) -> None:
    files = {"nemo/base.yaml": PLAIN, "mine.yaml": CHILD.replace("DEFAULTS", "/opt/rl/base.yaml")}
    ran = migrate(files, "--map", "/opt=other", "--map", "/opt/rl/=nemo", paths=("mine.yaml",))
    assert ran.code == 0, ran.stderr


# -- heirs that cannot be read here --------------------------------------------------------------------

HEIR = "dpo: {}\ndefaults: DEFAULTS\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 8\n"


@pytest.mark.parametrize("heir", ["recipes/mine.yaml", "elsewhere/mine.yaml"])
@pytest.mark.parametrize("defaults", ["/workspace/recipes/base.yaml", "[/workspace/recipes/base.yaml]"])
def test_a_parent_by_the_path_of_a_container(migrate: Migrate, tmp_path: Path, heir: str, defaults: str) -> None:
    """It may be the file that is about to change: its own TP would no longer fit."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    files = {"recipes/base.yaml": "dpo: {}\n" + OLD, heir: HEIR.replace("DEFAULTS", defaults)}
    ran = migrate(files, paths=("recipes",))
    assert ran.code == 3
    assert ran.files == files
    [problem] = ran.problems
    assert f"{heir}:2:1: inherits from /workspace/recipes/base.yaml, which cannot be read" in problem
    assert "--map FROM=TO" in problem
    mapped = migrate({}, "--map", "/workspace=.", paths=(".",))
    assert mapped.code == 0, mapped.stderr
    assert "tensor_parallel_num_weight_shards: 96" in mapped.files[heir]


def test_the_path_of_a_container_that_is_no_file_of_ours(migrate: Migrate) -> None:
    """What ends in no file with a setting keeps none from being changed."""
    files = {
        "a/base.yaml": "dpo: {}\n" + OLD,
        "b/base.yaml": PLAIN,
        "mine.yaml": HEIR.replace("DEFAULTS", "/workspace/b/base.yaml"),
        "other.yaml": HEIR.replace("DEFAULTS", "/workspace/else.yaml"),
    }
    ran = migrate(files)
    assert ran.code == 0, ran.stderr
    assert "tensor_parallel_num_weight_shards: 48" in ran.files["a/base.yaml"]


BROKEN = ["x: }", "x: 1\nx: 2", "x: !!int abc", "x: \t- y: ["]


@pytest.mark.parametrize("more", [*BROKEN, "y: ${nowhere}"])
@pytest.mark.parametrize("paths", [(".",), ("base.yaml",)], ids=["given", "not given"])
def test_an_heir_that_cannot_be_loaded(migrate: Migrate, tmp_path: Path, more: str, paths: tuple[str, ...]) -> None:
    """Once it is mended it may need another number. Its base stays as it is, and why is said."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    heir = HEIR.replace("DEFAULTS", "base.yaml")
    files = {"base.yaml": "dpo: {}\n" + OLD, "sub/heir.yaml": f"{heir.replace('base', '../base')}{more}\n"}
    if "${" in more:
        # That one can be read, and has an answer.
        files["sub/heir.yaml"] = files["sub/heir.yaml"].replace("size: 8", "size: ${nowhere}")
    ran = migrate(files, paths=paths)
    assert (ran.code, ran.files) == (3, files), ran.stderr
    assert any(problem.startswith("sub/heir.yaml:") or "sub/heir.yaml" in problem for problem in ran.problems)
    assert migrate({}, "--exclude", "heir.yaml", paths=(".",)).files["base.yaml"] != files["base.yaml"]


def test_an_heir_that_is_not_given_is_named_from_the_current_folder(migrate: Migrate, tmp_path: Path) -> None:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    files = {"a/base.yaml": "dpo: {}\n" + OLD, "b/heir.yaml": "defaults: ../a/base.yaml\ndpo: {}\n"}
    ran = migrate(files, "--report", "r.json", paths=("a",))
    assert ran.code == 0, ran.stderr
    report = json.loads(ran.files["r.json"])
    assert [run["recipe"] for run in report["runs"]] == ["a/base.yaml", "b/heir.yaml"]
    assert report["runs"][1]["layers"] == ["a/base.yaml", "b/heir.yaml"]
    assert report["files"][1]["defaults"]["parents"] == ["a/base.yaml"]


def test_an_heir_that_is_not_given_and_has_lost_a_parent(migrate: Migrate, tmp_path: Path) -> None:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    files = {"r/base.yaml": "dpo: {}\n" + OLD, "h/k.yaml": HEIR.replace("DEFAULTS", "[../r/base.yaml, gone.yaml]")}
    ran = migrate(files, paths=("r",))
    assert (ran.code, ran.files) == (3, files)
    assert "h/k.yaml:2:1: inherits from gone.yaml, which cannot be read" in ran.problems[0]
    assert ran.problems[0].endswith("; or leave it out with --exclude")


def test_a_base_that_has_to_change_with_it(migrate: Migrate) -> None:
    files = {
        "base.yaml": "dpo: {}\n" + OLD,
        "s/kid.yaml": CHILD.replace("DEFAULTS", "../base.yaml").replace(": 3", ": null"),
    }
    ran = migrate(files, paths=("s",))
    assert (ran.code, ran.files) == (3, files)
    assert any("; give base.yaml too" in problem for problem in ran.problems), ran.stderr
    assert migrate({}, paths=(".",)).code == 0


@pytest.mark.parametrize("link", ["in/o.yaml", "in/deep/o.yaml"])
@pytest.mark.parametrize("paths", [("in",), ("LINK",)], ids=["in a folder", "by its name"])
def test_a_link_to_a_file_of_another_checkout(
    migrate: Migrate, tmp_path: Path, link: str, paths: tuple[str, ...]
) -> None:
    """What inherits from the file where it really is counts as well."""
    heir = "defaults: r.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 2}}\n"
    work = tmp_path / "work"
    write_files(work, {"out/.git/HEAD": "", "out/r.yaml": f"grpo: {{}}\n{OLD}", "in/.git/HEAD": ""})
    (work / link).parent.mkdir(exist_ok=True)
    (work / link).symlink_to(work / "out/r.yaml")
    paths = tuple(path.replace("LINK", link) for path in paths)
    alone = migrate({}, "--dry-run", paths=paths)
    assert (alone.code, "shards: 48" in alone.stdout) == (0, True)
    write_files(work, {"out/k.yaml": heir})
    ran = migrate({}, "--style", "literal", paths=paths)
    assert (ran.code, ran.files["out/r.yaml"]) == (3, f"grpo: {{}}\n{OLD}")
    (problem,) = ran.problems
    assert problem.startswith("out/k.yaml: ")
    assert problem.endswith("give this file too")
