"""What is installed here, what it takes, and whether the runtime shim fits: read, never imported.

Versions come from the metadata of packages, everything else from their source: what a class declares, what a
function is called with. Each place where Python code may run is looked at by itself: this Python, the sources in a
NeMo-RL checkout, and the environments of its workers (`nemo_rl/utils/venvs.py`).
"""

from __future__ import annotations

import ast
import contextlib
import glob
import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gtp_migrate import __version__
from gtp_migrate.forms import Target
from gtp_migrate.runs import nemo_rl
from gtp_migrate.shards import AXES

#: The folder that `gtp-shim` puts first on PYTHONPATH.
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim", "site")

#: What is looked for: the names of the packages, and the folder of its source where that may say its version.
_PACKAGES = (
    ("megatron-bridge", ("megatron-bridge",), "megatron/bridge"),
    ("megatron-core", ("megatron-core",), "megatron/core"),
    ("nemo-rl", ("nemo-rl",), "nemo_rl"),
    (
        "transformer-engine",
        ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13"),
        "transformer_engine",
    ),
)
_BRIDGE_CONFIG = "megatron.bridge.models.transformer_config"
_CORE_CONFIG = "megatron.core.model_parallel_config"
_PARALLEL_STATE = "megatron.core.parallel_state"
_INITIALIZE = "megatron.bridge.training.initialize"
_INITIALIZER = "initialize_model_parallel"
#: Core's names for the sizes, where its source is not there to say.
_GTP_ARGUMENTS = ("gtp_remat_size", "expert_gtp_remat_size")
#: Where NeMo-RL keeps the sources that it is built with.
_THIRD_PARTY = (
    "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge/src",
    "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge/3rdparty/Megatron-LM",
    "3rdparty/Megatron-LM-workspace/Megatron-LM",
)
#: Asks a worker's Python what it makes of PYTHONPATH.
_ASK = (
    "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.argv[1] in sys.path, "
    "'sitecustomize' in sys.modules]))"
)
_OLDEST_PYTHON = [3, 10]
_NO_NEMO_RL = "no NeMo-RL found around the paths or installed"


@dataclass(frozen=True)
class Package:
    """One package."""

    name: str
    #: None where nothing says; and where its source is, None where it is not there.
    version: str | None
    source: str | None


@dataclass(frozen=True)
class Answer:
    """Yes, no, or not to be told (None), and why."""

    value: bool | None
    why: str


@dataclass(frozen=True)
class HookFit:
    """Whether a place that the shim hooks into is there; None where only running it would tell."""

    target: str
    fits: bool | None


@dataclass(frozen=True)
class Environment:
    """One place with packages."""

    name: str
    packages: tuple[Package, ...]
    #: Whether `model_overrides` may hold the old size, and the new count.
    takes_size: Answer
    takes_count: Answer
    #: Whether a GTP size that is set makes weights sharded at all.
    gtp_can_be_active: Answer
    hooks: tuple[HookFit, ...]
    #: Whether `gtp-shim` gets into its Python; None where it is no worker's.
    shim_reaches: Answer | None = None

    @property
    def has_bridge(self) -> bool:
        """Whether Megatron-Bridge's source is there."""
        return any(package.name == "megatron-bridge" and package.source for package in self.packages)


@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    gtp_migrate: str
    python: str
    #: The NeMo-RL checkouts or the installed NeMo-RL, and the form that these take.
    nemo_rl: tuple[str, ...]
    #: `model-overrides`, `megatron-cfg`; None where that cannot be told.
    form: str | None
    why_form: str
    #: Whether NeMo-RL hands PYTHONPATH, and with it gtp-shim, on to its workers.
    passes_pythonpath: Answer
    environments: tuple[Environment, ...]
    todo: tuple[str, ...] = ()


