"""Layers merged as plain data, and interpolations resolved one by one: the same as OmegaConf makes of whole files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from omegaconf import DictConfig, OmegaConf

from gtp_migrate.problems import RecipeError
from gtp_migrate.recipes.interpolation import OLDEST_RESOLVERS, Resolution, Unresolved, value_of
from gtp_migrate.recipes.survey import survey
from gtp_migrate.recipes.tree import Tree, read_tree
from gtp_migrate.recipes.values import plain
from tests.conftest import MORE
from tests.rewriter import oracle
from tests.rewriter.planting import plant
from tests.rewriter.test_properties import on_disk
from tests.rewriter.trees import RecipeTree, trees

REAL = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl"
needs_real_tree = pytest.mark.skipif(
    not REAL.is_dir(), reason="needs a copy of NeMo-RL's recipes in ../shared/corpus/nemo_rl"
)


def exactly(value: Any) -> Any:
    """A value with its types: to OmegaConf 1, 1.0 and true are not the same."""
    if isinstance(value, dict):
        return {(type(key), key): exactly(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [exactly(inner) for inner in value]
    return (type(value), "nan" if value != value else value)


def by_package(node: Any) -> Any:
    """A resolved recipe; "unresolved" where there is no value."""
    value = value_of(node)
    if isinstance(value, Unresolved):
        return "unresolved"
    if isinstance(value, dict):
        return {key: by_package(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [by_package(inner) for inner in value]
    return value


def by_omegaconf(config: Any) -> Any:
    """The same, node by node."""
    if isinstance(config, DictConfig):
        return {key: _node(config, key) for key in config.keys()}  # noqa: SIM118
    return [_node(config, index) for index in range(len(config))]


def _node(config: Any, key: Any) -> Any:
    if OmegaConf.is_missing(config, key) and not OmegaConf.is_interpolation(config, key):
        return "???"
    try:
        value = config[key]
    except Exception:
        return "unresolved"
    if not OmegaConf.is_config(value):
        return value
    return OmegaConf.to_container(value) if value._is_none() or value._is_missing() else by_omegaconf(value)


def loaded(path: Path) -> DictConfig | None:
    """As NeMo-RL loads it; None where it does not."""
    try:
        return oracle.load(path)
    except Exception:
        return None


@contextlib.contextmanager
def tree_of(root: Path) -> Iterator[Tree]:
    yield read_tree(survey([str(root)]), ())


def compare(tree: Tree) -> tuple[int, int]:
    """Every recipe of a tree; returns how many there are, and how many of them resolve as a whole."""
    compared = whole = 0
    for recipe in tree.recipes:
        config = loaded(Path(recipe))
        if recipe in tree.broken:
            assert config is None, f"{recipe}: {tree.broken[recipe]}"
            continue
        try:
            merged = tree.merged(recipe)
        except RecipeError as error:
            assert config is None, f"{recipe}: {error}"
            continue
        assert config is not None, f"{recipe} does not load"
        assert exactly(plain(merged.root)) == exactly(OmegaConf.to_container(config)), recipe
        compared += 1
        for registered in (True, False):
            whole += _compare_resolved(recipe, merged, config, registered)
    return compared, whole


def _compare_resolved(recipe: str, merged: Any, config: DictConfig, registered: bool) -> bool:
    resolution = Resolution(merged.root, merged.landmarks.holes, OLDEST_RESOLVERS if registered else frozenset())
    ours = by_package(resolution.tree())
    with oracle.resolvers(registered=registered):
        assert exactly(ours) == exactly(by_omegaconf(config)), (recipe, registered)
        try:
            container = OmegaConf.to_container(config, resolve=True)
        except Exception:
            assert "'unresolved'" in repr(ours), recipe
            return False
    assert exactly(ours) == exactly(container), (recipe, registered)
    return True


#: The child has no TP, and its parent's leads nowhere: neither may be taken for the other.
NOWHERE = RecipeTree(
    {
        "r0.yaml": b"policy:\n  megatron_cfg:\n    tensor_model_parallel_size: ${nowhere}\n"
        b"    model_overrides: {gtp_weight_remat_size: 2}\n",
        "r1.yaml": b"defaults: r0.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      gtp_weight_remat_size: 3\n",
    }
)
#: A mapping over an interpolation that stands for one, and over one that does not.
OVER = RecipeTree(
    {
        "a.yaml": b"shelf: {x: {gtp_weight_remat_size: 1, y: [1, '${shelf.z}']}, z: 2}\npolicy: ${shelf.x}\n"
        b"teacher: ${shelf}\n",
        "b.yaml": b"defaults: a.yaml\npolicy: {y: 3}\nshelf: {z: ${teacher.x.gtp_weight_remat_size}}\n",
        "c.yaml": b"defaults: [b.yaml, a.yaml]\nteacher: {_override_: true, x: ${..shelf.z}}\n",
        "d.yaml": b"defaults: a.yaml\nteacher: {x: 1}\n",
    }
)
#: The same over a resolver.
MADE = RecipeTree({name: data.replace(b"${shelf}\n", b"${oc.create:${shelf}}\n") for name, data in OVER.files.items()})


@settings(max_examples=60 * MORE)
@example(NOWHERE)
@example(OVER)
@given(trees())
def test_random_recipes(tree: RecipeTree) -> None:
    with on_disk(tree) as root, tree_of(root) as read:
        compare(read)


def test_a_mapping_over_a_resolver_that_makes_one() -> None:
    """OmegaConf calls the resolver there and then; nobody else can tell what it would make: an error, never a guess."""
    with on_disk(MADE) as root, tree_of(root) as read:
        with pytest.raises(RecipeError, match="may stand for anything"):
            read.merged(str(root / "d.yaml"))
        read.merged(str(root / "a.yaml"))


def test_the_value_of_a_reference_that_leads_nowhere_is_not_absent() -> None:
    with on_disk(NOWHERE) as root, tree_of(root) as read:
        merged = read.merged(str(root / "r1.yaml"))
        resolved = Resolution(merged.root, merged.landmarks.holes, OLDEST_RESOLVERS).tree()
        assert isinstance(value_of(resolved["policy"]["megatron_cfg"]["tensor_model_parallel_size"]), Unresolved)


@needs_real_tree
@pytest.mark.slow
def test_real_recipes(tmp_path: Path) -> None:
    """As they are, with a setting in as many as can have one, so that all that inherit from those are looked at."""
    shutil.copytree(REAL, tmp_path / "nemo_rl")
    plant(tmp_path / "nemo_rl", 130)
    with tree_of(tmp_path / "nemo_rl") as read:
        compared, whole = compare(read)
    assert compared > 150
    assert whole > 150


def test_a_folder_of_this_test_only() -> None:
    """The comparison sees a difference: one value of the merged recipe is another."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(os.path.realpath(folder)) / "a.yaml"
        path.write_text("a: 1\ngtp_weight_remat_size: 1\n")
        with tree_of(path) as read:
            path.write_text("a: true\ngtp_weight_remat_size: 1\n")
            with pytest.raises(AssertionError):
                compare(read)


