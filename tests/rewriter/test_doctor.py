"""`--doctor`: what is found of packages that a test lays out, without importing any."""

from __future__ import annotations

import json
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from gtp_migrate import __version__
from gtp_migrate.ask import doctor
from gtp_migrate.ask.doctor import Environment, HookFit, diagnose

from .conftest import CODE, Content, Migrate, in_a_terminal, run, unstyled, write_files

BOOM = "raise RuntimeError('imported')\n"
CORE: dict[str, Content] = {
    "megatron/core/__init__.py": BOOM,
    "megatron/core/package_info.py": "MAJOR = 0\nMINOR = 19\nPATCH = 2\nPRE_RELEASE = 'rc1'\n" + BOOM,
    "megatron/core/model_parallel_config.py": BOOM
    + """
class ModelParallelConfig:
    tensor_parallel_num_weight_shards: int | None = None
    gtp_weight_remat_size: int = 1
    expert_tensor_parallel_num_weight_shards: int | None = None
    expert_gtp_weight_remat_size: int = 1
    def __post_init__(self): ...
""",
    "megatron/core/parallel_state.py": (
        "def initialize_model_parallel(tp=1, gtp_remat_size=1, *, expert_gtp_remat_size=1): ...\n"
    ),
}
RELEASED: dict[str, Content] = {
    **CORE,
    "megatron/bridge/__init__.py": BOOM,
    "megatron_bridge-0.6.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: megatron-bridge\nVersion: 0.6.2\n",
    "megatron/bridge/models/transformer_config.py": "class TransformerConfig(Core):\n    def finalize(self): ...\n",
    "megatron/bridge/training/initialize.py": "initialize_model_parallel(tensor_model_parallel_size=4)\n",
}
NEW: dict[str, Content] = {
    **RELEASED,
    "megatron_bridge-0.6.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: megatron-bridge\nVersion: 0.7.0\n",
    "megatron/bridge/models/transformer_config.py": """
class TransformerConfig(Core):
    tensor_parallel_num_weight_shards: int | None = None
    expert_tensor_parallel_num_weight_shards: int | None = None
    gtp_weight_remat_size: int = field(init=False, default=1)
    expert_gtp_weight_remat_size: int = dataclasses.field(default=1, init=False)
""",
    "megatron/bridge/training/initialize.py": """
extra = {"gtp_remat_size": config.gtp_weight_remat_size}
initialize_model_parallel(**extra, expert_gtp_remat_size=config.expert_gtp_weight_remat_size)
""",
}
NEMO_RL: dict[str, Content] = {
    "nemo_rl/__init__.py": BOOM,
    "nemo_rl/package_info.py": "MAJOR = 0\nMINOR = 5\nPATCH = 0\nPRE_RELEASE = ''\n",
    "nemo_rl/models/policy/__init__.py": "class MegatronConfig(TypedDict):\n    enabled: bool\n",
    "nemo_rl/distributed/virtual_cluster.py": """
def init_ray():
    env_vars = dict(os.environ)
    env_vars.pop("OTHER", None)
    ray.init(runtime_env={"env_vars": env_vars})
""",
    "examples/a.yaml": "grpo: {}\n",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Content]], Path]:
    """Puts packages on this Python's path, before all others."""

    def site(files: dict[str, Content]) -> Path:
        folder = tmp_path / "site"
        write_files(folder, files)
        monkeypatch.syspath_prepend(folder)
        return folder

    return site


def looked_at(folder: Path, files: dict[str, Content]) -> Environment:
    """One place that has these packages and no others."""
    write_files(folder, files)
    return doctor._environment("here", [str(folder)])


def versions(environment: Environment) -> dict[str, str | None]:
    return {package.name: package.version for package in environment.packages}


# -- one place -----------------------------------------------------------------------------------------


def test_a_released_bridge(tmp_path: Path) -> None:
    found = looked_at(tmp_path, RELEASED)
    assert versions(found) == {
        "megatron-bridge": "0.6.2",
        "megatron-core": "0.19.2rc1",
        "nemo-rl": None,
        "transformer-engine": None,
    }
    assert found.has_bridge
    assert (found.takes_size.value, found.takes_count.value, found.gtp_can_be_active.value) == (True, True, False)
    assert "model_parallel_config.py:5" in found.takes_size.why
    assert "gtp_remat_size" in found.gtp_can_be_active.why


