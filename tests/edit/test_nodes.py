"""Positions: the same from both parsers, and in characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml.error import YAMLError

from gtp_migrate.edit import EditError, edit
from gtp_migrate.edit.nodes import Items, Mapping, Node, NodesError, _Reader, read
from gtp_migrate.plan.changes import Add, Replace, Spot
from tests.edit.comments import comments

EXAMPLES = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl" / "examples"

TEXTS = {
    "plain": "a: 1\nb:\n  c: [x, {y: z}]\n",
    "empty values": "a:\nb:\n  c:  # x: y\nd: {x: , 'y':, z: }\ne: [ ]\n-x:\n",
    "empty values in flow style over lines": "a: {x:\n}\nb: {\n  x: ,\n  y:  # c\n}\n",
    "empty items": "a:\n-\n- \n- b:\n- c\n",
    "crlf": "a: 1\r\nb:\r\n  c: 'x\r\n    y'\r\n",
    "lone carriage returns": "a: 1\rb: 2\r",
    "wide characters": "# 🚀 é\né: 🚀\n'学習': {ü: [🚀, x]}\n",
    "other line ends in quotes": "a: 'x\x85y'\nb: \"x\u2028y\"\nc: 1\n",
    "block scalars": "a: |\n  x\n\n  y\n\n# c\nb: >-\n  z\n  # no\nc: |+\n  x\n\nd:\n- |2\n   x\n# e\n",
    "a block scalar at the end": "a: |\n  x",
    "over lines": "a: x\n  y\nb: 'x\n\n  y'\nc: \"x\\\n  y\"\nd: 1\n",
    "explicit keys": "? a\n: 1\n? b\n? [c, d]\n:\n  e: 1\nf: {? g : 1, ? h}\n",
    "anchors and tags": "a: &x 3\nb: *x\nc: !!int 3\nd: &y\n  e: 1\nf: !!map {a: 1}\n<<: *y\nh: &e\ni: !!null\n",
    "keys with anchors and tags": "!!str a: 3\n&k b: 4\n*k : 5\n",
    "json": '{"a":1,"b":{"c":[2]},"d":""}\n',
    "start and end": "%YAML 1.1\n---\na: 012\n...\n# end\n",
    "pairs in a list": "a: [x: 1, {y: 2}, z]\n",
    "interpolations": "a: ${mul:3,${..x}}\nb: {c: \"${x}\"}\n",
}  # fmt: skip

#: What PyYAML takes and one of the two refuses.
ONLY_THE_PYTHON_ONE = ["a: [http://x]\nb: {u: http://x}\n", 'a: "\\ud800"\nb: 1\n']
ONLY_THE_C_ONE = ["a: 1 # x\x85b: 2\n", "a: x\u2028b: 2\nc: 3\n"]


def dump(node: Node | None) -> Any:
    """All that is known of a node, as plain data."""
    if node is None:
        return None
    known = [
        type(node).__name__,
        node.start,
        node.end,
        *(getattr(node, name, None) for name in ("anchor", "value", "quote", "name", "flow", "inside")),
    ]
    if isinstance(node, Mapping):
        known.append([(dump(pair.key), dump(pair.value)) for pair in node.entries])
    elif isinstance(node, Items):
        known.append([dump(item) for item in node.items])
    return known


def assert_same(content: str) -> None:
    fast, slow = _Reader(content).document(pure=False), _Reader(content).document(pure=True)
    assert dump(fast.root) == dump(slow.root)
    assert fast.end == slow.end
    assert fast.pairs.keys() == slow.pairs.keys()


@pytest.mark.parametrize("name", TEXTS)
def test_both_parsers_give_the_same(name: str) -> None:
    pytest.importorskip("_ruamel_yaml", reason="needs ruamel.yaml.clib")
    assert_same(TEXTS[name])


def test_both_parsers_give_the_same_for_real_recipes() -> None:
    pytest.importorskip("_ruamel_yaml", reason="needs ruamel.yaml.clib")
    recipes = sorted(EXAMPLES.rglob("*.yaml"))
    if not recipes:
        pytest.skip("needs a copy of NeMo-RL's recipes in ../shared/corpus/nemo_rl")
    for recipe in recipes:
        assert_same(recipe.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("content", "pure"), [*((x, False) for x in ONLY_THE_PYTHON_ONE), *((x, True) for x in ONLY_THE_C_ONE)]
)
def test_what_one_parser_refuses_is_read_by_the_other(content: str, pure: bool) -> None:
    if not pure:
        pytest.importorskip("_ruamel_yaml", reason="needs ruamel.yaml.clib")
    with pytest.raises(YAMLError):
        _Reader(content).document(pure=pure)
    assert read(content).root is not None


def test_a_key_that_the_parsers_read_differently_is_left() -> None:
    """`{a:}` is a key `a` to PyYAML, and `a:` to the only parser of ruamel.yaml that takes it."""
    content = "b: {a:}\n"
    assert yaml.safe_load(content) == {"b": {"a": None}}
    with pytest.raises(EditError, match="two YAML parsers read it differently"):
        edit(content, [Replace(Spot(content.index("a"), 1, 5), "a", "c", "1")])


@pytest.mark.parametrize("content", [*TEXTS.values(), *ONLY_THE_PYTHON_ONE, *ONLY_THE_C_ONE])
def test_keys_stand_where_pyyaml_finds_them(content: str) -> None:
    found = []
    waiting = [yaml.compose(content)]
    seen = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            found += [key.start_mark.index for key, _ in node.value if "*" not in content]
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    places = read(content).pairs
    assert set(found) <= set(places)
    assert "*" in content or len(found) == len(places)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("a:", 2),
        ("a:  # x: y\nb: 1", 2),
        ("{a: , b: 1}", 3),
        ("{a:\n}", 3),
        ("{'a' :, b: 1}", 6),
        ("? a\n# c: d\n: \n", 12),
    ],
)
def test_an_empty_value_stands_behind_its_colon(content: str, place: int) -> None:
    root = read(content).root
    assert isinstance(root, Mapping)
    assert (root.entries[0].value.start, root.entries[0].value.end) == (place, place)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a: [", "ruamel.yaml cannot read it"),
        ("a: \x01", "ruamel.yaml cannot read it"),
        ("a: \ud800", "ruamel.yaml cannot read it"),
        ("a: 1\n---\nb: 2\n", "several documents"),
        ("a: &x 1\nb: &x 2\n", "defined twice"),
        ("a: *x\n", "has no anchor"),
    ],
)
def test_what_cannot_be_read_is_said(content: str, why: str) -> None:
    with pytest.raises(NodesError, match=why):
        read(content)
    with pytest.raises(EditError, match=why) as caught:
        edit(content, [Add((), "x", "1")])
    assert (caught.value.line, caught.value.column) == (0, 0)


def test_deep_nesting_is_read_or_refused() -> None:
    """No traceback, and no recursion of our own."""
    content = "a: " + "[" * 5000 + "]" * 5000 + "\n"
    assert edit(content, [Add((), "x", "1")]) == content + "x: 1\n"
    content = "\n".join(" " * depth + "a:" for depth in range(900)) + " 1\n"
    assert edit(content, [Add((), "x", "1")]) == content + "x: 1\n"


def test_merges_that_multiply_are_looked_at_once() -> None:
    content = "m0: &m0 {x: 1}\n"
    content += "".join(f"m{each}: &m{each} {{<<: [*m{each - 1}, *m{each - 1}]}}\n" for each in range(1, 60))
    content += "a: {<<: *m59}\n"
    with pytest.raises(EditError, match=r"a\.x comes by a merge key here"):
        edit(content, [Add(("a", "x"), "y", "1")])
    assert "a: {z: 1, <<: *m59}\n" in edit(content, [Add(("a",), "z", "1")])


# -- comments -------------------------------------------------------------------------------------------


def test_comments() -> None:
    content = (
        "\ufeff# top\na: 1  # one\nb: '# no'\nc: |  \n  # no\n\n# c\nd: {x: 1, # two\n  y: '2'  # one\n  }\n"
        "e: x#no\nf: 1 # three\x85# four\u2028g: 2\n...\n# one"
    )
    assert comments(content) == {"# top": 1, "# one": 3, "# c": 1, "# two": 1, "# three": 1, "# four": 1}


def test_comments_of_what_libyaml_refuses() -> None:
    with pytest.raises(yaml.YAMLError):
        list(yaml.scan("a: {x:}  # c\n", Loader=yaml.CSafeLoader))
    assert comments("a: {x:}  # c\n") == {"# c": 1}
    with pytest.raises(yaml.YAMLError):
        comments("a: 'x")
