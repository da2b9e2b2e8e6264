"""Which form a NeMo-RL takes, read from its source without importing it.

Source: `MegatronConfig` in NeMo-RL (`nemo_rl/models/policy/__init__.py`), the type of `megatron_cfg`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass

from gtp_migrate.forms import Target
from gtp_migrate.shards import AXES

_SOURCE = os.path.join("nemo_rl", "models", "policy", "__init__.py")


class UndecidedError(Exception):
    """Nobody can tell which form to write. The message says why."""


@dataclass(frozen=True)
class Choice:
    """The form to write, and why, for people."""

    target: Target
    why: str


def choose(recipes: Iterable[str]) -> Choice:
    """Looks for the NeMo-RL checkout around the recipes, else for an installed one.

    Args:
        recipes: paths of the files that hold a setting.

    Raises:
        UndecidedError: two checkouts take different forms, or one types only one of the two fields.
    """
    folders = sorted({os.path.dirname(os.path.abspath(recipe)) for recipe in recipes})
    sources = dict.fromkeys(source for folder in folders if (source := _around(folder)))
    if not sources:
        installed = _installed()
        if installed is None:
            return Choice(Target.MODEL_OVERRIDES, "no NeMo-RL found around the recipes or installed")
        sources = {installed: None}
    choices = [_read(source) for source in sources]
    if len({choice.target for choice in choices}) > 1:
        raise UndecidedError(
            "the recipes are in NeMo-RL checkouts that take different forms ("
            + "; ".join(choice.why for choice in choices)
            + "); run for each alone, or give --target"
        )
    return choices[0]


def _around(folder: str) -> str | None:
    folder = os.path.realpath(folder)
    while True:
        source = os.path.join(folder, _SOURCE)
        if os.path.isfile(source):
            return source
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _installed() -> str | None:
    try:
        spec = importlib.util.find_spec("nemo_rl")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        source = os.path.join(os.path.dirname(folder), _SOURCE)
        if os.path.isfile(source):
            return source
    return None


def _read(source: str) -> Choice:
    try:
        with open(source, encoding="utf-8") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError) as error:
        raise UndecidedError(f"{source} cannot be read ({error}); give --target") from None
    fields = _fields(tree, "MegatronConfig")
    if fields is None:
        raise UndecidedError(f"{source} does not show all of MegatronConfig; give --target")
    typed = fields & {axis.num_weight_shards for axis in AXES}
    if len(typed) == 1:
        raise UndecidedError(f"the MegatronConfig in {source} types only {typed.pop()}; give --target")
    if typed:
        return Choice(Target.MEGATRON_CFG, f"the MegatronConfig in {source} types the fields")
    return Choice(Target.MODEL_OVERRIDES, f"the MegatronConfig in {source} does not type the fields")


def _fields(tree: ast.Module, name: str, below: tuple[str, ...] = ()) -> set[str] | None:
    """The annotations of a class in a module, with those of its bases; None where some stand elsewhere."""
    if name in ("TypedDict", "Generic", "Protocol", "object"):
        return set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name and name not in below:
            fields = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            for base in node.bases:
                known = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
                inherited = _fields(tree, known, (*below, name))
                if inherited is None:
                    return None
                fields |= inherited
            return fields
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return None if below or name in imported or "*" in imported else set()
