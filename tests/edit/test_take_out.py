"""Moving and dropping by example: before → after."""

from __future__ import annotations

import pytest

from gtp_migrate.edit import EditError
from gtp_migrate.plan.changes import Add

from .texts import EXPERT_NEW, EXPERT_OLD, NEW, OLD, Asked, becomes, drop, edited, move, replace, spot, text

BOTH = (move("12"), move("8", EXPERT_OLD, EXPERT_NEW))


def test_move_with_its_comments() -> None:
    becomes(
        """
        megatron_cfg:
          a: 1
          # what is handed on
          model_overrides:  # as it is
            hidden_dropout: 0.0
            # three groups
            # of ranks
            gtp_weight_remat_size: 3  # 12 ranks
            # after
            b: 1
        """,
        """
        megatron_cfg:
          a: 1
          # three groups
          # of ranks
          tensor_parallel_num_weight_shards: 12  # 12 ranks
          # what is handed on
          model_overrides:  # as it is
            hidden_dropout: 0.0
            # after
            b: 1
        """,
        move("12"),
    )


def test_comments_of_another_depth_stay() -> None:
    becomes(
        f"a:\n  model_overrides:\n    b: 1\n  # outer\n    # inner\n    {OLD}: 3\n",
        f"a:\n  # inner\n  {NEW}: 12\n  model_overrides:\n    b: 1\n  # outer\n",
        move("12"),
    )
    becomes(
        f"a:\n    # inner\n  # outer\n  model_overrides:\n    {OLD}: 3\n    b: 1\n",
        f"a:\n    # inner\n  {NEW}: 12\n  # outer\n  model_overrides:\n    b: 1\n",
        move("12"),
    )


def test_a_new_key_that_is_dropped_in_the_same_go() -> None:
    becomes(f"a:\n  {OLD}: 3\n  {NEW}: null\n", f"a:\n  {NEW}: 12\n", replace("12"), drop(NEW))
    becomes(
        f"a:\n  model_overrides:\n    {OLD}: 3\n    {NEW}: null\n",
        f"a:\n  {NEW}: 12\n",
        move("12"),
        drop(NEW),
    )


def test_move_the_last_one() -> None:
    becomes(
        """
        megatron_cfg:
          a: 1
          # above
          model_overrides:  # at the overrides
            # above the size

            gtp_weight_remat_size: 3  # at the size
            expert_gtp_weight_remat_size: 2
            # below
          b: 1
        """,
        """
        megatron_cfg:
          a: 1
          # above
          # at the overrides
          # above the size

          tensor_parallel_num_weight_shards: 12  # at the size
          expert_tensor_parallel_num_weight_shards: 8
            # below
          b: 1
        """,
        *BOTH,
    )


@pytest.mark.parametrize("holder", ["megatron_cfg", "mcore_generation_config", "megatron_cfg_overrides", "math"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"\n  model_overrides:\n    {OLD}: 3\n", f"\n  {NEW}: 12\n"),
        (f"\n  model_overrides: {{{OLD}: 3, b: 1}}\n", f"\n  {NEW}: 12\n  model_overrides: {{b: 1}}\n"),
        (f" {{model_overrides: {{{OLD}: 3}}}}\n", f" {{{NEW}: 12}}\n"),
    ],
)
def test_move_into_any_holder(holder: str, before: str, after: str) -> None:
    becomes(f"{holder}:{before}", f"{holder}:{after}", move("12"))


def test_move_into_an_item_of_a_list_and_the_root() -> None:
    becomes(f"- model_overrides:\n    {OLD}: 3  # why\n  b: 1\n", f"- {NEW}: 12  # why\n  b: 1\n", move("12"))
    becomes(f"- model_overrides: {{{OLD}: 3}}  # why\n", f"- {NEW}: 12  # why\n", move("12"))
    becomes(f"- model_overrides:\n    a: 1\n    {OLD}: 3\n", f"- {NEW}: 12\n  model_overrides:\n    a: 1\n", move("12"))
    becomes(f"model_overrides:\n  {OLD}: 3", f"{NEW}: 12", move("12"))