def test_a_new_bridge(tmp_path: Path) -> None:
    found = looked_at(tmp_path, NEW)
    assert versions(found)["megatron-bridge"] == "0.7.0"
    assert (found.takes_size.value, found.takes_count.value, found.gtp_can_be_active.value) == (False, True, True)
    assert "transformer_config.py:4" in found.takes_size.why


def test_half_of_a_change_is_no(tmp_path: Path) -> None:
    """One axis derived, one size handed over: each answer is for both."""
    config = str(NEW["megatron/bridge/models/transformer_config.py"]).replace("default=1, init=False", "default=1")
    initialize = "initialize_model_parallel(gtp_remat_size=1)\n"
    found = looked_at(tmp_path, {**NEW, "megatron/bridge/models/transformer_config.py": config,
                                 "megatron/bridge/training/initialize.py": initialize})  # fmt: skip
    assert found.takes_size.value is False
    assert found.gtp_can_be_active.value is False
    assert "expert_gtp_remat_size" in found.gtp_can_be_active.why
    assert "hands no gtp_remat_size" not in found.gtp_can_be_active.why


def test_a_core_without_gtp(tmp_path: Path) -> None:
    core: dict[str, Content] = {
        **RELEASED,
        "megatron/core/model_parallel_config.py": "class ModelParallelConfig:\n    pass\n",
        "megatron/core/parallel_state.py": "def initialize_model_parallel(tp=1): ...\n",
    }
    found = looked_at(tmp_path, core)
    assert (found.takes_size.value, found.takes_count.value, found.gtp_can_be_active.value) == (False, False, False)


def test_nothing_there(tmp_path: Path) -> None:
    found = looked_at(tmp_path, {})
    assert not found.has_bridge
    assert set(versions(found).values()) == {None}
    assert (found.takes_size.value, found.takes_count.value, found.gtp_can_be_active.value) == (None, None, None)
    assert found.hooks == ()


def test_a_bridge_without_a_core_beside_it(tmp_path: Path) -> None:
    found = looked_at(tmp_path, {name: text for name, text in RELEASED.items() if "core" not in name})
    assert found.takes_size.value is None


@pytest.mark.parametrize("text", ["class (\n", "\0", b"\xff\xfe"], ids=["syntax", "NUL", "bytes"])
def test_source_that_cannot_be_parsed(tmp_path: Path, text: Content) -> None:
    doctor._parse.cache_clear()
    found = looked_at(tmp_path, {**NEW, "megatron/bridge/training/initialize.py": text,
                                 "megatron/core/model_parallel_config.py": text})  # fmt: skip
    assert found.gtp_can_be_active.value is None
    assert found.takes_count.value is True


