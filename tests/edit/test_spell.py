"""Values by example and at random: whoever reads what is written gets the value."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gtp_migrate.edit.spell import CannotSpell, Written, lines, one_line, plain

from .texts import load

#: What some reader takes for something else than a string.
ODD = """
    true True yes Yes NO off On y N null Null ~ nan .nan .inf -.inf 12 012 0o14 0x1F 0b1 1_000 1e-3 1e-05 1.0 .5 +1
    -1 1:30 12:30:45 2026-01-01 2001-12-14t21:59:43.10-05:00 << = - -- ? : ! & * # | > % @ ` { } [ ] , a:b a: a# #a 'a
    "a a' _1 __ a.b a/b a-b -a .a /a Qwen/Qwen2.5-7B \\ \\n ${x} ${mul:3,${..x}} ${a:'b'} ${a:"b"} a${x} $x
"""
WORDS = [word for line in ODD.splitlines() for word in line.split()]
SPACED = [
    "",
    " ",
    "a b",
    "a: b",
    "a #b",
    "${a: b}",
    "${a #b}",
    "${a} ",
    "a\nb",
    "\n",
    "\ta",
    "a\t",
    "---",
    "...",
    "a,b",
    "a]b",
]
WIDE = ["ü", "学習", "\U0001f680", "\x00", "\x7f", "\x85", "\u2028", "\ufeff", "\xa0", "x" * 3000]
TEXTS = [*WORDS, *SPACED, *WIDE]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    12,
    -3,
    10**30,
    0.0,
    -0.5,
    0.1,
    1e-05,
    5e-06,
    1e16,
    1.5e300,
    math.inf,
    -math.inf,
]


def readings(written: str) -> list[Any]:
    """What OmegaConf, PyYAML and ruamel.yaml (as YAML 1.2 and 1.1) make of a text."""
    old = YAML(typ="safe", pure=True)
    old.version = (1, 1)
    return [
        load(written),
        yaml.safe_load(written),
        YAML(typ="safe", pure=True).load(io.StringIO(written)),
        YAML(typ="safe", pure=False).load(written),
        old.load(io.StringIO(written)),
    ]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*map(repr, one)] == [*map(repr, other)] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or one != one


def check(data: Any) -> None:
    for read in readings("a:\n  " + "\n  ".join(lines("b", data, "  ")) + "\n"):
        assert same(read, {"a": {"b": data}})
    for json in (False, True):
        for read in readings(f"{{a: {one_line(data, json=json)}, c: 1}}"):
            assert same(read, {"a": data, "c": 1})


@pytest.mark.parametrize("value", [*TEXTS, *VALUES, math.nan], ids=lambda value: repr(value)[:20])
def test_all_readers_agree(value: Any) -> None:
    check(value)
    check([value, [value], {"x": value}])
    if value == value and not (isinstance(value, str) and len(value) > 120):
        for read in readings("\n".join(lines(one_line(value, flow=False), 1, "  "))):
            assert same(read, {value: 1})


@pytest.mark.parametrize(
    ("data", "written"),
    [
        (1e-05, "1.0e-05"),
        (0.1, "0.1"),
        ("yes", '"yes"'),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("a\nb", '"a\\nb"'),
        ("学習", '"学習"'),
        ({}, "{}"),
        ({1: None, "b": [True]}, "{1: null, b: [true]}"),
    ],
)
def test_how_values_are_written(data: Any, written: str) -> None:
    assert one_line(data) == written


def test_an_interpolation_needs_no_quotes_outside_of_braces() -> None:
    assert list(lines("a", "${mul:3,${..x}}", "  ")) == ["a: ${mul:3,${..x}}"]
    assert list(lines("a", ["${x}"], "  ")) == ['a: ["${x}"]']


def test_what_is_yaml_already_is_not_quoted() -> None:
    assert one_line(Written("0x0c")) == "0x0c"
    assert one_line("0x0c") == '"0x0c"'
    assert one_line(Written("${x}")) == '"${x}"'


@pytest.mark.parametrize("value", ["12", "null", "0x0c", "???"])
def test_plain_scalars_stay(value: str) -> None:
    for quote in ("", "'", '"'):
        for flow in (False, True):
            assert plain(value, quote, flow=flow) == value


def test_a_value_that_is_no_plain_data() -> None:
    for value in (b"x", object(), {1, 2}):
        with pytest.raises(CannotSpell, match=type(value).__name__):
            one_line({"a": [value]})


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(TEXTS)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
KEYS = st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.integers()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)))
def test_random_data(data: Any) -> None:
    check(data)
