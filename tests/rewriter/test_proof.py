"""The proof, held against a rewriter that is broken on purpose.

Each break is one that a fault in planning or editing could cause. Nothing of what is connected with it may be
written, the message says which recipe or file and what would change, and a good file in the same run is migrated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gtp_migrate.draft
import gtp_migrate.plan.planner
import gtp_migrate.plan.stock
import gtp_migrate.runs.topology
from gtp_migrate.shards import AXES, Axis
from tests.rewriter.test_properties import contents, run

BASE = """\
policy:
  megatron_cfg:
    tensor_model_parallel_size: 4  # over all GPUs of a node
    expert_tensor_parallel_size: 2
    learning_rate: 1
    model_overrides:
      # three times as many shards
      gtp_weight_remat_size: 3  # why
      moe_router_dtype: fp32
grpo: {max_num_steps: 1}
"""
CHILD = """\
defaults: base.yaml
policy:
  megatron_cfg:
    tensor_model_parallel_size: 8
"""
OFF = """\
defaults: base.yaml
policy:
  megatron_cfg:
    model_overrides:
      gtp_weight_remat_size: null
"""
HEIR = "defaults: base.yaml\nlogger: {wandb: false}\n"
MERGED = """\
policy:
  megatron_cfg: &BASE
    tensor_model_parallel_size: 4
    model_overrides:
      moe_router_dtype: fp32
      gtp_weight_remat_size: 3
teacher:
  megatron_cfg:
    <<: *BASE
    model_overrides:
      gtp_weight_remat_size: 2
"""
GOOD = """\
policy:
  megatron_cfg:
    tensor_model_parallel_size: 4
    expert_tensor_parallel_size: 4
    model_overrides:
      gtp_weight_remat_size: 5
"""

Text = Callable[[str], str]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Breaks the editing of every file but the good one: its changes before, or its text after."""

    def break_it(*, change: Callable[[Any], Any] | None = None, text: Text | None = None) -> None:
        real = gtp_migrate.draft.edit

        def edit(before: str, changes: Any, **options: Any) -> str:
            if before == GOOD:
                return real(before, changes, **options)
            if change is not None:
                changes = [change(each) for each in changes]
            after = real(before, changes, **options)
            if text is None:
                return after
            assert text(after) != after, "the break does not bite"
            return text(after)

        monkeypatch.setattr(gtp_migrate.draft, "edit", edit)

    return break_it


@pytest.fixture
def no_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what mends a recipe that needs a number of its own, or another spelling."""
    monkeypatch.setattr(gtp_migrate.draft, "own_number", lambda *_: None)
    monkeypatch.setattr(gtp_migrate.draft, "_without_interpolation", lambda *_: ())


@pytest.fixture
def only_topologies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison of the file's text: the runs alone must tell."""
    monkeypatch.setattr(gtp_migrate.draft, "same_elsewhere", lambda *_: True)


def expect_refusal(
    root: Path,
    files: dict[str, str],
    *said: str,
    options: tuple[str, ...] = ("--target", "model-overrides"),
    folder: str = "",
) -> None:
    """Runs, and sees that the given files stay, the good one is migrated, and a message says all of `said`."""
    (root / ".git").mkdir()
    good = f"{folder}good.yaml"
    for name, text in {**files, good: GOOD}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    dry = run(root, "--dry-run", "-q", *options, paths=(folder,))
    assert dry.exit_code == 3
    assert [line for line in dry.stdout.splitlines() if line.startswith("+++ ")] == [f"+++ b/{good}"]
    assert run(root, "--check", "-q", *options, paths=(folder,)).exit_code == 1
    result = run(root, "-q", *options, paths=(folder,))
    after = contents(root)
    assert {name: after[name].decode() for name in files} == files, "written in spite of the proof"
    assert "_num_weight_shards: 20" in after[good].decode()
    assert result.exit_code == 3
    lines = [line for line in result.stderr.splitlines() if all(text in line for text in said)]
    assert lines, result.stderr
    assert not any("good.yaml" in line for line in result.stderr.splitlines())


