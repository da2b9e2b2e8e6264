"""The hooks, run by pre-commit itself: installed from a copy of this repository, on checkouts with recipes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .conftest import Content, read_files, write_files

ROOT = Path(__file__).parents[2]
#: What the package is built from, and what pre-commit reads.
SHIPPED = (".pre-commit-hooks.yaml", "pyproject.toml", "README.md", "gtp_migrate")

BASE = """
    ALGORITHM: {}
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        expert_tensor_parallel_size: 1
        expert_model_parallel_size: 1
        model_overrides:
          gtp_weight_remat_size: 3
    """
CHILD = """
    defaults: base.yaml
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 8
    """
#: Its launchers know `mul`: one interpolation is right for both; and of those that know none.
WITH_MUL: dict[str, Content] = {"base.yaml": BASE.replace("ALGORITHM", "grpo"), "child.yaml": CHILD}
WITHOUT: dict[str, Content] = {"base.yaml": BASE.replace("ALGORITHM", "dpo"), "child.yaml": CHILD}
#: What else a repository has.
OTHERS: dict[str, Content] = {
    "manifest.yaml": "kind: A\n---\nkind: B\n",
    "notes.md": "gtp_weight_remat_size: 3\n",
}


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def committed(folder: Path) -> Path:
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "All of it", "--no-verify")):
        ran = git(folder, *arguments)
        assert ran.returncode == 0, ran.stderr
    return folder


# -- without installing --------------------------------------------------------------------------------


def pre_commit(folder: Path, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHONPATH"))}
    environment |= {"VIRTUALENV_NO_PERIODIC_UPDATE": "1", "PRE_COMMIT_COLOR": "never"}
    if home is not None:
        environment["PRE_COMMIT_HOME"] = str(home)
    command = [sys.executable, "-m", "pre_commit", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_pre_commit_takes_what_we_say(tmp_path: Path) -> None:
    for command, name in (
        ("validate-manifest", ".pre-commit-hooks.yaml"),
        ("validate-config", ".pre-commit-config.yaml"),
    ):
        ran = pre_commit(tmp_path, command, str(ROOT / name))
        assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_our_own_hooks_need_no_network() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {(repo["repo"], hook["language"]) for repo in config["repos"] for hook in repo["hooks"]} == {
        ("local", "system")
    }


# -- installed -----------------------------------------------------------------------------------------


class Hooks:
    """Our hooks, installed once as pre-commit installs them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.repository = folder / "gtp-migrate"
        self.repository.mkdir(parents=True)
        for name in SHIPPED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.repository / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.repository)
        committed(self.repository)
        self.rev = git(self.repository, "rev-parse", "HEAD").stdout.strip()

    def on(
        self, folder: Path, files: dict[str, Content], *hooks: str
    ) -> Callable[..., subprocess.CompletedProcess[str]]:
        """A checkout that uses these hooks; returns what runs pre-commit there."""
        wanted = [{"id": hook} for hook in hooks]
        config = {"repos": [{"repo": str(self.repository), "rev": self.rev, "hooks": wanted}]}
        write_files(folder, {**files, **OTHERS, ".pre-commit-config.yaml": yaml.safe_dump(config)})
        committed(folder)
        return lambda *arguments: pre_commit(folder, *arguments, home=self.home)


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Hooks:
    """Skips where pip reaches no index: pre-commit installs our dependencies from there."""
    folder = tmp_path_factory.mktemp("hooks")
    arguments = ("download", "-q", "--no-deps", "--disable-pip-version-check", "-d", str(folder), "hatchling")
    ran = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"pip cannot download what pre-commit would install: {ran.stderr.strip().splitlines()[-1]}")
    return Hooks(folder)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_try_repo(hooks: Hooks, work: Path) -> None:
    """Both hooks, on all files: what a person tries first."""
    write_files(work, {**WITH_MUL, **OTHERS})
    committed(work)
    ran = pre_commit(work, "try-repo", str(hooks.repository), "--all-files", "--verbose", home=hooks.home)
    assert ran.returncode == 1
    # The first has written, and says so; the second finds nothing left.
    assert "gtp-migrate..." in ran.stdout, ran.stdout + ran.stderr
    assert "files were modified by this hook" in ran.stdout
    assert "gtp-migrate --check" in ran.stdout
    assert ran.stdout.count("Passed") == 1, ran.stdout
    after = read_files(work)
    assert "${mul:3,${..tensor_model_parallel_size}}" in str(after["base.yaml"])
    assert {name: after[name] for name in OTHERS} == OTHERS
    again = pre_commit(work, "try-repo", str(hooks.repository), "--all-files", home=hooks.home)
    assert (again.returncode, again.stdout.count("Passed")) == (0, 2), again.stdout + again.stderr


