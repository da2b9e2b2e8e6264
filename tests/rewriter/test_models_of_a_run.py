"""Models that no mapping shows: teachers, and the generation model of the Megatron backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from . import oracle
from .conftest import Migrate, Ran
from .test_layout import rows

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]

B = ("--target", "model-overrides")
C = ("--target", "megatron-cfg")
COUNT = "tensor_parallel_num_weight_shards"
TP = "tensor_model_parallel_size"
MCORE = ("policy", "generation", "mcore_generation_config")
DEFAULT_TEACHER = ("on_policy_distillation", "non_colocated_teachers", "default_teacher_cfg")
TEACHER_ENTRIES = (*DEFAULT_TEACHER[:-1], "teacher_overrides")


def opd(teachers: str, policy: str = "{gtp_weight_remat_size: 3}", section: str = "grpo", aliases: str = "math") -> str:
    names = ", ".join(f"{alias}: /models/{alias}" for alias in aliases.split())
    indented = "".join(f"    {line}\n" for line in teachers.splitlines())
    return (
        f"{section}: {{max_num_steps: 1}}\n"
        "policy:\n"
        f"  megatron_cfg: {{tensor_model_parallel_size: 4, model_overrides: {policy}}}\n"
        "on_policy_distillation:\n"
        "  enabled: true\n"
        f"  teacher_model_by_agent_name: {{{names}}}\n"
        "  non_colocated_teachers:\n"
        f"    enabled: true\n{indented}"
    )


def policy_b(text: str) -> str:
    return text.replace("gtp_weight_remat_size: 3", f"{COUNT}: 12")


@pytest.mark.parametrize(
    ("teachers", "tp"),
    [
        ("default_teacher_cfg: {tensor_model_parallel_size: 4}", 4),
        ("", 1),
        ("default_teacher_cfg: {tensor_model_parallel_size: 8}", 8),
        ("default_teacher_cfg:\n  tensor_model_parallel_size: 8  # wide", 8),
    ],
)
def test_the_layout_of_a_teacher(migrate: Migrate, teachers: str, tp: int) -> None:
    ran = migrate({"a.yaml": opd(teachers)}, *B)
    assert ran.code == 0, ran.stderr
    table = {row[1]: row for row in rows(ran.stderr)}
    assert table["policy.megatron_cfg"][3] == "4 × 3 × 1 × 1"
    assert table["teacher math"][3] == f"{tp} × 3 × 1 × 1"


TEACHERS = {
    "another TP": "default_teacher_cfg: {tensor_model_parallel_size: 8}",
    "none said": "",
    "in the alias' own entry": "teacher_overrides: {math: {tensor_model_parallel_size: 2, num_nodes: 4}}",
    "by an override": "default_teacher_cfg: {megatron_cfg_overrides: {tensor_model_parallel_size: 8}}",
    "other overrides there": (
        "default_teacher_cfg: {tensor_model_parallel_size: 8, megatron_cfg_overrides: {bias_activation_fusion: true}}"
    ),
    "old keys there": (
        "default_teacher_cfg: {tensor_model_parallel_size: 8, "
        "megatron_cfg_overrides: {model_overrides: {gtp_weight_remat_size: 2, a: 1}}}"
    ),
    "old keys beside": "default_teacher_cfg: {tensor_model_parallel_size: 8, model_overrides: {gtp_weight_remat_size: 2}}",
    "expert sizes": (
        "default_teacher_cfg: {tensor_model_parallel_size: 8, expert_tensor_parallel_size: 2, "
        "model_overrides: {expert_gtp_weight_remat_size: 2}}"
    ),
    "block style": "default_teacher_cfg:\n  # a comment\n  tensor_model_parallel_size: 8  # wide\n",
    "several": (
        "default_teacher_cfg: {tensor_model_parallel_size: 8}\n"
        "teacher_overrides:\n  code: {tensor_model_parallel_size: 4}"
    ),
}


@pytest.mark.parametrize(
    "policy", ["{gtp_weight_remat_size: 3}", "{masked_softmax_fusion: false, gtp_weight_remat_size: 3}"]
)
@pytest.mark.parametrize("name", TEACHERS)
def test_teachers(becomes_something: Becomes, name: str, policy: str) -> None:
    aliases = "math code" if name == "several" else "math"
    becomes_something({"a.yaml": opd(TEACHERS[name], policy, aliases=aliases)}, *B)


@pytest.fixture
def becomes_something(migrate: Migrate, tmp_path_factory: pytest.TempPathFactory) -> Becomes:
    """All is migrated, whatever it is spelled like, and runs as before by the tests' own reading."""
    from .conftest import write_files

    def becomes_something(before: dict[str, str], *args: str, code: int = 0) -> Ran:
        old = tmp_path_factory.mktemp("before")
        write_files(old, before)  # type: ignore[arg-type]
        ran = migrate(before, *args)
        assert ran.code == code, ran.stderr
        new = tmp_path_factory.mktemp("after")
        write_files(new, ran.files)
        for name in before:
            assert "gtp_weight_remat_size" not in str(ran.files[name])
            oracle.assert_runs_as_before(old / name, new / name, typed="megatron-cfg" in args, tp=6)
        again = migrate({}, *args)
        assert (again.code, again.files) == (0, ran.files), again.stderr
        return ran

    return becomes_something


