"""Files that were not given, but that given ones inherit from: a glance at them decides whether there is more to do."""

from __future__ import annotations

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
    assert migrate(files, "--map", "/opt/not/there=..", paths=("given",)).code == 3
