"""Inheritance by example: what the files were, and what they must become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Migrate, Ran, text

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]

BASE = text(
    """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        model_overrides:
          gtp_weight_remat_size: 3
    """
)
BASE_WITH_NUMBER = text(
    """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        model_overrides:
          tensor_parallel_num_weight_shards: 12
    """
)
BASE_WITH_INTERPOLATION = text(
    """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        model_overrides:
          tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}
    """
)
CHILD_WITH_TP = text(
    """
    defaults: base.yaml
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 8
    """
)
ONLY_TP = text(
    """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
    """
)


# -- one file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["auto", "literal"])
def test_a_number_where_it_is_right(becomes: Becomes, style: str) -> None:
    becomes({"base.yaml": BASE}, {"base.yaml": BASE_WITH_NUMBER}, "--style", style)


@pytest.mark.launcher("grpo")
def test_an_interpolation_where_it_is_asked_for(becomes: Becomes) -> None:
    becomes({"base.yaml": BASE}, {"base.yaml": BASE_WITH_INTERPOLATION}, "--style", "interpolation")


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("tp", ["${tp}", "${oc.decode:${oc.env:A_TP_THAT_NOBODY_SETS,4}}", "${max:2,${tp}}"])
def test_a_tp_from_elsewhere_gets_the_interpolation(becomes: Becomes, tp: str) -> None:
    before = """
        tp: 4
        policy:
          megatron_cfg:
            tensor_model_parallel_size: TP
            model_overrides:
              gtp_weight_remat_size: 3
        """.replace("TP", tp)
    after = before.replace(
        "gtp_weight_remat_size: 3",
        "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
    )
    becomes({"a.yaml": before}, {"a.yaml": after})


def test_literal_takes_the_number_of_a_tp_from_elsewhere(becomes: Becomes) -> None:
    becomes(
        {
            "a.yaml": """
                cluster: {gpus_per_node: 8}
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: ${cluster.gpus_per_node}
                    model_overrides:
                      gtp_weight_remat_size: 3
                """
        },
        {
            "a.yaml": """
                cluster: {gpus_per_node: 8}
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: ${cluster.gpus_per_node}
                    model_overrides:
                      tensor_parallel_num_weight_shards: 24
                """
        },
        "--style",
        "literal",
    )


def test_a_tp_that_is_a_text_is_an_error(stays: Stays) -> None:
    """`${oc.env:…}` is a string, which Core would not divide by."""
    ran = stays(
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: ${oc.env:A_TP_THAT_NOBODY_SETS,4}
                    model_overrides:
                      gtp_weight_remat_size: 3
                """
        }
    )
    assert len(ran.problems) == 1
    assert 'TP is the text "4"' in ran.problems[0]
    assert "oc.decode" in ran.problems[0]


# -- no TP in any file ---------------------------------------------------------------------------------

NO_TP = text(
    """
    policy:
      megatron_cfg:
        model_overrides:
          gtp_weight_remat_size: 3
    """
)


@pytest.mark.launcher("grpo")
def test_no_tp_anywhere(becomes: Becomes) -> None:
    after = NO_TP.replace(
        "gtp_weight_remat_size: 3",
        "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
    )
    becomes({"a.yaml": NO_TP}, {"a.yaml": after})


def test_no_tp_for_literal_names_the_way_out(stays: Stays) -> None:
    ran = stays({"a.yaml": NO_TP}, "--style", "literal")
    assert [line.split(": ")[0] for line in ran.problems] == ["a.yaml:4:7"]
    assert "--tp N" in ran.problems[0]


@pytest.mark.parametrize("style", ["auto", "literal"])
def test_tp_assumed(becomes: Becomes, style: str) -> None:
    after = NO_TP.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 15")
    ran = becomes({"a.yaml": NO_TP}, {"a.yaml": after}, "--style", style, "--tp", "5")
    assert "TP 5 (--tp)" in ran.stderr


def test_tp_of_a_file_wins_over_the_assumed_one(becomes: Becomes) -> None:
    becomes({"base.yaml": BASE}, {"base.yaml": BASE_WITH_NUMBER}, "--tp", "16", proven=False)