FLOW: list[tuple[str, str, tuple[Asked, ...]]] = [
    (f"m: {{{OLD}: 3}}  # why", f"{NEW}: 12  # why", (move("12"),)),
    (f"m: {{a: 1, {OLD}: 3, b: 2}}", f"{NEW}: 12\n  m: {{a: 1, b: 2}}", (move("12"),)),
    (f"m: {{ a: 1, {OLD}: 3 }}", f"{NEW}: 12\n  m: {{ a: 1 }}", (move("12"),)),
    (f"m: {{a: 1, {OLD}: 3, {EXPERT_OLD}: 2}}", f"{NEW}: 12\n  {EXPERT_NEW}: 8\n  m: {{a: 1}}", BOTH),
    (f"m: {{{OLD}: 3, {EXPERT_OLD}: 2}}", f"{NEW}: 12\n  {EXPERT_NEW}: 8", BOTH),
    (f"m: {{{OLD}: 3, a: 1}}", "m: {a: 1}", (drop(),)),
]


@pytest.mark.parametrize(("before", "after", "changes"), FLOW)
def test_flow_in_block(before: str, after: str, changes: tuple[Asked, ...]) -> None:
    shape = "megatron_cfg:\n  x: 4\n  {}\n  y: true\n"
    before, after = (shape.format(each).replace("m:", "model_overrides:") for each in (before, after))
    becomes(before, after, *changes)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (f"{{x: 4, m: {{{OLD}: 3}}}}", f"{{x: 4, {NEW}: 12}}", (move("12"),)),
        (f"{{m: {{{OLD}: 3}}, pp: 2}}", f"{{{NEW}: 12, pp: 2}}", (move("12"),)),
        (f"{{x: 4, m: {{a: 1, {OLD}: 3}}}}", f"{{x: 4, {NEW}: 12, m: {{a: 1}}}}", (move("12"),)),
        (f"{{x: 4, m: {{{OLD}: 3}}}}", "{x: 4}", (drop(),)),
        (f"{{m: {{{OLD}: 3}}, x: 4}}", "{x: 4}", (drop(),)),
        (f"{{m: {{{OLD}: 3}}}}", "{m: {}}", (drop(),)),
        (f"{{m: {{{OLD}: 3}}}}", f"{{{NEW}: 12, m: {{}}}}", (move("12", keep_husk=True),)),
        (f'{{"m": {{"{OLD}": 3}}}}', f'{{"{NEW}": "${{x}}"}}', (move("${x}"),)),
    ],
)
def test_flow_in_flow(before: str, after: str, changes: tuple[Asked, ...]) -> None:
    before, after = (
        f"a: {each}\n".replace("m:", "model_overrides:").replace('"m"', '"model_overrides"') for each in (before, after)
    )
    becomes(before, after, *changes)


def test_drop_leaves_its_comments() -> None:
    becomes(
        """
        model_overrides:
          a: 1
          # above
          gtp_weight_remat_size: 3  # why
          expert_gtp_weight_remat_size: 2
          b: 1
        """,
        """
        model_overrides:
          a: 1
          # above
          # why
          b: 1
        """,
        drop(),
        drop(EXPERT_OLD),
    )


def test_drop_two_at_the_end_of_a_file() -> None:
    becomes(f"a:\n  b: 1\n  {OLD}: 3\n  {EXPERT_OLD}: 2", "a:\n  b: 1", drop(), drop(EXPERT_OLD))


def test_drop_the_last_one_with_its_overrides() -> None:
    becomes(f"a:\n  b: 1\n  model_overrides:  # o\n    {OLD}: 3\n", "a:\n  b: 1\n  # o\n", drop())
    becomes(f"a:\n  model_overrides:\n    {OLD}: 3\n", "a:\n  model_overrides: {}\n", drop())
    becomes(f"s: &S\n  {OLD}: 3\nb: *S\n", "s: &S {}\nb: *S\n", drop())
    becomes(f"s: {{{OLD}: 3}}\nb: 1\n", "s: {}\nb: 1\n", drop())


# -- the husk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"model_overrides:  # o\n    {OLD}: 3", f"model_overrides: {{}}  # o\n  {NEW}: 12"),
        (f"model_overrides: &M\n    {OLD}: 3", f"model_overrides: &M {{}}\n  {NEW}: 12"),
        (f"model_overrides: {{{OLD}: 3}}  # o", f"{NEW}: 12\n  model_overrides: {{}}  # o"),
        (f"model_overrides: &M {{ {OLD}: 3 }}", f"{NEW}: 12\n  model_overrides: &M {{}}"),
    ],
)
def test_a_husk_stays_where_it_is_asked_for(before: str, after: str) -> None:
    shape = "a:\n  b: 1\n  {}\n  c: 1\n"
    becomes(shape.format(before), shape.format(after), move("12", keep_husk=True))


