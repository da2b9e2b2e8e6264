"""Adding by example: before → after."""

from __future__ import annotations

from typing import Any

import pytest

from gtp_migrate.edit import EditError
from gtp_migrate.plan.changes import Add, KeyPath

from .texts import NEW, OLD, becomes, edited, load, replace, text

MEGATRON = ("policy", "megatron_cfg")
SHARDS = Add(MEGATRON, NEW, "24", "tensor_model_parallel_size")


# -- in a mapping that is there -------------------------------------------------------------------------


def test_behind_the_entry_that_is_named() -> None:
    becomes(
        """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 8  # wide
            # of a
            a: 1
        """,
        """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 8  # wide
            tensor_parallel_num_weight_shards: 24
            # of a
            a: 1
        """,
        SHARDS,
    )


@pytest.mark.parametrize(
    "last",
    [
        "a: 1",
        "a: 1  # one",
        "a:",
        "a: {x: [1]}",
        "a: [\n      1]  # one",
        "a:\n      b:\n      - c",
        "a:\n    - b: 1\n      c:",
        "a: 'x\n      y'",
        "a: x\n      y",
        "a: |\n      text\n",
        "a: |+\n      text\n\n",
        "a: >-\n      text",
        "a:\n      b:\n      - c: |\n          text",
        "a: &x 1",
        "? a\n    : 1",
        "? a",
    ],
)
def test_behind_the_last_entry(last: str) -> None:
    shape = f"policy:\n  megatron_cfg:\n    {last}\n"
    after = f"{shape}    {NEW}: 24\n"
    becomes(shape, after, SHARDS)
    becomes(f"{shape}  # p\nother: 1\n", f"{after}  # p\nother: 1\n", SHARDS)


@pytest.mark.parametrize("value", ["1", "{x: 1}", "|\n    text", "\n    x:\n    - 1"])
def test_behind_any_kind_of_entry(value: str) -> None:
    becomes(f"a:\n  b: {value}\n  c: 1\n", f"a:\n  b: {value}\n  new: 2\n  c: 1\n", Add(("a",), "new", "2", "b"))


@pytest.mark.parametrize("indent", [1, 3, 8])
def test_the_indent_of_the_surroundings(indent: int) -> None:
    one, two, three = (" " * indent * level for level in (1, 2, 3))
    becomes(
        f"policy:\n{one}x: 1\nother: 2\n",
        f"policy:\n{one}x: 1\n{one}megatron_cfg:\n{two}model_overrides:\n{three}{NEW}: 24\nother: 2\n",
        Add((*MEGATRON, "model_overrides"), NEW, "24"),
    )


def test_the_indent_of_the_neighbours_comes_first() -> None:
    becomes(
        "a:\n  b:\n      c: 1\nd:\n    e: 1\n",
        "a:\n  b:\n      c: 1\n  new:\n      x: 1\nd:\n    e: 1\n    new:\n        x: 2\n",
        Add(("a", "new"), "x", "1"),
        Add(("d", "new"), "x", "2"),
    )
    becomes("  a:\n     b: 1\n", "  a:\n     b: 1\n  c:\n     d: 2\n", Add(("c",), "d", "2"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{tensor_model_parallel_size: 8, a: 1}", f"{{tensor_model_parallel_size: 8, {NEW}: 24, a: 1}}"),
        ("{ tensor_model_parallel_size: 8 }", f"{{ tensor_model_parallel_size: 8, {NEW}: 24 }}"),
        ("{tensor_model_parallel_size: 8,}", f"{{tensor_model_parallel_size: 8, {NEW}: 24,}}"),
        ("{tensor_model_parallel_size: , a: 1}", f"{{tensor_model_parallel_size: , {NEW}: 24 , a: 1}}"),
        ("{a: 1}", f"{{{NEW}: 24, a: 1}}"),
        ("{ a: 1 }", f"{{ {NEW}: 24, a: 1 }}"),
        ("{? a : 1}", f"{{{NEW}: 24, ? a : 1}}"),
        ("{  # c\n    a: 1}", f"{{{NEW}: 24,   # c\n    a: 1}}"),
        ("{\n    a: 1\n  }", f"{{\n    {NEW}: 24,\n    a: 1\n  }}"),
        ("{\n    tensor_model_parallel_size: 8\n  }", f"{{\n    tensor_model_parallel_size: 8,\n    {NEW}: 24\n  }}"),
        (
            "{\n    tensor_model_parallel_size: 8,  # c\n    a: 1\n  }",
            f"{{\n    tensor_model_parallel_size: 8, {NEW}: 24,  # c\n    a: 1\n  }}",
        ),
        ("{}", f"{{{NEW}: 24}}"),
        ("{ }", f"{{{NEW}: 24}}"),
        ("{  # c\n  }", f"{{{NEW}: 24  # c\n  }}"),
        ("&M {}", f"&M {{{NEW}: 24}}"),
        ('{"a": 1}', f'{{"{NEW}": 24, "a": 1}}'),
    ],
)
def test_flow(before: str, after: str) -> None:
    becomes(f"policy:\n  megatron_cfg: {before}\n", f"policy:\n  megatron_cfg: {after}\n", SHARDS)
    becomes(f"policy: {{megatron_cfg: {before}}}\n", f"policy: {{megatron_cfg: {after}}}\n", SHARDS)