def test_a_value_that_is_missing_in_a_child(tmp_path: Path) -> None:
    """`???` in a child leaves what it inherits."""
    (tmp_path / "a.yaml").write_text("x: {y: 1}\nz: 2\ngtp_weight_remat_size: 1\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\nx: {y: '???'}\nz: ???\nnew: ???\n")
    with tree_of(tmp_path) as read:
        assert compare(read)[0] == 2
        merged = plain(read.merged(str(tmp_path / "b.yaml")).root)
    assert (merged["x"], merged["z"], merged["new"]) == ({"y": 1}, 2, "???")


@pytest.mark.parametrize(("base", "child"), [("[1]", "{a: 1}"), ("{a: 1}", "[1]"), ("{a: [1]}", "{a: {b: 1}}")])
def test_a_mapping_over_a_list(tmp_path: Path, base: str, child: str) -> None:
    (tmp_path / "a.yaml").write_text(f"x: {base}\ngtp_weight_remat_size: 1\n")
    (tmp_path / "b.yaml").write_text(f"defaults: a.yaml\nx: {child}\n")
    with tree_of(tmp_path) as read, pytest.raises(RecipeError, match="a mapping in one file and a list in another"):
        read.merged(str(tmp_path / "b.yaml"))
    assert loaded(tmp_path / "b.yaml") is None
