"""Which files a run reads, which of them it may write, and which it leaves alone: `--exclude`, git, links."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gtp_migrate.recipes.checkout import Surroundings, ignored, surroundings
from gtp_migrate.recipes.discover import discover
from gtp_migrate.recipes.glance import glance
from gtp_migrate.recipes.ignore import excluded, ignored_by_rules
from gtp_migrate.recipes.survey import Survey, survey

OLD = b"policy: {megatron_cfg: {model_overrides: {gtp_weight_remat_size: 3}}}\n"
MORE = int(os.environ.get("GTP_MIGRATE_EXAMPLES", "1"))


@pytest.fixture(autouse=True)
def _own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of git's on this machine, and no hook around the tests, have a say in them."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, *names: str, data: bytes = OLD) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def git(folder: Path, *arguments: str, data: bytes = b"") -> bytes:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, input=data, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout


def taken(surveyed: Survey) -> set[str]:
    """What may be written, as shown."""
    return {found.shown for found, _ in surveyed.files()}


def left(surveyed: Survey) -> set[str]:
    return {found.shown for found in surveyed.set_aside}


# -- --exclude -----------------------------------------------------------------------------------------

TREE = ("a.yaml", "b.yaml", "x/a.yaml", "x/y/a.yaml", "x/y/b.yaml", "z/x/b.yaml")


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["a.yaml"], {"a.yaml", "x/a.yaml", "x/y/a.yaml"}),
        (["/a.yaml"], {"a.yaml"}),
        (["./a.yaml"], {"a.yaml"}),
        (["./x/../a.yaml"], {"a.yaml"}),
        (["{here}/a.yaml"], {"a.yaml"}),
        (["../work/a.yaml"], {"a.yaml"}),
        (["../*/a.yaml"], {"a.yaml"}),
        (["x"], {"x/a.yaml", "x/y/a.yaml", "x/y/b.yaml", "z/x/b.yaml"}),
        (["x/"], {"x/a.yaml", "x/y/a.yaml", "x/y/b.yaml", "z/x/b.yaml"}),
        (["./x/"], {"x/a.yaml", "x/y/a.yaml", "x/y/b.yaml"}),
        (["{here}/x/"], {"x/a.yaml", "x/y/a.yaml", "x/y/b.yaml"}),
        (["x/*"], {"x/a.yaml", "x/y/a.yaml", "x/y/b.yaml"}),
        (["x/y"], {"x/y/a.yaml", "x/y/b.yaml"}),
        (["**/x/b.yaml"], {"z/x/b.yaml"}),
        (["x/**/b.yaml"], {"x/y/b.yaml"}),
        (["**/y/**"], {"x/y/a.yaml", "x/y/b.yaml"}),
        (["[ab].yaml", "!b.yaml"], {"a.yaml", "x/a.yaml", "x/y/a.yaml"}),
        (["a.yaml", "!/x/**"], {"a.yaml"}),
        (["*.yaml", "!./b.yaml"], {*TREE} - {"b.yaml"}),
        (["."], {*TREE}),
        ([".."], {*TREE}),
        (["*"], {*TREE}),
        (["/*"], {*TREE}),
        (["/*/a.yaml"], {"x/a.yaml"}),
    ],
)
def test_what_a_pattern_names(work: Path, patterns: list[str], names: set[str]) -> None:
    write(work, *TREE)
    patterns = [pattern.replace("{here}", str(work)) for pattern in patterns]
    for path in (".", str(work), "../work"):
        surveyed = survey([path], tuple(patterns))
        assert {os.path.relpath(found.id) for found in surveyed.set_aside} == names
        assert {os.path.relpath(found.id) for found, _ in surveyed.files()} == {*TREE} - names
        assert surveyed.unmatched == ()


@pytest.mark.parametrize(
    ("patterns", "unmatched"),
    [
        (["no-such"], ["no-such"]),
        (["yaml"], ["yaml"]),
        (["work"], ["work"]),
        (["a.yaml/"], ["a.yaml/"]),
        (["y/a.yaml"], ["y/a.yaml"]),
        (["./x/b.yaml", "b.yaml"], ["./x/b.yaml"]),
        ([""], [""]),
        (["/", "!", " "], ["/", "!", " "]),
        (["#a.yaml"], ["#a.yaml"]),
        (["//", "[z-a].yaml"], ["//", "[z-a].yaml"]),
        # What a later pattern names as well is named all the same.
        (["a.yaml", "x/a.yaml", "x/"], []),
        # Below a folder that is excluded nothing can be taken in again.
        (["x/", "!x/a.yaml"], ["!x/a.yaml"]),
        (["x/*", "!x/a.yaml"], []),
        (["!a.yaml"], []),
        (["a.yaml", "!a.yaml", "a.yaml"], ["!a.yaml"]),
    ],
)
def test_a_pattern_that_names_nothing_is_said(work: Path, patterns: list[str], unmatched: list[str]) -> None:
    write(work, *TREE)
    assert survey(["."], tuple(patterns)).unmatched == tuple(unmatched)


def test_patterns_below_given_paths_elsewhere(work: Path, tmp_path: Path) -> None:
    write(tmp_path, "other/a.yaml", "other/x/a.yaml", "other/x/b.yaml", "file/a.yaml")
    where = str(tmp_path)
    for pattern, names in (
        ("a.yaml", {"other/a.yaml", "other/x/a.yaml", "file/a.yaml"}),
        ("../other/x", {"other/x/a.yaml", "other/x/b.yaml"}),
        (f"{where}/other/*.yaml", {"other/a.yaml"}),
        ("**/x/b.yaml", {"other/x/b.yaml"}),
        # A folder around a given path is not below it, and one with a slash is relative to the current folder.
        ("other", set()),
        ("x/a.yaml", set()),
    ):
        surveyed = survey(["../other", "../file/a.yaml"], (pattern,))
        assert {os.path.relpath(found.id, tmp_path) for found in surveyed.set_aside} == names, pattern
        assert surveyed.unmatched == (() if names else (pattern,))


def test_a_named_file_is_excluded_too(work: Path) -> None:
    """As pre-commit does it: files are named, and some of them are excluded all the same."""
    write(work, "a.yaml", "b.yaml")
    surveyed = survey(["a.yaml", "b.yaml"], ("a.yaml",))
    assert (taken(surveyed), left(surveyed)) == ({"b.yaml"}, {"a.yaml"})


def test_what_is_excluded_is_not_read(work: Path) -> None:
    (work / "never.yaml").symlink_to("/proc/self/mem")
    write(work, "a.yaml")
    assert survey(["."]).problems
    assert not survey(["."], ("never.yaml",)).problems


def test_a_current_folder_of_odd_characters(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("[ab]*?", "!x", "#x", "back\\slash", "line\nend", "\x1b[31m", "sp ace ", os.fsdecode(b"\xff\xfe")):
        write(work, f"{name}/a.yaml", f"{name}/b.yaml", f"{name}/{name}/a.yaml", f"{name}/{name}/b.yaml")
        monkeypatch.chdir(work / name)
        for pattern, names in (
            ("a.yaml", {"a.yaml", f"{name}/a.yaml"}),
            ("./a.yaml", {"a.yaml"}),
            (".", {"a.yaml", "b.yaml", f"{name}/a.yaml", f"{name}/b.yaml"}),
            ("*/b.yaml", {f"{name}/b.yaml"}),
        ):
            surveyed = survey(["."], (pattern,))
            assert left(surveyed) == names, (name, pattern)
            assert surveyed.unmatched == (), (name, pattern)


# -- what git says -------------------------------------------------------------------------------------

NAMES = ("a", "b", "c.yaml", "d.yaml", "ab.yaml")
PATHS = tuple(
    "/".join((*folders, name))
    for folders in ((), ("a",), ("b",), ("a", "a"), ("a", "b"), ("b", "a"), ("a", "b", "a"))
    for name in NAMES
    if name.endswith(".yaml")
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """A line of a `.gitignore`: negated, anchored, for folders only, with `*`, `?`, `[]` and `**`."""
    part = st.sampled_from((*NAMES, "*", "*.yaml", "?.yaml", "[ac]*", "[!a]*", "a*", "c.y\\aml"))
    parts = draw(st.lists(st.one_of(part, part, st.just("**")), min_size=1, max_size=3))
    before = draw(st.sampled_from(("", "", "!", "/", "!/")))
    return before + "/".join(parts) + draw(st.sampled_from(("", "", "/")))


RULES = st.lists(patterns(), max_size=4)


@contextlib.contextmanager
def repository(rules: dict[str, list[str]], tracked: tuple[str, ...] = ()) -> Iterator[Path]:
    """A checkout of all `PATHS` with these rules by file; a few of its files tracked, whatever the rules say."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(os.path.realpath(name))
        git(root, "init", "-q")
        write(root, *PATHS)
        for file, lines in rules.items():
            write(root, file, data="".join(line + "\n" for line in lines).encode())
        if tracked:
            git(root, "add", "-f", "--", *tracked)
        yield root