def diagnose(paths: Iterable[str] = ()) -> Diagnosis:
    """Looks around these paths, or the current folder.

    Source: as each answer's `why` says.
    """
    found = nemo_rl.around(
        os.path.join(path, "recipe.yaml") if os.path.isdir(path) else path for path in [*paths] or [os.getcwd()]
    )
    roots = found or nemo_rl.installed()
    form, why = None, _NO_NEMO_RL
    if roots:
        try:
            choice = nemo_rl.choose(roots)
            form, why = choice.target.value, choice.why
        except nemo_rl.UndecidedError as error:
            why = str(error)
    environments = tuple(_environments(roots))
    diagnosis = Diagnosis(
        gtp_migrate=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        nemo_rl=roots,
        form=form,
        why_form=why,
        passes_pythonpath=_passes_pythonpath(roots[0]) if roots else Answer(None, _NO_NEMO_RL),
        environments=environments,
    )
    return replace(diagnosis, todo=tuple(_todo(diagnosis)))


# -- places --------------------------------------------------------------------------------------------


def _environments(roots: tuple[str, ...]) -> Iterator[Environment]:
    # NeMo-RL runs from its checkout, whatever Python it runs in.
    yield _environment("this Python", [*(path for path in sys.path if os.path.isdir(path)), *roots])
    for root in roots:
        sources = [path for each in _THIRD_PARTY if os.path.isdir(path := os.path.join(root, each))]
        yield _environment(f"the sources in {root}", [*sources, root])
        folder = os.path.normpath(os.environ.get("NEMO_RL_VENV_DIR", os.path.join(root, "venvs")))
        for config in sorted(glob.glob(os.path.join(glob.escape(folder), "*", "pyvenv.cfg"))):
            venv = os.path.dirname(config)
            environment = _environment(f"the worker environment {venv}", [*_site_packages(venv), *sources, root])
            yield replace(environment, shim_reaches=_reaches(venv))


def _site_packages(venv: str) -> Iterator[str]:
    """The folders that a virtual environment imports from, those of editable installs included."""
    for folder in sorted(glob.glob(os.path.join(glob.escape(venv), "lib", "python*", "site-packages"))):
        yield folder
        for pth in sorted(glob.glob(os.path.join(glob.escape(folder), "*.pth"))):
            with contextlib.suppress(OSError), open(pth, encoding="utf-8", errors="replace") as stream:
                yield from (line.strip() for line in stream if os.path.isdir(line.strip()))


def _environment(name: str, paths: list[str]) -> Environment:
    paths = list(dict.fromkeys([*paths, *_editable(paths)]))
    return Environment(
        name=name,
        packages=tuple(_package(each, names, folder, paths) for each, names, folder in _PACKAGES),
        takes_size=_takes(paths, [axis.gtp_size for axis in AXES]),
        takes_count=_takes(paths, [axis.num_weight_shards for axis in AXES]),
        gtp_can_be_active=_gtp_can_be_active(paths),
        hooks=tuple(HookFit(target, _fits(target, paths)) for target in shim_targets() if _has_package(target, paths)),
    )


def _editable(paths: list[str]) -> Iterator[str]:
    """Where packages are that were installed as links to their source."""
    for _, names, _ in _PACKAGES:
        for name in names:
            for found in importlib.metadata.distributions(name=name, path=paths):
                text = found.read_text("direct_url.json")
                if text and "file://" in text:
                    url = urllib.parse.urlparse(json.loads(text)["url"])
                    folder = urllib.request.url2pathname(url.path)
                    yield from (path for path in (os.path.join(folder, "src"), folder) if os.path.isdir(path))


def _package(name: str, names: Iterable[str], folder: str, paths: list[str]) -> Package:
    source = next((each for path in paths if os.path.isdir(each := os.path.join(path, folder))), None)
    for each in names:
        for found in importlib.metadata.distributions(name=each, path=paths):
            return Package(name, found.version, source)
    return Package(name, _version_of_source(source) if source else None, source)