def test_a_default_teacher_and_one_with_overrides_of_its_own(becomes_something: Becomes) -> None:
    teachers = (
        "default_teacher_cfg: {tensor_model_parallel_size: 8}\n"
        "teacher_overrides:\n"
        "  code: {tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 2}}"
    )
    becomes_something({"a.yaml": opd(teachers, aliases="math code")}, *B)


def switched(text: str) -> str:
    """Teachers that the environment switches on."""
    return text.replace("  enabled: true\n", "  enabled: ${oc.decode:${oc.env:GTP_TEST_TEACH,false}}\n", 1)


@pytest.mark.parametrize("is_on", ["true", "false"])
@pytest.mark.parametrize("name", TEACHERS)
def test_teachers_that_the_environment_switches_on(
    becomes_something: Becomes, monkeypatch: pytest.MonkeyPatch, name: str, is_on: str
) -> None:
    monkeypatch.setenv("GTP_TEST_TEACH", is_on)
    aliases = "math code" if name == "several" else "math"
    ran = becomes_something({"a.yaml": switched(opd(TEACHERS[name], aliases=aliases))}, *B)
    always = becomes_something({"a.yaml": opd(TEACHERS[name], aliases=aliases)}, *B)
    assert ran.files["a.yaml"] == switched(str(always.files["a.yaml"]))


@pytest.mark.parametrize("change", [str, switched])
def test_an_entry_without_sizes(becomes_something: Becomes, migrate: Migrate, change: Callable[[str], str]) -> None:
    """A launcher gives the alias none of the default's sizes: TP 1, and not 2. Read as it stands it would be TP 2, so no
    number is right; with a size of its own one is."""
    teachers = "default_teacher_cfg: {tensor_model_parallel_size: 2}\nteacher_overrides: {code: {num_nodes: 2}}"
    text = change(opd(teachers, aliases="math code"))
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (3, text)
    (problem,) = ran.problems
    place = "on_policy_distillation.non_colocated_teachers.teacher_overrides.code"
    assert f"write the sizes that it shall have into {place} and run again" in problem
    for size in (1, 2):
        becomes_something({"a.yaml": text.replace("num_nodes: 2", f"tensor_model_parallel_size: {size}")}, *B)


GENERATION_APART = (
    "grpo: {max_num_steps: 1}\n"
    "policy:\n"
    "  megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: OVERRIDES}\n"
    "  generation:\n"
    "    backend: megatron\n"
    "    colocated: {enabled: false}\n"
    "    mcore_generation_config: {tensor_model_parallel_size: 4}\n"
)


@pytest.mark.parametrize("others", ["", ", attention_softmax_in_fp32: true"])
@pytest.mark.parametrize("args", [B, C])
@pytest.mark.parametrize("parent", ["teacher", "generation"])
@pytest.mark.parametrize("child", ["another TP", "turns GTP on"])
def test_a_child_without_the_section_of_the_model(
    becomes_something: Becomes, others: str, args: tuple[str, ...], parent: str, child: str
) -> None:
    """The number that the model needs is written into mappings that the child does not have yet, with all other
    overrides repeated."""
    overrides = f"{{gtp_weight_remat_size: 3{others}}}"
    teachers = "default_teacher_cfg: {tensor_model_parallel_size: 4}"
    base = opd(teachers, "OVERRIDES") if parent == "teacher" else GENERATION_APART
    here = {"another TP": overrides, "turns GTP on": "{}"}[child]
    heir = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 2\n"
    if child == "turns GTP on":
        heir += f"    model_overrides: {overrides}\n"
    becomes_something({"base.yaml": base.replace("OVERRIDES", here), "heir.yaml": heir}, *args)


