"""``gtp-shim COMMAND``: every Python below it, whatever its environment, and what its user sees of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from gtp_migrate import shim
from gtp_migrate.shim import run

PACKAGE = Path(shim.__file__).parents[1]
#: A Python that has nothing but the standard library.
BARE = str(Path(sys.base_prefix) / "bin" / "python3")
WHERE = ["megatron.bridge.training.utils.checkpoint_utils", "megatron.core.dist_checkpointing.serialization"]


def command(*arguments, package=PACKAGE):
    """The command line of gtp-shim, from a Python that has this package at a place that no path names."""
    start = f"import sys; sys.path.insert(0, {str(package.parent)!r}); from gtp_migrate.shim.run import main; "
    return [sys.executable, "-c", start + "raise SystemExit(main())", *arguments]


def gtp_shim(*arguments, path=(), package=PACKAGE, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        clean["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(
        command(*arguments, package=package),
        capture_output=True,
        text=True,
        env={**clean, **environment},
        cwd=os.sep,  # Ray puts the driver's folder on its workers' path
        timeout=200,
    )


@pytest.fixture
def fake_bridge(tmp_path):
    """A ``megatron`` with the place of a hook in it, which any Python imports."""
    folder = tmp_path / "path"
    module = folder / "megatron" / "bridge" / "training" / "utils"
    module.mkdir(parents=True)
    for package in (module, *list(module.parents)[:3]):
        (package / "__init__.py").touch()
    (module / "checkpoint_utils.py").write_text("def read_run_config(run_config_filename):\n    return {}\n")
    return folder


HOOKED = """
import sys
before = "gtp_migrate" in sys.modules
from megatron.bridge.training.utils.checkpoint_utils import read_run_config
import importlib.util
found = [name for name in ("typer", "ruamel", "torch", "omegaconf") if importlib.util.find_spec(name)]
print(before, hasattr(read_run_config, "__wrapped__"), found, "typer" in sys.modules)
"""


def test_a_python_that_has_nothing_is_hooked_and_sees_nothing_else_of_ours(fake_bridge):
    done = gtp_shim(BARE, "-c", HOOKED, path=[fake_bridge])
    assert (done.stdout, done.stderr) == ("False True [] False\n", "")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.13"])
def test_other_pythons(fake_bridge, version):
    pythons = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
    python = str(pythons[-1]) if pythons else shutil.which(f"python{version}")
    if python is None or "shims" in python:
        pytest.skip(f"no Python {version} here")
    done = gtp_shim(python, "-c", HOOKED, path=[fake_bridge])
    assert (done.stdout, done.stderr) == ("False True [] False\n", "")


def test_nothing_is_imported_where_no_bridge_is(tmp_path):
    code = "import sys; print(*sorted(sys.modules))"
    plain = subprocess.run([BARE, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    under = gtp_shim(BARE, "-c", code).stdout.split()
    assert set(under) - set(plain) == {"sitecustomize"}


def test_where_the_shim_cannot_be_loaded_the_command_goes_on(fake_bridge, tmp_path):
    broken = tmp_path / "tool" / "gtp_migrate"
    shutil.copytree(PACKAGE, broken)
    (broken / "shim" / "install.py").write_text("import nowhere\n")
    start = [sys.executable, str(broken / "shim" / "run.py")]
    (broken / "shim" / "run.py").write_text((PACKAGE / "shim" / "run.py").read_text() + "\nraise SystemExit(main())\n")
    environment = {**os.environ, "PYTHONPATH": str(fake_bridge)}
    done = subprocess.run([*start, BARE, "-c", HOOKED], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "True False [] False\n".replace("True", "False", 1)
    assert len(done.stderr.splitlines()) == 1
    assert "the hooks are off in this process" in done.stderr
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("again", [1, 2])
def test_a_sitecustomize_that_is_there_already_runs_too(fake_bridge, tmp_path, again):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs', __name__)\n")
    (theirs / "run.sh").write_text(f'#!/bin/sh\nexec "{BARE}" "$@"\n')
    (theirs / "run.sh").chmod(0o755)
    arguments = [*command()[:3], str(theirs / "run.sh")] if again == 2 else [BARE]
    done = gtp_shim(*arguments, "-c", HOOKED, path=[theirs, fake_bridge])
    assert done.stdout.endswith("theirs sitecustomize\nFalse True [] False\n")
    assert done.stderr == ""


def test_a_second_installation_stands_in_front_of_the_first(fake_bridge, tmp_path):
    other = tmp_path / "other" / "gtp_migrate"
    shutil.copytree(PACKAGE, other)
    done = gtp_shim(*command(package=other)[:3], BARE, "-c", HOOKED, path=[fake_bridge])
    assert (done.stdout, done.stderr) == ("False True [] False\n", "")


def test_its_return_code_and_words_are_the_commands(tmp_path):
    done = gtp_shim(BARE, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(number):
    code = textwrap.dedent(
        f"""
        import signal, sys
        def end(number, frame):
            print("got", number, flush=True)
            sys.exit(3)
        signal.signal({int(number)}, end)
        print("ready", flush=True)
        signal.pause()
        """
    )
    process = subprocess.Popen(command(BARE, "-c", code), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"got {int(number)}\n"
    assert process.returncode == 3


def test_a_command_that_a_signal_ends():
    code = "import signal; print('ready', flush=True); signal.pause()"
    with subprocess.Popen(command(BARE, "-c", code), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "usage: gtp-shim"),
        (["--nonsense"], 2, "--nonsense: no such option"),
        (["no-such-command-here"], 127, "no-such-command-here"),
        ([str(PACKAGE)], 126, "Permission denied"),
        (["--", "no-such-command-here"], 127, "no-such-command-here"),
    ],
)
def test_wrong_usage(arguments, code, words):
    done = gtp_shim(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_help():
    done = gtp_shim("--help")
    assert done.returncode == 0
    assert "uv run examples/run_grpo.py" in done.stdout


@pytest.mark.parametrize("option", [[], ["--allow-reshard"]])
def test_options_travel_in_the_environment(option):
    code = "import os; print(os.environ.get('GTP_MIGRATE_ALLOW_RESHARD'), os.environ['PYTHONPATH'])"
    done = gtp_shim(*option, BARE, "-c", code, path=["/somewhere"])
    assert done.stdout == f"{'1' if option else None} {run.SITE}{os.pathsep}/somewhere\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, ""), ("", ""), ("/a b", ":/a b"), (":/a", "::/a"), ("/a:", ":/a:"), (f"/a:{run.SITE}", ":/a")],
)
def test_the_rest_of_pythonpath_stays_as_it_is(before, after):
    """An empty entry is the current folder."""
    environment = {} if before is None else {"PYTHONPATH": before}
    done = gtp_shim(BARE, "-c", "import os; print(os.environ['PYTHONPATH'])", **environment)
    assert done.stdout == f"{run.SITE}{after}\n"


def test_an_installation_that_no_path_can_name_is_no_silent_failure(tmp_path):
    package = tmp_path / "a:b" / "gtp_migrate"
    shutil.copytree(PACKAGE, package)
    done = gtp_shim(BARE, "-c", "print('run')", package=package)
    assert (done.returncode, done.stdout) == (2, "")
    assert "install this tool elsewhere" in done.stderr


def test_an_installation_and_a_path_with_spaces_that_nobody_can_write_to(fake_bridge, tmp_path):
    package = tmp_path / "a b" / "gtp_migrate"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, *package.rglob("*")):
        folder.chmod(folder.stat().st_mode & ~0o222)
    theirs = fake_bridge.rename(tmp_path / "with a space")
    done = gtp_shim(BARE, "-c", HOOKED, path=[theirs], package=package, PYTHONSAFEPATH="1")
    assert (done.stdout, done.stderr) == ("False True [] False\n", "")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9"])
def test_a_python_too_old_for_the_shim_goes_on(fake_bridge, tmp_path, version):
    """Such as that of a tool beside the run."""
    pythons = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python"))
    if not pythons:
        pytest.skip(f"no Python {version} here")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = True\n")
    code = "import sys, json, megatron.bridge; print(sys.theirs, 'sitecustomize' in sys.modules)"
    done = gtp_shim(pythons[-1], "-c", code, path=[tmp_path, fake_bridge])
    assert done.stdout.strip("()\n").replace("'", "") == "True True".replace(" ", ", " if version == "2.7" else " ")
    (line,) = done.stderr.splitlines()
    assert "the hooks are off in this process" in line
    assert "it needs Python 3.10 or newer" in line


CORE = """
import json, sys
if "torch" in {what!r}:
    import torch.distributed as dist
    dist.init_process_group("gloo")
