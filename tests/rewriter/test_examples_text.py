"""Text by example: every byte outside the changed entries stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Migrate, Ran, text

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]

OLD = "gtp_weight_remat_size"
NEW = "tensor_parallel_num_weight_shards"

#: An entry in the middle of a recipe: what it is, and what it must become.
ENTRIES = {
    "plain": (f"{OLD}: 3", f"{NEW}: 12"),
    "comment behind": (f"{OLD}: 3  # {OLD}: 3", f"{NEW}: 12  # {OLD}: 3"),
    "comment behind, one blank": (f"{OLD}: 3 #three", f"{NEW}: 12 #three"),
    "comment above": (f"# why: 3\n      {OLD}: 3", f"# why: 3\n      {NEW}: 12"),
    "comment above, other indent": (f"# why\n  # not\n      {OLD}: 3", f"# why\n  # not\n      {NEW}: 12"),
    "double quotes": (f'"{OLD}": 3', f'"{NEW}": 12'),
    "single quotes": (f"'{OLD}': 3", f"'{NEW}': 12"),
    "blanks before the colon": (f"{OLD}  :   3", f"{NEW}  :   12"),
    "blanks at the end": (f"{OLD}: 3   ", f"{NEW}: 12   "),
    "an empty line behind": (f"{OLD}: 3\n", f"{NEW}: 12\n"),
    "a value on the next line": (f"{OLD}:\n        3", f"{NEW}:\n        12"),
    "an explicit key": (f"? {OLD}\n      : 3", f"? {NEW}\n      : 12"),
    "a tag": (f"{OLD}: !!int 3", f"{NEW}: 12"),
    "a tagged key": (f"!!str {OLD}: 3", f"!!str {NEW}: 12"),
    "an anchor nobody uses": (f"{OLD}: &size 3", f"{NEW}: 12"),
    "a comment between key and value": (f"{OLD}:  # three\n        3", f"{NEW}:  # three\n        12"),
}


def recipe(entry: str) -> str:
    return (
        "policy:\n"
        "  megatron_cfg:\n"
        "    tensor_model_parallel_size: 4\n"
        "    model_overrides:\n"
        "      first: [1, 2]\n"
        f"      {entry}\n"
        "      last: {a: 'b'}  # last\n"
        "  # behind\n"
        "cluster: {num_nodes: 1}\n"
    )


@pytest.mark.parametrize("name", ENTRIES)
def test_entries(becomes: Becomes, name: str) -> None:
    before, after = ENTRIES[name]
    becomes({"a.yaml": recipe(before)}, {"a.yaml": recipe(after)})


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_with_crlf(becomes: Becomes, name: str) -> None:
    before, after = (recipe(entry).replace("\n", "\r\n").encode() for entry in ENTRIES[name])
    becomes({"a.yaml": before}, {"a.yaml": after})


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_with_a_byte_order_mark(becomes: Becomes, name: str) -> None:
    before, after = (b"\xef\xbb\xbf" + recipe(entry).encode() for entry in ENTRIES[name])
    becomes({"a.yaml": before}, {"a.yaml": after})


FLOWS = {
    "one line": (f"{{a: 1, {OLD}: 3, b: 2}}", f"{{a: 1, {NEW}: 12, b: 2}}"),
    "first": (f"{{{OLD}: 3, b: 2}}", f"{{{NEW}: 12, b: 2}}"),
    "last": (f"{{ a: 1,{OLD}: 3 }}", f"{{ a: 1,{NEW}: 12 }}"),
    "alone": (f"{{{OLD}: 3}}", f"{{{NEW}: 12}}"),
    "a comma at the end": (f"{{{OLD}: 3,}}", f"{{{NEW}: 12,}}"),
    "as JSON": (f'{{"{OLD}":3}}', f'{{"{NEW}":12}}'),
    "over lines": (f"{{\n  a: 1,\n  {OLD}: 3,\n      b: 2}}", f"{{\n  a: 1,\n  {NEW}: 12,\n      b: 2}}"),
    "with a comment": (f"{{a: 1,  # one\n  {OLD}: 3  # three\n  }}", f"{{a: 1,  # one\n  {NEW}: 12  # three\n  }}"),
    "an anchor on the mapping": (f"&O {{{OLD}: 3}}", f"&O {{{NEW}: 12}}"),
    "both axes": (f"{{{OLD}: 3, expert_{OLD}: 2}}", f"{{{NEW}: 12, expert_{NEW}: 8}}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOWS)
def test_flow_style(becomes: Becomes, name: str) -> None:
    shape = "policy:\n  megatron_cfg:\n    model_overrides: FLOW\n    tensor_model_parallel_size: 4\n"
    before, after = (shape.replace("FLOW", flow) for flow in FLOWS[name])
    becomes({"a.yaml": before}, {"a.yaml": after})


def test_a_whole_recipe_as_json(becomes: Becomes) -> None:
    before = '{"policy": {"megatron_cfg": {"tensor_model_parallel_size": 4, "model_overrides": {"%s": 3}}}}\n'
    becomes({"a.yaml": before % OLD}, {"a.yaml": (before % NEW).replace("3}", "12}")})


@pytest.mark.launcher("grpo")
def test_an_interpolation_in_json_is_quoted(becomes: Becomes) -> None:
    before = '{"policy": {"megatron_cfg": {"tensor_model_parallel_size": 4, "model_overrides": {"%s": 3}}}}\n'
    after = (before % NEW).replace("3}", '"${mul:3,${..tensor_model_parallel_size}}"}')
    becomes({"a.yaml": before % OLD}, {"a.yaml": after}, "--style", "interpolation")


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n", "\n# the end", "\r\n", "  ", "  # the end", "\n...\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_the_end_of_a_file(becomes: Becomes, end: str, bom: bytes) -> None:
    shape = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    model_overrides:\n      ENTRY"
    becomes(
        {"a.yaml": bom + (shape.replace("ENTRY", f"{OLD}: 3") + end).encode()},
        {"a.yaml": bom + (shape.replace("ENTRY", f"{NEW}: 12") + end).encode()},
    )


@pytest.mark.parametrize("start", ["---\n", "%YAML 1.1\n---\n", "# first\n---\n", "\n\n", "--- # first\n"])
def test_the_start_of_a_file(becomes: Becomes, start: str) -> None:
    becomes({"a.yaml": start + recipe(f"{OLD}: 3")}, {"a.yaml": start + recipe(f"{NEW}: 12")})


@pytest.mark.parametrize(
    "other",
    [
        "# ein Ärger, 学習, 🚀\n",
        "note: 'ein Ärger, 学習, 🚀'\n",
        'note: "\\u00e4 \\U0001F680"\n',
        "note: 'a\u2028b'\n",
        "note: 'a\x85b'\n",
        "note: |\n  a\ttab\n   and more\n\n  # no comment\n",
        "note: >-\n  folded\n  text\n",
        "lr: 5.0e-6\nflag: Yes\nversion: 1.10\ntime: 12:30:45\ndate: 2026-01-01\n",
        "empty:\nnothing: ~\n",
        "list:\n- a\n-   b\n- - c\n  - d\n",
        "'quoted key': 1\n? an explicit key\n: 2\n",
        "long: " + "x" * 5000 + "\n",
        "trailing:   blanks   \n",
        "pattern: '${a:b} %s {} [x]'\n",
    ],
)
def test_all_else_stays(becomes: Becomes, other: str) -> None:
    before, after = recipe(f"{OLD}: 3"), recipe(f"{NEW}: 12")
    becomes(
        {"above.yaml": (other + before).encode(), "below.yaml": (before + other).encode()},
        {"above.yaml": (other + after).encode(), "below.yaml": (after + other).encode()},
    )


@pytest.mark.parametrize("indent", [1, 3, 8, 13])
def test_indents(becomes: Becomes, indent: int) -> None:
    def indented(key: str, value: int) -> str:
        keys = ["policy:", "megatron_cfg:", "model_overrides:", f"{key}: {value}"]
        lines = [" " * indent * level + line for level, line in enumerate(keys)]
        lines.append(" " * indent * 2 + "tensor_model_parallel_size: 4")
        return "\n".join(lines) + "\n"

    becomes({"a.yaml": indented(OLD, 3)}, {"a.yaml": indented(NEW, 12)})


def test_mixed_line_ends(becomes: Becomes) -> None:
    before = recipe(f"{OLD}: 3").replace("policy:\n", "policy:\r\n").replace("last\n", "last\r\n")
    becomes({"a.yaml": before.encode()}, {"a.yaml": before.replace(f"{OLD}: 3", f"{NEW}: 12").encode()})


def test_an_alias_as_the_value(becomes: Becomes) -> None:
    shape = "three: &three 3\n" + recipe("ENTRY")
    becomes(
        {"a.yaml": shape.replace("ENTRY", f"{OLD}: *three")},
        {"a.yaml": shape.replace("ENTRY", f"{NEW}: 12")},
    )


def test_an_anchor_that_is_used_elsewhere(stays: Stays) -> None:
    """Whoever uses the size by its anchor would lose it, or get another number."""
    ran = stays({"a.yaml": recipe(f"{OLD}: &size 3") + "batch: *size\n"})
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml:6:7: ")
    assert "&size" in ran.problems[0]


def test_an_alias_as_the_key(migrate: Migrate) -> None:
    """Whatever is made of it, the key's anchor elsewhere is not broken and nothing is lost."""
    before = f"names: [&name {OLD}]\n" + recipe("*name : 3")
    ran = migrate({"a.yaml": before})
    assert ran.code == 3
    assert ran.files == {"a.yaml": before}
    assert ran.problems[0].startswith("a.yaml:")


