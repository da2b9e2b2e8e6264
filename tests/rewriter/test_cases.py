"""The cases of ../shared/cases/rewriter, as their right.md says; our own of each kind are in the other tests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from . import oracle
from .conftest import Ran, run

CASES = Path(__file__).parents[3] / "shared" / "cases" / "rewriter"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="needs the cases in ../shared/cases/rewriter")

NEW = "tensor_parallel_num_weight_shards"
Case = Callable[..., Ran]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """`case(name, *arguments)` runs on a copy of a case, and sees that a second run changes nothing more and says the
    same, that all recipes run as before, and that nothing is proven with an old key left unsaid."""

    def case(
        name: str, *args: str, paths: tuple[str, ...] = (".",), code: int = 0, tp: int = 6, etp: int | None = None
    ) -> Ran:
        work = tmp_path / name
        shutil.copytree(CASES / name, work)
        (work / "right.md").unlink()
        ran = run(work, *args, *paths)
        assert "Traceback" not in ran.stderr
        assert ran.code == code, ran.stderr
        again = run(work, *args, *paths)
        assert (again.code, again.files, again.problems) == (code, ran.files, ran.problems)
        assert run(work, *args, "--check", *paths).code == (1 if code else 0)
        typed = "megatron-cfg" in args
        for path in sorted(work.rglob("*.yaml")):
            before = CASES / name / path.relative_to(work)
            if b"gtp_weight_remat_size" not in path.read_bytes() and not oracle.old_keys(path):
                oracle.assert_runs_as_before(before, path, typed=typed, tp=tp, etp=etp)
        return ran

    return case


def counts(ran: Ran, name: str = "r.yaml") -> list[str]:
    """The counts that a file has, in the order of its text."""
    return re.findall(rf"\b(?:expert_)?{NEW}: *([^\s,}}]+)", str(ran.files[name]))


def test_deep_holder(case: Case) -> None:
    ran = case("deep-holder")
    assert "gtp_weight_remat_size" not in ran.files["r.yaml"]
    assert counts(ran) == ["12", "18"]


def test_dense_with_open_ep(case: Case) -> None:
    assert counts(case("dense-with-open-ep")) == ["12"]


def test_elsewhere(case: Case) -> None:
    ran = case("elsewhere", code=3)
    assert [line.split(": ")[0] for line in ran.problems] == [
        "job.yaml:3:16", "r.yaml:2:21", "r.yaml:5:5", "sweep.yaml:2:3",
    ]  # fmt: skip
    assert ", and 1 more" in ran.problems[-1]


def test_experts_without_etp(case: Case) -> None:
    assert counts(case("experts-without-etp")) == ["2"]


def test_form_from_a_parents_checkout(case: Case) -> None:
    ran = case("form-from-a-parents-checkout", "--target", "megatron-cfg", paths=("recipes",))
    assert counts(ran, "recipes/mine.yaml") == ["12"]


def test_form_from_a_parents_checkout_unasked(tmp_path: Path) -> None:
    shutil.copytree(CASES / "form-from-a-parents-checkout", tmp_path / "case")
    ran = run(tmp_path / "case", "recipes")
    assert ran.code == 0, ran.stderr
    assert "Form: megatron-cfg" in ran.stderr
    assert f"  megatron_cfg:\n    {NEW}: 12\n" in ran.files["recipes/mine.yaml"]


def test_generation_colocated_reshard(case: Case) -> None:
    ran = case("generation-colocated-reshard", code=3)
    assert ran.files["r.yaml"] == (CASES / "generation-colocated-reshard" / "r.yaml").read_text()
    assert len(ran.problems) == 1
    for said in ("generation", "--target megatron-cfg", "--runtime-shim"):
        assert said in ran.problems[0]


@pytest.mark.parametrize("option", [("--runtime-shim",), ("--target", "megatron-cfg")])
def test_generation_colocated_reshard_with_what_helps(tmp_path: Path, option: tuple[str, ...]) -> None:
    shutil.copytree(CASES / "generation-colocated-reshard", tmp_path / "case")
    ran = run(tmp_path / "case", *option, ".")
    assert (ran.code, counts(ran)) == (0, ["6"]), ran.stderr


def test_generation_of_its_own(case: Case) -> None:
    ran = case("generation-of-its-own")
    assert counts(ran) == ["4", "16"]
    assert str(ran.files["r.yaml"]).count("masked_softmax_fusion: false") == 2


def test_generation_old_key(case: Case) -> None:
    assert counts(case("generation-old-key")) == ["4", "4"]


@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
def test_husk_that_is_referred_to(case: Case, target: str) -> None:
    ran = case("husk-that-is-referred-to", "--target", target)
    assert "gtp_weight_remat_size" not in ran.files["r.yaml"]


def test_launcher_without_resolvers(case: Case) -> None:
    ran = case("launcher-without-resolvers")
    assert (counts(ran, "dpo.yaml"), counts(ran, "dpo-tp4.yaml")) == (["6"], ["12"])


def test_merge_list(case: Case) -> None:
    ran = case("merge-list", code=3)
    assert counts(ran) == []
    assert "6.0.3 and 6.0.4 read differently" in ran.problems[0]


def test_one_odd_scalar(case: Case) -> None:
    ran = case("one-odd-scalar", code=3)
    assert counts(ran, "fine.yaml") == ["4"]
    assert [line.split(": ")[0] for line in ran.problems] == ["odd.yaml:5:4"]


def test_shadowed(case: Case) -> None:
    """The old key on the shelf must not reach a new Bridge by way of the merge, for PyYAML's own sake never does."""
    ran = case("shadowed", code=3)
    assert ran.files["r.yaml"] == (CASES / "shadowed" / "r.yaml").read_text()
    assert [line.split(": ")[0] for line in ran.problems] == ["r.yaml:2:42"]