def test_through_a_list() -> None:
    becomes(
        "t:\n- a: 1\n-   b: {c: 1}\n",
        "t:\n- a: 1\n  x: 1\n-   b: {v: 2, c: 1}\n    d:\n      z: 3\n",
        Add(("t", 0), "x", "1"),
        Add(("t", 1, "b"), "v", "2"),
        Add(("t", 1, "d"), "z", "3"),
    )
    becomes("t: [{a: 1}, {}]\n", "t: [{x: 1, a: 1}, {v: 2}]\n", Add(("t", 0), "x", "1"), Add(("t", 1), "v", "2"))


@pytest.mark.parametrize(
    ("key", "wanted"), [("7", 7), ("0x7", 7), ("'7'", "7"), ("_7", "_7"), ("2026-01-01", "2026-01-01")]
)
def test_keys_that_look_like_numbers(key: str, wanted: str | int) -> None:
    becomes(f"{key}: {{a: 1}}\n", f"{key}: {{x: 1, a: 1}}\n", Add((wanted,), "x", "1"))


def test_a_number_is_not_found_as_a_text() -> None:
    becomes("7: {a: 1}\n", '7: {a: 1}\n"7":\n  x: 1\n', Add(("7",), "x", "1"))
    with pytest.raises(EditError, match=r"\[7\] is not there"):
        edited("'7': {a: 1}\n", Add((7,), "x", "1"))


# -- with mappings on the way ---------------------------------------------------------------------------


WRITTEN = "policy:\n  megatron_cfg:\n    tensor_parallel_num_weight_shards: 24\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("defaults: x.yaml\n", f"defaults: x.yaml\n{WRITTEN}"),
        ("defaults: x.yaml", f"defaults: x.yaml\n{WRITTEN[:-1]}"),
        ("defaults: x.yaml  # x\n\n# more\n\n", f"defaults: x.yaml  # x\n\n# more\n{WRITTEN}\n"),
        ("defaults: x.yaml\n# more", f"defaults: x.yaml\n# more\n{WRITTEN[:-1]}"),
        ("defaults: x.yaml\n...\n", f"defaults: x.yaml\n{WRITTEN}...\n"),
        ("defaults: x.yaml\n# more\n...\n# end\n", f"defaults: x.yaml\n# more\n{WRITTEN}...\n# end\n"),
        ("--- # x\ndefaults: x.yaml\n", f"--- # x\ndefaults: x.yaml\n{WRITTEN}"),
        ("defaults:\n- x.yaml\n- y.yaml\n", f"defaults:\n- x.yaml\n- y.yaml\n{WRITTEN}"),
        ("a: |\n  text\n", f"a: |\n  text\n{WRITTEN}"),
        ("a: |+\n  text\n\n", f"a: |+\n  text\n\n{WRITTEN}"),
        ("a: |\n  text\n# more\n", f"a: |\n  text\n# more\n{WRITTEN}"),
        ("", WRITTEN),
        ("# nothing\n", f"# nothing\n{WRITTEN}"),
        ("---\n", f"---\n{WRITTEN}"),
        ("---\n...\n", f"---\n{WRITTEN}...\n"),
    ],
)
def test_a_file_with_nothing_on_the_way(before: str, after: str) -> None:
    becomes(before, after, SHARDS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{defaults: x.yaml}\n", f"{{policy: {{megatron_cfg: {{{NEW}: 24}}}}, defaults: x.yaml}}\n"),
        ("{}", f"{{policy: {{megatron_cfg: {{{NEW}: 24}}}}}}"),
        ('{\n  "a": 1\n}\n', f'{{\n  "policy": {{"megatron_cfg": {{"{NEW}": 24}}}},\n  "a": 1\n}}\n'),
    ],
)
def test_a_root_in_flow_style(before: str, after: str) -> None:
    becomes(before, after, SHARDS)


