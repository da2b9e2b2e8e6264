"""`--explain`: a recipe, and a checkpoint's run_config.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml

from gtp_migrate.ask.explain import RecipeExplained, explain_recipe
from gtp_migrate.ask.loading import EVERYWHERE, Weights, loads, reset
from gtp_migrate.ask.run_config import SavedConfig, read_run_config
from gtp_migrate.forms import Form, Target
from gtp_migrate.migrate import Options
from gtp_migrate.recipes.keys import EP, ETP, TP
from gtp_migrate.shards import DENSE, size_from_shards

from .conftest import CODE, Content, Migrate, Ran, in_a_terminal, read_files, run, unstyled, write_files

BASE = """
    grpo: {}
    policy:
      megatron_cfg:
        enabled: true
        tensor_model_parallel_size: 4
        expert_tensor_parallel_size: 1
        expert_model_parallel_size: 1
        pipeline_model_parallel_size: 1
        context_parallel_size: 1
        model_overrides:
          gtp_weight_remat_size: 3
    cluster:
      gpus_per_node: 8
      num_nodes: 3
    """
NOT_ACTIVE = " (set, but not active there: whole weights)"
TP4 = "        tensor_model_parallel_size: 4\n"
CHILD = """
    defaults: base.yaml
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 8
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def explained(folder: Path, files: dict[str, Content], path: str, **options: object) -> RecipeExplained:
    (folder / ".git").mkdir(exist_ok=True)
    write_files(folder, files)
    return explain_recipe(Options((path,), **options))  # type: ignore[arg-type]


def said(ran: Ran) -> list[str]:
    return [line.strip() for line in ran.stdout.splitlines()]


# -- a recipe ------------------------------------------------------------------------------------------


def test_a_recipe_of_its_own(migrate: Migrate) -> None:
    ran = migrate({"base.yaml": BASE}, "--explain", paths=("base.yaml",))
    assert ran.code == 0
    assert ran.stderr == ""
    assert ran.files["base.yaml"].startswith("grpo")  # type: ignore[union-attr]
    lines = said(ran)
    for line in (
        "TP 4 (base.yaml:5), ETP 1 (base.yaml:6)",
        "sets tensor_model_parallel_size: 4 (base.yaml:5)",
        "sets model_overrides.gtp_weight_remat_size: 3 (base.yaml:11)",
        "trains with: TP 4, ETP 1, GTP 3, expert GTP 1",
        "layout: 24 GPUs, TP × GTP × CP × PP = 4 × 3 × 1 × 1; 2 copies, 6 data lanes",
        "base.yaml:11: gtp_weight_remat_size: 3 → tensor_parallel_num_weight_shards: 12",
    ):
        assert line in lines, line


def test_what_is_inherited_and_from_where(folder: Path) -> None:
    found = explained(folder, {"base.yaml": BASE, "child.yaml": CHILD}, "child.yaml")
    assert found.run is not None
    assert found.run.layers == ("base.yaml", "child.yaml")
    (model,) = found.models
    entries = {entry.key: (entry.value, entry.place.file_and_line if entry.place else "", entry.is_inherited)
               for entry in model.entries}  # fmt: skip
    assert entries[TP] == ("8", "child.yaml:4", False)
    assert entries[ETP] == ("1", "base.yaml:6", True)
    assert entries["model_overrides.gtp_weight_remat_size"] == ("3", "base.yaml:11", True)
    assert [(change.place.path, change.new) for change in found.changes] == [
        ("base.yaml", "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}")
    ]


def test_the_plan_is_the_one_for_the_whole_checkout(folder: Path) -> None:
    """A child that nobody named needs a number of its own: what is said of the base is what would be written."""
    files = {"base.yaml": BASE.replace("grpo", "dpo"), "deep/child.yaml": CHILD.replace("base.yaml", "../base.yaml")}
    found = explained(folder, dict(files), "base.yaml")
    assert found.problems == ()
    assert found.heirs == ("deep/child.yaml",)
    write_files(folder, dict(files))
    assert run(folder, ".").code == 0
    for change in found.changes:
        assert change.new in str(read_files(folder)[change.place.path])
    of_child = explained(folder, dict(files), "deep/child.yaml")
    assert [(change.place.path, change.new) for change in of_child.changes] == [
        ("base.yaml", "tensor_parallel_num_weight_shards: 12"),
        ("deep/child.yaml", "tensor_parallel_num_weight_shards: 24"),
    ]


def test_outside_of_a_checkout_nobody_looks_for_children(migrate: Migrate) -> None:
    ran = migrate({"base.yaml": BASE, "child.yaml": CHILD}, "--explain", paths=("base.yaml",))
    assert "no git checkout is around it: recipes that may inherit from it were not looked for" in said(ran)


