"""Replacing by example: before → after."""

from __future__ import annotations

import pytest

from gtp_migrate.edit import EditError, edit
from gtp_migrate.plan.changes import Replace, Spot

from .texts import EXPERT_NEW, EXPERT_OLD, NEW, OLD, becomes, drop, edited, load, replace, spot

INTERPOLATION = "${mul:3,${..tensor_model_parallel_size}}"


def around(entry: str) -> str:
    return f"model_overrides:\n  first: [1, 2]  # one\n  {entry}\n  last: 'x'\n# end\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{OLD}: 3  # why", f"{NEW}: 12  # why"),
        (f'"{OLD}": 3', f'"{NEW}": 12'),
        (f"'{OLD}'  :   3", f"'{NEW}'  :   12"),
        (f"? {OLD}\n  : 3", f"? {NEW}\n  : 12"),
        (f"{OLD}:\n    3", f"{NEW}:\n    12"),
        (f"{OLD}:  # why\n    3", f"{NEW}:  # why\n    12"),
        (f"!!str {OLD}: !!int 3", f"!!str {NEW}: 12"),
        (f"{OLD}: &unused 3", f"{NEW}: 12"),
        (f"{OLD}:", f"{NEW}: 12"),
        (f"{OLD}:  # empty", f"{NEW}: 12  # empty"),
        (f"{OLD}: {{}}".replace("{}", "'3'"), f"{NEW}: 12"),
    ],
)
def test_entries(before: str, after: str) -> None:
    becomes(around(before), around(after), replace("12"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{OLD}: ~", f"{NEW}: ~"),
        (f"{OLD}:", f"{NEW}:"),
        (f"{OLD}: &size 3\n  other: *size", f"{NEW}: &size 3\n  other: *size"),
        (f"{OLD}: '${{x}}'", f"{NEW}: '${{x}}'"),
    ],
)
def test_none_keeps_the_text_of_the_value(before: str, after: str) -> None:
    becomes(around(before), around(after), replace(None))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{{a: 1, {OLD}: 3, b: 2}}", f"{{a: 1, {NEW}: 12, b: 2}}"),
        (f'{{"{OLD}":3}}', f'{{"{NEW}":12}}'),
        (f"{{{OLD}: , b: 2}}", f"{{{NEW}: 12 , b: 2}}"),
        (f"{{a: 1,  # one\n  {OLD}: 3  # three\n  }}", f"{{a: 1,  # one\n  {NEW}: 12  # three\n  }}"),
    ],
)
def test_flow(before: str, after: str) -> None:
    becomes(f"model_overrides: {before}\n", f"model_overrides: {after}\n", replace("12"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{OLD}: 3", f"{NEW}: {INTERPOLATION}"),
        (f"{OLD}: '${{x}}'", f"{NEW}: '{INTERPOLATION}'"),
        (f'{OLD}: "3"', f'{NEW}: "{INTERPOLATION}"'),
    ],
)
def test_interpolations_are_quoted_as_the_old_value_was(before: str, after: str) -> None:
    becomes(around(before), around(after), replace(INTERPOLATION))


def test_interpolations_are_quoted_in_flow_style() -> None:
    becomes(f"a: {{{OLD}: 3}}\n", f'a: {{{NEW}: "{INTERPOLATION}"}}\n', replace(INTERPOLATION))


@pytest.mark.parametrize(
    "value", ["${a: b}", "${a #b}", "${a}:", '${a:"b"}', "${a:'b'}", "${a:\\b}", "${a:\U0001f680}"]
)
@pytest.mark.parametrize("old", ["3", "'3'", '"3"'])
@pytest.mark.parametrize("style", ["a:\n  {}\n", "a: {{{}}}\n"])
def test_interpolations_load_as_what_they_are(value: str, old: str, style: str) -> None:
    after = edited(style.format(f"{OLD}: {old}"), replace(value))
    assert load(after) == {"a": {NEW: value}}


