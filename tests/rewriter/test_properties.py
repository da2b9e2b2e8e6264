"""What must hold for every tree of recipes, tried on random ones and on a real one.

`pytest --hypothesis-profile=search` tries fresh ones, `GTP_MIGRATE_EXAMPLES=20` twenty times as many.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gtp_migrate.cli import app
from tests.conftest import MORE
from tests.rewriter import oracle
from tests.rewriter.planting import plant
from tests.rewriter.trees import ETP, NEW, OLD, SETTINGS, TP, RecipeTree, trees

STYLES = ("auto", "literal", "interpolation")
TARGETS = ("model-overrides", "megatron-cfg")
REAL = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl"


def examples(count: int) -> Any:
    return settings(max_examples=count * MORE)


@dataclass(frozen=True)
class Choices:
    """What a person chose on the command line."""

    target: str
    style: str
    tp: int | None = None
    etp: int | None = None

    @property
    def typed(self) -> bool:
        return self.target == "megatron-cfg"

    def arguments(self) -> list[str]:
        found = ["-q", "--target", self.target, "--style", self.style]
        for option, value in (("--tp", self.tp), ("--etp", self.etp)):
            if value is not None:
                found += [option, str(value)]
        return found


def choices() -> st.SearchStrategy[Choices]:
    tp = st.sampled_from([None, 4, None, 3])
    etp = st.sampled_from([None, None, None, None, 4, 3])
    return st.builds(Choices, st.sampled_from(TARGETS), st.sampled_from(STYLES), tp, etp)


@contextlib.contextmanager
def on_disk(tree: RecipeTree) -> Iterator[Path]:
    """The tree in a folder of its own that looks like a checkout, so that all of it is seen."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        (root / ".git").mkdir()
        put(root, tree)
        yield root


def put(root: Path, tree: RecipeTree) -> None:
    for name, data in tree.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def contents(root: Path, names: Any = None) -> dict[str, bytes]:
    if names is None:
        names = [path.relative_to(root).as_posix() for path in root.rglob("*.y*ml")]
    return {name: (root / name).read_bytes() for name in names}


def run(root: Path, *arguments: str, paths: tuple[str, ...] = ("",)) -> Result:
    """The command line, in this process. Whatever is raised through it fails the test."""
    here = os.getcwd()
    os.chdir(root)
    try:
        result = CliRunner().invoke(app, [*(os.path.join(root, path) for path in paths), *arguments])
    finally:
        os.chdir(here)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# -- what a recipe means ---------------------------------------------------------------------------------

Meaning = dict[tuple[Any, ...], Any]


@oracle.resolvers()
def meaning(path: Path, choices: Choices, tp: int, etp: int | None) -> Meaning | None:
    """By `megatron_cfg`, what the oracle says with a TP and an ETP supplied where the recipe has none; the
    exception's type where no run could start. None where the recipe cannot be loaded."""
    try:
        config = oracle.load(path)
    except Exception:
        return None
    result: Meaning = {}
    for where, holder in oracle.holders(config).items():
        try:
            result[where] = oracle.topology(supplied(holder, tp, etp), choices.typed)
        except Exception as error:
            result[where] = type(error)
    return result


def supplied(holder: Any, tp: int, etp: int | None) -> Any:
    for key, value in ((TP, tp), (ETP, etp)):
        if value is None:
            continue
        try:
            # A null ETP is known: it follows from EP and TP.
            is_set = holder.get(key) is not None or (key == ETP and key in holder)
        except Exception:
            is_set = False
        if not is_set:
            holder[key] = value
    return holder


@oracle.resolvers()
def sets_tp(path: Path) -> dict[tuple[Any, ...], bool]:
    found = {}
    for where, holder in oracle.holders(oracle.load(path)).items():
        try:
            found[where] = holder.get(TP) is not None
        except Exception:
            found[where] = False
    return found


def meanings(root: Path, names: Any, choices: Choices) -> dict[str, Any]:
    """Of every recipe, all that somebody may make of it.

    Where a file sets no TP, two TPs are tried. Somebody who supplies one may have to supply the ETP along: either
    with or without it the recipe must mean the same.
    """
    result = {}
    for name in names:
        ways = {}
        for tp in (choices.tp,) if choices.tp else (4, 7):
            for etp in (choices.etp,) if choices.etp else (None, 5):
                ways[tp, etp] = meaning(root / name, choices, tp, etp)
        if all(way is not None for way in ways.values()):
            result[name] = (sets_tp(root / name), ways)
    return result