WIDE = "default_teacher_cfg: {tensor_model_parallel_size: 8}"
EACH = "teacher_overrides: {math: {tensor_model_parallel_size: 4}, code: {tensor_model_parallel_size: 8}}"
TWO = opd(EACH, aliases="math code")
ONE_CHECKPOINT = TWO.replace("/models/code", "/models/math")
APART = GENERATION_APART.replace("OVERRIDES", "{gtp_weight_remat_size: 3}").replace("size: 4}\n", "size: 8}\n")

#: What a recipe leaves open, or says in other words: the recipe, what stands there, and what the run makes of it.
DECIDED_ELSEWHERE = {
    "whether there are teachers": (opd(WIDE), "enabled: true", "enabled: ???", "enabled: true"),
    "whether they have GPUs of their own": (opd(WIDE), "    enabled: true", "    enabled: ???", "    enabled: true"),
    "which teachers": (opd(WIDE), "{math: /models/math}", '"???"', "{code: /models/code}"),
    "which checkpoints": (TWO, "/models/math, code: /models/code", '"???", code: "???"', "a, code: b"),
    "checkpoints by the environment": (
        TWO, "/models/math, code: /models/code", '"${oc.env:A,a}", code: "${oc.env:B,a}"', "a, code: b",
    ),
    "whether equal checkpoints are one teacher": (
        ONE_CHECKPOINT, "enabled: true\n", "enabled: true\n  deduplicate_shared_teacher_checkpoints: ???\n",
        "enabled: true\n  deduplicate_shared_teacher_checkpoints: false\n",
    ),
    "the backend": (APART, "backend: megatron", "backend: ???", "backend: megatron"),
    "one for true": (opd(WIDE), "enabled: true", "enabled: 1", "enabled: true"),
    "a word for true": (opd(WIDE), "enabled: true", "enabled: 'On'", "enabled: true"),
    "a number that is refused": (opd(WIDE), "enabled: true", "enabled: 3", "enabled: true"),
    "a list": (opd(WIDE), "enabled: true", "enabled: [false]", "enabled: true"),
    "zero for false": (
        ONE_CHECKPOINT, "enabled: true\n", "enabled: true\n  deduplicate_shared_teacher_checkpoints: 0\n",
        "enabled: true\n  deduplicate_shared_teacher_checkpoints: false\n",
    ),
    "a word for false": (APART, "{enabled: false}", "{enabled: 'no'}", "{enabled: false}"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDED_ELSEWHERE)
def test_which_models_there_are_is_decided_elsewhere(migrate: Migrate, tmp_path: Path, name: str) -> None:
    """All that may be built get their numbers."""
    plain, stands, written, comes_to = DECIDED_ELSEWHERE[name]
    assert stands in plain
    text = plain.replace(stands, written, 1)
    ran = migrate({"a.yaml": text}, *B)
    assert ran.code == 0, ran.stderr
    assert "gtp_weight_remat_size" not in str(ran.files["a.yaml"])
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(text.replace(written, comes_to, 1))
    after.write_text(str(ran.files["a.yaml"]).replace(written, comes_to, 1))
    oracle.assert_runs_as_before(before, after)
    assert "24" in after.read_text()


def test_colocated_or_not_and_by_megatron_or_not(migrate: Migrate) -> None:
    """Where the run pins the copy, the number is for the model that is none."""
    text = APART.replace("{enabled: false}", "{enabled: '???'}").replace("backend: megatron", "backend: ???")
    ran = migrate({"a.yaml": text}, *B, "--runtime-shim")
    assert ran.code == 0, ran.stderr
    assert f"model_overrides: {{{COUNT}: 24}}" in str(ran.files["a.yaml"])


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (APART.replace("{enabled: false}", "{enabled: '???'}"), "generation"),
        (APART.replace("{enabled: false}", "{enabled: '???'}").replace("backend: megatron", "backend: ???"), "generation"),
        (APART.replace("{enabled: false}", "{enabled: 1}"), "generation"),
        (APART.replace("{enabled: false}", "{enabled: 3}"), "generation"),
        (APART.replace("{enabled: false}", "{enabled: 'True'}"), "generation"),
        (APART.replace("{enabled: false}", "???"), "generation"),
        (APART.replace("{tensor_model_parallel_size: 8}", "???"), "generation"),
        (APART.split("  generation:")[0] + "  generation: ${oc.decode:${oc.env:GTP_TEST_ALL,null}}\n", "generation"),
        (APART.split("  generation:")[0] + "  generation: ???\n", "generation"),
        (opd("default_teacher_cfg: ???"), "teacher math"),
        (opd("teacher_overrides: ???"), "teacher math"),
        (opd("teacher_overrides: {math: '???'}"), "teacher math"),
        (opd("").split("on_policy")[0] + "on_policy_distillation: ???\n", "teacher a"),
        (opd("").split("  non_colo")[0] + "  non_colocated_teachers: ???\n", "teacher math"),
    ],
)  # fmt: skip
def test_a_model_that_no_number_is_right_for(migrate: Migrate, text: str, model: str) -> None:
    """It is a copy, or its sizes come with the run as well."""
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (3, text)
    assert any(f"a.yaml: {model} " in problem for problem in ran.problems), ran.stderr