def valued(old: str, new: str) -> Callable[[Any], Any]:
    """A break of what is planned."""
    return lambda change: dataclasses.replace(change, value=new) if change.value == old else change


def test_unbroken_all_is_migrated(tmp_path: Path) -> None:
    """What the other tests break works otherwise."""
    for name, text in {"base.yaml": BASE, "child.yaml": CHILD, "off.yaml": OFF, "merged.yaml": MERGED}.items():
        (tmp_path / name).write_text(text)
    assert run(tmp_path, "--target", "megatron-cfg").exit_code == 0
    assert not any(b"gtp_weight_remat_size" in data for data in contents(tmp_path).values())


@pytest.mark.parametrize(
    ("number", "to"),
    [
        ("13", "(13) must be a multiple of the parallel size (4)"),
        ("11", "(11) must be a multiple of the parallel size (4)"),
        ("16", "GTP 4"),
        ("4", "GTP 1"),
        ("null", "GTP 1"),
        ("${mul:3,${..tensor_model_parallel_sizes}}", "not found"),
        ("${mul:3,${.tensor_model_parallel_size}}", "not found"),
        ("${mul:3,${..expert_tensor_parallel_size}}", "(6) must be a multiple of the parallel size (4)"),
        ("${mul:6,${..expert_tensor_parallel_size}}x", '"12x"'),
    ],
)
def test_another_number(tmp_path: Path, broken: Any, no_additions: None, number: str, to: str) -> None:
    broken(change=valued("12", number))
    expect_refusal(tmp_path, {"base.yaml": BASE}, "base.yaml", "would change from TP 4, ETP 2, GTP 3", to)


def test_the_parallel_size_of_the_wrong_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_additions: None
) -> None:
    def of_the_other(cfg: Any, axis: Axis) -> int:
        return gtp_migrate.runs.topology.parallel_size(cfg, AXES[1 - AXES.index(axis)])

    monkeypatch.setattr(gtp_migrate.plan.stock, "parallel_size", of_the_other)
    expect_refusal(tmp_path, {"base.yaml": BASE}, "base.yaml", "would change from TP 4, ETP 2, GTP 3, expert GTP 1 to")


def test_the_key_of_the_wrong_axis(tmp_path: Path, broken: Any, no_additions: None) -> None:
    broken(change=lambda change: dataclasses.replace(change, new_key=f"expert_{change.new_key}"))
    expect_refusal(
        tmp_path, {"base.yaml": BASE}, "base.yaml", "from TP 4, ETP 2, GTP 3, expert GTP 1 to", "GTP 1, expert GTP 6"
    )


def test_a_number_where_a_child_needs_another(tmp_path: Path, broken: Any, no_additions: None) -> None:
    broken(change=lambda change: dataclasses.replace(change, value="12"))
    expect_refusal(
        tmp_path,
        {"base.yaml": BASE, "child.yaml": CHILD},
        "child.yaml",
        "from TP 8, ETP 2, GTP 3, expert GTP 1",
        "(12) must be a multiple of the parallel size (8)",
    )


def test_a_child_that_is_not_given(tmp_path: Path, broken: Any) -> None:
    """It cannot be mended with an addition, and is proven all the same."""
    broken(change=lambda change: dataclasses.replace(change, value="24"))
    files = {
        "mine/base.yaml": BASE.replace("parallel_size: 4", "parallel_size: 8"),
        "other/child.yaml": CHILD.replace("8", "4").replace("base", "../mine/base"),
    }
    expect_refusal(tmp_path, files, "other/child.yaml", "from TP 4, ETP 2, GTP 3", "GTP 6", folder="mine/")