def test_both_axes() -> None:
    becomes(
        f"a:\n  {EXPERT_OLD}: 2\n  {OLD}: 3\n",
        f"a:\n  {EXPERT_NEW}: 8\n  {NEW}: 12\n",
        replace("12"),
        replace("8", EXPERT_OLD, EXPERT_NEW),
    )


def test_keep_nulls() -> None:
    becomes(
        f"a:\n  {OLD}: null  # off\n  b: {{{EXPERT_OLD}: ~}}\n",
        f"a:\n  {NEW}: null  # off\n  {OLD}: null\n  b: {{{EXPERT_NEW}: null, {EXPERT_OLD}: null}}\n",
        replace("null", is_null=True),
        replace("null", EXPERT_OLD, EXPERT_NEW, is_null=True),
        keep_nulls=True,
    )
    becomes(f"a:\n  {OLD}: null\n", f"a:\n  {NEW}: null\n", replace("null", is_null=True))
    becomes(f"a:\n  {OLD}: 3\n", f"a:\n  {NEW}: 12\n", replace("12"), keep_nulls=True)
    becomes(
        f"a:\n  - ? {OLD}\n    : null\n",
        f"a:\n  - ? {NEW}\n    : null\n    {OLD}: null\n",
        replace(None, is_null=True),
        keep_nulls=True,
    )


@pytest.mark.parametrize(
    ("before", "what"),
    [
        (f"a:\n  {OLD}: &size 3\nb: *size\n", "the value's anchor &size is used elsewhere"),
        (f"a:\n  {OLD}: |\n    3\n", "its value is a block scalar"),
        (f"a:\n  {OLD}: [3]\n", "its value is not a scalar"),
        (f"a:\n  &key {OLD}: 3\n", "its key has an anchor or a block style"),
        (f"a:\n  ? |-\n    {OLD}\n  : 3\n", "its key has an anchor or a block style"),
        (f"a:\n  {OLD}: 3\n  {NEW}: 12\n", f"{NEW} stands there already (line 3)"),
        (f"a:\n  ? {OLD}\n", "its value is not written out"),
        (f"a: {{{OLD}, b: 1}}\n", "its value is not written out"),
    ],
)
def test_refused(before: str, what: str) -> None:
    with pytest.raises(EditError) as caught:
        edited(before, replace("12"))
    where = spot(before, OLD)
    assert (caught.value.what, caught.value.line, caught.value.column) == (what, where.line, where.column)


def test_a_null_that_is_kept_is_there_already() -> None:
    before = f"a:\n  {OLD}: 3\n  {NEW}: null\n"
    changes = (replace("12"), drop(NEW, is_null=True))
    assert edited(before, *changes) == f"a:\n  {NEW}: 12\n"
    with pytest.raises(EditError, match=f"{NEW} stands there already"):
        edited(before, *changes, keep_nulls=True)


def test_an_alias_as_the_key_is_refused() -> None:
    before = f"a: &k {OLD}\nb:\n  *k : 3\n"
    with pytest.raises(EditError, match="its key is an alias"):
        edit(before, [Replace(Spot(before.index("*k"), 3, 3), OLD, NEW, "12")])


@pytest.mark.parametrize("offset", [0, 3, 5, 99])
def test_a_place_where_no_such_entry_stands_is_refused(offset: int) -> None:
    with pytest.raises(EditError, match="two YAML parsers read it differently") as caught:
        edit(f"a:\n   {OLD}: 3\n"[: -len(OLD)], [Replace(Spot(offset, 7, 8), OLD, NEW, "12")])
    assert (caught.value.line, caught.value.column) == (7, 8)


def test_an_alias_that_goes_lets_its_anchor_go() -> None:
    becomes(f"a: {{{OLD}: &s 3}}\nb: {{{EXPERT_OLD}: *s}}\n", f"a: {{{NEW}: 12}}\nb: {{{EXPERT_NEW}: 8}}\n",
            replace("12"), replace("8", EXPERT_OLD, EXPERT_NEW))  # fmt: skip
