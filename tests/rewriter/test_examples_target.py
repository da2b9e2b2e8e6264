"""Form C by example: out of `model_overrides`, into the `megatron_cfg` itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import oracle
from .conftest import Migrate, Ran, text

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]

C = ("--target", "megatron-cfg")
OLD = "gtp_weight_remat_size"
NEW = "tensor_parallel_num_weight_shards"


def test_the_last_override_moves_out(becomes: Becomes) -> None:
    """Neither a dangling `model_overrides:` nor an empty husk stays."""
    becomes(
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    model_overrides:
                      gtp_weight_remat_size: 3
                    sequence_parallel: true
                """
        },
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    tensor_parallel_num_weight_shards: 12
                    sequence_parallel: true
                """
        },
        *C,
    )


def test_both_axes_move_out(becomes: Becomes) -> None:
    becomes(
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    model_overrides:
                      gtp_weight_remat_size: 3
                      expert_gtp_weight_remat_size: 2
                """
        },
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    tensor_parallel_num_weight_shards: 12
                    expert_tensor_parallel_num_weight_shards: 8
                """
        },
        *C,
    )


def test_other_overrides_stay(becomes: Becomes) -> None:
    becomes(
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    model_overrides:
                      hidden_dropout: 0.0  # off
                      gtp_weight_remat_size: 3
                      # for the long runs
                      attention_dropout: 0.0
                """
        },
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    tensor_parallel_num_weight_shards: 12
                    model_overrides:
                      hidden_dropout: 0.0  # off
                      # for the long runs
                      attention_dropout: 0.0
                """
        },
        *C,
    )


def test_its_comments_move_along(becomes: Becomes) -> None:
    becomes(
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    # what is handed to the provider
                    model_overrides:  # as it is
                      hidden_dropout: 0.0
                      # three groups
                      # of ranks
                      gtp_weight_remat_size: 3  # 12 ranks
                      attention_dropout: 0.0
                """
        },
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    # three groups
                    # of ranks
                    tensor_parallel_num_weight_shards: 12  # 12 ranks
                    # what is handed to the provider
                    model_overrides:  # as it is
                      hidden_dropout: 0.0
                      attention_dropout: 0.0
                """
        },
        *C,
    )


COMMENTS = ("# above", "# at the overrides", "# above the size", "# at the size", "# below")


def test_no_comment_is_lost_with_the_last_override(migrate: Migrate) -> None:
    ran = migrate(
        {
            "a.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    # above
                    model_overrides:  # at the overrides
                      # above the size
                      gtp_weight_remat_size: 3  # at the size
                      # below
                """
        },
        *C,
    )
    assert ran.code == 0, ran.stderr
    after = ran.files["a.yaml"]
    assert isinstance(after, str)
    assert [after.count(f"{comment}\n") for comment in COMMENTS] == [1] * 5
    assert "    tensor_parallel_num_weight_shards: 12  # at the size\n" in after
    assert "model_overrides" not in after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{{{OLD}: 3}}", f"MC: {NEW}: 12"),
        (f"{{{OLD}: 3}}  # why", f"MC: {NEW}: 12  # why"),
        (f"{{a: 1, {OLD}: 3, b: 2}}", f"MC: {NEW}: 12\n    model_overrides: {{a: 1, b: 2}}"),
        (f"{{{OLD}: 3, b: 2}}", f"MC: {NEW}: 12\n    model_overrides: {{b: 2}}"),
        (f"{{a: 1, {OLD}: 3}}", f"MC: {NEW}: 12\n    model_overrides: {{a: 1}}"),
        (f"{{ a: 1, {OLD}: 3 }}", f"MC: {NEW}: 12\n    model_overrides: {{ a: 1 }}"),
    ],
)
def test_flow_style_in_block_style(becomes: Becomes, before: str, after: str) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    X\n    sequence_parallel: true\n"
    becomes(
        {"a.yaml": shape.replace("X", f"model_overrides: {before}")},
        {"a.yaml": shape.replace("X", after.removeprefix("MC: "))},
        *C,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"model_overrides: {{{OLD}: 3}}", f"{NEW}: 12"),
        (f"model_overrides: {{{OLD}: 3}}, pp: 2", f"{NEW}: 12, pp: 2"),
        (f"model_overrides: {{a: 1, {OLD}: 3}}", f"{NEW}: 12, model_overrides: {{a: 1}}"),
        (
            f"model_overrides: {{{OLD}: 3, expert_{OLD}: 2}}",
            f"{NEW}: 12, expert_{NEW}: 8",
        ),
    ],
)
def test_flow_style_in_flow_style(becomes: Becomes, before: str, after: str) -> None:
    shape = "policy: {megatron_cfg: {tensor_model_parallel_size: 4, X}}\n"
    becomes({"a.yaml": shape.replace("X", before)}, {"a.yaml": shape.replace("X", after)}, *C)