def test_two_entries_on_one_line_of_a_list(becomes: Becomes) -> None:
    before = f"a:\n- megatron_cfg: {{tensor_model_parallel_size: 2, model_overrides: {{{OLD}: 3}}}}\n"
    becomes({"a.yaml": before}, {"a.yaml": before.replace(f"{OLD}: 3", f"{NEW}: 6")})


def test_overrides_as_a_list_item_line(becomes: Becomes) -> None:
    before = text(
        """
        stages:
          - megatron_cfg:
              tensor_model_parallel_size: 2
              model_overrides:
                gtp_weight_remat_size: 3
            name: first
          -
            megatron_cfg:
                model_overrides:
                    gtp_weight_remat_size: 2
                tensor_model_parallel_size: 8
        """
    )
    after = before.replace(f"{OLD}: 3", f"{NEW}: 6").replace(f"{OLD}: 2", f"{NEW}: 16")
    becomes({"a.yaml": before}, {"a.yaml": after})


def test_several_in_one_file(becomes: Becomes) -> None:
    before = recipe(f"{OLD}: 3") + recipe(f"expert_{OLD}: 2").replace("policy", "value").replace("cluster", "c2")
    after = recipe(f"{NEW}: 12") + recipe(f"expert_{NEW}: 8").replace("policy", "value").replace("cluster", "c2")
    becomes({"a.yaml": before}, {"a.yaml": after})