@pytest.mark.parametrize(
    ("name", "version"),
    [("transformer_engine", "2.4"), ("transformer_engine_torch", "2.5"), ("transformer_engine_cu13", "2.6")],
)
def test_transformer_engine_by_any_name(tmp_path: Path, name: str, version: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    found = looked_at(tmp_path, {f"{name}-{version}.dist-info/METADATA": metadata})
    assert versions(found)["transformer-engine"] == version


def test_an_editable_install(tmp_path: Path) -> None:
    """Its source is found by what pip wrote down."""
    write_files(tmp_path / "checkout" / "src", {k: v for k, v in NEW.items() if "dist-info" not in k})
    url = {"url": (tmp_path / "checkout").as_uri(), "dir_info": {"editable": True}}
    info = "megatron_bridge-0.8.dist-info"
    metadata = "Metadata-Version: 2.1\nName: megatron-bridge\nVersion: 0.8\n"
    found = looked_at(tmp_path / "site", {f"{info}/METADATA": metadata, f"{info}/direct_url.json": json.dumps(url)})
    assert versions(found)["megatron-bridge"] == "0.8"
    assert found.has_bridge
    assert found.gtp_can_be_active.value is True


@pytest.mark.parametrize(
    ("attribute", "fits"),
    [
        ("function", True),
        ("Class.method", True),
        ("Class.inherited", False),
        ("Class.Inner.method", True),
        ("imported", True),
        ("renamed", True),
        ("original", False),
        ("assigned", True),
        ("in_a_try", True),
        ("in_its_handler", True),
        ("in_a_function", False),
        ("nowhere", False),
        ("Nobody.method", False),
    ],
)
def test_where_a_hook_fits(tmp_path: Path, attribute: str, fits: bool) -> None:
    text = """
    from a import imported, original as renamed
    assigned = imported
    def function():
        def in_a_function(): ...
    class Class(Base):
        def method(self): ...
        class Inner:
            def method(self): ...
    try:
        from b import in_a_try
    except ImportError:
        if True:
            async def in_its_handler(): ...
    """
    write_files(tmp_path, {"pack/age/mod.py": text, "pack/age/sub/__init__.py": text})
    for module in ("pack.age.mod", "pack.age.sub"):
        assert doctor._fits(f"{module}:{attribute}", [str(tmp_path)]) is fits
    assert doctor._fits(f"pack.age.none:{attribute}", [str(tmp_path)]) is False


def test_hooks_into_a_package_that_is_not_there_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ("megatron.bridge.training.initialize:nothing", "nemo_rl.models:nothing")
    monkeypatch.setattr(doctor, "shim_targets", lambda: targets)
    assert looked_at(tmp_path / "a", RELEASED).hooks == (HookFit(targets[0], False),)
    found = looked_at(tmp_path / "b", {**RELEASED, **NEMO_RL})
    assert found.hooks == tuple(HookFit(target, False) for target in targets)


def test_a_star_cannot_be_told(tmp_path: Path) -> None:
    write_files(tmp_path, {"mod.py": "from other import *\ndef known(): ...\n"})
    assert doctor._fits("mod:known", [str(tmp_path)]) is True
    assert doctor._fits("mod:unknown", [str(tmp_path)]) is None


# -- all of it -----------------------------------------------------------------------------------------


def test_for_people_and_for_bug_reports(site: Callable[[dict[str, Content]], Path], tmp_path: Path) -> None:
    folder = site(NEW)
    (tmp_path / "work").mkdir()
    ran = run(tmp_path / "work", "--doctor")
    assert (ran.code, ran.stderr) == (0, "")
    assert f"gtp-migrate {__version__}" in ran.stdout
    assert f"  megatron-bridge 0.7.0 ({folder}/megatron/bridge)" in ran.stdout.splitlines()
    assert "takes the old GTP size: no" in ran.stdout
    assert "a recipe with an old key crashes every worker" in ran.stdout
    assert "never active" not in ran.stdout
    ran = run(tmp_path / "work", "--doctor", "--json")
    found = json.loads(ran.stdout)
    assert (found["schema"], found["gtp_migrate"]) == (1, __version__)
    assert found["environments"][0]["takes_size"]["value"] is False
    assert {"target", "fits"} == found["environments"][0]["hooks"][0].keys()
    assert "megatron" not in sys.modules or "tests" not in str(sys.modules["megatron"].__path__)


def test_a_nemo_rl_checkout_around(migrate: Migrate, site: Callable[[dict[str, Content]], Path]) -> None:
    """Its own sources, and whether it hands PYTHONPATH on; the form that it takes."""
    site({})
    third_party = "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge"
    sources = {f"{third_party}/src/{name}": text for name, text in NEW.items() if "bridge/" in name}
    core = {f"{third_party}/3rdparty/Megatron-LM/{name}": text for name, text in CORE.items()}
    ran = migrate({**NEMO_RL, **sources, **core}, "--doctor", "--json", paths=("examples/a.yaml",))
    found = json.loads(ran.stdout)
    assert found["form"] == "model-overrides"
    assert found["passes_pythonpath"]["value"] is True
    (this, checkout) = found["environments"]
    # Whatever Python runs it, NeMo-RL comes from its checkout.
    assert ("nemo-rl", "0.5.0") in {(each["name"], each["version"]) for each in this["packages"]}
    assert checkout["name"].startswith("the sources in ")
    assert {each["name"]: each["version"] for each in checkout["packages"]} == {
        "megatron-bridge": None,
        "megatron-core": "0.19.2rc1",
        "nemo-rl": "0.5.0",
        "transformer-engine": None,
    }
    assert (checkout["takes_size"]["value"], checkout["gtp_can_be_active"]["value"]) == (False, True)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("OTHER", "PYTHONPATH"), None),
        (("dict(os.environ)", "{}"), None),
        (("def init_ray", "def init"), None),
        (("OTHER", "OTHER"), True),
    ],
)
def test_whether_pythonpath_is_handed_on(tmp_path: Path, change: tuple[str, str], value: bool | None) -> None:
    doctor._parse.cache_clear()
    name = "nemo_rl/distributed/virtual_cluster.py"
    write_files(tmp_path, {**NEMO_RL, name: str(NEMO_RL[name]).replace(*change)})
    found = diagnose([str(tmp_path / "examples")])
    assert found.passes_pythonpath is not None
    assert found.passes_pythonpath.value is value
    assert any("not sure" in sentence for sentence in found.todo) is (value is None)