def test_names_are_short_from_a_folder_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".git").mkdir()
    write_files(folder, {"base.yaml": BASE, "sub/child.yaml": CHILD.replace("base.yaml", "../base.yaml"),
                         "sub/other.yaml": CHILD.replace("base.yaml", "child.yaml")})  # fmt: skip
    monkeypatch.chdir(folder / "sub")
    found = explain_recipe(Options(("child.yaml",)))
    assert (found.recipe, found.heirs) == ("child.yaml", ("other.yaml",))


@pytest.mark.parametrize(
    ("target", "right", "not_handed_over"),
    [(Target.MODEL_OVERRIDES, Form.OVERRIDE, Form.TYPED), (Target.MEGATRON_CFG, Form.TYPED, Form.OVERRIDE)],
)
def test_the_three_forms(folder: Path, target: Target, right: Form, not_handed_over: Form) -> None:
    found = explained(folder, {"base.yaml": BASE}, "base.yaml", target=target)
    forms = {each.form: each for each in found.models[0].forms}
    assert [each.entries for each in forms.values()] == [
        ("model_overrides.gtp_weight_remat_size: 3",),
        ("model_overrides.tensor_parallel_num_weight_shards: 12",),
        ("tensor_parallel_num_weight_shards: 12",),
    ]
    assert [form for form, each in forms.items() if each.is_now] == [Form.SIZE]
    assert [form for form, each in forms.items() if each.is_right] == [right]
    assert [form for form, each in forms.items() if not each.is_handed_over] == [not_handed_over]
    assert [each.released for each in forms.values()] == [f"GTP 3{NOT_ACTIVE}"] * 3
    assert "crashes" in forms[Form.SIZE].new
    assert [forms[form].new for form in (Form.OVERRIDE, Form.TYPED)] == ["GTP 3"] * 2


def test_both_axes(folder: Path) -> None:
    base = BASE.replace("expert_model_parallel_size: 1", "expert_model_parallel_size: 4").replace(
        "gtp_weight_remat_size: 3", "expert_gtp_weight_remat_size: 2"
    )
    forms = explained(folder, {"base.yaml": base}, "base.yaml").models[0].forms
    assert forms[1].entries == ("model_overrides.expert_tensor_parallel_num_weight_shards: 2",)
    assert forms[1].new == "GTP off, expert GTP 2"


def test_a_tp_that_comes_with_the_run(folder: Path) -> None:
    base = BASE.replace("        tensor_model_parallel_size: 4\n", "")
    found = explained(folder, {"base.yaml": base}, "base.yaml")
    assert found.run is not None
    assert found.run.is_open
    (model,) = found.models
    assert model.parallel == ("TP comes with the run (no file says it)", "ETP 1 (base.yaml:5)")
    assert model.forms[1].entries == ("model_overrides.tensor_parallel_num_weight_shards: 3 × TP",)


ELSEWHERE = "${oc.decode:${oc.env:GTP_MIGRATE_NOT_SET,4}}"


@pytest.mark.parametrize(
    ("tp", "said_of_it"),
    [
        (ELSEWHERE, f"sets tensor_model_parallel_size: {ELSEWHERE} (a.yaml:5); it comes with the run"),
        ("???", "sets tensor_model_parallel_size: ??? (a.yaml:5); it comes with the run"),
        ("${tp}", "sets tensor_model_parallel_size: ${tp} (a.yaml:5); it comes with the run"),
        ("", "TP comes with the run (no file says it), ETP comes with the run (no file says it)"),
    ],
)
@pytest.mark.parametrize(
    ("setting", "gtp", "size", "count"),
    [
        ("gtp_weight_remat_size: 3", "3", "3", "3 × TP"),
        ("tensor_parallel_num_weight_shards: 12", "12 / TP", "12 / TP", "12"),
        ("tensor_parallel_num_weight_shards: 8", "8 / TP", "8 / TP", "8"),
    ],
)
def test_no_number_is_made_up(
    migrate: Migrate, tp: str, said_of_it: str, setting: str, gtp: str, size: str, count: str
) -> None:
    """What comes with the run is named, and what holds whatever it is; another model beside it is told as ever."""
    text = BASE.replace("        expert_tensor_parallel_size: 1\n", "").replace("gtp_weight_remat_size: 3", setting)
    text = text.replace("parallel_size: 4", f"parallel_size: {tp}") if tp else text.replace(TP4, "")
    text = text.rstrip() + f"\n    value: {{megatron_cfg: {{tensor_model_parallel_size: 2}}}}\n    tp: {ELSEWHERE}\n"
    lines = said(migrate({"a.yaml": text}, "--explain", paths=("a.yaml",)))
    etp = "ETP as TP" if tp else "ETP comes with the run"
    for line in (
        said_of_it,
        f"trains with: TP comes with the run, {etp}, GTP {gtp}, expert GTP 1",
        f"model_overrides.gtp_weight_remat_size: {size}",
        f"model_overrides.tensor_parallel_num_weight_shards: {count}",
        f"TP 2 (a.yaml:{14 if tp else 13}), ETP 2 (as TP)",
    ):
        assert line in lines, line
    if "8" not in gtp:  # for which no TP need fit
        dense = f"TP × {f'({gtp})' if '/' in gtp else gtp} × 1 × 1"
        assert f"layout: 24 GPUs, TP × GTP × CP × PP = {dense}; copies and data lanes follow from that" in lines
    whole = " (ValueError where not whole)" if "/" in gtp else ""
    assert f"new Bridge: GTP {gtp}{whole}" in lines