@pytest.mark.launcher("grpo")
def test_only_the_overrides_in_the_megatron_cfg_of_a_child(becomes: Becomes) -> None:
    """The child's TP is not in its file, and one level up the interpolation has one dot."""
    becomes(
        {
            "base.yaml": "policy: {megatron_cfg: {tensor_model_parallel_size: 4}}\n",
            "child.yaml": """
                defaults: base.yaml
                policy:
                  megatron_cfg:
                    model_overrides:
                      gtp_weight_remat_size: 3
                """,
        },
        {
            "child.yaml": """
                defaults: base.yaml
                policy:
                  megatron_cfg:
                    tensor_parallel_num_weight_shards: ${mul:3,${.tensor_model_parallel_size}}
                """
        },
        *C,
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_bytes_around_a_move(becomes: Becomes, newline: str, bom: str, end: str) -> None:
    head = ["policy:", "  megatron_cfg:", "    tensor_model_parallel_size: 4"]
    before = newline.join([*head, "    model_overrides:", f"      {OLD}: 3"])
    after = newline.join([*head, f"    {NEW}: 12"])
    becomes(
        {"a.yaml": (bom + before + newline * len(end)).encode()},
        {"a.yaml": (bom + after + newline * len(end)).encode()},
        *C,
    )


def test_null_moves_too(becomes: Becomes) -> None:
    child = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n"
    base = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    becomes(
        {
            "base.yaml": f"{base}    model_overrides:\n      {OLD}: 3\n",
            "off.yaml": f"{child}    model_overrides:\n      {OLD}: null\n",
        },
        {"base.yaml": f"{base}    {NEW}: 12\n", "off.yaml": f"{child}    {NEW}: null\n"},
        *C,
    )


def test_literal_adds_in_form_c(becomes: Becomes) -> None:
    base = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    child = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 8  # wide\n    a: 1\n"
    becomes(
        {"base.yaml": f"{base}    model_overrides:\n      {OLD}: 3\n", "child.yaml": child},
        {"base.yaml": f"{base}    {NEW}: 12\n", "child.yaml": child.replace("    a: 1", f"    {NEW}: 24\n    a: 1")},
        *C,
        "--style",
        "literal",
    )


@pytest.mark.launcher("grpo")
def test_a_merge_key_with_another_tp(becomes: Becomes) -> None:
    before = text(
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
    becomes(
        {"a.yaml": before},
        {
            "a.yaml": before.replace("    model_overrides:\n", "").replace(
                f"      {OLD}: 3", f"    {NEW}: ${{mul:3,${{.tensor_model_parallel_size}}}}"
            )
        },
        *C,
    )


# -- what would mean something else --------------------------------------------------------------------


def test_overrides_that_hide_merged_ones_stay_as_a_husk(becomes: Becomes) -> None:
    """Without `model_overrides: {}` the teacher would get the policy's dropout."""
    becomes(
        {
            "a.yaml": """
                policy:
                  megatron_cfg: &BASE
                    tensor_model_parallel_size: 2
                    model_overrides:
                      hidden_dropout: 0.1
                teacher:
                  megatron_cfg:
                    <<: *BASE
                    model_overrides:
                      gtp_weight_remat_size: 3
                """
        },
        {
            "a.yaml": """
                policy:
                  megatron_cfg: &BASE
                    tensor_model_parallel_size: 2
                    model_overrides:
                      hidden_dropout: 0.1
                teacher:
                  megatron_cfg:
                    <<: *BASE
                    model_overrides: {}
                    tensor_parallel_num_weight_shards: 6
                """
        },
        *C,
    )


@pytest.mark.launcher("grpo")
def test_a_child_that_inherits_other_overrides_keeps_them(becomes: Becomes) -> None:
    """`model_overrides:` with nothing behind it would be null, and wipe the inherited ones."""
    ran = becomes(
        {
            "base.yaml": """
                policy:
                  megatron_cfg:
                    tensor_model_parallel_size: 4
                    model_overrides: {hidden_dropout: 0.1}
                """,
            "child.yaml": """
                defaults: base.yaml
                policy:
                  megatron_cfg:
                    model_overrides:
                      gtp_weight_remat_size: 3
                """,
        },
        {
            "child.yaml": """
                defaults: base.yaml
                policy:
                  megatron_cfg:
                    tensor_parallel_num_weight_shards: ${mul:3,${.tensor_model_parallel_size}}
                """
        },
        *C,
    )
    assert ran.problems == []


def test_anchored_overrides_that_are_used_elsewhere(migrate: Migrate, tmp_path: Path) -> None:
    """They are under two holders: moved out of one, they would be gone from the other. Each gets its own."""
    ran = migrate(
        {
            "a.yaml": """
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
        },
        *C,
    )
    assert ran.code == 0, ran.stderr
    path = tmp_path / "work" / "a.yaml"
    assert oracle.topologies(path, typed=True) == {
        ("policy", "megatron_cfg"): (2, 2, 3, 1),
        ("teacher", "megatron_cfg"): (8, 8, 3, 1),
    }
    assert oracle.old_keys(path) == []


# -- form B to form C ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "c"),
    [
        ("12", "12"),
        ("null", "null"),
        ("${mul:3,${..tensor_model_parallel_size}}", "${mul:3,${.tensor_model_parallel_size}}"),
        (
            "'${mul:3,${policy.megatron_cfg.tensor_model_parallel_size}}'",
            "'${mul:3,${policy.megatron_cfg.tensor_model_parallel_size}}'",
        ),
        ("${mul:${...size},4}", "${mul:${..size},4}"),
    ],
)
def test_form_b_moves_to_form_c(becomes: Becomes, b: str, c: str) -> None:
    shape = "policy:\n  size: 3\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    becomes(
        {"a.yaml": f"{shape}    model_overrides:\n      {NEW}: {b}  # why\n"},
        {"a.yaml": f"{shape}    {NEW}: {c}  # why\n"},
        *C,
    )


def test_form_b_stays_where_it_is_wanted(becomes: Becomes) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    model_overrides:\n"
    becomes({"a.yaml": f"{shape}      {NEW}: 12\n"}, {})


def test_form_b_and_c_that_agree(becomes: Becomes) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    becomes(
        {"a.yaml": f"{shape}    {NEW}: 12\n    model_overrides:\n      {NEW}: 12\n      a: 1\n"},
        {"a.yaml": f"{shape}    {NEW}: 12\n    model_overrides:\n      a: 1\n"},
        *C,
    )


def test_form_b_and_c_that_do_not_agree(stays: Stays) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    ran = stays({"a.yaml": f"{shape}    {NEW}: 12\n    model_overrides:\n      {NEW}: 8\n"}, *C)
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml:6:7: ")
    assert "12" in ran.problems[0]
    assert "8" in ran.problems[0]


def test_form_a_and_c_that_agree(becomes: Becomes) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    becomes(
        {"a.yaml": f"{shape}    {NEW}: 12\n    model_overrides:\n      {OLD}: 3\n"},
        {"a.yaml": f"{shape}    {NEW}: 12\n"},
        *C,
    )


def test_form_a_b_and_c_that_agree(becomes: Becomes) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    becomes(
        {"a.yaml": f"{shape}    {NEW}: 12\n    model_overrides:\n      {OLD}: 3\n      {NEW}: 12\n"},
        {"a.yaml": f"{shape}    {NEW}: 12\n"},
        *C,
    )


def test_form_a_and_c_that_do_not_agree(stays: Stays) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    ran = stays({"a.yaml": f"{shape}    {NEW}: 8\n    model_overrides:\n      {OLD}: 3\n"}, *C)
    assert len(ran.problems) == 1
    assert "size 3" in ran.problems[0]
    assert "8 shards" in ran.problems[0]


# -- form C where NeMo-RL does not type it -------------------------------------------------------------


def test_form_c_that_is_ignored_is_left_and_said(stays: Stays) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    ran = stays({"a.yaml": f"{shape}    {NEW}: 12\n"}, "--target", "model-overrides")
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith(f"a.yaml:4:5: policy.megatron_cfg.{NEW} is ignored by this NeMo-RL")
    assert "GTP is off today" in ran.problems[0]


def test_form_c_of_null_is_nothing_to_say(becomes: Becomes) -> None:
    becomes({"a.yaml": f"policy: {{megatron_cfg: {{tensor_model_parallel_size: 4, {NEW}: null}}}}\n"}, {})


def test_form_c_is_done_where_nemo_rl_types_it(becomes: Becomes) -> None:
    becomes({"a.yaml": f"policy: {{megatron_cfg: {{tensor_model_parallel_size: 4, {NEW}: 12}}}}\n"}, {}, *C)


def test_the_rest_is_done_beside_an_ignored_one(migrate: Migrate) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    ran = migrate({"c.yaml": f"{shape}    {NEW}: 12\n", "a.yaml": f"{shape}    model_overrides:\n      {OLD}: 3\n"})
    assert ran.code == 3
    assert ran.files == {
        "c.yaml": f"{shape}    {NEW}: 12\n",
        "a.yaml": f"{shape}    model_overrides:\n      {NEW}: 12\n",
    }