def test_a_nemo_rl_that_types_the_fields(migrate: Migrate) -> None:
    source = (
        "class MegatronConfig(TypedDict):\n    tensor_parallel_num_weight_shards: int | None\n"
        "    expert_tensor_parallel_num_weight_shards: int | None\n"
    )
    ran = migrate({**NEMO_RL, "nemo_rl/models/policy/__init__.py": source}, "--doctor", paths=("examples",))
    assert "NeMo-RL takes megatron-cfg" in ran.stdout
    assert "form C" in ran.stdout
    undecided = migrate({"nemo_rl/models/policy/__init__.py": "class (\n"}, "--doctor", paths=("examples",))
    assert undecided.code == 0
    assert "cannot be told" in undecided.stdout


def test_no_bridge_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_environments", lambda roots: iter([doctor._environment("here", [])]))
    found = diagnose([str(tmp_path)])
    assert len(found.todo) == 2
    assert "where you train" in found.todo[0]


def test_no_nemo_rl(tmp_path: Path, site: Callable[[dict[str, Content]], Path]) -> None:
    """What is not known is said in words, with what to do."""
    site(NEW)
    ran = run(tmp_path, "--doctor")
    why = "no NeMo-RL found around the paths or installed"
    lines = ran.stdout.splitlines()
    assert f"Which form NeMo-RL takes is not known: {why}" in lines
    assert f"PYTHONPATH, and gtp-shim with it, gets to the workers: not known ({why})" in lines
    assert "gtp-shim reaches the workers is not known without a NeMo-RL: give its checkout" in ran.stdout
    assert "?" not in ran.stdout
    found = json.loads(run(tmp_path, "--doctor", "--json").stdout)
    assert found["passes_pythonpath"] == {"value": None, "why": why}


def test_in_a_terminal(tmp_path: Path) -> None:
    """It follows the width, cuts no path, and has colours where they are wanted."""
    (tmp_path / "work").mkdir()
    seen = in_a_terminal(tmp_path / "work", "--doctor", COLUMNS="60")
    assert "\x1b[1mthis Python" in seen
    for line in unstyled(seen):
        assert len(line) <= 60 or " " not in line.strip(), line
    plain = in_a_terminal(tmp_path / "work", "--doctor", COLUMNS="60", NO_COLOR="1")
    assert unstyled(seen) == unstyled(plain)
    assert not [code for code in CODE.findall(plain) if code not in ("\x1b[1m", "\x1b[0m")]


@pytest.mark.parametrize(
    ("fits", "said"),
    [([True, True], ""), ([True, False], "1 of 2 hooks"), ([False, False], "no hook of the shim fits")],
)
def test_what_is_said_of_hooks(tmp_path: Path, fits: list[bool], said: str) -> None:
    from dataclasses import replace

    hooks = tuple(HookFit(f"module:{index}", each) for index, each in enumerate(fits))
    sentences = [each for each in doctor._todo_in(replace(looked_at(tmp_path, NEW), hooks=hooks)) if "hook" in each]
    assert len(sentences) == bool(said)
    assert all(said in sentence for sentence in sentences)