def assert_same_meaning(before: dict[str, Any], after: dict[str, Any], choices: Choices) -> None:
    for name, (tp_is_set, ways) in before.items():
        assert name in after, f"{name} cannot be loaded any more"
        new_ways = after[name][1]
        for where, is_set in tp_is_set.items():
            for tp in {tp for tp, _ in ways}:
                equal = {}
                for (each_tp, etp), way in ways.items():
                    if each_tp != tp:
                        continue
                    old, new = way[where], new_ways[each_tp, etp].get(where)
                    # What could not start before may do whatever it likes.
                    equal[etp] = isinstance(old, type) or old == new
                told = f"{name}: {where} at TP {tp}: {ways} → {new_ways}"
                if is_set and choices.etp is None:
                    assert equal[None], told
                else:
                    assert any(equal.values()), told


# -- what a text is besides its settings -----------------------------------------------------------------


@dataclass
class Node:
    kind: str
    start: int
    end: int
    flow: bool = False
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    text: str = ""

    @property
    def last(self) -> int:
        if self.flow or not (self.pairs or self.items):
            return self.end
        return (self.pairs[-1][1] if self.pairs else self.items[-1]).last


def parse(text: str) -> Node:
    events = iter([each for each in yaml.parse(text) if isinstance(each, (yaml.NodeEvent, yaml.CollectionEndEvent))])

    def node(event: Any) -> Node:
        start, end = event.start_mark.index, event.end_mark.index
        if isinstance(event, yaml.AliasEvent):
            return Node("alias", start, end)
        if isinstance(event, yaml.ScalarEvent):
            return Node("scalar", start, end, text=event.value)
        found = Node("map" if isinstance(event, yaml.MappingStartEvent) else "list", start, end, event.flow_style)
        children = []
        for inner in events:
            if isinstance(inner, yaml.CollectionEndEvent):
                found.end = inner.end_mark.index
                break
            children.append(node(inner))
        if found.kind == "map":
            found.pairs = list(zip(children[::2], children[1::2], strict=True))
        else:
            found.items = children
        return found

    return node(next(events))


def besides(data: bytes) -> str:
    """The text without its settings, the mappings that then are empty, and the comments.

    A flow mapping that may hold settings has its separators spelled anew. All else is kept to the byte.
    """
    text = re.sub(r"[ \t]*# ?c\d+ [^\r\n]*", "", data.decode())
    return "".join(line for line in _without(text).splitlines(keepends=True) if line.strip()).rstrip("\r\n")


def _without(text: str) -> str:
    bom = text[: len(text) - len(text.removeprefix("\ufeff"))]
    text = text.removeprefix("\ufeff")
    root = parse(text)
    cuts: list[tuple[int, int, str]] = []
    if not _gone(root):
        _cut(root, (), text, cuts)
    else:
        return bom
    for start, end, new in sorted(cuts, reverse=True):
        text = text[:start] + new + text[end:]
    return bom + text


def _gone(node: Node, path: tuple[str, ...] = ()) -> bool:
    """Whether a mapping holds settings and nothing else, at any depth."""
    if node.kind != "map":
        return False
    if not node.pairs:
        return bool(path) and path[-1] == "model_overrides"
    return all(key.text in SETTINGS or _gone(value, (*path, key.text)) for key, value in node.pairs)


def _cut(node: Node, path: tuple[str, ...], text: str, cuts: list[tuple[int, int, str]]) -> None:
    for item in node.items:
        _cut(item, (*path, "[]"), text, cuts)
    if node.kind != "map":
        return
    leaves = {id(key): key.text in SETTINGS or _gone(value, (*path, key.text)) for key, value in node.pairs}
    if node.flow and (any(leaves.values()) or (path and path[-1] in ("megatron_cfg", "model_overrides"))):
        kept = []
        for key, value in node.pairs:
            if not leaves[id(key)]:
                inner: list[tuple[int, int, str]] = []
                _cut(value, (*path, key.text), text, inner)
                entry = text[key.start : value.end]
                for start, end, new in sorted(inner, reverse=True):
                    entry = entry[: start - key.start] + new + entry[end - key.start :]
                kept.append(entry)
        opening = text.index("{", node.start)
        cuts.append((opening, node.end, "{" + ", ".join(kept) + "}"))
        return
    for key, value in node.pairs:
        if not leaves[id(key)]:
            _cut(value, (*path, key.text), text, cuts)
            continue
        start = text.rfind("\n", 0, key.start) + 1
        end = text.find("\n", value.last)
        end = len(text) if end < 0 else end + 1
        assert not text[start : key.start].strip(" -"), "the generator puts every setting on a line of its own"
        cuts.append((start, end, ""))