def _version_of_source(folder: str) -> str | None:
    """The version that `package_info.py` spells out in NVIDIA's packages."""
    tree = _parse(os.path.join(folder, "package_info.py"))
    parts = {
        node.targets[0].id: node.value.value
        for node in (tree.body if tree else ())
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    numbers = [parts.get(key) for key in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(map(str, numbers)) + str(parts.get("PRE_RELEASE", "")) if None not in numbers else None


# -- questions -----------------------------------------------------------------------------------------


def _takes(paths: list[str], fields: list[str]) -> Answer:
    """Whether the constructors of Bridge's configs take these fields.

    Source: a field that Bridge declares `field(init=False)` is derived, and no argument; what it does not declare is
    Core's.
    """
    bridge, core = _source(_BRIDGE_CONFIG, paths), _source(_CORE_CONFIG, paths)
    if bridge is None:
        return Answer(None, "no Megatron-Bridge here")
    whys = []
    for name in fields:
        path, declared = bridge, _declaration(bridge, "TransformerConfig", name)
        if declared is None and core is not None:
            path, declared = core, _declaration(core, "ModelParallelConfig", name)
        if declared is None:
            return Answer(
                None if core is None else False, f"nothing declares {name}" + ("" if core else ": no Core here")
            )
        if _is_derived(declared):
            return Answer(False, f"{path}:{declared.lineno} derives {name}, and takes no argument for it")
        whys.append(f"{path}:{declared.lineno}")
    return Answer(True, f"declared at {', '.join(dict.fromkeys(whys))}")


def _declaration(path: str, name: str, field: str) -> ast.AnnAssign | None:
    tree = _parse(path)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == field:
                    return item
    return None


def _is_derived(declared: ast.AnnAssign) -> bool:
    return isinstance(declared.value, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in declared.value.keywords
    )


def _gtp_can_be_active(paths: list[str]) -> Answer:
    """Whether Bridge hands the GTP sizes to Core, which makes the groups: without that, weights stay whole."""
    path = _source(_INITIALIZE, paths)
    tree = _parse(path) if path else None
    if tree is None:
        return Answer(None, "no Megatron-Bridge here")
    core = _source(_PARALLEL_STATE, paths)
    arguments = _gtp_arguments(core) if core else _GTP_ARGUMENTS
    if not arguments:
        return Answer(False, f"{_INITIALIZER} in {core} knows no GTP")
    named = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    named |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    missing = [name for name in arguments if name not in named]
    if missing:
        return Answer(False, f"{path} hands no {' and no '.join(missing)} to {_INITIALIZER}")
    return Answer(True, f"{path} hands {' and '.join(arguments)} to {_INITIALIZER}")


def _gtp_arguments(core: str) -> tuple[str, ...]:
    tree = _parse(core)
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name == _INITIALIZER:
            return tuple(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs) if "gtp" in arg.arg)
    return ()


def shim_targets() -> tuple[str, ...]:
    """The places that the shim hooks into: `module:attribute`, `module:Class.attribute`."""
    from gtp_migrate.shim.hooks import HOOKS

    return tuple(dict.fromkeys(hook.target for hook in HOOKS))


def _has_package(target: str, paths: list[str]) -> bool:
    """Whether the package is there that a hook goes into: without it there is nothing to hook."""
    package = target.partition(".")[0]
    return any(os.path.isdir(os.path.join(path, package)) for path in paths)


def _fits(target: str, paths: list[str]) -> bool | None:
    module, _, attribute = target.partition(":")
    path = _source(module, paths)
    if path is None:
        return False
    tree = _parse(path)
    if tree is None:
        return None
    body: list[ast.stmt] = tree.body
    *above, name = attribute.split(".")
    for step in above:
        inner = next((node for node in _statements(body) if isinstance(node, ast.ClassDef) and node.name == step), None)
        if inner is None:
            return False
        body = inner.body
    names = set(_names(body))
    return True if name in names else None if "*" in names else False


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or a class, those in `if` and `try` too."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            handlers = [each for handler in getattr(node, "handlers", ()) for each in handler.body]
            yield from _statements([*node.body, *node.orelse, *getattr(node, "finalbody", ()), *handlers])


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in _statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


# -- the workers ---------------------------------------------------------------------------------------


def _passes_pythonpath(root: str) -> Answer:
    """Whether NeMo-RL gives its whole environment to the workers."""
    path = os.path.join(root, "nemo_rl", "distributed", "virtual_cluster.py")
    tree = _parse(path)
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name == "init_ray":
            text = ast.unparse(node)
            is_taken_out = "'PYTHONPATH'" in text
            if "dict(os.environ)" in text and "env_vars" in text and not is_taken_out:
                return Answer(True, f"{path}:{node.lineno} gives its whole environment to the workers")
            return Answer(None, f"{path}:{node.lineno} makes the workers' environment in a way not known here")
    return Answer(None, f"{path} has no init_ray that can be read")


def _reaches(venv: str) -> Answer:
    """Whether a worker's Python starts with the shim, asked of that Python itself; it imports nothing else."""
    if not os.path.isfile(os.path.join(SITE, "sitecustomize.py")):
        return Answer(False, "this gtp-migrate has no gtp-shim")
    python = os.path.join(venv, "bin", "python")
    environment = {**os.environ, "PYTHONPATH": SITE}
    try:
        ran = subprocess.run(
            [python, "-c", _ASK, SITE], env=environment, capture_output=True, text=True, timeout=30, check=True
        )
        version, is_on_path, is_started = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Answer(None, f"{python} cannot be asked ({type(error).__name__})")
    if version < _OLDEST_PYTHON:
        return Answer(False, f"{python} is Python {version[0]}.{version[1]}; the shim needs 3.10")
    if not is_on_path or not is_started:
        return Answer(False, f"{python} does not start with what PYTHONPATH names")
    return Answer(True, f"{python} starts with it")


# -- what to do ----------------------------------------------------------------------------------------


def _todo(found: Diagnosis) -> Iterator[str]:
    places: dict[str, list[str]] = {}
    for environment in found.environments:
        for sentence in _todo_in(environment):
            places.setdefault(sentence, []).append(environment.name)
    if not any(environment.has_bridge for environment in found.environments):
        yield "No Megatron-Bridge was found: run this where you train (in the container, in the NeMo-RL checkout)."
    for sentence, names in places.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"In {names[0]}{more}, {sentence}"
    if found.form == Target.MEGATRON_CFG.value:
        yield "This NeMo-RL types the shard counts: write them in megatron_cfg (form C), as --target auto does."
    elif found.form is None and found.nemo_rl:
        yield f"Which form to write cannot be told: {found.why_form}."
    if not found.nemo_rl:
        yield (
            "Whether gtp-shim reaches the workers is not known without a NeMo-RL: give its checkout "
            "(gtp-migrate --doctor CHECKOUT), or run this in it."
        )
    elif found.passes_pythonpath.value is not True:
        yield f"Whether gtp-shim reaches the workers is not sure: {found.passes_pythonpath.why}."


def _todo_in(environment: Environment) -> Iterator[str]:
    takes_size, takes_count = environment.takes_size.value, environment.takes_count.value
    if takes_size is False and takes_count:
        yield "a recipe with an old key crashes every worker: migrate all of them (gtp-migrate PATH)."
    elif takes_size and takes_count:
        yield "old keys still work; newer Bridges reject them: migrate before you move on."
    elif takes_count is False:
        yield f"shard counts are not known ({environment.takes_count.why}): do not migrate for it."
    if environment.gtp_can_be_active.value is False:
        yield (
            "GTP is never active: runs that set it train with whole weights, and need the memory for that; their "
            "checkpoints are whole as well."
        )
    missing = [hook.target for hook in environment.hooks if hook.fits is False] if environment.has_bridge else []
    if missing and len(missing) == len(environment.hooks):
        yield "no hook of the shim fits: it does nothing there."
    elif missing:
        yield f"{len(missing)} of {len(environment.hooks)} hooks of the shim have no place: {', '.join(missing)}."
    if environment.shim_reaches is not None and environment.shim_reaches.value is not True:
        yield f"gtp-shim does not get in: {environment.shim_reaches.why}."


# -- source --------------------------------------------------------------------------------------------


def _source(module: str, paths: Iterable[str]) -> str | None:
    """The file of a module, found by name."""
    below = os.path.join(*module.split("."))
    for path in paths:
        for each in (os.path.join(path, below + ".py"), os.path.join(path, below, "__init__.py")):
            if os.path.isfile(each):
                return each
    return None


@lru_cache(maxsize=256)
def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
