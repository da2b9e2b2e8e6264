"""Settings that a model gets by `<<`, an alias or a reference; and everything that must still resolve afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from . import oracle
from .conftest import Migrate, Ran, write_files

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]

OLD, NEW = "gtp_weight_remat_size", "tensor_parallel_num_weight_shards"
B = ("--target", "model-overrides")
C = ("--target", "megatron-cfg")


@pytest.fixture
def right(migrate: Migrate, tmp_path: Path) -> Callable[..., Ran]:
    """Whatever a run writes, every recipe runs as before, a second run leaves it so, and with exit 0 no old key is left."""

    def right(files: dict[str, str], *args: str, code: int = 0) -> Ran:
        write_files(tmp_path / "before", files)  # type: ignore[arg-type]
        ran = migrate(files, *args)
        assert ran.code == code, ran.stderr
        if code == 0:
            assert not any(re.search(rf"^[^#]*{OLD}", str(text), re.M) for text in ran.files.values()), ran.files
            for name in files:
                typed = "megatron-cfg" in args
                oracle.assert_runs_as_before(tmp_path / "before" / name, tmp_path / "work" / name, typed=typed, tp=6)
        else:
            assert ran.problems
        again = migrate({}, *args)
        assert (again.code, again.files, again.problems) == (code, ran.files, ran.problems)
        return ran

    return right


MODEL = "{{<<: *S, tensor_model_parallel_size: {tp}}}"
ONE_SHELF = f"shelf: &S {{model_overrides: {{{OLD}: 3, a: 1}}}}\n"
SHELVES = {
    "two TPs": ONE_SHELF
    + f"policy: {{megatron_cfg: {MODEL.format(tp=4)}}}\nteacher: {{megatron_cfg: {MODEL.format(tp=8)}}}\n",
    "one TP": ONE_SHELF
    + f"policy: {{megatron_cfg: {MODEL.format(tp=4)}}}\nteacher: {{megatron_cfg: {MODEL.format(tp=4)}}}\n",
    "a TP on the shelf": (
        f"shelf: &S {{tensor_model_parallel_size: 2, model_overrides: {{{OLD}: 3}}}}\n"
        f"policy: {{megatron_cfg: *S}}\nteacher: {{megatron_cfg: {MODEL.format(tp=8)}}}\n"
    ),
    "a shelf of shelves": (
        f"o: &O {{{OLD}: 3}}\nshelf: &S {{model_overrides: *O}}\n"
        f"policy: {{megatron_cfg: {MODEL.format(tp=4)}}}\nvalue: {{megatron_cfg: {MODEL.format(tp=4)}}}\n"
    ),
    "sizes only": (
        f"shelf: &S {{{OLD}: 3}}\n"
        "policy: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {<<: *S}}}\n"
        "teacher: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {<<: *S, b: 1}}}\n"
    ),
    "block style": (
        f"megatron_base: &S\n  # for all\n  model_overrides:\n    {OLD}: 3  # why\n"
        "policy:\n  megatron_cfg:\n    <<: *S\n    tensor_model_parallel_size: 4\n"
        "teacher:\n  megatron_cfg:\n    <<: *S\n    tensor_model_parallel_size: 8\n    expert_model_parallel_size: 4\n"
    ),
    "by reference": (
        f"shelf: {{model_overrides: {{{OLD}: 3}}}}\n"
        "policy: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: '${shelf.model_overrides}'}}\n"
    ),
}


@pytest.mark.parametrize("section", ["", "grpo: {max_num_steps: 1}\n", "dpo: {max_num_steps: 1}\n"])
@pytest.mark.parametrize("name", SHELVES)
def test_a_shelf(right: Callable[..., Ran], name: str, section: str) -> None:
    """The launcher resolves the shelf as well: an interpolation on it would have to resolve there."""
    ran = right({"a.yaml": section + SHELVES[name]}, *B)
    assert "shelf.tensor_model" not in str(ran.files["a.yaml"])


def test_a_child_of_a_shelf(right: Callable[..., Ran]) -> None:
    child = "defaults: a.yaml\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 2\n"
    right({"a.yaml": SHELVES["two TPs"], "child.yaml": child}, *B)


# -- hidden ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "target"), [(f"{{{NEW}: 12}}", B), ("{a: 1}", B), ("null", B), ("{a: 1}", C), ("null", C)]
)
def test_overrides_that_hide_those_of_a_shelf(stays: Stays, own: str, target: tuple[str, str]) -> None:
    """The shelf's key reaches no model: it is named, and stays."""
    text = (
        f"shelf: &S {{model_overrides: {{k: 1, {OLD}: 2}}}}\n"
        f"policy: {{megatron_cfg: {{<<: *S, tensor_model_parallel_size: 3, model_overrides: {own}}}}}\n"
    )
    ran = stays({"a.yaml": text}, *target)
    assert [line.split(": ")[0] for line in ran.problems] == [f"a.yaml:1:{text.index(OLD) + 1}"]


