"""Bad input: one clear line or silence, the right exit code, no byte lost, and the rest is done."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Content, Migrate, Ran, dedent, run, write_files

OLD = (
    "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    "    model_overrides:\n      gtp_weight_remat_size: 3\n"
)
NEW = OLD.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")

Beside = Callable[..., Ran]


@pytest.fixture
def beside(migrate: Migrate) -> Beside:
    """`beside(files, *arguments)`: the files stay as they are, and a good recipe beside them is migrated."""

    def beside(files: dict[str, Content], *args: str) -> Ran:
        ran = migrate({**files, "good.yaml": OLD}, *args)
        assert ran.files.pop("good.yaml") == NEW
        for name, content in files.items():
            data = dedent(content)
            now = ran.files[name]
            assert (now if isinstance(now, bytes) else now.encode()) == (
                data if isinstance(data, bytes) else data.encode()
            ), name
        assert "Traceback" not in ran.stderr
        assert ran.stdout == ""
        return ran

    return beside


def silent(ran: Ran) -> None:
    assert ran.code == 0, ran.stderr
    assert ran.problems == []


def one_line(ran: Ran, place: str, *said: str) -> None:
    """One problem, one line, at this place."""
    assert ran.code == 3
    assert len(ran.problems) == 1, ran.stderr
    assert ran.problems[0].startswith(f"{place}: ")
    for text in said:
        assert text in ran.problems[0]


# -- not YAML ------------------------------------------------------------------------------------------

BROKEN = {
    "an unclosed list": ("a: [1, 2\n", "2:1"),
    "an unclosed quote": ("a: 'b\n", "2:1"),
    "a wrong indent": ("a:\n    b: 1\n  c: 2\n", "3:3"),
    "a tab as indent": ("a:\n\tb: 1\n", "2:1"),
    "a stray colon": ("a: b: c\n", "1:5"),
    "an unknown alias": ("a: *nobody\n", "1:4"),
    "a template": ("a: {{ value }}\n", None),
    "a control character": ("a: 'b\x01'\n", None),
    "a NUL byte": ("a: b\0c\n", None),
    "an unknown tag": ("a: !!python/object:os.system x\n", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unparsable_without_an_old_key_is_nobodys_business(beside: Beside, name: str) -> None:
    silent(beside({"bad.yaml": BROKEN[name][0].encode()}))


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in ("a template", "an unknown tag")])
def test_unparsable_with_an_old_key(beside: Beside, name: str) -> None:
    text, place = BROKEN[name]
    ran = beside({"bad.yaml": (text + "# gtp_weight_remat_size\n").encode()})
    assert ran.code == 3
    assert len(ran.problems) == 1, ran.stderr
    assert ran.problems[0].startswith("bad.yaml:")
    assert "is not YAML that NeMo-RL can load" in ran.problems[0]
    if place is not None and name not in ("an unclosed list", "an unclosed quote"):
        assert ran.problems[0].startswith(f"bad.yaml:{place}: ")


def test_a_recipe_with_a_broken_parent(beside: Beside) -> None:
    """The parent says nothing of GTP, but nobody can tell what its child trains with."""
    child = "defaults: broken.yaml\n" + OLD
    ran = beside({"broken.yaml": "a: [\n", "child.yaml": child})
    assert ran.code == 3
    assert len(ran.problems) == 1, ran.stderr
    assert "broken.yaml" in ran.problems[0]


def test_a_broken_child_of_a_recipe(migrate: Migrate) -> None:
    """It cannot be trained today, so it cannot be changed either: the base is done or not, but nothing is lost."""
    broken = "defaults: good.yaml\na: [\n"
    ran = migrate({"good.yaml": OLD, "broken.yaml": broken})
    assert ran.files["broken.yaml"] == broken
    assert ran.files["good.yaml"] in (OLD, NEW)
    assert (ran.code, len(ran.problems)) in ((0, 0), (3, 1))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (OLD + "      gtp_weight_remat_size: 2\n", "6:7"),
        (OLD + "    tensor_model_parallel_size: 8\n", "6:5"),
        (OLD + "policy: {}\n", "6:1"),
        (OLD + "a: {b: {c: 1, c: 2}}\n", "6:15"),
        ("defaults: good.yaml\ndefaults: good.yaml\n" + OLD, "2:1"),
    ],
)
def test_duplicate_keys(beside: Beside, text: str, place: str) -> None:
    one_line(beside({"bad.yaml": text}), f"bad.yaml:{place}", "twice")


def test_duplicate_keys_without_an_old_key(beside: Beside) -> None:
    silent(beside({"bad.yaml": "a: 1\na: 2\n"}))


def test_several_documents(beside: Beside) -> None:
    ran = beside({"bad.yaml": f"{OLD}---\n{OLD}"})
    assert ran.code == 3
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("bad.yaml:6:1: ")


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "# only a comment\n", "---\n", "--- {}\n", "null\n", "\ufeff", "...\n", "a\n", "[1, 2]\n", "3\n"],
)
def test_nothing_in_a_file(beside: Beside, text: str) -> None:
    silent(beside({"empty.yaml": text.encode()}))


@pytest.mark.parametrize(
    "text", ["- gtp_weight_remat_size: 3\n", "gtp_weight_remat_size\n", "'gtp_weight_remat_size'\n"]
)
def test_a_root_that_is_no_mapping(beside: Beside, text: str) -> None:
    """Not a recipe; at most a word on it."""
    ran = beside({"list.yaml": text})
    assert len(ran.problems) <= 1
    assert ran.code == (3 if ran.problems else 0)


@pytest.mark.parametrize("key", ["1", "1.5", "true", "null", "2026-01-01", "!!binary aGk=", "~", ".inf"])
def test_keys_that_are_no_texts(migrate: Migrate, key: str) -> None:
    """NeMo-RL loads some of these; the others are one line. Nothing is lost either way."""
    text = f"{key}: {{a: 1}}\n{OLD}"
    ran = migrate({"a.yaml": text})
    if ran.code == 0:
        assert ran.files == {"a.yaml": text.replace(OLD, NEW)}
    else:
        assert ran.files == {"a.yaml": text}
        assert len(ran.problems) == 1
        assert ran.problems[0].startswith("a.yaml")


@pytest.mark.parametrize("key", ["[a, b]", "{a: b}", "? [a]\n", "? {a: {b: c}}\n"])
def test_keys_that_are_containers(beside: Beside, key: str) -> None:
    ran = beside({"bad.yaml": f"{key}: 1\n{OLD}"})
    assert ran.code == 3
    assert len(ran.problems) == 1


@pytest.mark.parametrize("value", ["3", "[]", "[1, 2]", "null", "text", "${nothing}", "???"])
@pytest.mark.parametrize("key", ["megatron_cfg", "model_overrides"])
def test_other_things_where_a_mapping_is_expected(beside: Beside, key: str, value: str) -> None:
    text = (
        f"policy:\n  megatron_cfg: {value}\n"
        if key == "megatron_cfg"
        else f"policy:\n  megatron_cfg:\n    model_overrides: {value}\n"
    )
    silent(beside({"odd.yaml": text + "# gtp_weight_remat_size\n"}))


# -- defaults ------------------------------------------------------------------------------------------


def test_a_parent_that_is_missing(beside: Beside) -> None:
    ran = beside({"other.yaml": "a: 1\n", "bad.yaml": "# first\ndefaults: [other.yaml, gone/base.yaml]\n" + OLD})
    one_line(ran, "bad.yaml:2:1", "gone/base.yaml", "No such file")


def test_a_parent_that_is_missing_without_an_old_key(beside: Beside) -> None:
    silent(beside({"bad.yaml": "defaults: gone.yaml\n"}))


def test_a_parent_that_is_a_folder(beside: Beside) -> None:
    one_line(beside({"folder/.keep": "", "bad.yaml": "defaults: folder\n" + OLD}), "bad.yaml:1:1", "folder")


def test_an_inherited_parent_that_is_missing_is_one_line_for_the_file_that_names_it(beside: Beside) -> None:
    ran = beside(
        {
            "middle.yaml": "defaults: gone.yaml\n",
            "one.yaml": "defaults: middle.yaml\n" + OLD,
            "two.yaml": "defaults: middle.yaml\n" + OLD,
        }
    )
    one_line(ran, "middle.yaml:1:1", "gone.yaml")


def test_a_circle_of_defaults_is_one_line(beside: Beside) -> None:
    ran = beside({"a.yaml": "defaults: b.yaml\n" + OLD, "b.yaml": "defaults: c.yaml\n", "c.yaml": "defaults: a.yaml\n"})
    assert ran.code == 3
    assert len(ran.problems) == 1, ran.stderr
    assert "inherits from itself" in ran.problems[0]
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        assert name in ran.problems[0]


def test_a_file_that_inherits_from_itself(beside: Beside) -> None:
    one_line(beside({"a.yaml": "defaults: ./a.yaml\n" + OLD}), "a.yaml:1:1", "inherits from itself")


def test_a_circle_without_an_old_key(beside: Beside) -> None:
    silent(beside({"a.yaml": "defaults: b.yaml\n", "b.yaml": "defaults: a.yaml\n"}))


@pytest.mark.parametrize("defaults", ["3", "{a: b}", "[1]", "[[a.yaml]]", "true"])
def test_defaults_that_are_no_paths(beside: Beside, defaults: str) -> None:
    ran = beside({"bad.yaml": f"defaults: {defaults}\n{OLD}"})
    one_line(ran, "bad.yaml:1:1")


@pytest.mark.parametrize("defaults", ["null", "[]", "~"])
def test_defaults_of_nothing(migrate: Migrate, defaults: str) -> None:
    """NeMo-RL cannot follow null; an empty list is no parent at all."""
    text = f"defaults: {defaults}\n{OLD}"
    ran = migrate({"a.yaml": text})
    if defaults == "[]":
        assert (ran.code, ran.files) == (0, {"a.yaml": f"defaults: []\n{NEW}"})
    else:
        assert ran.files["a.yaml"] in (text, f"defaults: {defaults}\n{NEW}")
        assert ran.code == (3 if ran.files["a.yaml"] == text else 0)


def test_mappings_that_do_not_fit_together(beside: Beside) -> None:
    """A list over a mapping, as OmegaConf refuses to merge it."""
    ran = beside({"base.yaml": "policy: {megatron_cfg: [1]}\n", "bad.yaml": "defaults: base.yaml\n" + OLD})
    assert len(ran.problems) <= 1


# -- bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"# fen\xeatre\n" + OLD.encode(), "1:6"),
        (OLD.encode() + b"a: \xff\n", "6:4"),
        (b"# \xe5\xad\xa6 \xc3\n" + OLD.encode(), "1:5"),
    ],
    ids=["latin-1", "at the end", "behind other letters"],
)
def test_not_utf8(beside: Beside, data: bytes, place: str) -> None:
    one_line(beside({"bad.yaml": data}), f"bad.yaml:{place}", "UTF-8")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16(beside: Beside, encoding: str) -> None:
    """NeMo-RL reads UTF-8. With a byte order mark it is known for what it is, and said."""
    ran = beside({"bad.yaml": OLD.encode(encoding)})
    if encoding == "utf-16":
        one_line(ran, "bad.yaml:1:1", "UTF-8")


def test_not_utf8_without_an_old_key(beside: Beside) -> None:
    silent(beside({"bad.yaml": b"a: \xff\xfe\x00\n"}))


def test_a_binary_file(beside: Beside) -> None:
    silent(beside({"bad.yaml": bytes(range(256)) * 50}))


def test_old_mac_line_ends(migrate: Migrate) -> None:
    """A lone CR ends a line in YAML, and stays what it is."""
    data = OLD.replace("\n", "\r")
    ran = migrate({"a.yaml": data.encode()})
    assert ran.files in ({"a.yaml": NEW.replace("\n", "\r")}, {"a.yaml": data})
    assert ran.code == (3 if ran.files == {"a.yaml": data} else 0)


# -- too much ------------------------------------------------------------------------------------------


def test_ten_megabytes_that_say_nothing(beside: Beside) -> None:
    silent(beside({"big.yaml": b"key: value  # and so on\n" * 440_000}))


def test_ten_megabytes_with_a_setting(migrate: Migrate) -> None:
    """A block scalar of 10 MB: one entry changes, every other byte stays."""
    blob = "blob: |\n" + "  0123456789abcdef0123456789abcdef\n" * 300_000
    ran = migrate({"big.yaml": (OLD + blob).encode()})
    assert ran.code == 0, ran.stderr
    assert ran.files == {"big.yaml": NEW + blob}


def bomb(levels: int = 12, width: int = 10) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels):
        items = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{items}]")
    return "\n".join(lines) + "\n"


def test_an_alias_bomb_that_says_nothing(beside: Beside) -> None:
    silent(beside({"bomb.yaml": bomb()}))


def test_an_alias_bomb_beside_a_setting(migrate: Migrate) -> None:
    """It goes off nowhere near a `megatron_cfg`; if it is too much all the same, that is one line."""
    text = bomb() + OLD
    ran = migrate({"bomb.yaml": text})
    assert ran.files["bomb.yaml"] in (text, text.replace(OLD, NEW))
    assert len(ran.problems) == (1 if ran.files["bomb.yaml"] == text else 0)


def test_an_alias_bomb_of_holders(beside: Beside) -> None:
    lines = ["a0: &a0 {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 3}}}"]
    for level in range(1, 12):
        items = ", ".join(f"k{index}: *a{level - 1}" for index in range(10))
        lines.append(f"a{level}: &a{level} {{{items}}}")
    ran = beside({"bomb.yaml": "\n".join(lines) + "\n"})
    assert ran.code == 3
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("bomb.yaml:")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {b: *a}\n" + OLD,
        "a: &a [*a]\n" + OLD,
        OLD.replace("policy:", "policy: &p") + "  again: *p\n",
        OLD.replace("policy:", "policy: &p\n  <<: *p"),
    ],
    ids=["mapping", "list", "around a setting", "merge"],
)
def test_an_alias_of_itself(migrate: Migrate, text: str) -> None:
    ran = migrate({"a.yaml": text})
    assert "Traceback" not in ran.stderr
    assert ran.files["a.yaml"] in (
        text,
        text.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12"),
    )
    assert ran.code == (0 if ran.files["a.yaml"] != text else 3)
    assert len(ran.problems) == (1 if ran.code else 0)


@pytest.mark.parametrize("depth", [150, 1_000, 20_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_deep_nesting(migrate: Migrate, depth: int, opening: str, closing: str) -> None:
    text = f"deep: {opening * depth}1{closing * depth}\n"
    limit = sys.getrecursionlimit()
    ran = migrate({"plain.yaml": text, "deep.yaml": text + OLD, "good.yaml": OLD})
    assert sys.getrecursionlimit() == limit
    assert ran.files["plain.yaml"] == text
    assert ran.files["good.yaml"] == NEW
    assert ran.files["deep.yaml"] in (text + OLD, text + NEW)
    assert [line.startswith("deep.yaml") for line in ran.problems] == [True] * (ran.files["deep.yaml"] == text + OLD)


def test_a_long_chain_of_parents(migrate: Migrate) -> None:
    files: dict[str, Content] = {"r000.yaml": OLD}
    for index in range(1, 300):
        files[f"r{index:03}.yaml"] = f"defaults: r{index - 1:03}.yaml\n"
    ran = migrate(files)
    assert ran.code == 0, ran.stderr
    assert ran.files == {**files, "r000.yaml": NEW}


@pytest.mark.parametrize(
    "tp",
    [
        "${policy.megatron_cfg.tensor_model_parallel_size}",
        "${unknown_resolver:4}",
        "${mul:4}",
        "${",
        "${}",
        "${oc.env:A_NAME_THAT_NOBODY_SETS}",
    ],
)
def test_interpolations_that_fail(migrate: Migrate, tp: str) -> None:
    """A TP that is not known here is kept as it is; where it cannot be right, a line says so."""
    text = OLD.replace("size: 4", f"size: '{tp}'")
    ran = migrate({"a.yaml": text, "good.yaml": OLD})
    assert ran.files["good.yaml"] == NEW
    assert "Traceback" not in ran.stderr
    assert ran.files["a.yaml"] in (
        text,
        text.replace(
            "gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}"
        ),
    )
    assert len(ran.problems) == (1 if ran.files["a.yaml"] == text else 0)


# -- the file system -----------------------------------------------------------------------------------


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders that the package may not read, whoever runs the tests."""
    names: set[str] = set()
    before = {"open": builtins.open, "scandir": os.scandir, "os.open": os.open}

    def check(path: object) -> None:
        asks = str(sys._getframe(2).f_globals.get("__name__"))
        if asks.startswith("gtp_migrate") and isinstance(path, (str, os.PathLike)) and Path(path).name in names:
            raise PermissionError(13, "Permission denied", str(path))

    def open_(path: object, *args: object, **more: object) -> object:
        check(path)
        return before["open"](path, *args, **more)  # type: ignore[call-overload]

    def scandir(path: object = ".") -> object:
        check(path)
        return before["scandir"](path)  # type: ignore[call-overload]

    def os_open(path: object, *args: object, **more: object) -> object:
        check(path)
        return before["os.open"](path, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", open_)
    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "open", os_open)
    return names