@pytest.mark.parametrize("anchor", [": &M\n    {}: 3", ": &M {{{}: 3}}"])
def test_a_husk_stays_where_an_alias_stands_for_it(anchor: str) -> None:
    after = edited(f"a:\n  model_overrides{anchor.format(OLD)}\nb: *M\n", move("12"))
    assert "model_overrides: &M {}\n" in after
    assert f"  {NEW}: 12\n" in after


def test_a_husk_stays_where_another_one_would_come_by_a_merge() -> None:
    shape = "A: &A {{model_overrides: {{x: 1}}}}\nB: &B {{<<: *A}}\nC: &C {{y: 2}}\nb:\n  <<: {}\n  {}\n"
    before = f"model_overrides:\n    {OLD}: 3"
    for merged in ("*A", "*B", "[*C, *B]"):
        becomes(shape.format(merged, before), shape.format(merged, f"model_overrides: {{}}\n  {NEW}: 12"), move("12"))
    becomes(shape.format("*C", before), shape.format("*C", f"{NEW}: 12"), move("12"))


def test_merges_in_a_circle_end() -> None:
    shape = "A: &A {{<<: *A, x: 1}}\nb:\n  <<: [*A, *A]\n  {}\n"
    becomes(shape.format(f"model_overrides: {{{OLD}: 3}}"), shape.format(f"{NEW}: 12"), move("12"))


# -- nulls that stay for a while ----------------------------------------------------------------------


def test_keep_nulls() -> None:
    becomes(
        f"a:\n  model_overrides:\n    # off\n    {OLD}: null\n    {EXPERT_OLD}: 2\n",
        f"a:\n  {NEW}: null\n  {EXPERT_NEW}: 8\n  model_overrides:\n    # off\n    {OLD}: null\n",
        move(None, is_null=True),
        move("8", EXPERT_OLD, EXPERT_NEW),
        keep_nulls=True,
    )
    becomes(
        f"model_overrides: {{{OLD}: null, {EXPERT_OLD}: null, a: 1}}\n",
        f"model_overrides: {{{OLD}: null, a: 1}}\n",
        drop(is_null=True),
        drop(EXPERT_OLD),
        keep_nulls=True,
    )


# -- values that move as they are ---------------------------------------------------------------------


@pytest.mark.parametrize("value", ["12", "0x0c", "~", "'${x}'", "&size 12", "!!int 12", "*three", ""])
def test_the_text_of_a_value_moves(value: str) -> None:
    becomes(
        f"three: &three 3\na:\n  model_overrides:\n    {NEW}: {value}".rstrip() + "\n",
        f"three: &three 3\na:\n  {NEW}: {value}".rstrip() + "\n",
        move(None, NEW, NEW),
    )


# -- explicit keys, and entries behind a dash ------------------------------------------------------------


def test_explicit_keys() -> None:
    becomes(
        f"a:\n  model_overrides:\n    b: 1\n    ? {OLD}\n    : 3  # why\n",
        f"a:\n  {NEW}: 12  # why\n  model_overrides:\n    b: 1\n",
        move("12"),
    )
    becomes(f"a:\n  model_overrides:\n    ? {OLD}\n    : 3\n", f"a:\n  {NEW}: 12\n", move("12"))
    becomes(f"a:\n- ? {OLD}\n  : 3\n  ? b\n  : 1\n", "a:\n- ? b\n  : 1\n", drop())


def test_behind_a_dash() -> None:
    becomes(f"a:\n- {OLD}: 3\n  # b\n  b: 1\n".replace("  # b\n", ""), "a:\n- b: 1\n", drop())
    becomes(f"a:\n- b: 1\n  {OLD}: 3\n", "a:\n- b: 1\n", drop())