OWN_SIZES = {
    "a teacher of the same TP": opd("default_teacher_cfg: {tensor_model_parallel_size: 4}"),
    "a wide teacher": opd("default_teacher_cfg: {tensor_model_parallel_size: 8}"),
    "a teacher with no size": opd("").replace("size: 4", "size: 1"),
    "an entry": opd("teacher_overrides:\n  math:\n    tensor_model_parallel_size: 8"),
    "two": opd("default_teacher_cfg: {tensor_model_parallel_size: 8}\n" + EACH, aliases="math code"),
    "no GTP": opd("default_teacher_cfg: {tensor_model_parallel_size: 8, model_overrides: {a: 1}}"),
    "merged, of the same TP": "shelf: &S\n  tensor_model_parallel_size: 4\n  model_overrides: {gtp_weight_remat_size: 3}\n"
    + opd("default_teacher_cfg: {tensor_model_parallel_size: 4}").replace(
        "{tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 3}}", "{<<: *S, x: 1}"
    ),
    "among other keys": opd("default_teacher_cfg: {megatron_cfg_overrides: {tensor_model_parallel_size: 8}}"),
    "generation of the same TP": APART.replace("size: 8", "size: 4"),
    "wide generation": APART,
    "other overrides": opd(WIDE, "{gtp_weight_remat_size: 3, attention_softmax_in_fp32: true}"),
    "both axes": opd(
        "default_teacher_cfg: {tensor_model_parallel_size: 8, expert_tensor_parallel_size: 2}",
        "{gtp_weight_remat_size: 3, expert_gtp_weight_remat_size: 2}",
    ).replace("size: 4", "size: 4, expert_tensor_parallel_size: 4"),
}


@pytest.mark.parametrize("args", [B, C])
@pytest.mark.parametrize("name", OWN_SIZES)
def test_interpolations_follow_what_a_command_line_changes(
    becomes_something: Becomes, tmp_path: Path, name: str, args: tuple[str, ...]
) -> None:
    """Whichever parallel size is another one when the run starts, the policy's or a model's own."""
    text = OWN_SIZES[name]
    ran = becomes_something({"a.yaml": text}, *args, "--style", "interpolation")
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    own = "math" if name in ("an entry", "two") else "default_teacher_cfg" if "teach" in text else "mcore"
    for changed in (("policy", 16), (own, 2), (own, 16)):
        before.write_text(with_tp(text, *changed))
        after.write_text(with_tp(str(ran.files["a.yaml"]), *changed))
        oracle.assert_runs_as_before(before, after, typed=args is C)


