"""Values by example: sizes, parallel sizes of the experts, and settings that stand there twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Migrate, Ran, text

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]


def recipe(value: str, tp: str = "4", key: str = "gtp_weight_remat_size") -> str:
    """A recipe with one setting, on line 7 and column 7."""
    return text(
        f"""
        sizes: {{gtp: 3, etp: 2}}
        policy:
          megatron_cfg:
            tensor_model_parallel_size: {tp}
            pipeline_model_parallel_size: 2
            model_overrides:
              {key}: {value}
        """
    )


NEW = "tensor_parallel_num_weight_shards"


# -- sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "shards"),
    [
        ("1", "4"),
        ("3", "12"),
        ("+3", "12"),
        ("012", "40"),  # octal, as YAML 1.1 has it
        ("1_0", "40"),
        ("0x8", "32"),
        ("0b11", "12"),
        ("!!int 3", "12"),
        ('!!int "3"', "12"),
    ],
)
def test_sizes(becomes: Becomes, size: str, shards: str) -> None:
    becomes({"a.yaml": recipe(size)}, {"a.yaml": recipe(shards, key=NEW)})


@pytest.mark.parametrize("tp", ["010", "0x8", "8"])
def test_parallel_sizes_are_read_as_nemo_rl_reads_them(becomes: Becomes, tp: str) -> None:
    becomes({"a.yaml": recipe("3", tp=tp)}, {"a.yaml": recipe("24", tp=tp, key=NEW)})


@pytest.mark.parametrize("null", ["null", "Null", "NULL", "~", "", "!!null ''"])
def test_null_is_unset_and_stays_null(becomes: Becomes, null: str) -> None:
    becomes({"a.yaml": recipe(null)}, {"a.yaml": recipe(null, key=NEW)}, proven=False)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("0", "0"),
        ("-1", "-1"),
        ("true", "true"),
        ("yes", "true"),
        ("false", "false"),
        ("2.5", "2.5"),
        ("2.0", "2.0"),
        ("1e1", "10.0"),
        ('"2"', '"2"'),
        ("'2'", '"2"'),
        ("0o14", '"0o14"'),
        ("two", '"two"'),
        ('""', '""'),
    ],
)
@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
def test_invalid_sizes(stays: Stays, size: str, said: str, target: str) -> None:
    ran = stays({"a.yaml": recipe(size)}, "--target", target)
    assert ran.problems == [
        f"a.yaml:7:7: gtp_weight_remat_size must be a positive integer or null, not {said}; correct it and run again"
    ]


@pytest.mark.parametrize("size", ["[3]", "{a: 3}", "[]", "{}"])
def test_a_size_that_is_no_scalar(stays: Stays, size: str) -> None:
    ran = stays({"a.yaml": recipe(size)})
    assert [line.split(": ")[0] for line in ran.problems] == ["a.yaml:7:7"]


@pytest.mark.parametrize("tp", ["0", "-4", "2.5", '"4"', "true"])
def test_an_invalid_tp(stays: Stays, tp: str) -> None:
    ran = stays({"a.yaml": recipe("3", tp=tp)})
    assert len(ran.problems) == 1
    assert "TP" in ran.problems[0]


def test_a_tp_of_null_is_none(stays: Stays) -> None:
    """Megatron-Core cannot divide by it: whatever is done, it is not a number that was guessed."""
    ran = stays({"a.yaml": recipe("3", tp="null")})
    assert [line.split(": ")[0] for line in ran.problems] == ["a.yaml:7:7"]


def test_one_bad_size_leaves_the_rest_to_be_done(migrate: Migrate) -> None:
    ran = migrate({"bad.yaml": recipe("0"), "good.yaml": recipe("3")})
    assert ran.code == 3
    assert ran.files == {"bad.yaml": recipe("0"), "good.yaml": recipe("12", key=NEW)}
    assert "1 setting in 1 file migrated" in ran.stderr


def test_a_bad_size_that_a_child_corrects(migrate: Migrate) -> None:
    """The base could not have been run; the files hang together, so both wait for a person."""
    child = "defaults: base.yaml\n" + recipe("3")
    ran = migrate({"base.yaml": recipe("0"), "child.yaml": child})
    assert ran.code == 3
    assert [line.split(": ")[0] for line in ran.problems] == ["base.yaml:7:7"]
    assert ran.files["base.yaml"] == recipe("0")


# -- sizes that are interpolations ---------------------------------------------------------------------


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize(
    ("size", "shards"),
    [
        ("${sizes.gtp}", "${mul:${sizes.gtp},${..tensor_model_parallel_size}}"),
        ("'${sizes.gtp}'", "'${mul:${sizes.gtp},${..tensor_model_parallel_size}}'"),
        ('"${sizes.gtp}"', '"${mul:${sizes.gtp},${..tensor_model_parallel_size}}"'),
        (
            "${..pipeline_model_parallel_size}",
            "${mul:${..pipeline_model_parallel_size},${..tensor_model_parallel_size}}",
        ),
        ("${mul:${sizes.gtp},2}", "${mul:${mul:${sizes.gtp},2},${..tensor_model_parallel_size}}"),
        (
            "${oc.decode:${oc.env:A_SIZE_THAT_NOBODY_SETS,3}}",
            "${mul:${oc.decode:${oc.env:A_SIZE_THAT_NOBODY_SETS,3}},${..tensor_model_parallel_size}}",
        ),
    ],
)
@pytest.mark.parametrize("style", ["auto", "interpolation"])
def test_an_interpolated_size_is_kept(becomes: Becomes, size: str, shards: str, style: str) -> None:
    becomes({"a.yaml": recipe(size)}, {"a.yaml": recipe(shards, key=NEW)}, "--style", style)


@pytest.mark.launcher("grpo")
def test_an_interpolated_size_in_form_c(becomes: Becomes) -> None:
    """One level higher, a relative name has one dot less."""
    before = recipe("${..pipeline_model_parallel_size}")
    after = before.replace("    model_overrides:\n", "").replace(
        "      gtp_weight_remat_size: ${..pipeline_model_parallel_size}",
        f"    {NEW}: ${{mul:${{.pipeline_model_parallel_size}},${{.tensor_model_parallel_size}}}}",
    )
    becomes({"a.yaml": before}, {"a.yaml": after}, "--target", "megatron-cfg")


def test_literal_writes_the_number_of_an_interpolated_size(becomes: Becomes) -> None:
    becomes({"a.yaml": recipe("${sizes.gtp}")}, {"a.yaml": recipe("12", key=NEW)}, "--style", "literal")


def test_an_interpolated_size_that_leads_nowhere(stays: Stays) -> None:
    ran = stays({"a.yaml": recipe("${no.such.key}")})
    assert [line.split(": ")[0] for line in ran.problems] == ["a.yaml:7:7"]
    assert "no.such.key" in ran.problems[0] or "'no'" in ran.problems[0]


@pytest.mark.parametrize("value", ["2.5", "0", '"3"', "true"])
def test_an_interpolated_size_that_is_invalid(stays: Stays, value: str) -> None:
    ran = stays({"a.yaml": recipe("${sizes.gtp}").replace("gtp: 3", f"gtp: {value}")})
    assert len(ran.problems) == 1
    assert "positive integer" in ran.problems[0]


@pytest.mark.parametrize("size", ["${sizes.gtp}${sizes.etp}", "1${sizes.gtp}"])
def test_a_text_around_an_interpolation(stays: Stays, size: str) -> None:
    ran = stays({"a.yaml": recipe(size)})
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml:7:7: ")


def test_the_expert_size_refers_to_the_dense_one(becomes: Becomes) -> None:
    """What it refers to goes, so its number is written."""
    before = text(
        """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 4
            model_overrides:
              gtp_weight_remat_size: 3
              expert_gtp_weight_remat_size: ${.gtp_weight_remat_size}
        """
    )
    after = before.replace("gtp_weight_remat_size: 3", f"{NEW}: 12").replace(
        "expert_gtp_weight_remat_size: ${.gtp_weight_remat_size}", f"expert_{NEW}: 12"
    )
    becomes({"a.yaml": before}, {"a.yaml": after})


# -- the experts ---------------------------------------------------------------------------------------


def moe(parallel: str, size: str = "3", key: str = "expert_gtp_weight_remat_size") -> str:
    lines = "".join(f"    {line}\n" for line in parallel.split(", ") if line)
    head = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    return f"{head}{lines}    model_overrides:\n      {key}: {size}\n"


EXPERT_NEW = "expert_tensor_parallel_num_weight_shards"
EP8 = "expert_model_parallel_size: 8"
ETP2 = "expert_tensor_parallel_size: 2"


@pytest.mark.parametrize(
    ("parallel", "shards"),
    [
        ("", "12"),  # as TP
        ("expert_model_parallel_size: 1", "12"),
        (EP8, "3"),  # 1
        (ETP2, "6"),
        (f"{EP8}, {ETP2}", "6"),
        (f"{EP8}, expert_tensor_parallel_size: null", "3"),
        ("expert_tensor_parallel_size: null", "12"),
        ("expert_tensor_parallel_size: 1", "3"),
    ],
)
def test_etp(becomes: Becomes, parallel: str, shards: str) -> None:
    becomes({"a.yaml": moe(parallel)}, {"a.yaml": moe(parallel, shards, EXPERT_NEW)})


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize(
    ("parallel", "shards"),
    [
        ("", "${mul:3,${..tensor_model_parallel_size}}"),
        (EP8, "3"),
        (ETP2, "${mul:3,${..expert_tensor_parallel_size}}"),
        (f"{EP8}, {ETP2}", "${mul:3,${..expert_tensor_parallel_size}}"),
    ],
)
def test_etp_as_an_interpolation(becomes: Becomes, parallel: str, shards: str) -> None:
    becomes({"a.yaml": moe(parallel)}, {"a.yaml": moe(parallel, shards, EXPERT_NEW)}, "--style", "interpolation")


def test_the_two_axes_have_nothing_to_do_with_each_other(becomes: Becomes) -> None:
    before = moe(f"{EP8}, {ETP2}", "3\n      gtp_weight_remat_size: 5")
    after = moe(f"{EP8}, {ETP2}", f"6\n      {NEW}: 20", EXPERT_NEW)
    becomes({"a.yaml": before}, {"a.yaml": after})


@pytest.mark.launcher("grpo")
def test_a_child_with_an_etp(becomes: Becomes) -> None:
    child = "defaults: base.yaml\npolicy: {megatron_cfg: {expert_tensor_parallel_size: 1}}\n"
    becomes(
        {"base.yaml": moe(ETP2), "child.yaml": child},
        {"base.yaml": moe(ETP2, "${mul:3,${..expert_tensor_parallel_size}}", EXPERT_NEW)},
    )


def test_a_child_whose_etp_is_another_one_for_another_reason(becomes: Becomes) -> None:
    """No key holds the ETP of both (TP 4 in the base, 1 with EP 8 in the child): each gets its number."""
    child = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    expert_model_parallel_size: 8\n"
    becomes(
        {"base.yaml": moe(""), "child.yaml": child},
        {
            "base.yaml": moe("", "12", EXPERT_NEW),
            "child.yaml": f"{child}    model_overrides:\n      {EXPERT_NEW}: 3\n",
        },
    )


@pytest.mark.launcher("grpo")
def test_a_child_without_a_word_on_etp(becomes: Becomes) -> None:
    child = text(
        """
        defaults: base.yaml
        policy:
          megatron_cfg:
            model_overrides:
              expert_gtp_weight_remat_size: 2
        """
    )
    becomes(
        {"base.yaml": moe(ETP2), "child.yaml": child},
        {
            "base.yaml": moe(ETP2, "6", EXPERT_NEW),
            "child.yaml": child.replace(
                "expert_gtp_weight_remat_size: 2", f"{EXPERT_NEW}: ${{mul:2,${{..expert_tensor_parallel_size}}}}"
            ),
        },
    )


def test_etp_assumed(becomes: Becomes) -> None:
    ran = becomes({"a.yaml": moe("")}, {"a.yaml": moe("", "6", EXPERT_NEW)}, "--etp", "2", proven=False)
    assert "ETP 2 (--etp)" in ran.stderr


def test_an_etp_of_a_file_wins_over_the_assumed_one(becomes: Becomes) -> None:
    becomes({"a.yaml": moe(ETP2)}, {"a.yaml": moe(ETP2, "6", EXPERT_NEW)}, "--etp", "8")


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("style", ["auto", "literal", "interpolation"])
def test_no_etp_and_no_tp(stays: Stays, style: str) -> None:
    """Who supplies TP supplies ETP or not: `expert` needs one of them, and nothing is guessed."""
    ran = stays({"a.yaml": moe("").replace("    tensor_model_parallel_size: 4\n", "")}, "--style", style)
    assert [line.split(": ")[0] for line in ran.problems] == ["a.yaml:4:7"]


# -- old and new together ------------------------------------------------------------------------------


def both(old: str, new: str, between: str = "") -> str:
    return recipe(old) + between + f"      {NEW}: {new}\n"


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("new", ["12", '"${mul:3,${..tensor_model_parallel_size}}"', "0xC"])
def test_old_and_new_that_agree(becomes: Becomes, new: str) -> None:
    becomes({"a.yaml": both("3", new)}, {"a.yaml": recipe(new, key=NEW)})


def test_old_behind_new(becomes: Becomes) -> None:
    becomes({"a.yaml": recipe("12", key=NEW) + "      gtp_weight_remat_size: 3\n"}, {"a.yaml": recipe("12", key=NEW)})


def test_old_and_new_keep_every_comment(becomes: Becomes) -> None:
    becomes(
        {"a.yaml": both("3  # three", "12  # twelve", "      # the new one\n")},
        {
            "a.yaml": recipe("X", key=NEW).replace(
                f"      {NEW}: X\n", f"      # three\n      # the new one\n      {NEW}: 12  # twelve\n"
            )
        },
    )


def test_old_and_new_in_flow_style(becomes: Becomes) -> None:
    line = "policy: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {OLDNEW: 12, a: 1}}}\n"
    becomes(
        {"a.yaml": line.replace("OLDNEW", f"gtp_weight_remat_size: 3, {NEW}")},
        {"a.yaml": line.replace("OLDNEW", NEW)},
    )


def test_old_null_beside_new(becomes: Becomes) -> None:
    becomes({"a.yaml": both("null", "12")}, {"a.yaml": recipe("12", key=NEW)})


def test_old_null_beside_new_null(becomes: Becomes) -> None:
    becomes({"a.yaml": both("null", "null")}, {"a.yaml": recipe("null", key=NEW)})


def test_new_null_beside_old(becomes: Becomes) -> None:
    """Core takes the size where the count is null: the size is what the run has."""
    becomes({"a.yaml": both("3", "null")}, {"a.yaml": recipe("12", key=NEW)})


@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
def test_old_and_new_that_do_not_agree(stays: Stays, target: str) -> None:
    ran = stays({"a.yaml": both("3", "8")}, "--target", target)
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml:7:7: ")
    assert "size 3" in ran.problems[0]
    assert "8 shards" in ran.problems[0]
    assert "line 8" in ran.problems[0]


CHILD = text(
    """
    defaults: base.yaml
    policy:
      megatron_cfg:
        model_overrides:
          KEY: VALUE
    """
)


def child_of_base(key: str, value: str) -> str:
    return CHILD.replace("KEY", key).replace("VALUE", value)


def test_a_child_that_is_done_already(becomes: Becomes) -> None:
    becomes({"base.yaml": recipe("3"), "child.yaml": child_of_base(NEW, "12")}, {"base.yaml": recipe("12", key=NEW)})


def test_a_child_that_is_done_already_and_means_something_else(becomes: Becomes) -> None:
    """The new setting is the later word, and counts today already: 8 shards."""
    becomes({"base.yaml": recipe("3"), "child.yaml": child_of_base(NEW, "8")}, {"base.yaml": recipe("12", key=NEW)})


@pytest.mark.launcher("grpo")
def test_a_base_that_is_done_already(becomes: Becomes) -> None:
    becomes(
        {"base.yaml": recipe("12", key=NEW), "child.yaml": child_of_base("gtp_weight_remat_size", "3")},
        {"child.yaml": child_of_base(NEW, "${mul:3,${..tensor_model_parallel_size}}")},
    )


def test_a_base_that_is_done_and_a_child_that_means_something_else(stays: Stays) -> None:
    """Today the child's size is ignored, for a count wins over it. Nobody but its author knows what was meant."""
    ran = stays({"base.yaml": recipe("12", key=NEW), "child.yaml": child_of_base("gtp_weight_remat_size", "2")})
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("child.yaml:5:7: ")
    assert "size 2" in ran.problems[0]
    assert "12 shards, base.yaml:7" in ran.problems[0]