def test_sizes_to_assume_are_numbers(migrate: Migrate) -> None:
    text = BASE.replace(TP4, "").replace("        expert_tensor_parallel_size: 1\n", "")
    lines = said(migrate({"a.yaml": text}, "--explain", "--tp", "2", paths=("a.yaml",)))
    for line in (
        "TP 2 (--tp), ETP 2 (as TP)",
        "gets tensor_model_parallel_size: 2 (--tp)",
        "trains with: TP 2, ETP 2, GTP 3, expert GTP 1",
    ):
        assert line in lines, line


@pytest.mark.parametrize(
    ("setting", "size", "count"),
    [
        ("gtp_weight_remat_size", ELSEWHERE, f"{ELSEWHERE} × 4"),
        ("tensor_parallel_num_weight_shards", f"{ELSEWHERE} / 4", ELSEWHERE),
    ],
)
def test_a_setting_from_elsewhere(migrate: Migrate, setting: str, size: str, count: str) -> None:
    text = BASE.replace("gtp_weight_remat_size: 3", f"{setting}: {ELSEWHERE}")
    lines = said(migrate({"a.yaml": text}, "--explain", paths=("a.yaml",)))
    for line in (
        f"sets model_overrides.{setting}: {ELSEWHERE} (a.yaml:11); it comes with the run",
        f"trains with: TP 4, ETP 1, GTP {size}, expert GTP 1",
        f"model_overrides.gtp_weight_remat_size: {size}",
        f"model_overrides.tensor_parallel_num_weight_shards: {count}",
    ):
        assert line in lines, line


def test_a_model_that_only_some_runs_build(migrate: Migrate) -> None:
    """A copy at TP 1 of a training model whose TP comes with the run."""
    text = BASE.replace("parallel_size: 4", f"parallel_size: {ELSEWHERE}").replace("    cluster:", """
      generation:
        backend: ${oc.env:GTP_MIGRATE_NOT_SET,vllm}
        colocated: {enabled: true}
        mcore_generation_config: {tensor_model_parallel_size: 1}
    cluster:""")  # fmt: skip
    lines = said(migrate({"a.yaml": text}, "--explain", paths=("a.yaml",)))
    of_copy = lines[lines.index("generation (whether it is built comes with the run)") :]
    assert "new Bridge: GTP depends on what comes with the run" in of_copy
    apart = text.replace("enabled: true}", "enabled: false}").replace("{tensor_model_parallel_size: 1}", "{x: 1}")
    lines = said(migrate({"a.yaml": apart}, "--explain", paths=("a.yaml",)))
    of_own = lines[lines.index("generation (whether it is built comes with the run)") :]
    assert "trains with: TP comes with the run, ETP 1, GTP 3, expert GTP 1" in of_own


def test_a_size_that_comes_with_the_run(migrate: Migrate) -> None:
    text = BASE.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: ???")
    lines = said(migrate({"a.yaml": text}, "--explain", paths=("a.yaml",)))
    assert "sets model_overrides.tensor_parallel_num_weight_shards: ??? (a.yaml:11)" in lines
    assert "trains with: TP 4, ETP 1, GTP ???, expert GTP 1" in lines


# -- old and new side by side --------------------------------------------------------------------------


def both(count: object, size: object = 3) -> str:
    new = f"\n          tensor_parallel_num_weight_shards: {count}"
    return BASE.replace("gtp_weight_remat_size: 3", f"gtp_weight_remat_size: {size}{new}")


def test_old_and_new_that_disagree(migrate: Migrate) -> None:
    """Both as they stand, what each Bridge does with them, and what a person can write: none is right by itself."""
    ran = migrate({"a.yaml": both(8)}, "--explain", paths=("a.yaml",))
    assert ran.code == 3
    lines = said(ran)
    at = lines.index("forms A and B side by side (as it is now)")
    assert lines[at + 1 : at + 10] == [
        "model_overrides.gtp_weight_remat_size: 3",
        "model_overrides.tensor_parallel_num_weight_shards: 8",
        "they disagree: size 3 is GTP 3, a count of 8 at TP 4 is GTP 2",
        "the NeMo-RL that is assumed hands them to Bridge",
        f"released Bridge: GTP 2{NOT_ACTIVE}; the count decides, the old size beside it is ignored",
        "new Bridge: every worker crashes: no such field",
        "a person can write one of these, and no other key beside it",
        "model_overrides.tensor_parallel_num_weight_shards: 12 (GTP 3, as size 3 says)",
        "model_overrides.tensor_parallel_num_weight_shards: 8 (GTP 2, as a count of 8 at TP 4 says, which is what counts "
        "today)",
    ]
    assert "trains with: TP 4, ETP 1, GTP 2, expert GTP 1" in lines
    assert "the right one" not in ran.stdout