def test_a_shelf_that_no_interpolation_can_stand_on(migrate: Migrate) -> None:
    """It has no TP; two ways of making teachers leave nothing open."""
    base = opd(WIDE).replace("{tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 3}}", "CFG")
    text = f"shelf: &S {{model_overrides: {{gtp_weight_remat_size: 3}}}}\n{base}".replace(
        "CFG", "{<<: *S, tensor_model_parallel_size: 4}"
    )
    (problem,) = migrate({"a.yaml": text}, *B, "--style", "interpolation").problems
    assert problem.endswith("; write the numbers with --style literal")
    assert migrate({}, *B, "--style", "literal").code == 0


def with_tp(text: str, where: str, tp: int) -> str:
    """The recipe with another TP in one place, as by the command line."""
    config = yaml.safe_load(text)
    for path in (("policy", "megatron_cfg"), MCORE, DEFAULT_TEACHER, (*TEACHER_ENTRIES, "math")):
        mapping = config
        for key in path:
            mapping = mapping.get(key, {})
        if any(where in key for key in path[-2:]) and TP in {*mapping, *mapping.get("megatron_cfg_overrides", {})}:
            holder = mapping if TP in mapping else mapping["megatron_cfg_overrides"]
            assert holder[TP] != tp
            holder[TP] = tp
    return yaml.safe_dump(config, sort_keys=False)


@pytest.mark.parametrize("tp", ["2", "4", "16"])
@pytest.mark.parametrize("args", [B, C])
@pytest.mark.parametrize("name", ["default", "an entry", "generation", "switched", "missing"])
def test_sizes_of_its_own_that_are_open(
    becomes_something: Becomes,
    migrate: Migrate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    args: tuple[str, ...],
    tp: str,
) -> None:
    """No number is right, and the relation is."""
    monkeypatch.setenv("GTP_TEST_TP", tp)
    monkeypatch.setenv("GTP_TEST_TEACH", "true")
    size = "'???'" if name == "missing" else "'${oc.decode:${oc.env:GTP_TEST_TP,4}}'"
    text = {
        "an entry": opd(f"teacher_overrides: {{math: {{tensor_model_parallel_size: {size}}}}}"),
        "generation": APART.replace("size: 8", f"size: {size}"),
        "switched": switched(opd(f"default_teacher_cfg: {{tensor_model_parallel_size: {size}}}")),
    }.get(name, opd(f"default_teacher_cfg: {{tensor_model_parallel_size: {size}}}"))
    # A run that leaves it missing does not start.
    ran = (migrate if name == "missing" else becomes_something)({"a.yaml": text}, *args)
    assert ran.code == 0, ran.stderr
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(text.replace("'???'", tp))
    after.write_text(str(ran.files["a.yaml"]).replace("'???'", tp))
    oracle.assert_runs_as_before(before, after, typed=args is C)
    assert "${mul:3,${." in str(ran.files["a.yaml"])


@pytest.mark.parametrize("size", ["'${oc.decode:${oc.env:GTP_TEST_TP,8}}'", "'???'"])
def test_an_open_size_without_resolvers(migrate: Migrate, size: str) -> None:
    text = opd(f"default_teacher_cfg: {{tensor_model_parallel_size: {size}}}", section="x")
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (3, text)


SHARED = {
    "another's": opd(
        "teacher_overrides:\n  math: &T\n    tensor_model_parallel_size: SIZE\n  code: *T", aliases="math code"
    ),
    "in flow style": opd(
        "teacher_overrides: {math: &T {tensor_model_parallel_size: SIZE}, code: *T}", aliases="math code"
    ),
    "of a shelf": "shelf: &T {tensor_model_parallel_size: SIZE}\n" + opd("default_teacher_cfg: *T"),
    "by an interpolation": "T: {tensor_model_parallel_size: SIZE}\n" + opd("default_teacher_cfg: ${T}"),
    "an entry by an interpolation": "T: {tensor_model_parallel_size: SIZE}\n"
    + opd("teacher_overrides: {math: '${T}'}"),
    "merged": opd(
        "teacher_overrides:\n  math: &T\n    tensor_model_parallel_size: SIZE\n"
        "  code:\n    <<: *T\n    tensor_model_parallel_size: 16",
        aliases="math code",
    ),
    "generation": "T: &T {tensor_model_parallel_size: SIZE}\n" + APART.replace("{tensor_model_parallel_size: 8}", "*T"),
}