import importlib.util
from megatron.core import dist_checkpointing
print(json.dumps([hasattr(dist_checkpointing.load, "__wrapped__"), "gtp_migrate.cli" in sys.modules]), flush=True)
"""


def test_torchrun_with_two_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CORE.format(what="torch"))
    arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    done = gtp_shim(sys.executable, *arguments, sys.executable, "-W", "ignore", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[true, ") == 2


DRIVER = """
import importlib.util, json, os, sys
import ray

ray.init(num_cpus=1, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False,
         runtime_env={"env_vars": dict(os.environ)})

@ray.remote(num_cpus=0)
class Actor:
    def state(self):
        import importlib.util
        import sys
        found = [name for name in ("gtp_migrate", "wrapt") if importlib.util.find_spec(name)]
        armed = "sitecustomize" in sys.modules
        theirs = getattr(sys, "theirs", False)
        from megatron.core import dist_checkpointing
        return found, armed, theirs, hasattr(dist_checkpointing.load, "__wrapped__")

actor = Actor.options(runtime_env=json.loads(sys.argv[1])).remote()
print(json.dumps(ray.get(actor.state.remote())), flush=True)
ray.shutdown()
"""


def environment_without(folder, *names):
    """A virtual environment that has what this one has, by links, but for some packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(name in entry.name for name in names):
            (site / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


def test_ray(tmp_path):
    """An actor as NeMo-RL starts them, in an environment of its own, with the driver's variables. This one lacks this
    package and wrapt, and has a sitecustomize already."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = True\n")
    environment = {"py_executable": environment_without(tmp_path / "venv", "gtp_migrate", "wrapt")}
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    done = gtp_shim(sys.executable, "-W", "ignore", str(driver), json.dumps(environment), path=[theirs])
    assert done.returncode == 0, done.stderr
    assert "[[], true, true, true]" in done.stdout.splitlines()