A_COMMENT = "a comment stands inside it"
USED = "the value's anchor &x is used elsewhere"
NOT_A_SCALAR = "its value is not a scalar on one line"
SHARED = "its model_overrides shares a line with something else"
SHELVED = "it does not stand in a model_overrides itself, but is shared through an anchor"
ON_ITS_OWN = "an anchor or a tag stands on a line of its own above it"
BEHIND = "the anchor &x of its value stands behind the place to move to"
REFUSED: list[tuple[str, str, Asked]] = [
    (f"a:\n- {OLD}: 3  # c\n  b: 1\n", A_COMMENT, drop()),
    (f"a: {{model_overrides: {{b: 1,  # c\n  {OLD}: 3}}}}\n", A_COMMENT, move("12")),
    (f"a: {{model_overrides: {{b: 1,#c\n  {OLD}: 3}}}}\n", A_COMMENT, move("12")),
    (f"a:\n  model_overrides: {{{OLD}: 3,\n    # c\n    }}\n", A_COMMENT, move("12")),
    (f"a:\n  model_overrides:\n    {OLD}:  # c\n      3\n", A_COMMENT, move("12")),
    (f"a:\n  model_overrides:\n    {OLD}:  # c\n      3\n    b: 1\n", A_COMMENT, drop()),
    (f"a:\n- {OLD}: 3\n", "nothing would be left around it", drop()),
    (f"a: {{model_overrides: [{OLD}: 3]}}\n", "nothing would be left around it", drop()),
    (f"S: &S\n  {OLD}: 3\na: {{model_overrides: *S}}\n", SHELVED, move("12")),
    (f"a:\n- model_overrides:\n    b: 1\n    # c\n    {OLD}: 3\n", "its comments have no place to go", move("12")),
    (f"a:\n  ? model_overrides\n  : {OLD}: 3\n", "its model_overrides is written with a `?`", move("12")),
    (f"a:\n- model_overrides:  # c\n    {OLD}: 3\n", SHARED, move("12")),
    (f"a:\n  model_overrides:\n    &M\n    {OLD}: 3\n", ON_ITS_OWN, move("12")),
    (f"a:\n  {NEW}: 8\n  model_overrides:\n    {OLD}: 3\n", f"{NEW} stands there already (line 2)", move("12")),
    (f"a:\n  model_overrides:\n    {OLD}: [3]\n", NOT_A_SCALAR, move(None)),
    (f"a:\n  model_overrides:\n    {OLD}: 'a\n      b'\n", NOT_A_SCALAR, move(None)),
    (f"a:\n  model_overrides:\n    x: &x 3\n    {OLD}: *x\n", BEHIND, move(None)),
    (f"a:\n  model_overrides:\n    {OLD}: &x 3\nb: *x\n", USED, move("12")),
    (f"a:\n  model_overrides:\n    {OLD}: &x 3\n    b: *x\n", USED, drop()),
]


@pytest.mark.parametrize(("before", "what", "change"), REFUSED)
def test_refused(before: str, what: str, change: Asked) -> None:
    with pytest.raises(EditError) as caught:
        edited(before, change)
    where = spot(before, OLD)
    assert (caught.value.what, caught.value.line, caught.value.column) == (what, where.line, where.column)


def test_two_that_go_behind_a_dash_are_refused() -> None:
    with pytest.raises(EditError, match="it shares a line with something else"):
        edited(f"a:\n- {OLD}: 3\n  {EXPERT_OLD}: 2\n  b: 1\n", drop(), drop(EXPERT_OLD))


def test_a_hash_in_a_text_is_no_comment() -> None:
    becomes(
        f"a:\n  model_overrides: {{b: 'x # y', {OLD}: 3}}\n",
        f"a:\n  {NEW}: 12\n  model_overrides: {{b: 'x # y'}}\n",
        move("12"),
    )


# -- together with additions ----------------------------------------------------------------------------


def test_an_addition_where_all_else_moves_out() -> None:
    becomes(
        f"a:\n  model_overrides:  # o\n    {OLD}: 3  # why\n",
        f"a:\n  {NEW}: 12  # why\n  model_overrides:  # o\n    b: 1\n",
        move("12"),
        Add(("a", "model_overrides"), "b", "1"),
    )
    becomes(
        f"a: {{model_overrides: {{{OLD}: 3}}}}\n",
        f"a: {{{NEW}: 12, model_overrides: {{b: 1}}}}\n",
        Add(("a", "model_overrides"), "b", "1"),
        move("12"),
    )


def test_additions_around_a_move() -> None:
    becomes(
        """
        a:
          tp: 4  # four
          model_overrides:
            gtp_weight_remat_size: 3
        """,
        """
        a:
          tp: 4  # four
          etp: 2
          tensor_parallel_num_weight_shards: 12
          c:
            d: 1
        defaults: x
        """,
        Add(("a",), "etp", "2", "tp"),
        Add(("a", "c"), "d", "1"),
        move("12"),
        Add((), "defaults", "x"),
    )


def test_an_addition_of_what_is_dropped() -> None:
    before = text(
        """
        a:
          gtp_weight_remat_size: 3
          b: 1
        """
    )
    assert edited(before, drop(), Add(("a",), OLD, "4")) == f"a:\n  b: 1\n  {OLD}: 4\n"