def test_what_is_on_the_way_is_shared() -> None:
    becomes(
        "defaults: x.yaml\n",
        """
        defaults: x.yaml
        policy:
          megatron_cfg:
            a: 1
            b: 2
            model_overrides:
              x: 5
              v: 6
          generation:
            c: 3
        teacher:
          d: 4
        """,
        Add(MEGATRON, "a", "1"),
        Add(("policy", "generation"), "c", "3"),
        Add(("teacher",), "d", "4"),
        Add(MEGATRON, "b", "2", "a"),
        Add(MEGATRON, "model_overrides", {"x": 5}),
        Add((*MEGATRON, "model_overrides"), "v", "6"),
    )


def test_several_in_the_same_place() -> None:
    """Inner ones before outer ones, those that follow an entry before those that follow all."""
    becomes(
        """
        a:
          b:
            tp: 1
        """,
        """
        a:
          b:
            tp: 1
            behind: 2
            behind_that: 3
            last: 1
            later: 4
          outer: 5
        root: 6
        """,
        Add((), "root", "6"),
        Add(("a",), "outer", "5"),
        Add(("a", "b"), "last", "1"),
        Add(("a", "b"), "behind", "2", "tp"),
        Add(("a", "b"), "behind_that", "3", "behind"),
        Add(("a", "b"), "later", "4", "missing"),
    )


def test_an_addition_beside_a_replacement() -> None:
    becomes(
        f"a: {{{OLD}: 3}}\nb:\n  {OLD}: 2\n",
        f"a: {{x: 1, {NEW}: 12}}\nb:\n  {NEW}: 8\n  v: 2\n",
        replace("12"),
        Add(("a",), "x", "1"),
        Add(("b",), "v", "2", OLD),
        replace("8", nth=2),
    )


# -- values ---------------------------------------------------------------------------------------------


VALUE: dict[str, Any] = {
    "hidden_dropout": 0.1,
    "lr": 5e-06,
    "name": "yes",
    "layers": [0, 1, "two", None],
    "nested": {"deep": {"on": True}, "empty": {}, "none": []},
    "stages": [{"a": 1}, {"b": [2]}],
    "size": "${mul:3,${..x}}",
}


def test_a_mapping_in_block_style() -> None:
    becomes(
        "a:\n  b: 1\n",
        """
        a:
          b: 1
          model_overrides:
            hidden_dropout: 0.1
            lr: 5.0e-06
            name: "yes"
            layers: [0, 1, two, null]
            nested:
              deep:
                "on": true
              empty: {}
              none: []
            stages:
              - {a: 1}
              - {b: [2]}
            size: ${mul:3,${..x}}
        """,
        Add(("a",), "model_overrides", VALUE),
    )


def test_a_mapping_in_flow_style() -> None:
    after = edited("a: {b: 1}\n", Add(("a",), "model_overrides", VALUE))
    assert after == (
        'a: {model_overrides: {hidden_dropout: 0.1, lr: 5.0e-06, name: "yes", layers: [0, 1, two, null], '
        'nested: {deep: {"on": true}, empty: {}, none: []}, stages: [{a: 1}, {b: [2]}], '
        'size: "${mul:3,${..x}}"}, b: 1}\n'
    )
    assert load(after) == {"a": {"b": 1, "model_overrides": VALUE}}


def test_an_empty_mapping() -> None:
    becomes("a:\n  b: 1\n", "a:\n  b: 1\n  c: {}\n", Add(("a",), "c", {}))


def test_what_was_handed_in_stays_as_it_is() -> None:
    value: dict[str, Any] = {"x": {"v": 1}}
    edited("a: 1\n", Add(("b",), "c", value), Add(("b", "c", "x"), "z", "2"))
    assert value == {"x": {"v": 1}}


def test_a_value_that_has_no_plain_form_is_refused() -> None:
    with pytest.raises(EditError, match="a value of type bytes cannot be written"):
        edited("a: 1\n", Add((), "b", {"c": b"x"}))


# -- what is not written out here -----------------------------------------------------------------------


SHELF = "shelf: &S {megatron_cfg: {a: 1}, t: [{b: 1}]}\n"


