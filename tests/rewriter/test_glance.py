"""The first look at the bytes of a recipe says what a parser says, or that it cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from gtp_migrate.recipes.glance import glance
from tests.conftest import MORE
from tests.rewriter.trees import RecipeTree, trees

REAL = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl"
needs_real_tree = pytest.mark.skipif(
    not REAL.is_dir(), reason="needs a copy of NeMo-RL's recipes in ../shared/corpus/nemo_rl"
)

PATHS = ("base.yaml", "../a/base.yml", "./x-1.yaml", "sub/deep/r_2.yaml", "grpo.v1.yaml", "no_suffix", "a b.yaml")


@st.composite
def ways_to_inherit(draw: Any) -> str:
    """A recipe with `defaults:` written in one of many ways, and things beside it that look like it."""

    def one_of(*choices: str) -> str:
        return str(draw(st.sampled_from(choices)))

    def path() -> str:
        text = one_of(*PATHS)
        return one_of("{}", "{}", '"{}"', "'{}'").format(text)

    end = one_of("", "", "  ", "  # why", " # defaults: x.yaml")
    key = one_of("defaults", "defaults", "defaults", '"defaults"', "'defaults'", "defaults ", "? defaults\n")
    kind = draw(st.integers(0, 9))
    count = draw(st.integers(1, 3))
    if kind < 3:
        written = f"{key}: {path()}{end}"
    elif kind < 5:
        indent = one_of("", "  ", " ")
        comment = one_of("", "", f"\n{indent}# why", "\n")
        written = f"{key}:{end}" + comment + "".join(f"\n{indent}- {path()}{end}" for _ in range(count))
    elif kind < 6:
        written = f"{key}: [{one_of('', ' ')}{one_of(', ', ',', ' , ').join(path() for _ in range(count))}]{end}"
    elif kind < 7:
        written = f"{key}:\n  {path()}{end}"
    elif kind < 8:
        written = f"{key}: {path()}\n  {one_of('more', '# why')}"
    elif kind < 9:
        written = f"{key}: {one_of('null', '', '[]', '1', '>-', '|')}{end}"
        written += one_of("", "\n  base.yaml")
    else:
        written = ""
    before = one_of(
        "",
        "",
        "# defaults: not.yaml\n",
        "a: 1\n",
        "---\n",
        "a:\n  defaults: other.yaml\n",
        "a: |\n  x\n  defaults: other.yaml\n",
        "a: >\n\n  defaults: other.yaml\n\n",
        'a: "x\n  defaults: other.yaml"\n',
        "a: {defaults: other.yaml}\n",
        "a: {b: 1,\n  defaults: other.yaml}\n",
        "a:\n- defaults: other.yaml\n",
        "a: x\n\n\n",
        "a_defaults: other.yaml\n",
        "a: 1 # x\n",
    )
    after = one_of("", "\n", "\nb: 1\n", "\n# end", "\n\nb:\n  - 1\n", "\n---\n", "\n...\n", "\n  \n")
    text = before + written + after
    if one_of("", "", "", "flow") == "flow" and "\n" not in written and "#" not in written and written:
        text = "{" + written + ", b: 1}\n"
    if one_of("", "", "crlf") == "crlf":
        text = text.replace("\n", "\r\n")
    return one_of("", "", "", "\ufeff") + text


@settings(max_examples=500 * MORE)
@given(ways_to_inherit())
def test_what_a_glance_says_is_what_a_parser_says(text: str) -> None:
    check_glance(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\rdefaults: base.yaml\r",
        "a: 1\x85defaults: base.yaml\n",
        "a: 1\u2028defaults: base.yaml\n",
        "&key defaults: base.yaml\n",
        "!!str defaults: base.yaml\n",
        "%YAML 1.1\n--- !!map\ndefaults: base.yaml\n",
        "x: &parent base.yaml\ndefaults: *parent\n",
        "defaults: base.yaml\n\tmore\n",
        "defaults: base.yaml\n\n  more.yaml\n",
        "defaults:\n- a.yaml\n\n- b.yaml\n",
        "defaults:\n- a.yaml\n# why\n- b.yaml\n",
        "defaults:\n  - a.yaml\n    more\n",
        "defaults: [a.yaml, b.yaml,]\n",
        "defaults: ['a,b.yaml', c.yaml]\n",
        "<<: {defaults: base.yaml}\n",
        "x: &x\n  defaults: base.yaml\n<<: *x\n",
    ],
)
def test_a_glance_at_odd_ways_to_inherit(text: str) -> None:
    check_glance(text.encode())


@settings(max_examples=40 * MORE)
@given(trees())
def test_a_glance_at_random_recipes(tree: RecipeTree) -> None:
    for data in tree.files.values():
        check_glance(data)


@needs_real_tree
def test_a_glance_at_real_recipes() -> None:
    by_glance = 0
    for path in REAL.rglob("*.yaml"):
        by_glance += check_glance(path.read_bytes()) is not None
    assert by_glance > 300


def check_glance(data: bytes) -> tuple[str, ...] | None:
    """Compares a glance with OmegaConf, where OmegaConf can read the file; returns what the glance says."""
    seen = glance(data)
    assert seen.old == (b"gtp_weight_remat_size" in data)
    assert seen.new == (b"tensor_parallel_num_weight_shards" in data)
    try:
        config = OmegaConf.create(data.decode())
    except Exception:
        return seen.defaults
    if seen.defaults is None or not isinstance(config, DictConfig):
        return seen.defaults
    written = OmegaConf.to_container(config).get("defaults", [])  # type: ignore[union-attr]
    assert list(seen.defaults) == ([written] if isinstance(written, str) else written)
    return seen.defaults