@pytest.mark.parametrize(
    ("hidden", "own"),
    [
        ("2", "4"),
        ("2", "null"),
        ("null", "4"),
        ("1", "1"),
    ],
)
def test_a_size_that_hides_that_of_a_shelf(right: Callable[..., Ran], hidden: str, own: str) -> None:
    """Were the hidden one left, it would come to light with the next `<<`; a new Bridge would not start."""
    text = (
        "sizes: {x: 5}\n"
        f"shelf: &S {{{OLD}: {hidden}}}\n"
        f"policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 2\n    model_overrides: {{<<: *S, {OLD}: {own}}}\n"
    )
    ran = right({"a.yaml": text}, *B)
    assert str(ran.files["a.yaml"]).endswith(f"{NEW}: {8 if own == '4' else 2 if own == '1' else 'null'}}}\n")


def test_an_interpolation_that_is_hidden(stays: Stays) -> None:
    """Nobody can tell what it is for: left, and both places are said."""
    text = (
        f"sizes: {{x: 5}}\nshelf: &S {{{OLD}: '${{sizes.x}}'}}\n"
        f"policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 2\n    model_overrides: {{<<: *S, {OLD}: 4}}\n"
    )
    ran = stays({"a.yaml": text}, *B)
    assert any(line.startswith("a.yaml:2:12: ") for line in ran.problems)


# -- read two ways -----------------------------------------------------------------------------------------


def merged(
    *, sizes: tuple[int, int] = (3, 3), tps: tuple[int, int] = (2, 4), own: str = "", how: str = "<<: [*A, *B]"
) -> str:
    return (
        "".join(
            f"{name.lower()}: &{name} {{tensor_model_parallel_size: {tp}, model_overrides: {{{OLD}: {size}}}}}\n"
            for name, size, tp in zip("AB", sizes, tps, strict=True)
        )
        + f"policy:\n  megatron_cfg:\n    {how}\n{own}"
    )


def test_a_merge_list_without_a_clash(right: Callable[..., Ran]) -> None:
    right({"a.yaml": merged(tps=(4, 4))}, *B)


def test_a_merge_list_in_which_the_mapping_itself_decides(right: Callable[..., Ran]) -> None:
    own = f"    tensor_model_parallel_size: 8\n    model_overrides: {{{OLD}: 2}}\n"
    text = merged(own=own).replace(f", model_overrides: {{{OLD}: 3}}", "")
    ran = right({"a.yaml": text}, *B)
    assert f"{NEW}: 16" in str(ran.files["a.yaml"])


@pytest.mark.parametrize("style", ["auto", "literal", "interpolation"])
@pytest.mark.parametrize("section", ["", "grpo: {max_num_steps: 1}\n"])
def test_a_tp_that_is_read_two_ways(migrate: Migrate, section: str, style: str) -> None:
    """Right under both, or left and said."""
    text = (
        section + "a: &A {tensor_model_parallel_size: 2}\nb: &B {tensor_model_parallel_size: 4}\n"
        f"policy:\n  megatron_cfg:\n    <<: [*A, *B]\n    model_overrides:\n      {OLD}: 3\n"
    )
    ran = migrate({"a.yaml": text}, *B, "--style", style)
    if section and style != "literal":
        assert (ran.code, f"{NEW}: ${{mul:3,${{..tensor_model_parallel_size}}}}" in ran.files["a.yaml"]) == (0, True), (
            ran.stderr
        )
    else:
        assert (ran.code, ran.files["a.yaml"]) == (3, text)
        assert "PyYAML 6.0.3 and 6.0.4 read differently" in ran.problems[0]


@pytest.mark.parametrize("sizes", [(2, 3), (3, 3)])
@pytest.mark.parametrize("target", [B, C])
def test_two_merges_in_one_mapping(migrate: Migrate, sizes: tuple[int, int], target: tuple[str, str]) -> None:
    """The later one counts, in both; the other is not deleted by a second run."""
    text = merged(how="<<: *A\n    <<: *B", sizes=sizes)
    first = migrate({"a.yaml": text}, *target)
    second = migrate({}, *target)
    assert (second.code, second.files, second.problems) == (first.code, first.files, first.problems)
    assert first.code == 0 or first.problems
    assert migrate({}, *target, "--check").code == (1 if first.code else 0)