def listed(root: Path, *options: str) -> set[str]:
    names = git(root, "ls-files", "-z", *options).decode().split("\0")
    return {name for name in names if name.endswith(".yaml")}


@settings(max_examples=60 * MORE, deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys((".gitignore", "a/.gitignore", "a/b/.gitignore", ".git/info/exclude"), RULES)),
    st.lists(st.sampled_from(PATHS), max_size=3, unique=True),
)
def test_a_survey_takes_what_git_lists(rules: dict[str, list[str]], tracked: list[str]) -> None:
    with repository(rules, tuple(tracked)) as root:
        surveyed = survey([str(root)])
        assert {os.path.relpath(found.id, root) for found, _ in surveyed.files()} == listed(
            root, "-o", "-c", "--exclude-standard"
        )
        assert {os.path.relpath(found.id, root) for found in surveyed.ignored} == listed(
            root, "-o", "-i", "--exclude-standard"
        )
        assert surveyed.set_aside == surveyed.ignored
        assert surveyed.data.keys() == {found.id for found, _ in surveyed.files()}


@settings(max_examples=150 * MORE, deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys((".gitignore", "a/.gitignore", "a/b/.gitignore", ".git/info/exclude"), RULES))
)
def test_the_rules_read_without_git(rules: dict[str, list[str]]) -> None:
    with repository(rules) as root:
        by_rules = ignored_by_rules(str(root), [f"{root}/{path}" for path in PATHS])
        by_git = listed(root, "-o", "-i", "--exclude-standard")
        assert {os.path.relpath(path, root) for path in by_rules} == by_git


@settings(max_examples=150 * MORE, deadline=None)
@given(st.lists(patterns(), min_size=1, max_size=5))
@example(["a", "!a", "a"])
def test_exclude_is_a_gitignore_in_the_current_folder(lines: list[str]) -> None:
    here = os.getcwd()
    with repository({".gitignore": lines}) as root:
        by_git = listed(root, "-o", "-i", "--exclude-standard")
        os.chdir(root)
        try:
            by_exclude = excluded(lines, ["."], [f"{root}/{path}" for path in PATHS]).files
        finally:
            os.chdir(here)
        assert {os.path.relpath(path, root) for path in by_exclude} == by_git