@pytest.mark.slow
def test_a_base_alone(hooks: Hooks, work: Path) -> None:
    """It becomes what is right for the child that nobody passed."""
    run = hooks.on(work, WITH_MUL, "gtp-migrate", "gtp-migrate-check")
    ran = run("run", "gtp-migrate-check", "--files", "base.yaml")
    assert ran.returncode == 1
    assert "base.yaml:8" in ran.stdout
    assert git(work, "status", "--short").stdout == ""
    ran = run("run", "gtp-migrate", "--files", "base.yaml")
    assert "files were modified by this hook" in ran.stdout, ran.stdout + ran.stderr
    assert git(work, "status", "--short").stdout == " M base.yaml\n"
    assert "${mul:3,${..tensor_model_parallel_size}}" in (work / "base.yaml").read_text()
    assert run("run", "gtp-migrate", "--files", "base.yaml").returncode == 0
    assert run("run", "gtp-migrate-check", "--all-files").returncode == 0


@pytest.mark.slow
def test_a_base_alone_whose_child_needs_a_number_of_its_own(hooks: Hooks, work: Path) -> None:
    """Only what is passed may be written: it is said, and nothing is changed; both together are."""
    run = hooks.on(work, WITHOUT, "gtp-migrate")
    ran = run("run", "--files", "base.yaml")
    assert ran.returncode == 1
    assert "give this file too" in ran.stdout
    assert git(work, "status", "--short").stdout == ""
    assert "files were modified by this hook" in run("run", "--files", "base.yaml", "child.yaml").stdout
    after = read_files(work)
    assert "tensor_parallel_num_weight_shards: 12" in str(after["base.yaml"])
    assert "tensor_parallel_num_weight_shards: 24" in str(after["child.yaml"])


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["gtp-migrate", "gtp-migrate-check"])
def test_a_child_alone(hooks: Hooks, work: Path, hook: str) -> None:
    """It gets an old key from a base that is left as it is: that is said."""
    run = hooks.on(work, WITH_MUL, hook)
    ran = run("run", "--files", "child.yaml")
    assert ran.returncode == 1
    assert "base.yaml:8" in ran.stdout
    assert "give this file too" in ran.stdout
    assert git(work, "status", "--short").stdout == ""


@pytest.mark.slow
def test_a_commit(hooks: Hooks, work: Path) -> None:
    """In git's own hook, whose environment names a checkout and an index of its own."""
    done = {**WITH_MUL, "base.yaml": str(WITH_MUL["base.yaml"]).replace("gtp_weight_remat_size", "other_size")}
    run = hooks.on(work, dict(done), "gtp-migrate", "gtp-migrate-check")
    assert run("install").returncode == 0
    write_files(work, {"base.yaml": WITH_MUL["base.yaml"]})
    environment = {**os.environ, "PRE_COMMIT_HOME": str(hooks.home)}
    commit = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-am", "Turn GTP on"]
    ran = subprocess.run(commit, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "files were modified by this hook" in ran.stderr, ran.stderr
    ran = subprocess.run(commit, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "${mul:3,${..tensor_model_parallel_size}}" in git(work, "show", "HEAD:base.yaml").stdout