# -- what only looks like it ---------------------------------------------------------------------------

#: Nothing that anybody reads.
LOOKALIKES = {
    "a comment": f"# {OLD}: 3\n",
    "a commented recipe": "".join(f"# {line}\n" for line in recipe(f"{OLD}: 3").splitlines()),
    "another case": f"policy: {{megatron_cfg: {{model_overrides: {{{OLD.upper()}: 3}}}}}}\n",
    "half of it": "policy: {megatron_cfg: {model_overrides: {weight_remat_size: 3, gtp_weight: 2}}}\n",
}

#: What something may read, or what somebody meant for a model that never gets it: the place, and what is said of it.
UNREACHED = {
    "the same key elsewhere": (f"{OLD}: 3\n", "1:1", f"{OLD} ({OLD}) is what no model gets"),
    "in the megatron_cfg itself": (
        f"policy: {{megatron_cfg: {{tensor_model_parallel_size: 4, {OLD}: 3}}}}\n",
        "1:56",
        f"{OLD} (policy.megatron_cfg.{OLD}) is what no model gets",
    ),
    "overrides outside a megatron_cfg": (
        f"policy: {{dtensor_cfg: {{model_overrides: {{{OLD}: 3}}}}}}\n",
        "1:42",
        f"{OLD} (policy.dtensor_cfg.model_overrides.{OLD}) is what no model gets",
    ),
    "another holder": (
        f"policy: {{megatron_cfg_2: {{model_overrides: {{{OLD}: 3}}}}}}\n",
        "1:45",
        f"{OLD} (policy.megatron_cfg_2.model_overrides.{OLD}) is what no model gets",
    ),
    "in the policy's own overrides": (
        f"policy: {{model_overrides: {{expert_{OLD}: 3}}}}\n",
        "1:28",
        f"expert_{OLD} (policy.model_overrides.expert_{OLD}) is what no model gets",
    ),
    "on a shelf that nothing merges": (
        f"shelf: &S {{model_overrides: {{{OLD}: 3}}}}\npolicy: {{megatron_cfg: {{}}}}\n",
        "1:30",
        f"{OLD} (shelf.model_overrides.{OLD}) is what no model gets",
    ),
    "in a list": (f"sweep:\n- a: 1\n- {OLD}: 3\n", "3:3", f"{OLD} (sweep[1].{OLD}) is what no model gets"),
}
MENTIONED = {
    "a text": (f"note: 'policy.megatron_cfg.model_overrides.{OLD}: 3'\n", "1:7", ""),
    "a multi-line text": (f'note: "megatron_cfg:\n  model_overrides:\n    {OLD}: 3"\n', "1:7", ""),
    "a block scalar": (
        "script: |\n" + "".join(f"  {line}\n" for line in recipe(f"{OLD}: 3").splitlines()),
        "1:9",
        "",
    ),
    "a folded scalar": (
        "script: >\n" + "".join(f"  {line}\n" for line in recipe(f"{OLD}: 3").splitlines()),
        "1:9",
        "",
    ),
    "a list": (f"policy: {{names: [{OLD}, expert_{OLD}]}}\n", "1:18", ", and 1 more"),
    "a list of overrides": (f"overrides:\n- a.b=1\n- policy.megatron_cfg.model_overrides.{OLD}=3\n", "3:3", ""),
    "a longer key": (
        f"policy: {{megatron_cfg: {{model_overrides: {{my_{OLD}: 3, {OLD}_2: 1}}}}}}\n",
        "1:43",
        ", and 1 more",
    ),
    "a value": (f"policy: {{megatron_cfg: {{model_overrides: {{key: {OLD}}}}}}}\n", "1:48", ""),
    "a dotted key": (f"policy.megatron_cfg.model_overrides.{OLD}: 3\n", "1:1", ""),
}
NAMED = {
    **UNREACHED,
    **{
        name: (content, place, f"mentions {OLD} in a text or a longer key{more}")
        for name, (content, place, more) in MENTIONED.items()
    },
}