# -- a child -------------------------------------------------------------------------------------------


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("style", ["auto", "interpolation"])
def test_a_child_with_another_tp(becomes: Becomes, style: str) -> None:
    becomes({"base.yaml": BASE, "child.yaml": CHILD_WITH_TP}, {"base.yaml": BASE_WITH_INTERPOLATION}, "--style", style)


def test_literal_adds_the_number_of_a_child_with_another_tp(becomes: Becomes) -> None:
    ran = becomes(
        {"base.yaml": BASE, "child.yaml": CHILD_WITH_TP},
        {
            "base.yaml": BASE_WITH_NUMBER,
            "child.yaml": """
                defaults: base.yaml
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 8
                    model_overrides:
                      tensor_parallel_num_weight_shards: 24
                """,
        },
        "--style",
        "literal",
    )
    assert "2 settings in 2 files migrated" in ran.stderr


def test_literal_adds_to_overrides_that_are_there(becomes: Becomes) -> None:
    becomes(
        {
            "base.yaml": BASE,
            "child.yaml": """
                defaults: base.yaml
                policy:
                    megatron_cfg:
                        model_overrides:
                            hidden_dropout: 0.1  # as in the paper
                        tensor_model_parallel_size: 8
                """,
        },
        {
            "base.yaml": BASE_WITH_NUMBER,
            "child.yaml": """
                defaults: base.yaml
                policy:
                    megatron_cfg:
                        model_overrides:
                            hidden_dropout: 0.1  # as in the paper
                            tensor_parallel_num_weight_shards: 24
                        tensor_model_parallel_size: 8
                """,
        },
        "--style",
        "literal",
    )


def test_literal_adds_in_flow_style(becomes: Becomes) -> None:
    becomes(
        {
            "base.yaml": BASE,
            "child.yaml": """
                {defaults: base.yaml, policy: {megatron_cfg: {tensor_model_parallel_size: 8}}}
                """,
        },
        {
            "base.yaml": BASE_WITH_NUMBER,
            "child.yaml": """
                {defaults: base.yaml, policy: {megatron_cfg: {model_overrides: {tensor_parallel_num_weight_shards: 24}, tensor_model_parallel_size: 8}}}
                """,
        },
        "--style",
        "literal",
    )


def test_a_grandchild_gets_what_it_needs_once(becomes: Becomes) -> None:
    """The number that the child gets is right for the grandchild too: nothing is added to it."""
    grandchild = """
        defaults: child.yaml
        cluster: {num_nodes: 2}
        """
    child_after = CHILD_WITH_TP + "    model_overrides:\n      tensor_parallel_num_weight_shards: 24\n"
    becomes(
        {"base.yaml": BASE, "child.yaml": CHILD_WITH_TP, "grandchild.yaml": grandchild},
        {"base.yaml": BASE_WITH_NUMBER, "child.yaml": child_after},
        "--style",
        "literal",
    )


def test_a_child_with_the_same_tp_keeps_the_number(becomes: Becomes) -> None:
    child = CHILD_WITH_TP.replace("8", "4")
    becomes({"base.yaml": BASE, "child.yaml": child}, {"base.yaml": BASE_WITH_NUMBER})