# -- workers -------------------------------------------------------------------------------------------


@pytest.fixture
def shim_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that gtp-shim puts on the path, with nothing in its sitecustomize."""
    folder = tmp_path / "shim site"
    write_files(folder, {"sitecustomize.py": ""})
    monkeypatch.setattr(doctor, "SITE", str(folder))
    return folder


def worker(root: Path, name: str = "Worker") -> Path:
    folder = root / "venvs" / name
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return folder


def reaches(root: Path, *names: str) -> list[bool | None]:
    found = diagnose([str(root)])
    return [each.shim_reaches.value for each in found.environments if each.shim_reaches is not None]


def test_a_workers_environment(tmp_path: Path, shim_site: Path) -> None:
    """Its own Python says whether it starts with the shim; its own packages are looked at."""
    root = tmp_path / "rl"
    write_files(root, NEMO_RL)
    folder = worker(root)
    (packages,) = folder.glob("lib/python*/site-packages")
    write_files(packages, {name: text for name, text in RELEASED.items() if "core" not in name})
    write_files(tmp_path / "linked", CORE)
    (packages / "linked.pth").write_text(f"import nothing_of_this\n{tmp_path / 'linked'}\n")
    found = diagnose([str(root)])
    (environment,) = [each for each in found.environments if each.shim_reaches is not None]
    assert environment.shim_reaches is not None
    assert environment.shim_reaches.value is True, environment.shim_reaches
    assert versions(environment)["megatron-bridge"] == "0.6.2"
    assert versions(environment)["megatron-core"] == "0.19.2rc1"
    assert environment.takes_size.value is True
    assert not any("does not get in" in sentence for sentence in found.todo)


@pytest.mark.parametrize(
    ("script", "value"),
    [
        (f'exec "{sys.executable}" -I "$@"', False),
        (f'exec "{sys.executable}" -S "$@"', False),
        ("echo '[[3, 9], true, true]'", False),
        ("echo '[[3, 10], true, true]'", True),
        ("exit 1", None),
        ("echo hello", None),
    ],
    ids=["isolated", "no site", "too old", "old enough", "broken", "no Python"],
)
def test_a_workers_python_that_is_special(tmp_path: Path, shim_site: Path, script: str, value: bool | None) -> None:
    root = tmp_path / "rl"
    write_files(root, {**NEMO_RL, "venvs/W/pyvenv.cfg": "", "venvs/W/bin/python": f"#!/bin/sh\n{script}\n"})
    (root / "venvs/W/bin/python").chmod(0o755)
    assert reaches(root) == [value]
    assert any("does not get in" in sentence for sentence in diagnose([str(root)]).todo) is (value is not True)


def test_workers_elsewhere(tmp_path: Path, shim_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "rl"
    write_files(root, {**NEMO_RL, "venvs/not used/pyvenv.cfg": ""})
    write_files(tmp_path / "else where", {"W [1]/pyvenv.cfg": "", "no environment/x": ""})
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path / "else where"))
    assert reaches(root) == [None]


def test_a_gtp_migrate_without_the_command(tmp_path: Path, shim_site: Path) -> None:
    (shim_site / "sitecustomize.py").unlink()
    root = tmp_path / "rl"
    write_files(root, {**NEMO_RL, "venvs/W/pyvenv.cfg": ""})
    assert reaches(root) == [False]


# -- usage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--doctor", "--check"), "exclude each other"),
        (("--doctor", "--dry-run"), "exclude each other"),
        (("--json", "."), "--json goes with --doctor"),
        (("--doctor", "--report", "r.json"), "--report does not go with --doctor"),
        (("--explain", "--report", "r.json", "."), "--report does not go with --explain"),
        (("--explain", "--format", "github", "."), "--format does not go with --explain"),
        (("--check",), "no PATH is given"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = run(tmp_path, *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_the_real_nemo_rl() -> None:
    root = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl_source"
    if not root.is_dir():
        pytest.skip(f"{root} is not there")
    found = diagnose([str(root)])
    assert (found.form, found.nemo_rl) == ("model-overrides", (str(root.resolve()),))
    assert found.passes_pythonpath is not None
    assert found.passes_pythonpath.value is True