def test_old_and_new_that_agree(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": both(12)}, "--explain", paths=("a.yaml",))
    assert (ran.code, "disagree" in ran.stdout, "a person" in ran.stdout) == (0, False, False)
    lines = said(ran)
    assert "forms A and B side by side (as it is now)" in lines
    assert "form B (the right one)" in lines
    assert "a.yaml:11: gtp_weight_remat_size: 3 → removed (tensor_parallel_num_weight_shards is set already)" in lines


def test_a_later_word(migrate: Migrate) -> None:
    """The child's count counts; what it inherits is shown as it stands there."""
    child = """
    defaults: base.yaml
    policy: {megatron_cfg: {model_overrides: {tensor_parallel_num_weight_shards: 8}}}
    """
    lines = said(migrate({"base.yaml": BASE, "a.yaml": child}, "--explain", paths=("a.yaml",)))
    assert "they disagree: size 3 is GTP 3, a count of 8 at TP 4 is GTP 2" in lines
    assert "model_overrides.gtp_weight_remat_size: 3" in lines
    assert not [line for line in lines if "a person" in line]


def test_a_null_over_a_size(migrate: Migrate) -> None:
    child = """
    defaults: base.yaml
    policy: {megatron_cfg: {model_overrides: {tensor_parallel_num_weight_shards: null}}}
    """
    ran = migrate({"base.yaml": BASE, "a.yaml": child}, "--explain", paths=("a.yaml",))
    assert (ran.code, "the right one" in ran.stdout) == (3, False)
    lines = said(ran)
    count = "model_overrides.tensor_parallel_num_weight_shards"
    assert f"{count}: 12 (GTP 3, as size 3 says, which is what counts today)" in lines
    assert f"{count}: null (GTP off, as null says)" in lines


def test_a_null_that_is_only_in_the_way(migrate: Migrate) -> None:
    text = BASE.replace(
        "        model_overrides", "        tensor_parallel_num_weight_shards: null\n        model_overrides"
    )
    lines = said(migrate({"a.yaml": text}, "--explain", paths=("a.yaml",)))
    at = lines.index("a person can write one of these, and no other key beside it")
    count = "model_overrides.tensor_parallel_num_weight_shards"
    assert lines[at + 1 : at + 3] == [f"{count}: 12 (GTP 3, as size 3 says, which is what counts today)", ""]


@pytest.mark.parametrize(
    ("target", "does"),
    [
        ("model-overrides", "the NeMo-RL that is assumed rejects it: ValueError"),
        ("megatron-cfg", "the NeMo-RL that is assumed rejects it: ValueError"),
    ],
)
def test_a_count_in_both_places(migrate: Migrate, target: str, does: str) -> None:
    text = BASE.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12").replace(
        "        model_overrides", "        tensor_parallel_num_weight_shards: 12\n        model_overrides"
    )
    lines = said(migrate({"a.yaml": text}, "--explain", "--target", target, paths=("a.yaml",)))
    at = lines.index("forms B and C side by side (as it is now)")
    assert lines[at + 3 : at + 6] == [does, "released Bridge: not reached", "new Bridge: not reached"]


def test_a_count_that_is_never_read(migrate: Migrate) -> None:
    text = BASE.replace(
        "        model_overrides", "        tensor_parallel_num_weight_shards: 8\n        model_overrides"
    )
    lines = said(migrate({"a.yaml": text}, "--explain", paths=("a.yaml",)))
    at = lines.index("forms A and C side by side (as it is now)")
    assert lines[at + 4 : at + 6] == [
        "the NeMo-RL that is assumed hands A to Bridge, and never reads C",
        f"released Bridge: GTP 3{NOT_ACTIVE}",
    ]


# -- the NeMo-RL around --------------------------------------------------------------------------------


