"""Which files a run reads, which of them it may write, and which it leaves alone: `--exclude`, git, links."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gtp_migrate.recipes.checkout import Surroundings, surroundings
from gtp_migrate.recipes.glance import Glance, glance
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


def test_a_slash_in_front_means_the_current_folder_first(work: Path) -> None:
    first = work.parts[1]
    write(work, "a.yaml", f"{first}/b.yaml")
    assert left(survey(["."], (f"/{first}/",))) == {f"{first}/b.yaml"}


def test_a_line_s_end_is_part_of_a_name(work: Path) -> None:
    write(work, "x\n/a.yaml", "x/b.yaml", "y\nz/c.yaml")
    assert left(survey(["."], ("x",))) == {"x/b.yaml"}
    assert left(survey(["."], ("x?", "y*"))) == {"x\n/a.yaml", "y\nz/c.yaml"}


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
        for folder in ("objects", "refs"):
            (root / ".git" / folder).mkdir(parents=True)
        write(root, ".git/HEAD", data=b"ref: refs/heads/main\n")
        write(root, *PATHS)
        for file, lines in rules.items():
            write(root, file, data="".join(line + "\n" for line in lines).encode())
        if tracked:
            git(root, "add", "-f", "--", *tracked)
        yield root


def listed(root: Path, *options: str) -> set[str]:
    names = git(root, "ls-files", "-z", *options).decode().split("\0")
    return {name for name in names if name.endswith(".yaml")}


@settings(max_examples=40 * MORE, deadline=None)
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


@settings(max_examples=100 * MORE, deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys((".gitignore", "a/.gitignore", "a/b/.gitignore", ".git/info/exclude"), RULES))
)
def test_the_rules_read_without_git(rules: dict[str, list[str]]) -> None:
    with repository(rules) as root:
        by_rules = ignored_by_rules(str(root), [f"{root}/{path}" for path in PATHS])
        by_git = listed(root, "-o", "-i", "--exclude-standard")
        assert {os.path.relpath(path, root) for path in by_rules} == by_git


@settings(max_examples=100 * MORE, deadline=None)
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


@pytest.fixture
def checkout(work: Path) -> Path:
    """The current folder as a checkout that ignores `results/`."""
    git(work, "init", "-q")
    write(work, ".gitignore", data=b"results/\n")
    return work


def test_ignored_files_are_set_aside(checkout: Path) -> None:
    write(checkout, "a.yaml", "results/run/a.yaml")
    surveyed = survey(["."])
    assert (taken(surveyed), left(surveyed)) == ({"a.yaml"}, {"results/run/a.yaml"})
    assert [found.shown for found in surveyed.ignored] == ["results/run/a.yaml"]
    assert list(surveyed.data) == [str(checkout / "a.yaml")]
    # A folder that is named is one of many still; a file that is named is meant.
    assert taken(survey(["results"])) == set()
    assert taken(survey(["results", "results/run/a.yaml"])) == {"results/run/a.yaml"}
    assert taken(survey(["results/run/a.yaml"])) == {"results/run/a.yaml"}
    assert taken(survey(["results/run/a.yaml"], ("results",))) == set()
    both = survey(["."], no_ignore=True)
    assert (taken(both), both.ignored) == ({"a.yaml", "results/run/a.yaml"}, [])


def test_a_tracked_file_is_not_ignored(checkout: Path) -> None:
    write(checkout, "results/a.yaml", "results/b.yaml")
    git(checkout, "add", "-f", "results/a.yaml")
    assert taken(survey(["."])) == {"results/a.yaml"}


def test_git_is_not_asked_where_there_is_nothing_to_do(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(checkout, "a.yaml", "results/b.yaml", data=b"a: 1\n")
    monkeypatch.setattr(subprocess, "run", None)
    assert taken(survey(["."])) == {"a.yaml", "results/b.yaml"}


@pytest.mark.parametrize("why", ["no git", "no checkout", "refused"])
def test_where_git_cannot_be_asked_its_files_are_read(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    write(checkout, "a.yaml", "results/b.yaml", "x/c.yaml", "x/y/d.yaml", "e.yaml")
    write(checkout, "x/.gitignore", data="\ufeff*.yaml\r\n# why\r\n!c.yaml\r\n".encode())
    write(checkout, ".git/info/exclude", data=b"/e.yaml\n")
    if why == "no git":
        monkeypatch.setenv("PATH", "")
    elif why == "no checkout":
        (checkout / ".git" / "HEAD").unlink()
    else:
        (checkout / ".git" / "config").write_text("[core]\nrepositoryformatversion = 99\n")
    assert taken(survey(["."])) == {"a.yaml", "x/c.yaml"}


def test_a_hook_s_own_checkout_is_not_the_one_asked(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    write(checkout, "a.yaml", "results/b.yaml", "results/tracked.yaml")
    git(checkout, "add", "-f", "results/tracked.yaml")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert taken(survey(["."])) == {"a.yaml", "results/tracked.yaml"}


def test_checkouts_in_checkouts(checkout: Path) -> None:
    """Each file is ignored by the checkout it is in, and by those around it as far as a given folder reaches."""
    for inner in ("results/clone", "own"):
        git(checkout, "init", "-q", inner)
        write(checkout, f"{inner}/a.yaml", f"{inner}/results/b.yaml", f"{inner}/c.yaml")
        write(checkout, f"{inner}/.gitignore", data=b"c.yaml\n")
    assert taken(survey(["."])) == {"own/a.yaml", "own/results/b.yaml"}
    assert taken(survey(["results/clone"])) == {"results/clone/a.yaml", "results/clone/results/b.yaml"}
    assert taken(survey(["own", "results"])) == {"own/a.yaml", "own/results/b.yaml"}


def test_a_checkout_that_git_does_not_know_is_not_the_one_around_it(checkout: Path) -> None:
    (checkout / "results" / "copy" / ".git").mkdir(parents=True)
    write(checkout, "results/copy/a.yaml", "results/copy/results/b.yaml")
    write(checkout, "results/copy/.gitignore", data=b"results/\n")
    assert taken(survey(["results/copy"])) == {"results/copy/a.yaml"}


def test_a_worktree(checkout: Path) -> None:
    git(checkout, "add", ".gitignore")
    git(checkout, "commit", "-qm", "one")
    git(checkout, "worktree", "add", "-q", "../other")
    other = checkout.parent / "other"
    write(other, "a.yaml", "results/b.yaml")
    assert {os.path.basename(name) for name in taken(survey([str(other)]))} == {"a.yaml"}
    assert surroundings([str(other)]) == Surroundings((str(other),), {})


def test_ignored_names_of_all_kinds(checkout: Path) -> None:
    names = ["line\nend", "\x1b[31m", os.fsdecode(b"\xff\xfe"), ":(top)", ":!x", "-z", '"q"', "\u202e"]
    write(checkout, *(f"{each}{name}/{name}.yaml" for name in names for each in ("", "results/")))
    assert taken(survey(["."])) == {f"{name}/{name}.yaml" for name in names}


def test_a_file_behind_a_link_is_ignored_where_it_is(checkout: Path) -> None:
    write(checkout, "results/a.yaml", "real/b.yaml")
    (checkout / "to-results").symlink_to("results")
    (checkout / "to-real").symlink_to("real")
    assert taken(survey(["."])) == {"real/b.yaml", "to-real/b.yaml"}


# -- what is around the given paths --------------------------------------------------------------------


def test_nothing_is_around_a_path_outside_of_any_checkout(work: Path) -> None:
    write(work, "a.yaml", "x/b.yaml")
    assert surroundings(["a.yaml", "x", "."]) == Surroundings((), {})


def test_the_checkout_around_a_path(checkout: Path, tmp_path: Path) -> None:
    write(checkout, "x/y/a.yaml")
    (tmp_path / "link").symlink_to(checkout / "x")
    for path in (".", "x", "x/y/a.yaml", str(tmp_path / "link")):
        assert surroundings([path, path]) == Surroundings((str(checkout),), {})


def test_a_submodule_is_told(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "library")
    git(tmp_path / "library", "commit", "-q", "--allow-empty", "-m", "one")
    git(checkout, "submodule", "add", "-q", str(tmp_path / "library"), "3rdparty/library")
    inner = checkout / "3rdparty" / "library"
    assert surroundings([str(inner)]) == Surroundings((str(inner),), {str(inner): str(checkout)})
    # A clone that happens to lie in another checkout belongs to nobody.
    git(checkout, "init", "-q", "clone")
    assert surroundings(["clone"]) == Surroundings((str(checkout / "clone"),), {})


def test_a_home_folder_counts_for_what_it_tracks(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkout))
    write(checkout, "mine/a.yaml", "mine/b.yaml", "mine/c.yaml", "[m]ine/c.yaml")
    git(checkout, "add", "mine/a.yaml", "mine/c.yaml")
    assert surroundings(["mine/b.yaml"]).roots == ()
    assert surroundings(["[m]ine/c.yaml"]).roots == ()
    assert surroundings(["mine/b.yaml", "mine/a.yaml"]).roots == (str(checkout),)
    assert surroundings(["mine"]).roots == (str(checkout),)
    # Nobody can say what it tracks: then it is safer to look.
    monkeypatch.setenv("PATH", "")
    assert surroundings(["mine/b.yaml"]).roots == (str(checkout),)


# -- links, and what cannot be read --------------------------------------------------------------------


def test_links_that_lead_out_are_not_followed(work: Path, tmp_path: Path) -> None:
    write(tmp_path, "other/a.yaml", "work-too/b.yaml", "work/x/c.yaml")
    (work / "x" / "out").symlink_to("../../other")
    (work / "x" / "near").symlink_to(tmp_path / "work-too")
    (work / "in").symlink_to("x")
    # A link to a file is that file.
    (work / "d.yaml").symlink_to("../other/a.yaml")
    surveyed = survey(["."])
    assert taken(surveyed) == {"d.yaml", "x/c.yaml", "in/c.yaml"}
    assert sorted(surveyed.not_followed)[-2:] == [
        ("x/near", str(tmp_path / "work-too")),
        ("x/out", str(tmp_path / "other")),
    ]


def test_links_are_followed_where_they_lead_into_what_is_given(work: Path) -> None:
    write(work, "store/a.yaml", "recipes/b.yaml")
    (work / "recipes" / "linked").symlink_to("../store")
    assert taken(survey(["recipes"])) == {"recipes/b.yaml"}
    assert taken(survey(["recipes", "store"])) == {"recipes/b.yaml", "recipes/linked/a.yaml", "store/a.yaml"}
    assert taken(survey(["recipes/linked"])) == {"recipes/linked/a.yaml"}


def test_links_that_lead_up_are_not_followed(work: Path) -> None:
    write(work, "x/y/a.yaml")
    for name, to in (("self", "."), ("up", ".."), ("top", "../..")):
        (work / "x" / "y" / name).symlink_to(to)
    (work / "to-y").symlink_to("x/y")
    surveyed = survey(["."])
    assert (taken(surveyed), surveyed.not_followed) == ({"x/y/a.yaml", "to-y/a.yaml"}, [])


def test_links_to_each_other_end(work: Path) -> None:
    """Each is followed once: there are 12! ways through these."""
    for name in "abcdefghijkl":
        write(work, f"{name}/r.yaml")
        for other in "abcdefghijkl":
            (work / name / f"to-{other}").symlink_to(f"../{other}")
    names = taken(survey(["."]))
    assert {f"{name}/r.yaml" for name in "abcdefghijkl"} <= names
    assert len(names) <= 12 + 12 * 12


def test_what_holds_no_recipes_of_one_s_own(work: Path) -> None:
    names = [f"{name}/a.yaml" for name in (".git", "node_modules", ".venv", "x/site-packages")]
    write(work, "a.yaml", "b.yml", "c.txt", "venv/d.yaml", *names)
    (work / "dangling.yaml").symlink_to("nowhere.yaml")
    (work / "round.yaml").symlink_to("round.yaml")
    os.mkfifo(work / "pipe.yaml")
    (work / "folder.yaml").mkdir()
    surveyed = survey(["."])
    assert (taken(surveyed), surveyed.problems) == ({"a.yaml", "b.yml", "venv/d.yaml"}, [])


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, as somebody who may not read everything: root may."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.chdir(name)
        yield Path(name)
        monkeypatch.undo()


def test_what_may_not_be_read_is_a_problem_each(nobody: Path) -> None:
    write(nobody, "a.yaml", "locked.yaml", "shut/b.yaml", "hidden/c.yaml", "z/d.yaml")
    (nobody / "to-hidden.yaml").symlink_to("hidden/c.yaml")
    for name, mode in (("locked.yaml", 0), ("shut", 0o111), ("hidden", 0)):
        (nobody / name).chmod(mode)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        surveyed = survey(["."])
    finally:
        os.seteuid(user)
        for name in ("locked.yaml", "shut", "hidden"):
            (nobody / name).chmod(0o755)
    assert taken(surveyed) == {"a.yaml", "z/d.yaml"}
    assert sorted(problem.place.path for problem in surveyed.problems) == [
        "hidden", "locked.yaml", "shut", "to-hidden.yaml",
    ]  # fmt: skip
    assert {problem.what for problem in surveyed.problems} == {"cannot be read (Permission denied)"}


def test_a_file_that_breaks_off_is_a_problem(work: Path) -> None:
    (work / "broken.yaml").symlink_to("/proc/self/mem")
    write(work, "a.yaml")
    surveyed = survey(["."])
    assert taken(surveyed) == {"a.yaml"}
    assert [str(problem) for problem in surveyed.problems] == [
        "broken.yaml: cannot be read (Input/output error); make it readable and run again"
    ]


def test_names_of_all_kinds(work: Path) -> None:
    names = ["line\nend.yaml", "\x1b[31m.yaml", os.fsdecode(b"\xff.yaml"), "\u202e.yaml", "-q.yaml", " .yaml"]
    write(work, *names)
    assert taken(survey(["."])) == set(names)
    assert taken(survey([*names])) == set(names)


def test_each_file_is_found_once(work: Path) -> None:
    write(work, "x/a.yaml", "x/y/b.yaml")
    found = [found.id for found, _ in survey(["x/a.yaml", "x", "x/../x/y", ".", str(work)]).files()]
    assert sorted(found) == [str(work / "x/a.yaml"), str(work / "x/y/b.yaml")]


# -- parents that were not given -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parents", "inherits"),
    [
        ({}, False),
        ({"base.yaml": b"a: 1\n"}, False),
        ({"base.yaml": b"defaults: more/top.yaml\n", "more/top.yaml": b"defaults: ../base.yaml\n"}, False),
        ({"base.yaml": OLD}, True),
        ({"base.yaml": b"a: tensor_parallel_num_weight_shards\n"}, True),
        ({"base.yaml": b"defaults: more/top.yaml\n", "more/top.yaml": OLD}, True),
        # Only a parser can tell.
        ({"base.yaml": b"defaults: ${oc.env:PARENT}\n"}, True),
    ],
)
def test_a_setting_in_a_parent_that_was_not_given(work: Path, parents: dict[str, bytes], inherits: bool) -> None:
    write(work, "given/a.yaml", data=b"defaults: ../base.yaml\n")
    for name, data in parents.items():
        write(work, name, data=data)
    assert survey(["given"]).inherits_from_outside() == inherits
    # Those that are given have been looked at.
    assert survey(["given", *parents]).inherits_from_outside() == any(b"$" in data for data in parents.values())


@pytest.mark.parametrize("kind", ["pipe", "folder", "broken"])
def test_a_parent_that_cannot_be_read_may_hold_one(work: Path, kind: str) -> None:
    write(work, "given/a.yaml", data=b"defaults: ../base.yaml\n")
    if kind == "pipe":
        os.mkfifo(work / "base.yaml")
    elif kind == "folder":
        (work / "base.yaml").mkdir()
    else:
        (work / "base.yaml").symlink_to("/proc/self/mem")
    assert survey(["given"]).inherits_from_outside()


def test_an_excluded_parent_may_hold_one(work: Path) -> None:
    write(work, "base.yaml")
    write(work, "a.yaml", data=b"defaults: base.yaml\n")
    assert survey(["."], ("base.yaml",)).inherits_from_outside()


# -- a glance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (r'{"gtp_weight\x5fremat_size": 3}', Glance(True, False, ())),
        (r'{"expert_\u0067tp_weight_remat_size": 3}', Glance(True, False, ())),
        (r'{"tensor_parallel_num_weight\U0000005fshards": 3}', Glance(False, True, ())),
        ('? "gtp_weight_\\\n  remat_size"\n: 3\n', Glance(True, False, ())),
        (r'{"d\x65faults": a.yaml}', Glance(False, False, None)),
        ('# defaults: a.yaml\ndefaults: b.yaml\na: "\\x41"\n', Glance(False, False, ("b.yaml",))),
        ("a: 1  # the defaults\nb: ${x}\n", Glance(False, False, ())),
        (f"x: 1\n# gtp_weight_remat_size{chr(10)}", Glance(True, False, ())),
    ],
)
def test_a_glance(text: str, seen: Glance) -> None:
    for data in (text.encode(), text.encode("utf-16")):
        assert glance(data) == seen