def test_a_file_that_may_not_be_read(beside: Beside, unreadable: set[str]) -> None:
    unreadable.add("locked.yaml")
    ran = beside({"locked.yaml": OLD})
    one_line(ran, "locked.yaml", "Permission denied")


def test_a_parent_that_may_not_be_read(beside: Beside, unreadable: set[str]) -> None:
    unreadable.add("locked.cfg")
    ran = beside({"locked.cfg": "a: 1\n", "child.yaml": "defaults: locked.cfg\n" + OLD})
    one_line(ran, "child.yaml:1:1", "locked.cfg", "Permission denied")


def test_a_folder_that_may_not_be_listed(beside: Beside, unreadable: set[str]) -> None:
    unreadable.add("locked")
    ran = beside({"locked/a.yaml": OLD})
    one_line(ran, "locked", "Permission denied")


def test_a_file_that_goes_while_we_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"a.yaml": OLD, "b.yaml": OLD})
    scandir = os.scandir

    def meanwhile(path: str) -> object:
        found = scandir(path)
        if (tmp_path / "a.yaml").exists():
            (tmp_path / "a.yaml").unlink()
        return found

    monkeypatch.setattr(os, "scandir", meanwhile)
    ran = run(tmp_path, ".")
    assert ran.files == {"b.yaml": NEW}
    assert len(ran.problems) <= 1
    assert ran.code == (3 if ran.problems else 0)