def test_a_new_null_over_an_old_size(stays: Stays) -> None:
    """Off was meant; today Core takes the inherited size. Both places are shown."""
    ran = stays({"base.yaml": recipe("3"), "off.yaml": child_of_base(NEW, "null")})
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("base.yaml:7:7: ")
    assert "off.yaml:5" in ran.problems[0]


def test_a_conflict_leaves_all_that_hangs_together_and_nothing_else(migrate: Migrate) -> None:
    files = {
        "base.yaml": both("3", "8"),
        "child.yaml": child_of_base("expert_gtp_weight_remat_size", "2"),
        "other.yaml": recipe("3"),
    }
    ran = migrate(files)
    assert ran.code == 3
    assert ran.files == {**files, "other.yaml": recipe("12", key=NEW)}


def test_only_new_settings_are_nothing_to_do(becomes: Becomes) -> None:
    ran = becomes({"a.yaml": recipe("12", key=NEW)}, {})
    assert "Nothing to migrate in 1 file." in ran.stderr


# -- references to the old key -------------------------------------------------------------------------


def test_another_value_that_refers_to_the_old_key(stays: Stays) -> None:
    ran = stays(
        {"a.yaml": recipe("3") + "batch: ${mul:8,${policy.megatron_cfg.model_overrides.gtp_weight_remat_size}}\n"}
    )
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml:8:1: batch refers to an old key")


def test_a_child_that_refers_to_the_old_key(stays: Stays) -> None:
    child = "defaults: base.yaml\nbatch: ${mul:8,${policy.megatron_cfg.model_overrides.gtp_weight_remat_size}}\n"
    ran = stays({"base.yaml": recipe("3"), "child.yaml": child})
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("child.yaml:2:1: batch refers to an old key")