@pytest.mark.parametrize(
    ("policy", "what", "line"),
    [
        ("policy: *S", "policy is written as an alias here", 2),
        ("policy:\n  x: 1\n  megatron_cfg: *S", "policy.megatron_cfg is written as an alias here", 4),
        ("policy:\n  <<: *S", "policy.megatron_cfg comes by a merge key here", 3),
        ("policy:\n  x: 1\n  <<: [*S]", "policy.megatron_cfg comes by a merge key here", 4),
        ("policy: {<<: *S}", "policy.megatron_cfg comes by a merge key here", 2),
        ("policy: {<<: {<<: *S}}", "policy.megatron_cfg comes by a merge key here", 2),
        ("<<: *S\npolicy:", "policy is null here", 3),
        ("policy: ~", "policy is null here", 2),
        ("policy: ${shelf}", "policy is an interpolation here", 2),
        ("policy: {megatron_cfg: '${x}'}", "policy.megatron_cfg is an interpolation here", 2),
        ("policy: 3", "policy is not a mapping here", 2),
        ("policy: [1]", "policy is a list here", 2),
        ("policy: {megatron_cfg: [1]}", "policy.megatron_cfg is a list here", 2),
        (f"policy:\n  megatron_cfg:\n    {NEW}: 1", f"{NEW} stands there already", 4),
    ],
)
def test_refused(policy: str, what: str, line: int) -> None:
    with pytest.raises(EditError) as caught:
        edited(f"{SHELF}{policy}\n", SHARDS)
    assert (caught.value.what, caught.value.line) == (what, line)
    assert caught.value.column >= 1


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (("shelf", "t", 1), "shelf.t[1] is not there"),
        (("shelf", "t", "b"), "shelf.t is a list here"),
        (("shelf", "t", 0, "b"), "shelf.t[0].b is not a mapping here"),
        (("shelf", 0), "shelf[0] is not there"),
        (("shelf", "new", 0, "x"), "shelf.new[0].x is not there"),
        (("shelf", "t"), "shelf.t is a list here"),
    ],
)
def test_paths_that_lead_nowhere(path: KeyPath, what: str) -> None:
    with pytest.raises(EditError) as caught:
        edited(SHELF, Add(path, "x", "1"))
    assert (caught.value.what, caught.value.line) == (what, 1)


def test_a_merged_entry_gets_one_of_its_own_where_that_is_asked_for() -> None:
    becomes(
        f"{SHELF}policy:\n  <<: *S\n",
        f"{SHELF}policy:\n  <<: *S\n  megatron_cfg:\n    b: 2\n",
        Add(("policy",), "megatron_cfg", {"b": 2}),
    )


@pytest.mark.parametrize(
    ("before", "what"),
    [
        ("a: |\n  text", "the text before the place to add to has no line end, and would get one"),
        ("- a\n", "it is not a mapping"),
        ("text\n", "it is not a mapping"),
        ("a: 1\n---\nb: 1\n", "it holds several documents"),
        ("a: &x 1\nb: &x 2\n", "the anchor &x is defined twice"),
        ("a: *x\n", "the alias *x has no anchor"),
    ],
)
def test_files_that_cannot_be_added_to(before: str, what: str) -> None:
    with pytest.raises(EditError) as caught:
        edited(before, SHARDS)
    assert caught.value.what == what


def test_a_pair_in_a_list_without_braces_is_refused() -> None:
    with pytest.raises(EditError, match="the mapping to add to has no braces"):
        edited("a: [b: 1, {c: 2}]\n", Add(("a", 0), "x", "1"))


def test_the_same_twice_is_refused() -> None:
    for before in ("a: 1\n", "b: {c: 1}\n"):
        with pytest.raises(EditError, match=r"b\.x is added twice"):
            edited(before, Add(("b",), "x", "1"), Add(("b",), "x", "2"))
    with pytest.raises(EditError, match=r"b\.x is added as something that is not a mapping"):
        edited("a: 1\n", Add(("b",), "x", "1"), Add(("b", "x"), "v", "2"))


def test_spots_stay_right_behind_additions() -> None:
    before = text(
        f"""
        a: {{b: 1}}
        c: {{{OLD}: 3}}
        d:
        - {OLD}: 3
        """
    )
    after = edited(before, replace("12"), Add(("a",), "x", "1"), Add(("c",), "v", "2"), Add(("d", 0), "z", "3"),
                   replace("8", nth=2))  # fmt: skip
    assert after == f"a: {{x: 1, b: 1}}\nc: {{v: 2, {NEW}: 12}}\nd:\n- {NEW}: 8\n  z: 3\n"