# -- what refers to it -------------------------------------------------------------------------------------

HUSK = f"policy: {{megatron_cfg: {{tensor_model_parallel_size: 4, model_overrides: {{{OLD}: 3}}}}}}\n"
REFERENCES = [
    'teacher: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: "${policy.megatron_cfg.model_overrides}"}}\n',
    "draft: {overrides: '${policy.megatron_cfg.model_overrides}'}\n",
    "draft: {overrides: ['${policy.megatron_cfg.model_overrides}', 1]}\n",
    "name: megatron_cfg\ndraft: ${policy.${name}.model_overrides}\n",
    "draft: ${oc.select:policy.megatron_cfg.model_overrides,null}\n",
]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("target", [B, C])
def test_overrides_that_something_refers_to(
    migrate: Migrate, tmp_path: Path, reference: str, target: tuple[str, str]
) -> None:
    """What resolved resolves, or the file is left and said: never a run that dies at its start."""
    text = HUSK + reference
    write_files(tmp_path / "before", {"a.yaml": text})
    ran = migrate({"a.yaml": text}, *target)
    assert ran.code in (0, 3), ran.stderr
    assert ran.code == 0 or (ran.problems and ran.files["a.yaml"] == text)
    oracle_before = oracle.models(tmp_path / "before" / "a.yaml", registered=True, tp=6)
    assert oracle_before is not None
    assert oracle.models(tmp_path / "work" / "a.yaml", registered=True, tp=6) is not None


@pytest.mark.parametrize(
    "reference",
    [
        # At the top of a child NeMo-RL would resolve it within the child alone.
        f"x:\n  y: ${{policy.megatron_cfg.model_overrides.{OLD}}}\n",
        f"x:\n  y: 'a${{policy.megatron_cfg.model_overrides.{OLD}}}'\n",
        f"name: {OLD}\nx:\n  y: ${{policy.megatron_cfg.model_overrides.${{name}}}}\n",
        f"x: [1, {{y: '${{policy.megatron_cfg.model_overrides.{OLD}}}'}}]\n",
        f"env: {{a: {{b: '${{...policy.megatron_cfg.model_overrides.{OLD}}}'}}}}\n",
    ],
)
@pytest.mark.parametrize("child", [True, False])
def test_an_old_key_that_something_refers_to(stays: Stays, reference: str, child: bool) -> None:
    """By its name or by a computed one, from wherever it is."""
    files = {"a.yaml": HUSK, "b.yaml": "defaults: a.yaml\n" + reference} if child else {"a.yaml": HUSK + reference}
    ran = stays(files, *B)
    assert any(
        "refers to an old key" in line or "no longer resolve" in line or "mentions" in line for line in ran.problems
    )


# -- a typed null ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["auto", "literal", "interpolation"])
def test_a_typed_null_in_a_base(stays: Stays, style: str) -> None:
    base = f"policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    {NEW}: null\n"
    child = f"defaults: base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      {OLD}: 3\n"
    ran = stays({"base.yaml": base, "kid.yaml": child}, "--style", style)
    assert len(ran.problems) == 1
    assert "base.yaml:4" in ran.problems[0]
    assert "--target megatron-cfg" in ran.problems[0]
    assert "--style" not in ran.problems[0]


def test_what_helps_with_a_typed_null(right: Callable[..., Ran]) -> None:
    base = f"policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    {NEW}: null\n"
    child = f"defaults: base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      {OLD}: 3\n"
    ran = right({"base.yaml": base, "kid.yaml": child}, *C)
    assert f"    {NEW}: 12\n" in str(ran.files["kid.yaml"])


def test_the_null_removed(right: Callable[..., Ran]) -> None:
    base = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    child = f"defaults: base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      {OLD}: 3\n"
    right({"base.yaml": base, "kid.yaml": child}, *B)


# -- a shelf of sizes, merged into a `model_overrides` -----------------------------------------------------

SIZES = f"""\
gtp: &GTP {{{OLD}: 3}}
policy:  {{megatron_cfg: {{tensor_model_parallel_size: 4, model_overrides: {{<<: *GTP}}}}}}
teacher: {{megatron_cfg: {{tensor_model_parallel_size: 8, model_overrides: {{<<: *GTP, foo: 1}}}}}}
"""


@pytest.mark.parametrize("style", ["auto", "literal"])
@pytest.mark.parametrize("section", ["grpo", "dpo"])
def test_sizes_that_are_merged_at_two_tps(becomes: Becomes, section: str, style: str) -> None:
    """`<<` is no alias of the whole mapping: what stands beside it goes before what it brings."""
    text = f"{section}: {{}}\n" + SIZES
    after = text.replace(f"{OLD}: 3", f"{NEW}: 12").replace("<<: *GTP, foo", f"<<: *GTP, {NEW}: 24, foo")
    becomes({"a.yaml": text}, {"a.yaml": after}, *B, "--style", style)


