"""The command: options, exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gtp_migrate import __version__

from .conftest import Content, Migrate, Ran, read_files, run, write_files

OLD = (
    "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    "    model_overrides:\n      gtp_weight_remat_size: 3\n"
)
NEW = OLD.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
BAD = OLD.replace(": 3", ": 0")

COMMAND = [sys.executable, "-m", "gtp_migrate"]


def command(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [*COMMAND, *args],
        cwd=folder,
        env={**clean, **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


# -- help, version, completion -------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(tmp_path: Path, option: str) -> None:
    ran = run(tmp_path, option)
    assert ran.code == 0
    assert ran.stderr == ""
    for said in (
        "--dry-run", "--check", "--target", "--style", "--tp", "--etp", "--exclude", "--quiet", "--verbose",
        "--version", "PATH", "gtp_weight_remat_size", "tensor_parallel_num_weight_shards", "Exit codes",
        "model-overrides", "megatron-cfg", "interpolation", "literal",
    ):  # fmt: skip
        assert said in ran.stdout, said


def test_help_says_what_each_option_is_for(tmp_path: Path) -> None:
    text = run(tmp_path, "--help").stdout
    options = re.findall(r"^\s+(?:-\w, )?(--[\w-]+)(.*)", text, re.M)
    assert len(options) >= 10
    for option, rest in options:
        following = text[text.index(option) + len(option) :]
        assert rest.strip() or following.split("\n")[1].strip(), option


def test_no_argument_shows_the_help(tmp_path: Path) -> None:
    ran = run(tmp_path)
    assert ran.code == 2
    assert "Usage: gtp-migrate" in ran.stdout + ran.stderr


def test_version(tmp_path: Path) -> None:
    ran = run(tmp_path, "--version")
    assert (ran.code, ran.stdout, ran.stderr) == (0, f"gtp-migrate {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(tmp_path: Path, shell: str) -> None:
    ran = command(tmp_path, "--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert ran.returncode == 0, ran.stderr
    assert "gtp-migrate" in ran.stdout
    assert "_GTP_MIGRATE_COMPLETE" in ran.stdout


def test_completion_of_options(tmp_path: Path) -> None:
    """What bash asks for when somebody presses the tab key behind `gtp-migrate --st`."""
    ran = command(tmp_path, _GTP_MIGRATE_COMPLETE="complete_bash", COMP_WORDS="gtp-migrate --st", COMP_CWORD="1")
    assert ran.stdout.split() == ["--style"]


# -- exit codes ----------------------------------------------------------------------------------------


def test_done(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD})
    assert (ran.code, ran.files) == (0, {"a.yaml": NEW})


def test_nothing_to_do(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": "policy: {}\n", "b.yaml": NEW})
    assert ran.code == 0
    assert ran.stdout == ""
    assert "Nothing to migrate in 2 files." in ran.stderr


def test_an_empty_folder(migrate: Migrate) -> None:
    ran = migrate({})
    assert ran.code == 0
    assert "Nothing to migrate in 0 files." in ran.stderr


def test_a_person_is_needed(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD, "bad.yaml": BAD})
    assert (ran.code, ran.files) == (3, {"a.yaml": NEW, "bad.yaml": BAD})
    assert "1 problem to look at" in ran.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("no-such-folder",), "no-such-folder"),
        (("a.yaml", "no/such.yaml"), "no/such.yaml"),
        (("a.yaml", "--style", "fancy"), "fancy"),
        (("a.yaml", "--target", "elsewhere"), "elsewhere"),
        (("a.yaml", "--tp", "0"), "--tp"),
        (("a.yaml", "--tp", "four"), "--tp"),
        (("a.yaml", "--etp", "-1"), "--etp"),
        (("a.yaml", "--no-such-option"), "--no-such-option"),
        (("a.yaml", "--dry-run", "--check"), "--check"),
        (("--dry-run",), "PATH"),
    ],
)
def test_wrong_usage(migrate: Migrate, args: tuple[str, ...], said: str) -> None:
    ran = migrate({"a.yaml": OLD}, paths=args)
    assert ran.code == 2
    assert ran.files == {"a.yaml": OLD}
    assert ran.stdout == ""
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("path", ["no-such-folder", "no/such.yaml", ""])
def test_a_path_that_is_not_there_is_one_line(migrate: Migrate, path: str) -> None:
    ran = migrate({"a.yaml": OLD}, paths=("a.yaml", path))
    assert ran.code == 2
    assert ran.files == {"a.yaml": OLD}
    assert len(ran.stderr.splitlines()) == 1


# -- --check -------------------------------------------------------------------------------------------


def test_check(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD}, "--check")
    assert (ran.code, ran.files, ran.stdout) == (1, {"a.yaml": OLD}, "")
    assert "a.yaml:5" in ran.stderr
    assert "1 setting in 1 file to migrate" in ran.stderr
    assert ran.stderr.endswith("Run without --check to migrate, or with --dry-run to see the changes.\n")


def test_check_of_what_is_done(migrate: Migrate) -> None:
    assert migrate({"a.yaml": NEW}, "--check").code == 0


def test_check_of_what_needs_a_person(migrate: Migrate) -> None:
    """Something is left to migrate, whoever has to do it."""
    assert migrate({"a.yaml": BAD}, "--check").code == 1


def test_check_of_an_unparsable_recipe(migrate: Migrate) -> None:
    assert migrate({"a.yaml": OLD + "  - oops\n"}, "--check").code == 1


def test_check_of_an_old_setting_outside(migrate: Migrate) -> None:
    """Nothing in the given files is left to migrate, but the recipe needs a file that was not given."""
    ran = migrate({"base.yaml": OLD, "mine/a.yaml": "defaults: ../base.yaml\n"}, "--check", paths=("mine",))
    assert ran.code == 3


# -- --dry-run -----------------------------------------------------------------------------------------


def test_dry_run(migrate: Migrate) -> None:
    ran = migrate({"recipes/a.yaml": OLD}, "--dry-run", paths=("recipes",))
    assert (ran.code, ran.files) == (0, {"recipes/a.yaml": OLD})
    assert ran.stdout == (
        "--- a/recipes/a.yaml\n"
        "+++ b/recipes/a.yaml\n"
        "@@ -2,4 +2,4 @@\n"
        "   megatron_cfg:\n"
        "     tensor_model_parallel_size: 4\n"
        "     model_overrides:\n"
        "-      gtp_weight_remat_size: 3\n"
        "+      tensor_parallel_num_weight_shards: 12\n"
    )


def test_dry_run_with_nothing_to_do_prints_nothing_on_stdout(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": NEW}, "--dry-run")
    assert (ran.code, ran.stdout) == (0, "")


def test_dry_run_with_a_person_needed(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD, "bad.yaml": BAD}, "--dry-run")
    assert ran.code == 3
    assert "+++ b/a.yaml" in ran.stdout
    assert "bad.yaml" not in ran.stdout


TREE: dict[str, Content] = {
    "recipes/a.yaml": OLD,
    "recipes/with a blank.yaml": OLD,
    "recipes/with a\ttab.yaml": OLD,
    'recipes/with "quotes".yaml': OLD,
    "recipes/ünï-学習.yaml": OLD,
    "recipes/a folder/b.yaml": OLD.rstrip("\n"),
    "recipes/crlf.yaml": OLD.replace("\n", "\r\n").encode(),
    "recipes/crlf no end.yaml": OLD.replace("\n", "\r\n").rstrip().encode(),
    "recipes/bom.yaml": ("\ufeff" + OLD).encode(),
    "recipes/odd.yaml": ("note: 'a\u2028b\x85c'\n" + OLD).encode(),
    "recipes/formfeed.yaml": f"# a\n{OLD}# b\n".encode(),
    "recipes/child.yaml": "defaults: a.yaml\npolicy: {megatron_cfg: {model_overrides: {gtp_weight_remat_size: 1}}}\n",
    "recipes/untouched.yaml": "a: 1\n",
}


@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
@pytest.mark.parametrize("apply", [["git", "apply"], ["patch", "-p1", "-s", "--binary"]], ids=["git", "patch"])
@pytest.mark.parametrize("where", ["", "recipes", "recipes/a folder"], ids=["root", "below", "deeper"])
def test_the_diff_applies_to_the_same_bytes(tmp_path: Path, target: str, apply: list[str], where: str) -> None:
    for name in ("patched", "run"):
        write_files(tmp_path / name, TREE)
        subprocess.run(["git", "init", "-q"], cwd=tmp_path / name, check=True)
    if apply[0] == "patch":
        # `patch` does not take names that need quoting.
        for name in ("recipes/with a\ttab.yaml", 'recipes/with "quotes".yaml'):
            (tmp_path / "patched" / name).unlink()
            (tmp_path / "run" / name).unlink()
    here = tmp_path / "patched" / where
    given = os.path.relpath(tmp_path / "patched" / where, here)
    ran = run(here, "--dry-run", "--target", target, given)
    assert ran.code == 0, ran.stderr
    subprocess.run(apply, cwd=here, input=ran.stdout.encode(), check=True)
    run(tmp_path / "run" / where, "--target", target, given)
    assert read_files(tmp_path / "patched") == read_files(tmp_path / "run")
    assert "gtp_weight_remat_size" not in str(read_files(here).get("b.yaml", ""))


def test_a_diff_of_files_outside_the_current_folder_says_where_to_apply_it(tmp_path: Path) -> None:
    write_files(tmp_path, {"recipes/a.yaml": OLD, "here/.keep": ""})
    ran = run(tmp_path / "here", "--dry-run", "../recipes")
    assert ran.code == 0
    (base,) = re.findall(r"relative to (.*): apply it there", ran.stderr)
    subprocess.run(["git", "apply"], cwd=base, input=ran.stdout.encode(), check=True)
    assert (tmp_path / "recipes" / "a.yaml").read_text() == NEW


# -- -q, -v, --exclude ---------------------------------------------------------------------------------


def test_quiet(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD}, "-q")
    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")
    assert ran.files == {"a.yaml": NEW}


def test_quiet_says_problems(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD, "bad.yaml": BAD}, "--quiet")
    assert ran.code == 3
    assert ran.stderr.splitlines() == ran.problems
    assert len(ran.problems) == 1


def test_quiet_dry_run_is_the_diff_alone(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": OLD}, "-q", "--dry-run")
    assert "+++ b/a.yaml" in ran.stdout
    assert ran.stderr == ""


def many(number: int) -> dict[str, Content]:
    return {
        "a.yaml": "cluster: {gpus_per_node: 8, num_nodes: 3}\n" + OLD,
        **{f"child-{index:03}.yaml": "defaults: a.yaml\n" for index in range(number)},
    }


def test_verbose_names_every_recipe(migrate: Migrate) -> None:
    files = many(30)
    short, long = migrate(files, "--check"), migrate({}, "--check", "-v")
    assert [name for name in files if name not in long.stderr] == []
    assert [name for name in files if name not in short.stderr] != []
    assert "more" in short.stderr


def test_many_settings_are_cut_short(migrate: Migrate) -> None:
    files = {f"r{index:03}.yaml": OLD for index in range(230)}
    short, long = migrate(files, "--check"), migrate({}, "--check", "-v")
    assert "-v" in short.stderr
    assert [name for name in files if f"{name}:5" not in long.stderr] == []


@pytest.mark.parametrize(
    ("glob", "left"),
    [
        ("b.yaml", {"x/b.yaml", "y/b.yaml"}),
        ("x/b.yaml", {"x/b.yaml"}),
        ("x", {"x/a.yaml", "x/b.yaml"}),
        ("x/", {"x/a.yaml", "x/b.yaml"}),
        ("x/*", {"x/a.yaml", "x/b.yaml"}),
        ("*/b.*", {"x/b.yaml", "y/b.yaml"}),
        ("**/b.yaml", {"x/b.yaml", "y/b.yaml"}),
        ("[xy]/a.yaml", {"x/a.yaml", "y/a.yaml"}),
        ("no-such", set()),
        ("yaml", set()),
    ],
)
def test_exclude(migrate: Migrate, glob: str, left: set[str]) -> None:
    files: dict[str, Content] = dict.fromkeys(("x/a.yaml", "x/b.yaml", "y/a.yaml", "y/b.yaml"), OLD)
    ran = migrate(files, "--exclude", glob)
    assert ran.code == 0
    assert {name for name in files if ran.files[name] == OLD} == left


def test_exclude_several(migrate: Migrate) -> None:
    files: dict[str, Content] = dict.fromkeys(("a.yaml", "b.yaml", "c.yaml"), OLD)
    ran = migrate(files, "--exclude", "a.yaml", "--exclude", "b*")
    assert ran.files == {"a.yaml": OLD, "b.yaml": OLD, "c.yaml": NEW}


def test_exclude_a_file_that_is_named(migrate: Migrate) -> None:
    """As pre-commit does it: files are named, and some of them are excluded all the same."""
    ran = migrate({"a.yaml": OLD, "b.yaml": OLD}, "--exclude", "a.yaml", paths=("a.yaml", "b.yaml"))
    assert ran.files == {"a.yaml": OLD, "b.yaml": NEW}


# -- paths ---------------------------------------------------------------------------------------------


def test_files_and_folders_mixed(migrate: Migrate) -> None:
    files: dict[str, Content] = dict.fromkeys(("a.yaml", "x/b.yml", "x/y/c.yaml", "z/d.yaml", "e.yaml"), OLD)
    ran = migrate(files, paths=("a.yaml", "x", "z/d.yaml"))
    assert {name for name in files if ran.files[name] == NEW} == files.keys() - {"e.yaml"}


def test_a_file_given_twice_is_one_file(migrate: Migrate) -> None:
    ran = migrate({"x/a.yaml": OLD}, paths=("x", "x/a.yaml", "./x/../x/a.yaml", "."))
    assert "1 setting in 1 file migrated" in ran.stderr
    assert ran.files == {"x/a.yaml": NEW}


def test_a_named_file_may_be_called_anything(migrate: Migrate) -> None:
    ran = migrate({"recipe.txt": OLD, "other.txt": OLD}, paths=("recipe.txt",))
    assert ran.files == {"recipe.txt": NEW, "other.txt": OLD}


def test_other_files_in_a_folder_are_no_recipes(migrate: Migrate) -> None:
    files: dict[str, Content] = dict.fromkeys(("a.txt", "a.yaml.bak", "yaml", ".git/a.yaml", "a.yaml~"), OLD)
    ran = migrate(files)
    assert ran.code == 0
    assert "Nothing to migrate in 0 files." in ran.stderr


def test_hidden_files_and_folders_are_recipes(migrate: Migrate) -> None:
    ran = migrate({".mine/.a.yaml": OLD})
    assert ran.files == {".mine/.a.yaml": NEW}


def test_absolute_paths(migrate: Migrate, tmp_path: Path) -> None:
    ran = migrate({"a.yaml": OLD}, paths=(str(tmp_path / "work"),))
    assert ran.files == {"a.yaml": NEW}
    assert "a.yaml:5" in ran.stderr


def test_a_name_that_looks_like_an_option(migrate: Migrate) -> None:
    assert migrate({"-q.yaml": OLD}, paths=("--", "-q.yaml")).files == {"-q.yaml": NEW}


@pytest.mark.parametrize("name", ["[red]a[/red].yaml", "[/].yaml", "a:b.yaml", ":smile:.yaml"])
def test_names_are_printed_as_they_are(migrate: Migrate, name: str) -> None:
    ran = migrate({name: OLD, f"bad {name}": BAD})
    assert ran.code == 3
    assert f"{name}:5" in ran.stderr
    assert any(line.startswith(f"bad {name}:5:7: ") for line in ran.problems)


# -- the summary ---------------------------------------------------------------------------------------


def cells(ran: Ran) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in ran.stderr.splitlines() if "│" in line]


def test_the_summary_of_a_setting(migrate: Migrate) -> None:
    base = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    child = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      gtp_weight_remat_size: 3\n"
    ran = migrate({"base.yaml": base, "child.yaml": child}, "--style", "literal")
    assert ran.stdout == ""
    assert [
        "child.yaml:5",
        "policy.megatron_cfg",
        "gtp_weight_remat_size: 3",
        "tensor_parallel_num_weight_shards: 12",
        "TP 4 (base.yaml:3)",
    ] in cells(ran)
    assert "1 setting in 1 file migrated; 1 recipe proven to train with the same topology." in ran.stderr


def test_the_summary_of_an_expert_setting(migrate: Migrate) -> None:
    text = OLD.replace("gtp_", "expert_gtp_").replace("    model", "    expert_model_parallel_size: 8\n    model")
    ran = migrate({"a.yaml": text})
    assert [
        "a.yaml:6",
        "policy.megatron_cfg",
        "expert_gtp_weight_remat_size: 3",
        "expert_tensor_parallel_num_weight_shards: 3",
        "ETP 1 (EP > 1)",
    ] in cells(ran)


def test_no_colours_in_a_pipe(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.yaml": OLD, "bad.yaml": BAD})
    ran = command(tmp_path, "--check", ".")
    assert ran.returncode == 1
    assert "\x1b" not in ran.stderr + ran.stdout


def in_a_terminal(folder: Path, *args: str, **env: str) -> str:
    """What the command writes to stderr where that is a terminal."""
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [*COMMAND, *args],
        cwd=folder,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "150", **env},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ):
        os.close(theirs)
        said = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            said += data
    os.close(ours)
    return said.decode()


def test_colours_in_a_terminal_and_no_color(tmp_path: Path) -> None:
    write_files(tmp_path, {"bad.yaml": BAD})
    assert "\x1b[31m" in in_a_terminal(tmp_path, "--check", ".")
    plain = in_a_terminal(tmp_path, "--check", ".", NO_COLOR="1")
    assert "bad.yaml:5:7: " in plain
    assert "\x1b[31m" not in plain
    assert "\x1b[33m" not in plain


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    """`gtp-migrate --dry-run . | head -1`"""
    write_files(tmp_path, {f"a{index:04}.yaml": OLD for index in range(800)})
    with subprocess.Popen(
        [*COMMAND, "-q", "--dry-run", "."], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"--- a/a0000.yaml\n"
        process.stdout.close()
        said = process.stderr.read().decode()
    assert "Traceback" not in said
    assert "Error" not in said


def test_the_command_imports_nothing_heavy(tmp_path: Path) -> None:
    """Neither torch nor Bridge, whatever is installed."""
    write_files(tmp_path, {"a.yaml": OLD})
    code = (
        "import sys\nfrom gtp_migrate.__main__ import main\nsys.argv = ['gtp-migrate', '-q', '.']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'megatron', 'nemo_rl', 'gtp_migrate.shim') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    assert (tmp_path / "a.yaml").read_text() == NEW


def test_the_installed_command(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("gtp-migrate")
    ran = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == f"gtp-migrate {__version__}\n"