def test_which_nemo_rl_is_meant(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": BASE}, "--explain", paths=("a.yaml",))
    assert "assumed: a NeMo-RL that does not type the fields, and takes model-overrides (no NeMo-RL found" in ran.stdout
    assert "this NeMo-RL" not in ran.stdout
    ran = migrate({"a.yaml": BASE}, "--explain", "--target", "megatron-cfg", paths=("a.yaml",))
    assert "assumed: a NeMo-RL that types the fields, and takes megatron-cfg (--target)" in ran.stdout
    around: dict[str, Content] = {"nemo_rl/models/policy/__init__.py": "class MegatronConfig(TypedDict):\n    a: int\n"}
    ran = migrate({**around, "a.yaml": BASE}, "--explain", paths=("a.yaml",))
    assert "this NeMo-RL hands it to Bridge" in said(ran)
    assert "assumed" not in ran.stdout


# -- a tree of which half is written -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "below/", "beside/"])
def test_a_tree_that_a_run_has_half_written(migrate: Migrate, tmp_path: Path, where: str) -> None:
    """What it means nobody can work out: that is said, and nothing else."""
    (tmp_path / "work" / ".git").mkdir()
    files: dict[str, Content] = {"below/a.yaml": CHILD.replace("base.yaml", "../base.yaml"), "base.yaml": BASE}
    left = f"{where}.gtp-migrate-unfinished"
    ran = migrate({**files, left: "[]"}, "--explain", paths=("below/a.yaml",))
    assert ran.code == 3
    (line,) = [line for line in said(ran) if "; " in line]
    assert line.startswith(
        f"{left}: a run was stopped between files that belong together; let gtp-migrate write the rest"
    )
    assert "trains with" not in ran.stdout
    assert "What to write" not in ran.stdout
    assert ran.files[left] == "[]"


def test_another_checkout_that_a_run_has_half_written(migrate: Migrate, tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / "work" / name / ".git").mkdir(parents=True)
    files: dict[str, Content] = {
        "ours/a.yaml": CHILD.replace("base.yaml", "../theirs/base.yaml"),
        "theirs/base.yaml": BASE,
        "theirs/below/.gtp-migrate-unfinished": "[]",
    }
    ran = migrate(files, "--explain", paths=("ours/a.yaml",))
    assert ran.code == 3
    assert "theirs/below/.gtp-migrate-unfinished: a run was stopped between files that belong together" in ran.stdout
    assert "trains with" not in ran.stdout


# -- on a terminal -------------------------------------------------------------------------------------


def test_in_a_terminal(tmp_path: Path) -> None:
    """It follows the width, cuts no path, and has colours where they are wanted."""
    name = f"{'a-long-name-' * 4}.yaml"
    write_files(tmp_path, {name: both(8)})
    seen = in_a_terminal(tmp_path, "--explain", name, COLUMNS="50")
    assert f"\x1b[1m{name}" in seen
    assert "\x1b[31m" in seen
    lines = unstyled(seen)
    for line in lines:
        assert len(line) <= 50 or " " not in line.strip(), line
    assert [line for line in lines if f"{name}:5" in line]
    plain = in_a_terminal(tmp_path, "--explain", name, COLUMNS="50", NO_COLOR="1")
    assert unstyled(plain) == lines
    assert not [code for code in CODE.findall(plain) if code not in ("\x1b[1m", "\x1b[0m")]
    whole = run(tmp_path, "--explain", name).stdout
    assert "\x1b" not in whole
    assert " ".join(whole.split()) == " ".join(" ".join(lines).split())


def test_a_copy_gets_the_counts_of_training(folder: Path) -> None:
    """Colocated generation at TP 1: an old size stays 3, 12 shards become GTP 12."""
    base = BASE.replace("    cluster:", """
      generation:
        backend: megatron
        colocated: {enabled: true}
        mcore_generation_config: {tensor_model_parallel_size: 1}
    cluster:""")  # fmt: skip
    found = explained(folder, {"base.yaml": base}, "base.yaml")
    policy, generation = found.models
    assert (policy.outcome.name, generation.outcome.name) == ("policy.megatron_cfg", "generation")
    assert [each.released for each in generation.forms] == [f"GTP {size}{NOT_ACTIVE}" for size in (3, 12, 12)]
    assert generation.parallel[0].startswith("TP 1 (base.yaml:")
    typed = explained(folder, {"base.yaml": base}, "base.yaml", target=Target.MEGATRON_CFG)
    assert typed.models[1].outcome.is_pinned
    assert typed.models[1].forms == ()


def test_teachers_are_models(migrate: Migrate) -> None:
    base = (
        BASE
        + """
    on_policy_distillation:
      enabled: true
      teacher_model_by_agent_name: {math: some/model}
      non_colocated_teachers:
        enabled: true
        default_teacher_cfg: {tensor_model_parallel_size: 2}
    """
    )
    ran = migrate({"base.yaml": base}, "--explain", paths=("base.yaml",))
    lines = said(ran)
    at = lines.index("teacher math")
    line = str(ran.files["base.yaml"])[: str(ran.files["base.yaml"]).index("default_teacher_cfg")].count("\n") + 1
    assert lines[at + 1] == f"TP 2 (base.yaml:{line}), ETP 1 (base.yaml:6)"
    assert "model_overrides.tensor_parallel_num_weight_shards: 6" in lines[at:]


def test_nothing_to_write(migrate: Migrate) -> None:
    plain = BASE.replace("        model_overrides:\n          gtp_weight_remat_size: 3\n", "")
    ran = migrate({"base.yaml": plain, "other.yaml": BASE}, "--explain", paths=("base.yaml",))
    assert ran.code == 0
    assert "GTP is not set: nothing to write for it" in said(ran)
    assert "nothing: no file of it sets anything of GTP" in said(ran)
    done = BASE.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
    ran = migrate({"base.yaml": done}, "--explain", paths=("base.yaml",))
    assert any(line.startswith("nothing: all that it sets of GTP is in the form that is right") for line in said(ran))
    assert "form B (as it is now, the right one)" in said(ran)


def test_several_at_once_and_the_sizes_to_assume(migrate: Migrate) -> None:
    files: dict[str, Content] = {
        "a.yaml": BASE.replace("        tensor_model_parallel_size: 4\n", ""),
        "b.yaml": BASE,
    }
    ran = migrate(files, "--explain", "--tp", "2", paths=("a.yaml", "b.yaml"))
    assert ran.code == 0
    assert "TP 2 (--tp), ETP 1 (a.yaml:5)" in said(ran)
    assert "TP 4 (b.yaml:5), ETP 1 (b.yaml:6)" in said(ran)


@pytest.mark.parametrize(
    "content",
    [b"policy: {a: \xff}\n", "policy: [\n", "defaults: not_there.yaml\n", "- 1\n", "defaults: bad.yaml\n"],
    ids=["latin-1", "no YAML", "no parent", "a list", "in a circle"],
)
def test_a_recipe_that_cannot_be_loaded(migrate: Migrate, content: Content) -> None:
    ran = migrate({"bad.yaml": content, "fine.yaml": BASE}, "--explain", paths=("bad.yaml",))
    assert ran.code == 3
    assert ran.stderr == ""
    assert [line for line in said(ran) if line.startswith("bad.yaml:") and "; " in line]


def test_problems_of_others_are_not_told(migrate: Migrate, tmp_path: Path) -> None:
    (tmp_path / "work" / ".git").mkdir()
    files: dict[str, Content] = {
        "base.yaml": BASE,
        "child.yaml": CHILD,
        "other.yaml": BASE.replace("size: 3", "size: 0"),
    }
    ran = migrate(files, "--explain", paths=("base.yaml",))
    assert (ran.code, "other.yaml" in ran.stdout) == (0, False)
    for broken in ("defaults: base.yaml\npolicy: [\n", "defaults: [base.yaml, not_there.yaml]\n"):
        ran = migrate({**files, "child.yaml": broken}, "--explain", paths=("base.yaml",))
        assert ran.code == 3
        assert [line for line in said(ran) if line.startswith("child.yaml:")]
        assert "other.yaml" not in ran.stdout


def test_what_keeps_its_files_from_being_changed_is_said(migrate: Migrate, tmp_path: Path) -> None:
    """Never "nothing to write" where an old key stands."""
    (tmp_path / "work" / ".git").mkdir()
    files: dict[str, Content] = {"base.yaml": BASE, "odd.yaml": "defaults: [*a]\n<<: &a {x: 1}\n"}
    ran = migrate({**files, "child.yaml": CHILD.replace(": 8", ": two")}, "--explain", paths=("base.yaml",))
    assert ran.code == 3
    assert "What to write" not in said(ran)
    assert [line for line in said(ran) if line.startswith("base.yaml:11:7: gtp_weight_remat_size cannot be computed")]


@pytest.mark.parametrize("arguments", [("not_there.yaml",), (".",)], ids=["not there", "a folder"])
def test_what_is_no_file(migrate: Migrate, arguments: tuple[str, ...]) -> None:
    ran = migrate({"base.yaml": BASE}, "--explain", paths=arguments)
    assert ran.code == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("other", ["--dry-run", "--check", "--doctor"])
def test_excludes_the_others(migrate: Migrate, other: str) -> None:
    ran = migrate({"base.yaml": BASE}, "--explain", other)
    assert ran.code == 2
    assert "exclude each other" in ran.stderr


def test_hostile_names_and_values(migrate: Migrate) -> None:
    name = "a\x1b[31m\u202e.yaml"
    ran = migrate({name: BASE.replace("size: 3", 'size: "\\e[31m"')}, "--explain", paths=(name,))
    assert ran.code == 3
    assert "\x1b" not in ran.stdout
    assert "\u202e" not in ran.stdout


# -- a checkpoint --------------------------------------------------------------------------------------


def config(tp: int = 4, etp: int | None = None, ep: int = 1, **fields: object) -> SavedConfig:
    section = {
        "_target_": "some.Provider",
        "tensor_model_parallel_size": tp,
        "expert_tensor_parallel_size": etp,
        "expert_model_parallel_size": ep,
        **fields,
    }
    saved = read_run_config(yaml.safe_dump({"model": section}).encode(), "run_config.yaml")
    assert saved is not None
    return saved


def outcome(saved: SavedConfig, tp: int) -> list[object]:
    """GTP on each of the four, or the exception's name."""
    (dense, *_) = loads(saved, tp)
    return [result.gtp if not result.error else "ValueError" for result in dense.results]


#: released, released + shim, new, new + shim: as measured on the real packages.
@pytest.mark.parametrize(
    ("fields", "tp", "expected"),
    [
        ({"tensor_parallel_num_weight_shards": 12, "gtp_weight_remat_size": 3}, 4, [3, 3, 3, 3]),
        ({"tensor_parallel_num_weight_shards": 12, "gtp_weight_remat_size": 3}, 1, [12, 1, 12, 1]),
        ({"tensor_parallel_num_weight_shards": 12, "gtp_weight_remat_size": 3}, 2, [6, 1, 6, 1]),
        (
            {"tensor_parallel_num_weight_shards": 12, "gtp_weight_remat_size": 3},
            8,
            ["ValueError", 1, "ValueError", 1],
        ),
        ({"tensor_parallel_num_weight_shards": None, "gtp_weight_remat_size": 3}, 4, [3, 3, 1, 3]),
        ({"tensor_parallel_num_weight_shards": None, "gtp_weight_remat_size": 3}, 8, [3, 1, 1, 1]),
        ({"tensor_parallel_num_weight_shards": 4}, 2, [2, 1, 2, 1]),
        ({}, 2, [1, 1, 1, 1]),
    ],
)
def test_the_config_at_another_tp(fields: dict[str, object], tp: int, expected: list[object]) -> None:
    assert outcome(config(**fields), tp) == expected


def _weights() -> Iterator[tuple[int, int, tuple[Weights, ...], tuple[Weights, ...]]]:
    right, scrambled = Weights.RIGHT, Weights.SCRAMBLED
    refused, by_shim = Weights.REFUSED, Weights.REFUSED_BY_SHIM
    # saved count at TP 4, TP now: if whole, if cut; each on released, released + shim, new, new + shim.
    yield 12, 4, (right, right, scrambled, scrambled), (scrambled, by_shim, right, right)
    yield 12, 1, (right, right, refused, refused), (scrambled, by_shim, refused, refused)
    yield 4, 4, (right,) * 4, (right,) * 4
    yield 4, 2, (right, right, refused, right), (right, right, refused, right)


@pytest.mark.parametrize(("count", "tp", "if_whole", "if_cut"), list(_weights()))
def test_the_weights(count: int, tp: int, if_whole: tuple[Weights, ...], if_cut: tuple[Weights, ...]) -> None:
    (dense,) = loads(config(tensor_parallel_num_weight_shards=count), tp)
    assert tuple(result.where for result in dense.results) == EVERYWHERE
    assert tuple(result.if_whole for result in dense.results) == if_whole
    assert tuple(result.if_cut for result in dense.results) == if_cut


def test_weights_are_not_reached_after_an_error() -> None:
    (dense,) = loads(config(tensor_parallel_num_weight_shards=12), 8)
    assert dense.results[0].if_cut is Weights.NOT_REACHED


def test_the_experts_by_their_own_size() -> None:
    saved = config(2, 1, 4, num_moe_experts=8, expert_tensor_parallel_num_weight_shards=2)
    dense, expert = loads(saved, 4)
    assert (dense.saved_with, dense.parallel_size, expert.saved_with, expert.parallel_size) == (2, 4, 1, 1)
    assert [result.gtp for result in expert.results] == [2, 2, 2, 2]
    _, expert = loads(saved, etp=2)
    assert [result.gtp for result in expert.results] == [1, 1, 1, 1]


def test_an_etp_that_is_not_set_follows() -> None:
    """Bridge's: 1 where EP is more than 1, else TP."""
    saved = config(4, None, 1, num_moe_experts=8)
    assert [list(loads(saved, tp, None, ep))[1].parallel_size for tp, ep in ((4, None), (2, None), (2, 2))] == [4, 2, 1]


@pytest.mark.parametrize(
    ("count", "size", "saved_with", "now"), list(product((None, 4, 8, 12), (1, 2, 3), (1, 2, 4), (1, 2, 4, 8)))
)
def test_the_decision_is_the_rule(count: int | None, size: int, saved_with: int, now: int) -> None:
    """Whatever was recorded: the saved GTP where the parallel size is the saved one, else none."""
    after = reset(count, size, saved_with, now)
    if count is None and size == 1:
        assert after == (None, 1)
    elif count is not None and count % saved_with:
        assert after == (count, size)
    elif now == saved_with:
        kept, derived = after
        assert size_from_shards(kept, now) == derived == (size if count is None else count // saved_with)
    else:
        assert after == (None, 1)


@pytest.mark.parametrize("nonsense", [0, -1, True, "3", 2.5])
def test_nonsense_is_for_bridge_to_judge(nonsense: object) -> None:
    assert reset(nonsense, 1, 4, 2) == (nonsense, 1)
    assert reset(None, nonsense, 4, 2) == ((None, nonsense) if nonsense is not True else (None, 1))
    outcome(config(tensor_parallel_num_weight_shards=nonsense), 2)


CHECKPOINT = """
    _target_: megatron.bridge.training.config.ConfigContainer
    model:
      _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
      activation_func: {_target_: os.system, _args_: [touch made]}
      gtp_weight_remat_size: 3
      odd: !!python/object/apply:os.system [touch made]
      odder: !mine {a: [1]}
      tensor_model_parallel_size: 4
      tensor_parallel_num_weight_shards: 12
    """


def test_a_checkpoint(migrate: Migrate) -> None:
    ran = migrate({"run_config.yaml": CHECKPOINT}, "--explain", "--tp", "2", paths=("run_config.yaml",))
    assert (ran.code, ran.stderr, list(ran.files)) == (0, "", ["run_config.yaml"])
    lines = said(ran)
    assert "gtp_weight_remat_size: 3 (line 5)" in lines
    assert ran.stdout.count("run_config.yaml") == 1
    assert any(line.startswith("Scrambled are the fused") for line in lines)
    assert "Loaded at TP 2, the rest as saved" in lines
    assert "dense: saved with TP 4, GTP 3; loaded at TP 2" in lines
    by_place = dict(line.split(": ", 1) for line in lines if line.startswith(("released Bridge", "new Bridge")))
    assert by_place["released Bridge"].strip().startswith("GTP 6; weights, if whole: read right")
    assert by_place["released Bridge + shim"].strip().startswith("GTP off")
    assert by_place["new Bridge"].strip() == "GTP 6; weights ValueError"


def test_a_checkpoint_without_gtp(migrate: Migrate) -> None:
    """Nothing of it is scrambled, and nobody is told what that would mean."""
    plain = "".join(line for line in CHECKPOINT.splitlines(True) if "gtp" not in line and "shards" not in line)
    ran = migrate({"run_config.yaml": plain}, "--explain", "--tp", "2", paths=("run_config.yaml",))
    assert "GTP off; weights read right" in ran.stdout
    assert "crambled" not in ran.stdout


def test_a_checkpoint_without_a_size_to_load_it_at(migrate: Migrate) -> None:
    lines = said(migrate({"r.yaml": CHECKPOINT}, "--explain", paths=("r.yaml",)))
    assert "Loaded at the sizes it was saved with" in lines
    assert "Loaded at TP 1, as every export to HF does" in lines


def test_the_nested_config_of_a_builder() -> None:
    text = "model:\n  _builder_: some.Builder\n  transformer:\n    tensor_model_parallel_size: 2\n"
    saved = read_run_config(text.encode(), "x")
    assert saved is not None
    assert (saved.tp, saved.places[TP].line) == (2, 4)


@pytest.mark.parametrize(
    "text",
    [
        "policy: {_target_: x}\n",
        "model: {name: x}\nother: {_target_: y}\n",
        "model: {_builder_: x}\n",
        "- _target_: x\n",
        "model:\n  transformer: {a: 1}\n  other: {_builder_: x}\n",
    ],
)
def test_what_is_no_run_config(text: str) -> None:
    assert read_run_config(text.encode(), "x") is None


@pytest.mark.parametrize(
    "content",
    ["model: {_target_: x\n", b"model: {_target_: \xff}\n", "a: *b\n_target_: 1\n", "_target_: " + "[" * 5000],
    ids=["no YAML", "latin-1", "no anchor", "too deep"],
)
def test_a_run_config_that_cannot_be_read(migrate: Migrate, content: Content) -> None:
    ran = migrate({"r.yaml": content}, "--explain", paths=("r.yaml",))
    assert ran.code == 3
    assert ran.stdout == ""
    assert ran.stderr.startswith("r.yaml")
    assert len(ran.stderr.splitlines()) == 1


def test_all_that_bridge_wrote() -> None:
    """The real files of megatron-bridge 0.6.2: what each run set is what is read."""
    folder = Path(__file__).parents[3] / "shared" / "corpus" / "run_config"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    found = {}
    for path in sorted(folder.glob("*/run_config.yaml")):
        saved = read_run_config(path.read_bytes(), str(path))
        assert saved is not None
        found[path.parent.name] = [(load.saved_with, load.saved_gtp) for load in loads(saved)]
        lines = path.read_text().splitlines()
        for name, place in saved.places.items():
            assert lines[place.line - 1].strip().startswith(f"{name}:")
        assert {TP, ETP, EP, DENSE.num_weight_shards} <= saved.values.keys()
    assert found["tp4_shards12"] == found["builder_tp4_shards12"] == found["tp4_size3"] == [(4, 3)]
    assert found["tp4_gtp_off"] == [(4, 1)]
    assert found["moe_tp2_etp1_ep4_eshards2"] == [(2, 1), (1, 2)]