def test_shadowed_size(case: Case) -> None:
    ran = case("shadowed-size")
    assert counts(ran)[-1] == "8"


def test_shelf(case: Case) -> None:
    ran = case("shelf")
    assert "gtp_weight_remat_size" not in ran.files["r.yaml"]
    assert "${" not in ran.files["r.yaml"]


def test_stopped_between_writes(case: Case, tmp_path: Path) -> None:
    options = ("--tp", "4", "--etp", "3", "--target", "model-overrides")
    done = case("stopped-between-writes", *options, tp=4, etp=3)
    # Later layers are written first.
    for count in (1, 2):
        work = tmp_path / str(count)
        shutil.copytree(CASES / "stopped-between-writes", work)
        for written in ("r2.yaml", "sub/r1.yaml")[:count]:
            (work / written).write_text(str(done.files[written]))
        ran = run(work, *options, ".")
        del ran.files["right.md"]
        assert (ran.code, ran.files) == (0, done.files), ran.stderr


def test_teacher_inherits_the_policy(case: Case) -> None:
    assert counts(case("teacher-inherits-the-policy")) == ["12", "24"]


def test_teachers_own_old_keys(case: Case) -> None:
    """A launcher gives `code` its own size 3, the functions called by themselves the default's 2: left, and said."""
    ran = case("teachers-own-old-keys", code=3)
    assert ran.files["r.yaml"] == (CASES / "teachers-own-old-keys" / "r.yaml").read_text()
    assert any("teacher code" in line or line.startswith("r.yaml:9:56") for line in ran.problems)


def test_two_merges(case: Case, tmp_path: Path) -> None:
    shutil.copytree(CASES / "two-merges", tmp_path / "case")
    first = run(tmp_path / "case", ".")
    second = run(tmp_path / "case", ".")
    assert second.files == first.files
    assert (second.code, second.problems) == (first.code, first.problems)
    assert first.code == 0 or first.problems


def test_typed_null_in_the_base(case: Case) -> None:
    ran = case("typed-null-in-the-base", code=3)
    assert len(ran.problems) == 1
    assert "base.yaml:4" in ran.problems[0]
    assert "--style" not in ran.problems[0]
    assert "remove the null of base.yaml:4, or give --target megatron-cfg" in ran.problems[0]


def test_every_case_is_tried() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in CASES.iterdir() if path.is_dir() and f'"{path.name}"' not in text] == []