def loaded_besides(data: bytes) -> Any:
    """All values outside any `megatron_cfg`, and those inside that are no settings."""

    def strip(node: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(node, list):
            return [strip(item, (*path, "[]")) for item in node]
        if not isinstance(node, dict):
            return node
        in_holder = path[-1:] == ("megatron_cfg",)
        in_overrides = path[-2:] == ("megatron_cfg", "model_overrides") or path[-1:] == ("shared",)
        kept = {}
        for key, value in node.items():
            if (in_holder and key in NEW) or (in_overrides and key in SETTINGS):
                continue
            value = strip(value, (*path, key))
            if value == {} and key in ("model_overrides", "megatron_cfg", "policy", "teacher", "value"):
                continue
            kept[key] = value
        return kept

    return strip(yaml.safe_load(data.decode().removeprefix("\ufeff")), ())


def comments(data: bytes) -> Counter[str]:
    return Counter(re.findall(r"# ?c\d+ [^\r\n]*", data.decode()))


def assert_only_settings_changed(before: bytes, after: bytes) -> None:
    if before == after:
        return
    assert comments(before) == comments(after)
    assert besides(before) == besides(after)
    assert loaded_besides(before) == loaded_besides(after)
    assert before.startswith(b"\xef\xbb\xbf") == after.startswith(b"\xef\xbb\xbf")
    assert before.endswith(b"\n") == after.endswith(b"\n")
    assert (b"\r\n" in before) == (b"\r\n" in after)
    if b"\r\n" in before:
        assert not re.search(rb"(?<!\r)\n", after), "a line lost its carriage return"
    assert len(re.findall(rb"(?m)^[ \t]*\r?$", before)) == len(re.findall(rb"(?m)^[ \t]*\r?$", after)), "blank lines"


# -- the properties --------------------------------------------------------------------------------------


@examples(40)
@given(trees(), choices())
def test_a_run_changes_settings_and_no_topology(tree: RecipeTree, choices: Choices) -> None:
    with on_disk(tree) as root:
        before = meanings(root, tree.files, choices)
        result = run(root, *choices.arguments())
        written = contents(root, tree.files)
        event(f"exit code {result.exit_code}, {'some' if written != tree.files else 'no'} files changed")
        assert result.exit_code in (0, 3), result.output
        assert_same_meaning(before, meanings(root, tree.files, choices), choices)
        for name, data in tree.files.items():
            assert_only_settings_changed(data, written[name])
        if result.exit_code == 0:
            assert_nothing_left(root, before, choices)
        again = run(root, *choices.arguments())
        assert contents(root, tree.files) == written, "a second run changed something"
        assert again.exit_code == result.exit_code
        assert contents(root) == written, "files were added"


@oracle.resolvers()
def assert_nothing_left(root: Path, names: Any, choices: Choices) -> None:
    for name in names:
        for where, holder in oracle.holders(oracle.load(root / name)).items():
            try:
                overrides = set(holder.get("model_overrides") or {})
            except Exception:
                continue  # an interpolation that leads nowhere
            assert not overrides & set(OLD), (name, where)
            if choices.typed:
                assert not overrides & set(NEW), (name, where, "NeMo-RL would reject it")


@examples(12)
@given(trees(), choices(), st.data())
def test_files_that_are_not_given_are_never_written_and_never_change_meaning(
    tree: RecipeTree, choices: Choices, data: st.DataObject
) -> None:
    given_names = data.draw(st.lists(st.sampled_from(sorted(tree.files)), min_size=1, unique=True))
    with on_disk(tree) as root:
        before = meanings(root, tree.files, choices)
        result = run(root, *choices.arguments(), paths=tuple(given_names))
        assert result.exit_code in (0, 3), result.output
        written = contents(root, tree.files)
        assert {name for name in tree.files if written[name] != tree.files[name]} <= set(given_names)
        assert_same_meaning(before, meanings(root, tree.files, choices), choices)
        if result.exit_code == 0:
            assert_nothing_left(root, set(given_names) & set(before), choices)


@examples(12)
@given(trees(), choices(), st.booleans())
def test_the_diff_applied_gives_what_the_run_gives(tree: RecipeTree, choices: Choices, in_repository: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(os.path.realpath(folder))
        root = top / "some folder" / "recipes" if in_repository else top
        root.mkdir(parents=True, exist_ok=True)
        if in_repository:
            git(top, "init", "--quiet")
        put(root, tree)
        dry = run(root, "--dry-run", *choices.arguments())
        assert contents(root, tree.files) == tree.files, "a dry run wrote something"
        assert contents(root) == tree.files
        wet = run(root, *choices.arguments())
        written = contents(root, tree.files)
        assert dry.exit_code == wet.exit_code
        assert bool(dry.stdout_bytes) == (written != tree.files)
        event(f"{'a' if dry.stdout_bytes else 'no'} diff, {'in a repository' if in_repository else 'in a folder'}")
        put(root, tree)
        if dry.stdout_bytes:
            git(root, "apply", "-", stdin=dry.stdout_bytes)
        assert contents(root, tree.files) == written


@examples(10)
@given(trees(), choices())
def test_check_says_whether_a_run_would_leave_nothing(tree: RecipeTree, choices: Choices) -> None:
    with on_disk(tree) as root:
        checked = run(root, "--check", *choices.arguments())
        assert contents(root, tree.files) == tree.files
        done = run(root, *choices.arguments())
        changed = contents(root, tree.files) != tree.files
        assert checked.exit_code in (0, 1, 3)
        if changed:
            assert checked.exit_code == 1
        if done.exit_code == 0:
            assert checked.exit_code == (1 if changed else 0)
            assert run(root, "--check", *choices.arguments()).exit_code == 0


@examples(3)
@given(trees(), choices())
def test_a_process_does_the_same(tree: RecipeTree, choices: Choices) -> None:
    with on_disk(tree) as root:
        result = run(root, *choices.arguments())
        written = contents(root, tree.files)
        put(root, tree)
        command = [sys.executable, "-m", "gtp_migrate", ".", *choices.arguments()]
        process = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert "Traceback" not in process.stderr
        assert process.stdout == ""
        assert process.returncode == result.exit_code
        assert contents(root, tree.files) == written


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    environment["GIT_CEILING_DIRECTORIES"] = os.path.realpath(tempfile.gettempdir())
    result = subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, capture_output=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr.decode()


# -- a real tree -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not REAL.is_dir(), reason="needs a copy of NeMo-RL's recipes in ../shared/corpus/nemo_rl")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_a_real_tree_is_migrated_whole(tmp_path: Path, target: str) -> None:
    root = tmp_path / "nemo_rl"
    shutil.copytree(REAL, root)
    (root / ".git").mkdir()
    planted = plant(root, 58, seed=TARGETS.index(target))
    before = contents(root)
    typed = target == "megatron-cfg"
    known: oracle.Known = {}
    meant = {name: topologies(root / name, typed, known) for name in before}
    result = run(root, "--target", target)
    after = contents(root)
    assert result.exit_code == 0, result.output
    changed = {name for name in before if before[name] != after[name]}
    assert {path.relative_to(root).as_posix() for path in planted} <= changed
    known = {}
    assert {name: topologies(root / name, typed, known) for name in after} == meant
    assert [name for name in after if oracle.old_keys(root / name, known)] == []
    for name in changed:
        assert unrelated_lines(before[name]) == unrelated_lines(after[name])
    assert run(root, "--target", target).exit_code == 0
    assert contents(root) == after


def topologies(path: Path, typed: bool, known: oracle.Known) -> Any:
    return oracle.topologies(path, typed=typed, tp=6, known=known)


def unrelated_lines(data: bytes) -> list[bytes]:
    """The lines that hold none of the settings, and do not start the mapping around them."""
    related = re.compile(rb"num_weight_shards|gtp_weight_remat_size|^ *model_overrides: *(\{\})?\n?$")
    return [line for line in data.splitlines(keepends=True) if not related.search(line)]