def test_a_file_that_changes_before_it_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was proven is what is written: a file that is another one by then is left."""
    from gtp_migrate import write_all as module

    write_files(tmp_path, {"a.yaml": OLD, "b.yaml": OLD})
    write_all = module.write_all

    def meanwhile(*args: object, **more: object) -> object:
        (tmp_path / "a.yaml").write_text("mine: 1\n")
        return write_all(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_all", meanwhile)
    ran = run(tmp_path, ".")
    assert ran.code == 3
    assert ran.files == {"a.yaml": "mine: 1\n", "b.yaml": NEW}
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("a.yaml: ")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder that `migrate` and `beside` work in."""
    (tmp_path / "work").mkdir(exist_ok=True)
    return tmp_path / "work"


def test_a_link_that_leads_nowhere(beside: Beside, work: Path) -> None:
    (work / "dangling.yaml").symlink_to("gone.yaml")
    silent(beside({}))
    assert (work / "dangling.yaml").is_symlink()


def test_a_link_that_leads_nowhere_and_is_named(migrate: Migrate, work: Path) -> None:
    (work / "dangling.yaml").symlink_to("gone.yaml")
    ran = migrate({"a.yaml": OLD}, paths=("a.yaml", "dangling.yaml"))
    assert ran.code == 2
    assert len(ran.stderr.splitlines()) == 1
    assert ran.files == {"a.yaml": OLD}