@pytest.mark.parametrize("how", ["[*GTP]", "[*GTP, *MORE]"])
def test_sizes_that_a_list_of_merges_brings(becomes: Becomes, how: str) -> None:
    text = "more: &MORE {bar: 2}\ndpo: {}\n" + SIZES.replace("<<: *GTP", f"<<: {how}")
    after = text.replace(f"{OLD}: 3", f"{NEW}: 12").replace(f"{how}, foo", f"{how}, {NEW}: 24, foo")
    becomes({"a.yaml": text}, {"a.yaml": after}, *B)


def test_sizes_that_two_merges_bring(becomes: Becomes) -> None:
    """Two `<<` on two lines: what stands in the mapping itself goes before both."""
    text = (
        f"dpo: {{}}\nmore: &MORE {{bar: 2}}\ngtp: &GTP {{{OLD}: 3}}\n"
        "policy:  {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {<<: *GTP}}}\n"
        "teacher:\n  megatron_cfg:\n    tensor_model_parallel_size: 8\n"
        "    model_overrides:\n      # both\n      <<: *GTP  # sizes\n      <<: *MORE  # more\n"
    )
    after = text.replace(f"{OLD}: 3", f"{NEW}: 12").replace("# more\n", f"# more\n      {NEW}: 24\n")
    becomes({"a.yaml": text}, {"a.yaml": after}, *B)


def test_both_axes_of_a_shelf_of_sizes(becomes: Becomes) -> None:
    expert, count = "expert_gtp_weight_remat_size: 2", "expert_tensor_parallel_num_weight_shards"
    text = "dpo: {}\n" + SIZES.replace("3}", f"3, {expert}}}")
    after = text.replace(f"{OLD}: 3, {expert}", f"{NEW}: 12, {count}: 8")
    after = after.replace("<<: *GTP, foo", f"<<: *GTP, {NEW}: 24, {count}: 16, foo")
    becomes({"a.yaml": text}, {"a.yaml": after}, *B)


ANCHORED = f"""\
policy: {{megatron_cfg: {{tensor_model_parallel_size: 4, model_overrides: &GTP {{{OLD}: 3}}}}}}
value: {{megatron_cfg: {{tensor_model_parallel_size: 8, model_overrides: {{<<: *GTP}}}}}}
"""


@pytest.mark.parametrize(("section", "style"), [("dpo", "auto"), ("dpo", "literal"), ("grpo", "literal")])
def test_a_model_whose_sizes_another_one_merges(becomes: Becomes, section: str, style: str) -> None:
    text = f"{section}: {{}}\n" + ANCHORED
    after = text.replace(f"{OLD}: 3", f"{NEW}: 12").replace("<<: *GTP", f"<<: *GTP, {NEW}: 24")
    becomes({"a.yaml": text}, {"a.yaml": after}, *B, "--style", style)


def test_a_relation_that_another_model_merges(becomes: Becomes) -> None:
    text = "grpo: {}\n" + ANCHORED
    after = text.replace(f"{OLD}: 3", f'{NEW}: "${{mul:3,${{..tensor_model_parallel_size}}}}"')
    becomes({"a.yaml": text}, {"a.yaml": after}, *B, "--style", "interpolation")


KID = "defaults: r.yaml\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 8\n"


@pytest.mark.parametrize("style", ["auto", "literal"])
@pytest.mark.parametrize("section", ["grpo", "dpo"])
def test_a_kid_of_another_tp_over_a_shelf_of_sizes(becomes: Becomes, section: str, style: str) -> None:
    """The shelf has the number of its own recipe, whichever file comes first."""
    text = f"{section}: {{}}\n" + SIZES.splitlines(keepends=True)[0] + SIZES.splitlines(keepends=True)[1]
    kid = KID + f"    model_overrides:\n      {NEW}: 24\n"
    becomes({"r.yaml": text, "k.yaml": KID}, {"r.yaml": text.replace(f"{OLD}: 3", f"{NEW}: 12"), "k.yaml": kid}, *B)


def test_a_shelf_of_sizes_in_form_c(becomes: Becomes) -> None:
    """Nothing on the shelf can say it there: each model has its own."""
    text = "grpo: {}\n" + SIZES
    after = text.replace(f"{{{OLD}: 3}}", "{}")
    for tp, count in ((4, 12), (8, 24)):
        after = after.replace(f"size: {tp}", f"size: {tp}, {NEW}: {count}")
    becomes({"a.yaml": text}, {"a.yaml": after}, *C)


