"""Which form a NeMo-RL takes, and which resolvers its launchers register, read from its source without importing it.

Source: `MegatronConfig` in NeMo-RL (`nemo_rl/models/policy/__init__.py`), the type of `megatron_cfg`;
`register_omegaconf_resolvers` (`nemo_rl/utils/config.py`), called by most of `examples/run_*.py`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from gtp_migrate.forms import Target
from gtp_migrate.recipes.interpolation import OLDEST_RESOLVERS, RESOLVERS
from gtp_migrate.shards import AXES

_MODEL_CONFIG = os.path.join("nemo_rl", "models", "policy", "__init__.py")
_RESOLVERS = os.path.join("nemo_rl", "utils", "config.py")
#: Whether `run_<algorithm>.py` registers resolvers, where no NeMo-RL is there to look at.
_REGISTERS = {
    "grpo": True,
    "ppo": True,
    "sft": True,
    "distillation": True,
    "dpo": False,
    "rm": False,
    "eval": False,
}


class UndecidedError(Exception):
    """Nobody can tell which form to write. The message says why."""


@dataclass(frozen=True)
class Choice:
    """The form to write, and why, for people."""

    target: Target
    why: str
    #: Whether there is no NeMo-RL that was looked at.
    is_assumed: bool = False


@dataclass(frozen=True)
class Launchers:
    """What the launchers of a NeMo-RL register."""

    #: The names of the resolvers, those alone that are known here.
    resolvers: frozenset[str] = OLDEST_RESOLVERS
    #: By algorithm, what was found.
    found: dict[str, bool] = field(default_factory=dict)

    def registers(self, algorithm: str) -> bool:
        """Whether the launchers of an algorithm register resolvers."""
        return self.found.get(algorithm, _REGISTERS[algorithm])


def around(recipes: Iterable[str]) -> tuple[str, ...]:
    """The NeMo-RL checkouts around the recipes: the folders that hold `nemo_rl`."""
    folders = sorted({os.path.dirname(os.path.abspath(recipe)) for recipe in recipes})
    return tuple(dict.fromkeys(root for folder in folders if (root := _checkout_around(folder))))


def installed() -> tuple[str, ...]:
    """The NeMo-RL that is installed beside this tool, if there is one."""
    try:
        spec = importlib.util.find_spec("nemo_rl")
    except (ImportError, ValueError):
        return ()
    folders = [os.path.dirname(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return tuple(folder for folder in folders if os.path.isfile(os.path.join(folder, _MODEL_CONFIG)))[:1]


def asked_for(target: Target) -> Choice:
    """The form that somebody asks for, whatever NeMo-RL there is."""
    return Choice(target, "--target", is_assumed=True)


def choose(roots: Iterable[str]) -> Choice:
    """The form that these NeMo-RLs take.

    Raises:
        UndecidedError: two of them take different forms, or one types only one of the two fields.
    """
    choices = [_read_form(root) for root in roots]
    if not choices:
        return Choice(Target.MODEL_OVERRIDES, "no NeMo-RL found around the recipes or installed", is_assumed=True)
    if len({choice.target for choice in choices}) > 1:
        raise UndecidedError(
            "the recipes, or files that they inherit from, are in NeMo-RL checkouts that take different forms ("
            + "; ".join(choice.why for choice in choices)
            + "); run for each alone, or give --target"
        )
    return choices[0]


def launchers(roots: Iterable[str]) -> Launchers:
    """What the launchers of all these NeMo-RLs register; the usual where there is none."""
    names: frozenset[str] | None = None
    found: dict[str, bool] = {}
    for root in roots:
        registered = _registered(root)
        names = registered if names is None else names & registered
        for algorithm in _REGISTERS:
            calls = _calls_register(os.path.join(root, "examples", f"run_{algorithm}.py"))
            if calls is not None:
                found[algorithm] = found.get(algorithm, True) and calls
    return Launchers(names if names is not None else OLDEST_RESOLVERS, found)


def _checkout_around(folder: str) -> str | None:
    folder = os.path.realpath(folder)
    while True:
        if os.path.isfile(os.path.join(folder, _MODEL_CONFIG)):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _registered(root: str) -> frozenset[str]:
    tree = _parse(os.path.join(root, _RESOLVERS))
    names = {
        node.args[0].value
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register_new_resolver"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }
    return frozenset(names & RESOLVERS.keys()) or OLDEST_RESOLVERS


def _calls_register(script: str) -> bool | None:
    """Whether a launcher registers resolvers, itself or by the launcher that it imports; None where it is not there."""
    tree = _parse(script)
    if tree is None:
        return None
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for name in [node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")]
    }
    return bool(names & {"register_omegaconf_resolvers", "register_new_resolver"})


def _read_form(root: str) -> Choice:
    source = os.path.join(root, _MODEL_CONFIG)
    tree = _parse(source)
    if tree is None:
        raise UndecidedError(f"{source} cannot be read; give --target")
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