@pytest.mark.parametrize("args", [B, C, (*B, "--style", "interpolation")])
@pytest.mark.parametrize("size", ["8", "'${oc.decode:${oc.env:GTP_TEST_TP,8}}'"])
@pytest.mark.parametrize("name", SHARED)
def test_a_mapping_that_several_get(
    becomes_something: Becomes, monkeypatch: pytest.MonkeyPatch, name: str, size: str, args: tuple[str, ...]
) -> None:
    """Written once, where it stands: it is right for all that get it."""
    monkeypatch.setenv("GTP_TEST_TP", "2")
    ran = becomes_something({"a.yaml": SHARED[name].replace("SIZE", size)}, *args)
    assert str(ran.files["a.yaml"]).count("weight_shards") == (3 if name == "merged" else 2)


def test_a_mapping_that_a_teacher_and_generation_get(becomes_something: Becomes) -> None:
    text = opd("default_teacher_cfg: ${policy.generation.mcore_generation_config}")
    generation = APART.split("model_overrides: {gtp_weight_remat_size: 3}}\n")[1]
    becomes_something({"a.yaml": text.replace("on_policy", f"{generation}on_policy", 1)}, *B)


@pytest.mark.parametrize("value", ["[]", "[1]", "{1: a}", "{x: {y: '???'}}", "3", "null", "'${nope}'", "'???'", "text"])
@pytest.mark.parametrize(
    "text",
    [
        opd("default_teacher_cfg: VALUE\nteacher_overrides: VALUE"),
        opd("teacher_overrides: {math: VALUE, 2: VALUE}").replace("{math: /models/math}", "{math: VALUE, 2: VALUE}"),
        opd("default_teacher_cfg: {tensor_model_parallel_size: VALUE, megatron_cfg_overrides: VALUE}"),
        opd(WIDE).replace("{math: /models/math}", "VALUE").replace("enabled: true", "enabled: VALUE"),
        APART.replace("{enabled: false}", "VALUE").replace("{tensor_model_parallel_size: 8}", "VALUE"),
        APART.replace("megatron\n", "VALUE\n").replace("size: 8", "size: VALUE"),
    ],
)
def test_no_value_gives_a_traceback(migrate: Migrate, text: str, value: str) -> None:
    for args in (B, C, (*B, "--style", "interpolation")):
        ran = migrate({"a.yaml": text.replace("VALUE", value)}, "--dry-run", *args)
        assert ran.code in (0, 3)
        assert "Traceback" not in ran.stderr


def test_two_aliases_of_one_checkpoint_are_one_teacher(migrate: Migrate) -> None:
    """The second is never built, whatever its entry says."""
    teachers = "default_teacher_cfg: {tensor_model_parallel_size: 4}\nteacher_overrides: {code: {tensor_model_parallel_size: 8}}"
    text = opd(teachers, aliases="math code").replace("/models/code", "/models/math")
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (0, policy_b(text))
    assert "teacher code" not in ran.stderr


@pytest.mark.parametrize("section", ["sft", "distillation", "ppo", "dpo"])
def test_other_algorithms_have_no_such_teachers(migrate: Migrate, section: str) -> None:
    text = opd("default_teacher_cfg: {tensor_model_parallel_size: 8}", section=section)
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (0, policy_b(text)), ran.stderr


@pytest.mark.parametrize("switch", ["  enabled: true\n", "    enabled: true\n"])
def test_teachers_that_are_switched_off(migrate: Migrate, switch: str) -> None:
    text = opd("default_teacher_cfg: {tensor_model_parallel_size: 8}").replace(
        switch, switch.replace("true", "false"), 1
    )
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (0, policy_b(text)), ran.stderr


TWO_WAYS = """\
default_teacher_cfg:
  tensor_model_parallel_size: 4
  megatron_cfg_overrides: {model_overrides: {gtp_weight_remat_size: 2}}
teacher_overrides: {code: {tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 5}}}
"""


def test_ways_of_making_a_teacher_that_differ(becomes_something: Becomes) -> None:
    """A launcher gives `code` size 5, the functions called by themselves 2: each stays what it is."""
    ran = becomes_something({"a.yaml": opd(TWO_WAYS, aliases="code")}, *B)
    assert f"{COUNT}: 8}}" in str(ran.files["a.yaml"])
    assert f"{COUNT}: 20}}" in str(ran.files["a.yaml"])