@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_stay(becomes: Becomes, name: str, target: str) -> None:
    ran = becomes({"a.yaml": LOOKALIKES[name]}, {}, "--target", target)
    assert ran.problems == []
    assert "Nothing to migrate in 1 file." in ran.stderr


@pytest.mark.parametrize("name", [name for name in LOOKALIKES if not LOOKALIKES[name].startswith("policy:")])
def test_lookalikes_stay_beside_a_real_one(becomes: Becomes, name: str) -> None:
    before = LOOKALIKES[name] + recipe(f"{OLD}: 3")
    becomes({"a.yaml": before}, {"a.yaml": LOOKALIKES[name] + recipe(f"{NEW}: 12")})


def test_lookalikes_do_not_fail_a_check(migrate: Migrate) -> None:
    files = {f"{index}.yaml": content for index, content in enumerate(LOOKALIKES.values())}
    assert migrate(files, "--check").code == 0


@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
@pytest.mark.parametrize("name", NAMED)
def test_what_no_rule_reaches_is_named(stays: Stays, name: str, target: str) -> None:
    """It stays, for nobody can tell what becomes of it, and is said with its place."""
    content, place, what = NAMED[name]
    ran = stays({"a.yaml": content}, "--target", target)
    assert [line.partition("; ")[0] for line in ran.problems] == [f"a.yaml:{place}: {what}"]
    assert "Nothing to migrate" not in ran.stderr
    assert stays({"a.yaml": content}, "--target", target, "--check", code=1).problems == ran.problems


@pytest.mark.parametrize(
    "name", [name for name in NAMED if not NAMED[name][0].startswith("policy:") and "policy:" not in NAMED[name][0]]
)
def test_what_no_rule_reaches_stays_beside_a_real_one(migrate: Migrate, name: str) -> None:
    content, place, what = NAMED[name]
    ran = migrate({"a.yaml": content + recipe(f"{OLD}: 3")})
    assert ran.code == 3, ran.stderr
    assert ran.files == {"a.yaml": content + recipe(f"{NEW}: 12")}
    assert [line.partition("; ")[0] for line in ran.problems] == [f"a.yaml:{place}: {what}"]


def test_mentions_are_one_line_a_file(migrate: Migrate) -> None:
    content = "".join(
        content for content, _, _ in MENTIONED.values() if not content.startswith(("policy", "note", "script"))
    )
    many = "".join(f"note{number}: run with {OLD}={number}\n" for number in range(40))
    ran = migrate({"a.yaml": many, "b.yaml": content, "c.yaml": many.replace(OLD, "tensor_size")})
    assert ran.code == 3
    assert [line.split(":")[0] for line in ran.problems] == ["a.yaml", "b.yaml"]
    assert ", and 39 more" in ran.problems[0]


# -- what messages point at ----------------------------------------------------------------------------


ONE_LINE = f"policy: {{megatron_cfg: {{tensor_model_parallel_size: 4, model_overrides: {{{OLD}: 0}}}}}}\n"


@pytest.mark.parametrize(
    ("before", "place"),
    [
        (recipe(f"{OLD}: 0"), "6:7"),
        (recipe(f"'{OLD}': 0"), "6:7"),
        ("\ufeff" + recipe(f"{OLD}: 0"), "6:7"),
        (recipe(f"{OLD}: 0").replace("\n", "\r\n"), "6:7"),
        ("# 学習 🚀\n" + recipe(f"{OLD}: 0"), "7:7"),
        ("\ufeff" + ONE_LINE, "1:74"),
        ("é: 🚀\n" + ONE_LINE, "2:74"),
        ("{é: 🚀, " + ONE_LINE[:-1] + "}\n", "1:81"),
    ],
    ids=["plain", "quoted", "bom", "crlf", "behind unicode", "bom on line 1", "flow", "unicode on the line"],
)
def test_positions(stays: Stays, before: str, place: str) -> None:
    """Line and column count from 1, in characters, as editors do."""
    ran = stays({"a.yaml": before.encode()})
    assert [line.split(": ")[0] for line in ran.problems] == [f"a.yaml:{place}"]