@pytest.mark.launcher("grpo")
def test_the_child_sets_the_size(becomes: Becomes) -> None:
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            model_overrides:
              gtp_weight_remat_size: 3
        """
    becomes(
        {"base.yaml": ONLY_TP, "child.yaml": child},
        {
            "child.yaml": child.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


def test_literal_the_child_sets_the_size(becomes: Becomes) -> None:
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            model_overrides:
              gtp_weight_remat_size: 3
        """
    ran = becomes(
        {"base.yaml": ONLY_TP, "child.yaml": child},
        {"child.yaml": child.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")},
        "--style",
        "literal",
    )
    assert "TP 4 (base.yaml:3)" in ran.stderr


def test_a_child_switches_off(becomes: Becomes) -> None:
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            model_overrides:
              gtp_weight_remat_size: null
        """
    becomes(
        {"base.yaml": BASE, "off.yaml": child},
        {
            "base.yaml": BASE_WITH_NUMBER,
            "off.yaml": child.replace("gtp_weight_remat_size", "tensor_parallel_num_weight_shards"),
        },
    )


def test_a_child_that_switches_off_may_have_another_tp(becomes: Becomes) -> None:
    """Its TP says nothing about the number in the base: it does not get that number."""
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 8
            model_overrides: {gtp_weight_remat_size: null}
        """
    becomes(
        {"base.yaml": BASE, "off.yaml": child},
        {
            "base.yaml": BASE_WITH_NUMBER,
            "off.yaml": child.replace("gtp_weight_remat_size", "tensor_parallel_num_weight_shards"),
        },
    )


@pytest.mark.launcher("grpo")
def test_a_child_switches_off_with_size_one(becomes: Becomes) -> None:
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            model_overrides:
              gtp_weight_remat_size: 1
        """
    becomes(
        {"base.yaml": BASE, "one.yaml": child},
        {
            "base.yaml": BASE_WITH_NUMBER,
            "one.yaml": child.replace(
                "gtp_weight_remat_size: 1",
                "tensor_parallel_num_weight_shards: ${mul:1,${..tensor_model_parallel_size}}",
            ),
        },
    )


def test_a_child_that_drops_all_overrides(becomes: Becomes) -> None:
    """`model_overrides: null` wipes the inherited ones, and goes on doing so."""
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 8
            model_overrides: null
        """
    becomes({"base.yaml": BASE, "none.yaml": child}, {"base.yaml": BASE_WITH_NUMBER})


# -- a base without TP ---------------------------------------------------------------------------------


@pytest.mark.launcher("grpo")
def test_a_base_without_tp(becomes: Becomes) -> None:
    children = {
        f"tp{tp}.yaml": f"""
            defaults: base.yaml
            policy: {{megatron_cfg: {{tensor_model_parallel_size: {tp}}}}}
            """
        for tp in (2, 4)
    }
    becomes(
        {"base.yaml": NO_TP, **children},
        {
            "base.yaml": NO_TP.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


def test_literal_with_a_base_without_tp(stays: Stays) -> None:
    """Whatever number the base had, it would be another GTP with another TP on the command line."""
    children = {f"tp{tp}.yaml": "defaults: base.yaml\n" + ONLY_TP.replace("4", str(tp)) for tp in (2, 8)}
    ran = stays({"base.yaml": NO_TP, **children}, "--style", "literal")
    assert [line.split(": ")[0] for line in ran.problems] == ["base.yaml:4:7"]
    assert "gets no TP from any file" in ran.problems[0]
    assert "--tp N" in ran.problems[0]


@pytest.mark.launcher("grpo")
def test_a_missing_tp_of_three_question_marks(becomes: Becomes) -> None:
    base = BASE.replace(": 4", ": ???")
    becomes(
        {"base.yaml": base, "child.yaml": CHILD_WITH_TP},
        {"base.yaml": BASE_WITH_INTERPOLATION.replace(": 4", ": ???")},
        proven=False,
    )


def test_a_missing_size_of_three_question_marks(becomes: Becomes) -> None:
    """Whoever has to fill it in has to fill in the new one."""
    becomes(
        {"base.yaml": BASE.replace(": 3", ": ???"), "child.yaml": "defaults: base.yaml\n" + BASE},
        {
            "base.yaml": BASE_WITH_NUMBER.replace(": 12", ": ???"),
            "child.yaml": "defaults: base.yaml\n" + BASE_WITH_NUMBER,
        },
        proven=False,
    )


# -- several parents -----------------------------------------------------------------------------------

GTP3 = text(
    """
    policy:
      megatron_cfg:
        model_overrides: {gtp_weight_remat_size: 3}
    """
)
GTP3_AFTER = text(
    """
    policy:
      megatron_cfg:
        model_overrides: {tensor_parallel_num_weight_shards: "${mul:3,${..tensor_model_parallel_size}}"}
    """
)


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("order", ["[tp.yaml, gtp3.yaml]", "[gtp3.yaml, tp.yaml]"])
def test_two_parents(becomes: Becomes, order: str) -> None:
    becomes(
        {"tp.yaml": ONLY_TP, "gtp3.yaml": GTP3, "both.yaml": f"defaults: {order}\n"},
        {"gtp3.yaml": GTP3_AFTER},
    )


def test_the_later_of_two_parents_wins(becomes: Becomes) -> None:
    other = BASE.replace("4", "2").replace("3", "5")
    becomes(
        {"base.yaml": BASE, "other.yaml": other, "both.yaml": "defaults: [base.yaml, other.yaml]\n"},
        {
            "base.yaml": BASE_WITH_NUMBER,
            "other.yaml": BASE_WITH_NUMBER.replace("4", "2").replace("12", "10"),
        },
    )


@pytest.mark.launcher("grpo")
def test_a_parent_reached_twice(becomes: Becomes) -> None:
    becomes(
        {
            "base.yaml": BASE,
            "left.yaml": "defaults: base.yaml\na: 1\n",
            "right.yaml": CHILD_WITH_TP,
            "both.yaml": "defaults: [right.yaml, left.yaml]\n",
        },
        {"base.yaml": BASE_WITH_INTERPOLATION},
    )


@pytest.mark.launcher("grpo")
def test_paths_are_relative_to_the_file(becomes: Becomes) -> None:
    becomes(
        {
            "configs/base.yaml": BASE,
            "configs/recipes/llm/child.yaml": CHILD_WITH_TP.replace("base.yaml", "../../base.yaml"),
            "base.yaml": "policy: {megatron_cfg: {tensor_model_parallel_size: 1}}\n",
        },
        {"configs/base.yaml": BASE_WITH_INTERPOLATION},
    )


@pytest.mark.launcher("grpo")
def test_a_parent_with_another_suffix(becomes: Becomes) -> None:
    """A parent is a parent whatever it is called; only recipes are looked for by name."""
    child = """
        defaults: base.cfg
        policy:
          megatron_cfg:
            model_overrides:
              gtp_weight_remat_size: 3
        """
    becomes(
        {"base.cfg": ONLY_TP, "child.yml": child},
        {
            "child.yml": child.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


# -- _override_ ----------------------------------------------------------------------------------------


def test_override_at_the_top_drops_what_is_inherited(becomes: Becomes) -> None:
    """The child has no GTP at all: its TP does not matter to the number in the base."""
    child = """
        defaults: base.yaml
        policy:
          _override_: true
          megatron_cfg:
            tensor_model_parallel_size: 8
        """
    becomes({"base.yaml": BASE, "child.yaml": child}, {"base.yaml": BASE_WITH_NUMBER})


@pytest.mark.launcher("grpo")
def test_override_deeper_down_is_just_a_key(becomes: Becomes) -> None:
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            _override_: true
            tensor_model_parallel_size: 8
        """
    becomes({"base.yaml": BASE, "child.yaml": child}, {"base.yaml": BASE_WITH_INTERPOLATION})


@pytest.mark.launcher("grpo")
def test_override_false_is_no_override(becomes: Becomes) -> None:
    child = """
        defaults: base.yaml
        policy:
          _override_: false
          megatron_cfg:
            tensor_model_parallel_size: 8
        """
    becomes({"base.yaml": BASE, "child.yaml": child}, {"base.yaml": BASE_WITH_INTERPOLATION})


# -- merge keys, anchors, aliases ----------------------------------------------------------------------

TEACHER = text(
    """
    policy:
      megatron_cfg: &BASE
        tensor_model_parallel_size: 2
        model_overrides:
          gtp_weight_remat_size: 3
    teacher:
      megatron_cfg:
        <<: *BASE
        tensor_model_parallel_size: 8
    """
)


@pytest.mark.launcher("grpo")
def test_a_merge_key_with_another_tp(becomes: Becomes) -> None:
    becomes(
        {"a.yaml": TEACHER},
        {
            "a.yaml": TEACHER.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


def test_a_merge_key_with_the_same_tp(becomes: Becomes) -> None:
    before = TEACHER.replace("    tensor_model_parallel_size: 8\n", "    context_parallel_size: 2\n")
    becomes(
        {"a.yaml": before},
        {"a.yaml": before.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 6")},
    )


def test_literal_with_a_merge_key_and_another_tp(becomes: Becomes) -> None:
    """The teacher gets overrides of its own, which hide the merged ones: all of those are in it."""
    shelf = TEACHER.replace("gtp_weight_remat_size: 3", "gtp_weight_remat_size: 3\n      hidden_dropout: 0.1")
    after = shelf.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 6")
    own = "    model_overrides:\n      hidden_dropout: 0.1\n      tensor_parallel_num_weight_shards: 24\n"
    becomes({"a.yaml": shelf}, {"a.yaml": after + own}, "--style", "literal")


@pytest.mark.launcher("grpo")
def test_a_child_of_a_recipe_with_a_merge_key(becomes: Becomes) -> None:
    """The merge is the parent's own: a child that changes the policy's TP does not change the teacher's."""
    before = TEACHER.replace("    tensor_model_parallel_size: 8\n", "    context_parallel_size: 2\n")
    child = CHILD_WITH_TP.replace("base.yaml", "a.yaml")
    becomes(
        {"a.yaml": before, "child.yaml": child},
        {
            "a.yaml": before.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


@pytest.mark.launcher("grpo")
def test_an_alias_gives_it_another_tp(becomes: Becomes) -> None:
    before = """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 2
            model_overrides: &GTP
              gtp_weight_remat_size: 3
        teacher:
          megatron_cfg:
            tensor_model_parallel_size: 8
            model_overrides: *GTP
        """
    becomes(
        {"a.yaml": before},
        {
            "a.yaml": before.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


def test_overrides_merged_from_a_shelf(becomes: Becomes) -> None:
    """The text stands outside any `megatron_cfg`, and is brought into one by `<<`."""
    before = """
        shelf: &GTP {gtp_weight_remat_size: 3}
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 4
            model_overrides:
              <<: *GTP
              hidden_dropout: 0.0
        """
    becomes(
        {"a.yaml": before},
        {"a.yaml": before.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")},
    )


def test_a_whole_megatron_cfg_by_alias(becomes: Becomes) -> None:
    before = """
        policy:
          megatron_cfg: &M
            tensor_model_parallel_size: 4
            model_overrides: {gtp_weight_remat_size: 3}
        reference:
          megatron_cfg: *M
        """
    becomes(
        {"a.yaml": before},
        {"a.yaml": before.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")},
    )


def test_a_whole_megatron_cfg_by_interpolation(becomes: Becomes) -> None:
    before = """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 4
            model_overrides:
              gtp_weight_remat_size: 3
        teacher:
          megatron_cfg: ${policy.megatron_cfg}
        """
    becomes(
        {"a.yaml": before},
        {"a.yaml": before.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")},
    )


@pytest.mark.launcher("grpo")
def test_overrides_by_interpolation_under_another_tp(becomes: Becomes) -> None:
    """A relative interpolation would be resolved where the overrides stand: only numbers keep both right."""
    before = """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 2
            model_overrides:
              gtp_weight_remat_size: 3
        """
    child = """
        defaults: base.yaml
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 4
        value:
          megatron_cfg:
            tensor_model_parallel_size: 4
            model_overrides: ${policy.megatron_cfg.model_overrides}
        """
    becomes(
        {"base.yaml": before, "child.yaml": child},
        {
            "base.yaml": before.replace(
                "gtp_weight_remat_size: 3",
                "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
            )
        },
    )


# -- holders -------------------------------------------------------------------------------------------


HOLDERS = [
    "policy:\n  megatron_cfg: MC\n",
    "teacher:\n  megatron_cfg: MC\n",
    "value:\n  megatron_cfg: MC\n",
    "my_own_model:\n  megatron_cfg: MC\n",
    "a:\n  b:\n    c:\n      d:\n        megatron_cfg: MC\n",
    "megatron_cfg: MC\n",
    "7: {megatron_cfg: MC}\n",
    "with a blank: {megatron_cfg: MC}\n",
    "a:\n  megatron_cfg:\n    inner: {megatron_cfg: MC}\n",
]
IN_LISTS = ["teachers:\n- megatron_cfg: MC\n- megatron_cfg: MC\n", "a: [[{b: {megatron_cfg: MC}}]]\n"]


def holding(holder: str, key: str, value: str) -> str:
    return holder.replace("MC", f"{{tensor_model_parallel_size: 2, model_overrides: {{{key}: {value}}}}}")


@pytest.mark.parametrize("style", ["auto", "literal"])
@pytest.mark.parametrize("holder", [*HOLDERS, *IN_LISTS])
def test_every_holder(becomes: Becomes, holder: str, style: str) -> None:
    before = holding(holder, "gtp_weight_remat_size", "3")
    after = holding(holder, "tensor_parallel_num_weight_shards", "6")
    becomes({"a.yaml": before}, {"a.yaml": after}, "--style", style)


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("holder", [*HOLDERS, *IN_LISTS])
def test_every_holder_with_an_interpolation(becomes: Becomes, holder: str) -> None:
    before = holding(holder, "gtp_weight_remat_size", "3")
    after = holding(holder, "tensor_parallel_num_weight_shards", '"${mul:3,${..tensor_model_parallel_size}}"')
    becomes({"a.yaml": before}, {"a.yaml": after}, "--style", "interpolation")


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("holder", [*HOLDERS, *IN_LISTS])
def test_every_holder_where_resolvers_are_known(becomes: Becomes, holder: str) -> None:
    """A number where TP stands beside it, whoever starts it."""
    before = holding(holder, "gtp_weight_remat_size", "3")
    becomes({"a.yaml": before}, {"a.yaml": holding(holder, "tensor_parallel_num_weight_shards", "6")})


# -- files outside the given paths ---------------------------------------------------------------------


def test_a_parent_outside_is_read(becomes: Becomes) -> None:
    child = """
        defaults: ../base.yaml
        policy: {megatron_cfg: {model_overrides: {gtp_weight_remat_size: 3}}}
        """
    becomes(
        {"base.yaml": ONLY_TP, "mine/child.yaml": child},
        {"mine/child.yaml": child.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")},
        "--style",
        "literal",
        paths=("mine",),
    )


def test_a_parent_outside_that_holds_an_old_setting_is_said(stays: Stays) -> None:
    ran = stays({"base.yaml": BASE, "mine/child.yaml": "defaults: ../base.yaml\n"}, paths=("mine",))
    assert len(ran.problems) == 1
    assert (
        ran.problems[0].startswith(("base.yaml:5:7: ", f"{Path('base.yaml')}:5:7: "))
        or "base.yaml:5:7: " in (ran.problems[0])
    )
    assert "mine/child.yaml" in ran.problems[0]
    assert "outside the given paths" in ran.problems[0]


def test_a_parent_outside_that_holds_an_old_setting_and_a_child_with_one(migrate: Migrate) -> None:
    """The child's own word wins over what it inherits, so it can be migrated; the parent is said."""
    child = """
        defaults: ../base.yaml
        policy: {megatron_cfg: {tensor_model_parallel_size: 2, model_overrides: {gtp_weight_remat_size: 2}}}
        """
    ran = migrate({"base.yaml": BASE, "mine/child.yaml": child}, paths=("mine",))
    assert ran.code == 3
    assert "base.yaml:5:7: " in ran.stderr
    assert ran.files["base.yaml"] == BASE


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("given", ["base.yaml", "./base.yaml"])
def test_a_base_given_alone_stays_right_for_its_children(becomes: Becomes, tmp_path: Path, given: str) -> None:
    """Wherever they are in the checkout."""
    (tmp_path / "work" / ".git").mkdir()
    child = CHILD_WITH_TP.replace("base.yaml", "../../base.yaml")
    becomes({"base.yaml": BASE, "far/away/child.yaml": child}, {"base.yaml": BASE_WITH_INTERPOLATION}, paths=(given,))


@pytest.mark.launcher("grpo")
def test_outside_a_checkout_nothing_beyond_the_given_paths_is_read(becomes: Becomes) -> None:
    """Nor is what lies beside: in a temporary or a home folder that may be anything."""
    files = {"base.yaml": BASE, "child.yaml": CHILD_WITH_TP}
    becomes(files, {"base.yaml": BASE_WITH_NUMBER}, paths=("base.yaml",), proven=False)


def test_literal_with_a_base_given_alone_leaves_it(stays: Stays, tmp_path: Path) -> None:
    """The child needs a number of its own, and is not ours to write."""
    (tmp_path / "work" / ".git").mkdir()
    ran = stays({"base.yaml": BASE, "child.yaml": CHILD_WITH_TP}, "--style", "literal", paths=("base.yaml",))
    assert any("child.yaml" in line for line in ran.problems)


def test_literal_with_an_excluded_child(migrate: Migrate) -> None:
    """It blocks nobody: the base is written, and the child that it is no longer right for is said."""
    ran = migrate({"base.yaml": BASE, "child.yaml": CHILD_WITH_TP}, "--style", "literal", "--exclude", "child.yaml")
    assert ran.code == 3
    assert ran.files == {"base.yaml": BASE_WITH_NUMBER, "child.yaml": CHILD_WITH_TP}
    assert [line.split(": ")[0] for line in ran.problems] == ["child.yaml"]
    assert "left out on purpose" in ran.problems[0]


@pytest.mark.launcher("grpo")
def test_an_excluded_child_is_still_thought_of(becomes: Becomes) -> None:
    becomes(
        {"base.yaml": BASE, "child.yaml": CHILD_WITH_TP},
        {"base.yaml": BASE_WITH_INTERPOLATION},
        "--exclude",
        "child.yaml",
    )


def test_children_elsewhere_that_hold_old_settings_are_not_touched(becomes: Becomes) -> None:
    child = """
        defaults: ../base.yaml
        policy: {megatron_cfg: {model_overrides: {gtp_weight_remat_size: 2}}}
        """
    becomes(
        {"mine/base.yaml": ONLY_TP, "mine/a.yaml": BASE, "other/child.yaml": child.replace("../", "../mine/")},
        {"mine/a.yaml": BASE_WITH_NUMBER},
        paths=("mine",),
        proven=False,
    )


def test_a_broken_file_elsewhere_does_not_matter(becomes: Becomes, tmp_path: Path) -> None:
    (tmp_path / "work" / ".git").mkdir()
    becomes(
        {"mine/base.yaml": BASE, "other/broken.yaml": "gtp_weight_remat_size: [\n"},
        {"mine/base.yaml": BASE_WITH_NUMBER},
        paths=("mine",),
        proven=False,
    )


#: What a person has to look at, in a recipe that is given.
CONFLICT = """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        model_overrides: {gtp_weight_remat_size: 3, tensor_parallel_num_weight_shards: 8}
    """


def test_a_conflict_elsewhere_does_not_matter(becomes: Becomes, tmp_path: Path) -> None:
    (tmp_path / "work" / ".git").mkdir()
    becomes(
        {"mine/base.yaml": BASE, "other/conflict.yaml": CONFLICT},
        {"mine/base.yaml": BASE_WITH_NUMBER},
        paths=("mine",),
        proven=False,
    )


def test_a_conflict_elsewhere_with_a_setting_of_a_given_file_is_said(stays: Stays, tmp_path: Path) -> None:
    """Nobody can tell what is to become of the given file for the recipe that inherits from it."""
    (tmp_path / "work" / ".git").mkdir()
    child = """
        defaults: ../mine/base.yaml
        policy: {megatron_cfg: {model_overrides: {tensor_parallel_num_weight_shards: null}}}
        """
    ran = stays({"mine/base.yaml": BASE, "other/child.yaml": child}, paths=("mine",))
    assert "say different things in " in ran.stderr
    assert "other/child.yaml" in ran.stderr