def test_ways_of_making_a_teacher_for_which_no_number_is_right(stays: Stays) -> None:
    """By one of the two, `code` has the default's size at a TP of its own, by the other that size is `math`'s alone."""
    text = opd(TWO_WAYS.replace("_size: 4\n", "_size: 8\n"), aliases="math code")
    ran = stays({"a.yaml": text}, *B)
    assert any("teacher code" in line for line in ran.problems), ran.stderr


@pytest.mark.parametrize("target", [B, C])
def test_a_child_with_teachers_over_a_base_without(becomes_something: Becomes, target: tuple[str, str]) -> None:
    base = "grpo: {a: 1}\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    model_overrides:\n      gtp_weight_remat_size: 3\n"
    child = (
        "defaults: base.yaml\n" + opd("default_teacher_cfg: {tensor_model_parallel_size: 2}").partition("policy:")[2]
    )
    child = "defaults: base.yaml\non_policy_distillation" + child.partition("on_policy_distillation")[2]
    ran = becomes_something({"base.yaml": base, "child.yaml": child}, *target)
    assert f"{COUNT}: 6" in str(ran.files["child.yaml"])


# -- generation --------------------------------------------------------------------------------------------


def generating(
    own: str, *, colocated: bool = False, section: str = "grpo", overrides: str = "{gtp_weight_remat_size: 2}"
) -> str:
    return (
        f"{section}: {{max_num_steps: 1}}\n"
        "policy:\n"
        "  megatron_cfg:\n"
        "    tensor_model_parallel_size: 2\n"
        "    expert_tensor_parallel_size: 1\n"
        "    expert_model_parallel_size: 4\n"
        "    pipeline_model_parallel_size: 1\n"
        "    context_parallel_size: 1\n"
        f"    model_overrides: {overrides}\n"
        "  generation:\n"
        "    backend: megatron\n"
        f"    colocated: {{enabled: {str(colocated).lower()}}}\n"
        f"    mcore_generation_config: {own}\n"
    )


GENERATIONS = {
    "another TP": "{tensor_model_parallel_size: 8}",
    "the same": "{buffer_size_gb: 20}",
    "nothing": "null",
    "empty": "{}",
    "other overrides": "{tensor_model_parallel_size: 8, model_overrides: {a: 1}}",
    "an old key of its own": "{tensor_model_parallel_size: 8, model_overrides: {gtp_weight_remat_size: 1}}",
    "an old null of its own": "{tensor_model_parallel_size: 8, model_overrides: {b: 1}}",
    "another ETP": "{expert_tensor_parallel_size: 2, expert_model_parallel_size: 1}",
}
OVERRIDES = [
    "{gtp_weight_remat_size: 2}",
    "{masked_softmax_fusion: false, gtp_weight_remat_size: 2, expert_gtp_weight_remat_size: 3}",
]


@pytest.mark.parametrize("overrides", OVERRIDES)
@pytest.mark.parametrize("name", GENERATIONS)
def test_generation_of_its_own(becomes_something: Becomes, name: str, overrides: str) -> None:
    ran = becomes_something({"a.yaml": generating(GENERATIONS[name], overrides=overrides)}, *B)
    assert "generation" in {row[1] for row in rows(ran.stderr)} or "model_overrides" in GENERATIONS[name]


@pytest.mark.parametrize("own", ["{}", "null", "{buffer_size_gb: 20}", "{tensor_model_parallel_size: 2}"])
@pytest.mark.parametrize("section", ["grpo", "distillation"])
def test_colocated_generation_with_the_same_sizes_is_no_model(
    becomes_something: Becomes, own: str, section: str
) -> None:
    ran = becomes_something({"a.yaml": generating(own, colocated=True, section=section)}, *B)
    assert "generation" not in {row[1] for row in rows(ran.stderr)}