def test_a_null_lost(tmp_path: Path, broken: Any, no_additions: None) -> None:
    line = "      tensor_parallel_num_weight_shards: null\n"
    broken(text=lambda text: text.replace(line, "      more: 1\n") if line in text else text + "\n")
    expect_refusal(tmp_path, {"base.yaml": BASE, "off.yaml": OFF}, "off.yaml")


@pytest.mark.usefixtures("only_topologies", "no_additions")
def test_a_null_lost_is_told_by_the_topology(tmp_path: Path, broken: Any) -> None:
    line = "      tensor_parallel_num_weight_shards: null\n"
    broken(text=lambda text: text.replace(line, "      more: 1\n") if line in text else text + "\n")
    expect_refusal(
        tmp_path,
        {"base.yaml": BASE, "off.yaml": OFF},
        "off.yaml",
        "from TP 4, ETP 2, GTP 1, expert GTP 1 to TP 4, ETP 2, GTP 3, expert GTP 1",
    )


ELSEWHERE = "cannot be rewritten without changing something else in the file"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("learning_rate: 1", "learning_rate: 2"),
        ("learning_rate: 1", 'learning_rate: "1"'),
        ("    learning_rate: 1\n", ""),
        ("      moe_router_dtype: fp32\n", ""),
        ("moe_router_dtype: fp32", "moe_router_dtype: fp32\n      more: 1"),
        ("parallel_size: 4", "parallel_size: 2"),
        ("  # why", ""),
        ("      # three times as many shards\n", ""),
        ("  # over all GPUs of a node", ""),
        ("# why", "# How"),
        ("policy:", "policies:"),
        ("    model_overrides:\n", ""),
        ("learning_rate: 1", "learning_rate: [1"),
        ("learning_rate: 1", "learning_rate: 1\n    learning_rate: 1"),
    ],
)
def test_an_edit_that_touches_something_else(tmp_path: Path, broken: Any, old: str, new: str) -> None:
    broken(text=lambda text: text.replace(old, new))
    expect_refusal(tmp_path, {"base.yaml": BASE, "heir.yaml": HEIR}, "base.yaml")


def test_what_is_said_of_something_else(tmp_path: Path, broken: Any) -> None:
    broken(text=lambda text: text.replace("      moe_router_dtype: fp32\n", ""))
    expect_refusal(tmp_path, {"base.yaml": BASE, "heir.yaml": HEIR}, "base.yaml:8:7", ELSEWHERE)


def test_overrides_removed_where_a_merge_key_brings_in_others(tmp_path: Path, broken: Any) -> None:
    broken(text=lambda text: text.replace("    model_overrides: {}\n", ""))
    expect_refusal(tmp_path, {"merged.yaml": MERGED}, "merged.yaml", ELSEWHERE, options=("--target", "megatron-cfg"))


def test_overrides_left_null(tmp_path: Path, broken: Any) -> None:
    """A null would wipe out what is inherited."""
    null = "    model_overrides:\n    tensor_parallel"
    broken(text=lambda text: text.replace("    tensor_parallel", null) if "defaults" in text else text + "\n")
    files = {"base.yaml": BASE, "child.yaml": "defaults: base.yaml\n" + GOOD.replace("5", "2")}
    expect_refusal(tmp_path, files, "child.yaml", "chang", options=("--target", "megatron-cfg"))


@pytest.mark.usefixtures("only_topologies", "no_additions")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("parallel_size: 4", "parallel_size: 2", ("from TP 4, ETP 2, GTP 3, expert GTP 1", "TP 2, ETP 2, GTP 6")),
        ("tensor_parallel_size: 2", "tensor_parallel_size: 1", ("from TP 4, ETP 2, GTP 3, expert GTP 1", "ETP 1")),
        ("policy:", "policies:", ("policy would change, which is no setting",)),
        ("tensor_parallel_num_weight_shards", "gtp_weight_remat_size", ("gtp_weight_remat_size",)),
        ("tensor_parallel_num_weight_shards", "num_weight_shards", ("from TP 4, ETP 2, GTP 3", "to", "GTP 1")),
        ("    model_overrides:\n", "    modle_overrides:\n", ("from TP 4, ETP 2, GTP 3", "to", "GTP 1")),
    ],
)
def test_topologies_alone_tell(tmp_path: Path, broken: Any, old: str, new: str, said: tuple[str, ...]) -> None:
    broken(text=lambda text: text.replace(old, new))
    expect_refusal(tmp_path, {"base.yaml": BASE, "heir.yaml": HEIR}, "base.yaml", *said)


