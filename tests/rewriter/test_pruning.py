"""What is read of a recipe is only what can reach a `megatron_cfg`; its values are those of the whole recipe."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from gtp_migrate.recipes.resolve import ABSENT, MISSING, Assumed, Resolved, Resolver, Unresolved
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from gtp_migrate.recipes.glance import glance
from gtp_migrate.recipes.keys import LAYOUT_PATHS
from gtp_migrate.recipes.survey import survey
from gtp_migrate.recipes.tree import Tree
from tests.rewriter import oracle
from tests.rewriter.trees import CP, EP, ETP, NEW, OLD, PP, TP, RecipeTree, trees

MORE = int(os.environ.get("GTP_MIGRATE_EXAMPLES", "1"))
REAL = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl"
needs_real_tree = pytest.mark.skipif(
    not REAL.is_dir(), reason="needs a copy of NeMo-RL's recipes in ../shared/corpus/nemo_rl"
)

#: What the package reads of a `megatron_cfg`, and how it names it.
OF_HOLDER = (("tp", TP), ("etp", ETP), ("ep", EP), ("pp", PP), ("cp", CP))
OF_LAYOUT = {
    "gpus_per_node": ("cluster", "gpus_per_node"),
    "num_nodes": ("cluster", "num_nodes"),
    "colocated": ("policy", "generation", "colocated", "enabled"),
    "generation_gpus_per_node": ("policy", "generation", "colocated", "resources", "gpus_per_node"),
    "generation_nodes": ("policy", "generation", "colocated", "resources", "num_nodes"),
}


def resolve_all(root: Path) -> dict[Path, Resolved | Exception]:
    """Every recipe below `root`, by the package."""
    tree = Tree.of(survey([str(root)]))
    tree.read_parents_outside()
    resolver = Resolver(tree, Assumed(), tree.widen(list(tree.files)))
    found: dict[Path, Resolved | Exception] = {}
    for identity in tree.files:
        try:
            found[Path(identity)] = resolver.resolve(identity)
        except Exception as error:
            found[Path(identity)] = error
    return found


def plain(value: Any) -> Any:
    """A value to compare: which of the ways of not being there it is, but not why."""
    if value is ABSENT or value is MISSING:
        return repr(value)
    return "unknown" if isinstance(value, Unresolved) else _without_content(value)


def _without_content(value: Any) -> Any:
    """No setting is a list or a mapping; what is in one does not matter."""
    return type(value) if OmegaConf.is_config(value) else value


def look(mapping: Any, key: str) -> Any:
    """The same of a whole recipe, by OmegaConf alone."""
    if not isinstance(mapping, DictConfig) or mapping._is_none() or key not in mapping.keys():  # noqa: SIM118
        return repr(ABSENT)
    if OmegaConf.is_missing(mapping, key):
        return repr(MISSING)
    try:
        return mapping[key]
    except Exception:
        return "unknown"


def descend(config: Any, path: tuple[str, ...]) -> Any:
    for key in path[:-1]:
        config = look(config, key)
    return look(config, path[-1])


def by_package(resolved: Resolved) -> dict[Any, Any]:
    values: dict[Any, Any] = {name: plain(getattr(resolved, name)) for name in OF_LAYOUT}
    for holder in resolved.holders:
        said = holder.settings
        values[holder.path] = [plain(getattr(said, name)) for name, _ in OF_HOLDER] + [
            plain(value) for value in (*said.size, *said.override_shards, *said.typed_shards)
        ]
        values[(*holder.path, "TP is set")] = holder.tp_is_set
    return values


def by_oracle(config: DictConfig, resolved: Resolved) -> dict[Any, Any]:
    values: dict[Any, Any] = {name: descend(config, path) for name, path in OF_LAYOUT.items()}
    # Where no file sets a TP, the package tries some: the first of them is taken here as well.
    tried = {holder.path: holder.settings.tp for holder in resolved.holders if not holder.tp_is_set}
    for path in oracle.holders(config):
        whole = OmegaConf.create(OmegaConf.to_container(config)) if path in tried else config
        holder = oracle.holders(whole)[path]
        values[(*path, "TP is set")] = look(holder, TP) not in (repr(ABSENT), repr(MISSING), "unknown")
        if path in tried:
            holder[TP] = tried[path]
        overrides = look(holder, "model_overrides")
        found = [look(holder, key) for _, key in OF_HOLDER]
        found += [look(overrides, key) for key in (*OLD, *NEW)]
        found += [look(holder, key) for key in NEW]
        values[path] = [_without_content(value) for value in found]
    return values


@settings(max_examples=100 * MORE, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(trees())
def test_random_recipes_resolve_as_whole_ones(tree: RecipeTree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        for name, data in tree.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        for path, resolved in resolve_all(root).items():
            try:
                config = oracle.load(path)
            except Exception:
                config = None
            if config is None:
                assert isinstance(resolved, Exception), path
                continue
            assert isinstance(resolved, Resolved), (path, resolved)
            assert by_package(resolved) == by_oracle(config, resolved), path


@needs_real_tree
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_recipes_resolve_as_whole_ones() -> None:
    known: oracle.Known = {}
    compared = 0
    for path, resolved in resolve_all(REAL).items():
        assert isinstance(resolved, Resolved), (path, resolved)
        config = oracle.load(path, known)
        assert by_package(resolved) == by_oracle(config, resolved), path
        compared += len(resolved.holders)
    assert compared > 200


def test_the_layout_is_among_what_is_read() -> None:
    assert set(OF_LAYOUT.values()) == set(LAYOUT_PATHS)


# -- glance ----------------------------------------------------------------------------------------------

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


@settings(max_examples=1500 * MORE, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
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


@settings(max_examples=100 * MORE, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
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