@pytest.mark.parametrize("section", ["grpo", "distillation"])
@pytest.mark.parametrize("own", ["{tensor_model_parallel_size: 8}", "{tensor_model_parallel_size: 1}"])
def test_a_copy_of_another_tp_is_left_and_said(stays: Stays, own: str, section: str) -> None:
    ran = stays({"a.yaml": generating(own, colocated=True, section=section)}, *B)
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml: generation would change from TP")
    assert "--runtime-shim" in ran.problems[0]
    assert "--target megatron-cfg" in ran.problems[0]


def test_a_copy_whose_counts_are_right_by_chance(becomes_something: Becomes) -> None:
    """Another PP makes a copy of its own, which the training's counts are right for."""
    becomes_something({"a.yaml": generating("{pipeline_model_parallel_size: 2}", colocated=True)}, *B)


@pytest.mark.parametrize("own", ["{tensor_model_parallel_size: 8}", "{expert_tensor_parallel_size: 2}"])
def test_a_copy_that_the_runs_pin(migrate: Migrate, own: str) -> None:
    text = generating(own, colocated=True)
    ran = migrate({"a.yaml": text}, *B, "--runtime-shim")
    assert (ran.code, ran.files["a.yaml"]) == (0, text.replace("gtp_weight_remat_size: 2", f"{COUNT}: 4")), ran.stderr
    assert "gtp_weight_remat_size" not in migrate({"a.yaml": text}, *C).files["a.yaml"]


@pytest.mark.parametrize(
    ("section", "colocated"),
    [("ppo", True), ("ppo", False), ("sft", True), ("dpo", False), ("rm", True)],
)
def test_algorithms_that_do_not_generate_so(migrate: Migrate, section: str, colocated: bool) -> None:
    text = generating("{tensor_model_parallel_size: 8}", colocated=colocated, section=section)
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (0, text.replace("gtp_weight_remat_size: 2", f"{COUNT}: 4")), ran.stderr


def test_another_backend(migrate: Migrate) -> None:
    text = generating("{tensor_model_parallel_size: 8}").replace("backend: megatron", "backend: vllm")
    ran = migrate({"a.yaml": text}, *B)
    assert (ran.code, ran.files["a.yaml"]) == (0, text.replace("gtp_weight_remat_size: 2", f"{COUNT}: 4")), ran.stderr


def test_generation_in_form_c_has_the_typed_key(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": generating("{tensor_model_parallel_size: 8}")}, *C)
    assert ran.code == 0, ran.stderr
    assert "gtp_weight_remat_size" not in ran.files["a.yaml"]


MORE_OF_THE_POLICY = "{masked_softmax_fusion: false, gtp_weight_remat_size: 3}"


@pytest.mark.parametrize(
    "text",
    [
        opd(
            "default_teacher_cfg: {tensor_model_parallel_size: 8, "
            "megatron_cfg_overrides: {model_overrides: {gtp_weight_remat_size: 2}}}",
            MORE_OF_THE_POLICY,
        ),
        opd(
            "default_teacher_cfg: {tensor_model_parallel_size: 4}\n"
            "teacher_overrides: {math: {tensor_model_parallel_size: 8, model_overrides: {gtp_weight_remat_size: 2}}}",
            MORE_OF_THE_POLICY,
        ),
        generating("{tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 1}}").replace(
            "gtp_weight_remat_size: 2", "masked_softmax_fusion: false, gtp_weight_remat_size: 2"
        ),
        "x: &X {tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 1}}\n"
        + generating("{<<: *X}").replace(
            "gtp_weight_remat_size: 2", "masked_softmax_fusion: false, gtp_weight_remat_size: 2"
        ),
    ],
    ids=["teacher", "one teacher", "generation", "generation by a shelf"],
)
def test_overrides_in_form_c_that_keep_those_of_the_policy_off(becomes_something: Becomes, text: str) -> None:
    """Nothing is left in them, but without them the model would get the policy's."""
    ran = becomes_something({"a.yaml": text}, *C)
    assert "model_overrides: {}" in ran.files["a.yaml"]


def test_generation_that_distillation_refuses_today(becomes_something: Becomes) -> None:
    """Its settings are migrated all the same: nothing is left behind for a NeMo-RL that takes it."""
    text = generating("{tensor_model_parallel_size: 8, model_overrides: {gtp_weight_remat_size: 1}}")
    becomes_something({"a.yaml": text.replace("grpo:", "distillation:")}, *B)