@pytest.mark.usefixtures("no_additions")
def test_heirs_of_a_bad_file_are_left_and_told(tmp_path: Path, broken: Any) -> None:
    """Connected files are all left: those that only inherit, and those that would change themselves."""
    broken(change=valued("12", "16"))
    files = {"base.yaml": BASE, "heir.yaml": HEIR, "off.yaml": OFF}
    expect_refusal(tmp_path, files, "heir.yaml", "from TP 4, ETP 2, GTP 3", "GTP 4")


# -- whole runs ------------------------------------------------------------------------------------------

TEACHERS = """\
grpo: {max_num_steps: 1}
policy:
  megatron_cfg:
    tensor_model_parallel_size: 4
    model_overrides:
      gtp_weight_remat_size: 3
on_policy_distillation:
  enabled: true
  teacher_model_by_agent_name: {math: /models/math}
  non_colocated_teachers:
    enabled: true
    default_teacher_cfg:
      tensor_model_parallel_size: 8
"""
GENERATION = """\
grpo: {max_num_steps: 1}
policy:
  megatron_cfg:
    tensor_model_parallel_size: 2
    model_overrides:
      gtp_weight_remat_size: 3
  generation:
    backend: megatron
    colocated: {enabled: false}
    mcore_generation_config: {tensor_model_parallel_size: 4}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEACHERS, ("teacher math would change from TP 8, ETP 8, GTP 3", "(12) must be a multiple")),
        (GENERATION, ("generation would change from TP 4, ETP 4, GTP 3", "(6) must be a multiple")),
    ],
)
def test_a_model_that_no_mapping_shows(tmp_path: Path, no_additions: None, text: str, said: tuple[str, ...]) -> None:
    expect_refusal(tmp_path, {"a.yaml": text}, "a.yaml", *said)


@pytest.mark.parametrize(("text", "number"), [(TEACHERS, "24"), (GENERATION, "12")])
def test_its_own_number_is_proven_as_well(tmp_path: Path, broken: Any, text: str, number: str) -> None:
    def another(change: Any) -> Any:
        if not isinstance(change.value, dict):
            return change
        return dataclasses.replace(change, value={**change.value, "tensor_parallel_num_weight_shards": 48})

    broken(change=another)
    expect_refusal(tmp_path, {"a.yaml": text}, "a.yaml", "GTP 3", "to TP", "GTP 6" if number == "24" else "GTP 12")


SHELF = """\
grpo: {max_num_steps: 1}
shelf: &S {gtp_weight_remat_size: 3}
policy:
  megatron_cfg:
    tensor_model_parallel_size: 4
    model_overrides: {<<: *S, a: 1}