def test_a_kid_over_a_shelf_of_sizes_in_form_c(becomes: Becomes) -> None:
    text = (
        f"dpo: {{}}\ngtp: &GTP\n  # for all\n  {OLD}: 3  # why\n  a: 1\n"
        "policy: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {<<: *GTP}}}\n"
    )
    after = text.replace(f"  {OLD}: 3  # why", "  # why").replace("size: 4", f"size: 4, {NEW}: 12")
    becomes({"r.yaml": text, "k.yaml": KID}, {"r.yaml": after, "k.yaml": KID + f"    {NEW}: 24\n"}, *C)


def test_a_count_on_a_shelf_in_form_c(becomes: Becomes) -> None:
    text = f"grpo: {{}}\ngtp: &GTP {{{NEW}: 24}}\n" + SIZES.split("\n", 1)[1]
    after = text.replace(f"{{{NEW}: 24}}", "{}")
    for tp in (4, 8):
        after = after.replace(f"size: {tp}", f"size: {tp}, {NEW}: 24")
    becomes({"a.yaml": text}, {"a.yaml": after}, *C)


@pytest.mark.parametrize("target", [B, C])
def test_sizes_that_clash_in_two_merges(stays: Stays, target: tuple[str, str]) -> None:
    """The one that is hidden would come to light: it is said where it stands, with what helps, and once."""
    shelves = f"dpo: {{}}\na: &A {{{OLD}: 2}}\nb: &B {{{OLD}: 3}}\n"
    both = "model_overrides:\n      <<: *A\n      <<: *B\n"
    models = [
        f"{name}:\n  megatron_cfg:\n    tensor_model_parallel_size: {tp}\n    {both}"
        for name, tp in (("policy", 4), ("teacher", 8))
    ]
    ran = stays({"a.yaml": shelves + "".join(models)}, *target)
    (problem,) = ran.problems
    assert problem.startswith("a.yaml:2:8: ")
    assert "remove it" in problem


@pytest.mark.parametrize("target", [B, C])
def test_a_shelf_of_sizes_has_no_relation(stays: Stays, migrate: Migrate, target: tuple[str, str]) -> None:
    """What refers to TP would have to resolve on the shelf itself; numbers, as advised, help."""
    ran = stays({"a.yaml": "grpo: {}\n" + SIZES}, *target, "--style", "interpolation")
    assert ["--style literal" in line for line in ran.problems] == [True]
    assert migrate({}, *target, "--style", "literal").code == 0


# -- models in lists ---------------------------------------------------------------------------------------

IN_LISTS = [
    'teachers: [{megatron_cfg: "${policy.megatron_cfg}"}]\n',
    'teachers: ["${policy}"]\nmore: "${teachers}"\n',
    'teachers: [{a: 1}, [{megatron_cfg: "${policy.megatron_cfg}"}]]\n',
    'teacher: {megatron_cfg: "${policy.megatron_cfg}"}\n',
]


@pytest.mark.parametrize("models", IN_LISTS)
@pytest.mark.parametrize("section", ["dpo", "grpo"])
def test_a_model_in_a_list_that_is_another_one(becomes: Becomes, models: str, section: str) -> None:
    """What the policy says in the kid is what it gets: nothing of its own."""
    text = f"{section}: {{}}\n" + HUSK + models
    kid = KID.replace("8", "2")
    after = text.replace(f"{OLD}: 3", f"{NEW}: 12")
    becomes(
        {"r.yaml": text, "kid.yaml": kid},
        {"r.yaml": after, "kid.yaml": kid + f"    model_overrides:\n      {NEW}: 6\n"},
        *B,
        "--style",
        "literal",
    )


@pytest.mark.parametrize("target", [B, C])
def test_a_model_in_a_list_that_is_inherited(stays: Stays, target: tuple[str, str]) -> None:
    """A kid has a list as a whole or not at all: it cannot add to an element."""
    model = f"{{tensor_model_parallel_size: ${{tp}}, model_overrides: {{{OLD}: 3}}}}"
    text = f"dpo: {{}}\ntp: 4\npolicy: {{megatron_cfg: {{tensor_model_parallel_size: 4}}}}\nteachers: [{{megatron_cfg: {model}}}]\n"
    ran = stays({"r.yaml": text.replace("${tp}", '"${tp}"'), "kid.yaml": "defaults: r.yaml\ntp: 8\n"}, *target)
    (problem,) = ran.problems
    assert problem.startswith("kid.yaml: teachers[0].megatron_cfg would change from TP 8")