def test_links_in_a_circle(beside: Beside, work: Path) -> None:
    (work / "one.yaml").symlink_to("two.yaml")
    (work / "two.yaml").symlink_to("one.yaml")
    silent(beside({}))


def test_folders_in_a_circle(beside: Beside, work: Path) -> None:
    (work / "x" / "y").mkdir(parents=True)
    (work / "x" / "y" / "up").symlink_to("../..", target_is_directory=True)
    (work / "x" / "self").symlink_to(".", target_is_directory=True)
    silent(beside({}))


def test_a_folder_that_is_called_like_a_recipe(beside: Beside, work: Path) -> None:
    (work / "folder.yaml").mkdir()
    silent(beside({}))


def test_a_pipe_that_is_called_like_a_recipe(beside: Beside, work: Path) -> None:
    """Reading it would wait for ever."""
    os.mkfifo(work / "pipe.yaml")
    silent(beside({}))


def test_a_name_that_is_not_utf8(migrate: Migrate, work: Path) -> None:
    name = os.fsdecode(b"caf\xe9.yaml")
    (work / name).write_text(OLD)
    ran = migrate({"good.yaml": OLD})
    assert ran.code == 0, ran.stderr
    assert (work / name).read_text() == NEW
    (work / name).write_text(OLD)
    assert migrate({}, "--dry-run").code == 0