"""


@pytest.mark.usefixtures("only_topologies", "no_additions")
def test_an_interpolation_that_does_not_resolve_where_it_stands(tmp_path: Path, broken: Any) -> None:
    """In the model that gets it, it is right; the launcher resolves the shelf as well."""
    broken(change=valued("12", '"${mul:3,${..tensor_model_parallel_size}}"'))
    expect_refusal(tmp_path, {"a.yaml": SHELF}, "a.yaml", "shelf.tensor_parallel_num_weight_shards would not resolve")


@pytest.mark.usefixtures("only_topologies")
@pytest.mark.parametrize(
    ("before", "old", "new", "said"),
    [
        (BASE + "x: ${policy.megatron_cfg.learning_rate}\n", "    learning_rate: 1\n", "", "learning_rate"),
        (BASE, "learning_rate: 1", "learning_rate: 2", "policy.megatron_cfg.learning_rate would change"),
        (BASE, "learning_rate: 1", "learning_rate: '1'", "policy.megatron_cfg.learning_rate would change"),
        (BASE, "grpo: {max_num_steps: 1}", "grpo: {max_num_steps: 1, b: []}", "grpo.b would change"),
        (BASE + "l: [1, {a: 2}]\n", "{a: 2}", "{a: 3}", "l[1].a would change"),
        (BASE + "l: [1, 2]\n", "[1, 2]", "[1]", "l would change"),
    ],
)
def test_the_recipe_differs_in_nothing_else(
    tmp_path: Path, broken: Any, before: str, old: str, new: str, said: str
) -> None:
    """The same from the heir's side: whoever compares the texts, the merged recipe is compared as well."""
    broken(text=lambda text: text.replace(old, new))
    expect_refusal(tmp_path, {"base.yaml": before, "heir.yaml": HEIR}, "heir.yaml", said)


# -- what is open ----------------------------------------------------------------------------------------

OPEN = """\
grpo: {max_num_steps: 1}
policy:
  megatron_cfg:
TP    model_overrides:
      gtp_weight_remat_size: 3
"""
KEPT = "${mul:3,${..tensor_model_parallel_size}}"


@pytest.mark.parametrize("tp", ["", "    tensor_model_parallel_size: ???\n"])
@pytest.mark.parametrize("number", ["${mul:4,${..tensor_model_parallel_size}}", "6", "9", "3", "null"])
def test_a_recipe_without_tp(tmp_path: Path, broken: Any, no_additions: None, tp: str, number: str) -> None:
    """Right for one TP is not enough: with whatever the command line supplies it must be what it was."""
    broken(change=valued(KEPT, number))
    expect_refusal(tmp_path, {"a.yaml": OPEN.replace("TP", tp)}, "a.yaml: policy.megatron_cfg (with ", "would change")


def test_a_recipe_that_cannot_be_merged_any_more(tmp_path: Path, broken: Any, only_topologies: None) -> None:
    """What cannot even be read is no recipe that runs as before."""
    broken(text=lambda text: text.replace("policy:\n", "policy: [1]\nwas:\n") if "learning" in text else text + "\n")
    files = {"base.yaml": BASE, "off.yaml": OFF}
    expect_refusal(tmp_path, files, "off.yaml: cannot be merged as NeMo-RL merges it")


def test_all_readings_of_a_merge_list_are_compared(tmp_path: Path, broken: Any, no_additions: None) -> None:
    text = (
        "grpo: {max_num_steps: 1}\na: &A {tensor_model_parallel_size: 2}\nb: &B {tensor_model_parallel_size: 4}\n"
        "policy:\n  megatron_cfg:\n    <<: [*A, *B]\n    model_overrides:\n      gtp_weight_remat_size: 3\n"
    )
    broken(change=valued(KEPT, "6"))
    expect_refusal(tmp_path, {"a.yaml": text}, "a.yaml: policy.megatron_cfg would change from TP 4, ETP 4, GTP 3")


def test_both_ways_of_making_a_teacher_are_compared(tmp_path: Path, broken: Any, no_additions: None) -> None:
    """`code` has an entry of its own: only who calls NeMo-RL's functions by themselves gives it the default's overrides."""
    text = TEACHERS.replace("{math: /models/math}", "{code: /models/code}").replace(
        "_size: 8\n",
        (
            "_size: 4\n      megatron_cfg_overrides: {model_overrides: {gtp_weight_remat_size: 6}}\n"
            "    teacher_overrides: {code: {tensor_model_parallel_size: 4}}\n"
        ),
    )
    broken(change=valued("24", "48"))
    expect_refusal(tmp_path, {"a.yaml": text}, "a.yaml: teacher code would change", "GTP 6", "GTP 12")
