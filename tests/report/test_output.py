"""What the command prints and writes: reports by suffix, annotations, and nothing but the patch on stdout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rewriter.conftest import Ran, run, write_files

from gtp_migrate.edit.where import where
from gtp_migrate.report.progress import lines

RECIPE = """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        model_overrides: {gtp_weight_remat_size: 3}
"""
BAD = RECIPE.replace("3", "0")


@pytest.mark.parametrize("args", [(), ("--check",), ("--dry-run",)], ids=["write", "check", "dry-run"])
def test_a_report_with_and_without_writing(tmp_path: Path, args: tuple[str, ...]) -> None:
    write_files(tmp_path, {"a.yaml": RECIPE})
    without = run(tmp_path, *args, "--report", "r.json", "--report", "R.MD", ".")
    data = json.loads(without.files["r.json"])
    assert data["counts"] == {
        "files": 1,
        "settings": 1,
        "changed_files": 1,
        "runs": 1,
        "changed_runs": 1,
        "proven_runs": 1,
        "problems": 0,
        "unfit_runs": 0,
    }
    assert data["command"] == " ".join(["gtp-migrate", *args, "--report r.json --report R.MD ."])
    assert str(without.files["R.MD"]).startswith("### gtp-migrate: no model's layout changes\n")
    assert without.code == (1 if "--check" in args else 0)
    written = "tensor_parallel_num_weight_shards: 12" in str(without.files["a.yaml"])
    assert written is (args == ())


def test_a_report_where_nothing_is_to_do(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.yaml": "x: 1\n"})
    ran = run(tmp_path, "--report", "r.html", "--report", "r.sarif", ".")
    assert ran.code == 0
    assert "<h1>Nothing to migrate</h1>" in str(ran.files["r.html"])
    assert json.loads(ran.files["r.sarif"])["runs"][0]["results"] == []


def test_the_report_says_what_was_really_written(tmp_path: Path) -> None:
    """A file that cannot be written is a problem of the report, and not among the changes."""
    write_files(tmp_path, {"a.yaml": RECIPE, "b/b.yaml": RECIPE})
    script = (
        "import gtp_migrate.write_all as w, gtp_migrate.__main__ as c, sys\n"
        "from gtp_migrate.write import WriteError\n"
        "from gtp_migrate.problems import Place, Problem\n"
        "def check(path, shown):\n"
        "    if shown == 'b/b.yaml': raise WriteError(Problem(Place(shown), 'cannot be written', 'mend it'))\n"
        "w.check_writable = check\n"
        "sys.argv = ['gtp-migrate', '--report', 'r.json', '.']\n"
        "c.main()\n"
    )
    code = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode
    data = json.loads((tmp_path / "r.json").read_text())
    assert code == 3
    assert [problem["what"] for problem in data["problems"]] == ["cannot be written"]
    assert {run["recipe"]: run["state"] for run in data["runs"]} == {"a.yaml": "proven", "b/b.yaml": "not proven"}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("r.txt", "--report r.txt: the name must end in .html, .json, .md or .sarif"),
        ("no/r.json", "--report no/r.json: there is no folder no; make it first"),
        ("folder.md", "--report folder.md: is a folder; name a file"),
        ("\x1b[31m.txt", "--report \\x1b[31m.txt: the name must end in .html, .json, .md or .sarif"),
    ],
)
def test_a_report_that_cannot_be_is_said_first(tmp_path: Path, file: str, message: str) -> None:
    write_files(tmp_path, {"a.yaml": RECIPE, "folder.md/x": "x"})
    ran = run(tmp_path, "--report", file, ".")
    assert (ran.code, ran.stderr) == (2, message + "\n")
    assert "gtp_weight_remat_size: 3" in str(ran.files["a.yaml"])


def test_nothing_but_the_patch_on_stdout(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.yaml": RECIPE, "bad.yaml": BAD})
    ran = run(tmp_path, "--dry-run", "--format", "github", "--report", "r.md", ".")
    assert ran.stdout.startswith("--- a/a.yaml\n+++ b/a.yaml\n@@ ")
    assert {line[0] for line in ran.stdout.splitlines()} <= set(" +-@")
    for args in (("--check",), ("--check", "--format", "github"), ()):
        assert run(tmp_path, *args, ".").stdout == ""


def test_annotations_of_a_check(tmp_path: Path) -> None:
    """What is left to migrate fails a check: an error on its line."""
    write_files(tmp_path, {"a.yaml": RECIPE, "bad.yaml": BAD})
    ran = run(tmp_path, "--check", "-q", "--format", "github", ".")
    assert ran.stderr.splitlines() == [
        "::error file=bad.yaml,line=4,col=23,title=gtp-migrate%3A needs a person::"
        "bad.yaml:4:23: gtp_weight_remat_size must be a positive integer or null, not 0; correct it and run again",
        "::error file=a.yaml,line=4,col=23,title=gtp-migrate%3A left to migrate::"
        "a.yaml:4:23: gtp_weight_remat_size: 3 becomes tensor_parallel_num_weight_shards: 12; TP 4 (a.yaml:3)",
    ]


def test_annotations_name_files_from_the_top_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    write_files(tmp_path, {"recipes/a, 100%.yaml": BAD})
    ran = run(tmp_path / "recipes", "--check", "-q", "--format", "github", ".")
    assert ran.stderr.startswith("::error file=recipes/a%2C 100%25.yaml,line=4,")
    assert "::a, 100%25.yaml:4:23: " in ran.stderr


def named_in(ran: Ran) -> tuple[list[str], list[str]]:
    """The files that SARIF's results and the annotations are on."""
    results = json.loads(ran.files["r.sarif"])["runs"][0]["results"]
    places = [each["locations"][0]["physicalLocation"]["artifactLocation"] for each in results]
    assert all(("uriBaseId" in each) != each["uri"].startswith("file:") for each in places)
    return [each["uri"] for each in places], re.findall("::error file=([^,]+),", ran.stderr)


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize("workspace", [False, True])
def test_files_are_named_from_the_top_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool, workspace: bool
) -> None:
    top = tmp_path / "checkout"
    write_files(top, {"recipes/a ü.yaml": BAD, "recipes/sub/b.yaml": RECIPE})
    if workspace:
        monkeypatch.setenv("GITHUB_WORKSPACE", str(top))
    else:
        (top / ".git").mkdir()
    path = str(top / "recipes") if is_absolute else "."
    for here in (top / "recipes", tmp_path) if is_absolute else (top / "recipes",):
        ran = run(here, "--check", "--report", "r.sarif", "--format", "github", path)
        uris = ["recipes/a%20%C3%BC.yaml", "recipes/sub/b.yaml"]
        assert named_in(ran) == (uris, ["recipes/a ü.yaml", "recipes/sub/b.yaml"])


def test_files_outside_of_any_checkout(tmp_path: Path) -> None:
    """From the current folder; absolute where they are not below it."""
    write_files(tmp_path, {"here/a b.yaml": BAD, "there/a b.yaml": BAD})
    ran = run(tmp_path / "here", "--check", "--report", "r.sarif", "--format", "github", ".", "../there")
    there = f"{os.path.realpath(tmp_path)}/there/a b.yaml"
    assert sorted(named_in(ran)[0]) == ["a%20b.yaml", "file://" + there.replace(" ", "%20")]
    assert sorted(named_in(ran)[1]) == sorted([there, "a b.yaml"])


def test_a_link_out_of_the_checkout_is_a_file_of_it(tmp_path: Path) -> None:
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    write_files(tmp_path, {"elsewhere.yaml": BAD})
    (tmp_path / "checkout" / "r").mkdir()
    (tmp_path / "checkout" / "r" / "a.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    ran = run(tmp_path / "checkout" / "r", "--check", "--report", "r.sarif", "--format", "github", ".")
    assert named_in(ran) == (["r/a.yaml"], ["r/a.yaml"])


def test_no_path_is_broken_at_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "configs/recipes/llm/grpo-some-model-8b-4n8g-megatron-fp8-long-name.yaml"
    write_files(tmp_path, {name: RECIPE + "    cluster: {gpus_per_node: 8, num_nodes: 3}\n", "bad/" + name: BAD})
    for width in (40, 80, 100, 150, 200, 240, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        said = run(tmp_path, "--check", ".").stderr
        assert f"{name}:4" in said, width
        assert said.count(name) >= 4, width
        assert f"bad/{name}:4:23: gtp_weight_remat_size must be" in said, width
        assert "…" not in said, width


def test_progress_in_a_log() -> None:
    """A line every few seconds, with how far it is; nothing where it is quick."""
    now = [0.0]
    said: list[str] = []
    show = lines(lambda: now[0], said.append)
    for second, (what, done, total) in enumerate([("reading", 10, 0)] * 6 + [("proving", 1200, 3000)] * 6):
        now[0] = float(second)
        show(what, done, total)
    assert said == ["reading 10 …", "proving 1,200 of 3,000 …"]


def test_no_description_is_too_long(tmp_path: Path) -> None:
    """GitHub takes 65,536 characters: what does not fit is counted, part by part, and no part is broken."""
    write_files(tmp_path, {f"{index:04}-{'long-' * 20}name.yaml": RECIPE for index in range(400)})
    text = str(run(tmp_path, "--dry-run", "--report", "r.md", ".").files["r.md"])
    assert 50_000 < len(text) < 65_000
    assert text.count("<details") == text.count("</details>") == 3
    assert text.count("```") in (0, 2)
    assert len(re.findall("…and [0-9]+ more than a description holds", text)) == 2
    assert "<summary>Runs (400)</summary>" in text
    assert "\n- Command: `gtp-migrate --dry-run --report r.md .`\n" in text


def test_no_template_engine_without_a_page(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.yaml": RECIPE})
    script = (
        "import sys, gtp_migrate.cli as c\n"
        "sys.argv = ['gtp-migrate', '--check', '--report', 'r.json', '.']\n"
        "try: c.main()\n"
        "finally: print('jinja2' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ran.stdout == "False\n"


def test_a_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """By a file with the usual rights, and nothing else is left behind."""
    write_files(tmp_path, {"a.yaml": RECIPE, "r.md": "old"})
    ran = run(tmp_path, "--report", "r.md", ".")
    assert sorted(ran.files) == ["a.yaml", "r.md"]
    assert str(ran.files["r.md"]).startswith("### gtp-migrate")
    (tmp_path / "new").write_text("")
    assert (tmp_path / "r.md").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_where_the_reports_are_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: 1\n")
    args = ("--report", "r.md", "--report", "r.json", ".")
    assert "Report: r.md, r.json\n" in run(tmp_path, *args).stderr
    assert run(tmp_path, "-q", *args).stderr == ""


def test_what_cannot_be_loaded_has_a_row(fixture_reports: Path) -> None:
    """So that the filter, the counts and links to a recipe find it."""
    data = json.loads((fixture_reports / "report.json").read_text())
    runs = {run["recipe"].removeprefix("fixtures/needs_a_person/"): run for run in data["runs"]}
    said = {
        "latin1.yaml": "is not UTF-8",
        "twice.yaml": "twice",
        "unparsable.yaml": "is not YAML",
        "circle_a.yaml": "inherits from itself",
        "circle_b.yaml": "inherits from itself",
        "missing_parent.yaml": "no_such_base.yaml, which cannot be read",
    }
    for name, why in said.items():
        run = runs[name]
        assert (run["state"], run["models"], run["is_given"]) == ("left", [], True), name
        assert why in run["unknown"], name
        assert run["unknown"] in [data["problems"][number]["what"] for number in run["problems"]], name
    assert data["counts"]["runs"] == len(data["runs"])
    assert [run["recipe"] for run in data["runs"]] == sorted(run["recipe"] for run in data["runs"])
    page = (fixture_reports / "report.html").read_text()
    assert '<tbody id="recipe=fixtures/needs_a_person/latin1.yaml"' in page
    text = (fixture_reports / "report.md").read_text()
    assert "| `fixtures/needs_a_person/latin1.yaml` | needs a person |  | is not UTF-8" in text


def test_a_file_without_the_right_to_read_it_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> bytes:
        if path.endswith("b.yaml"):
            raise PermissionError(13, "Permission denied", path)
        return Path(path).read_bytes()

    monkeypatch.setattr("gtp_migrate.recipes.survey.read_bytes", read)
    write_files(tmp_path, {"a.yaml": RECIPE, "b.yaml": RECIPE})
    for paths in ((".",), ("b.yaml",)):
        data = json.loads(run(tmp_path, "--check", "--report", "r.json", *paths).files["r.json"])
        assert data["runs"][-1]["recipe"] == "b.yaml"
        assert data["runs"][-1]["unknown"] == "cannot be read (Permission denied)"
        assert data["runs"][-1]["problems"] == [0]


def test_added_settings_have_the_line_of_the_mapping_that_takes_them(fixture_reports: Path) -> None:
    data = json.loads((fixture_reports / "report.json").read_text())
    added = {
        each["path"].removeprefix("fixtures/recipes/"): (each["line"], each["column"])
        for each in data["settings"]
        if each["old"] == "inherited"
    }
    assert added == {
        "generation.yaml": (20, 5),
        "llm/dpo-tp4.yaml": (4, 3),
        "opd_teachers.yaml": (11, 5),
        "shared_overrides.yaml": (12, 5),
    }


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("a:\n  b: {c: 1}\n", ("a", "b", "c"), (2, 7)),
        ("\ufeffa:\n  b: {c: 1}\n", ("a", "b", "d", "e"), (2, 3)),
        ("x: &X {b: 1}\na: *X\n", ("a", "b"), (2, 1)),
        ("a:\n- b: 1\n- c: 1\n", ("a", 1, "d"), (3, 3)),
        ("defaults: base.yaml\n", ("a", "b"), (0, 0)),
        ("", ("a",), (0, 0)),
        ("a: [", ("a",), (0, 0)),
    ],
)
def test_where_a_new_entry_goes(text: str, path: tuple[str | int, ...], place: tuple[int, int]) -> None:
    assert where(text, path) == place


def test_annotations_and_results_are_sentences(tmp_path: Path) -> None:
    """Of what is added, and of what is removed, too."""
    half = RECIPE.replace("size: 3}", "size: 3, tensor_parallel_num_weight_shards: 12}")
    child = "defaults: base.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 8}}\ndpo: {}\n"
    write_files(tmp_path, {"base.yaml": RECIPE + "    dpo: {}\n", "child.yaml": child, "half.yaml": half})
    ran = run(tmp_path, "--check", "-q", "--format", "github", "--report", "r.sarif", ".")
    results = json.loads(ran.files["r.sarif"])["runs"][0]["results"]
    added, removed = (
        "policy.megatron_cfg gets tensor_parallel_num_weight_shards: 24 of its own; TP 8 (child.yaml:2)",
        "gtp_weight_remat_size: 3 is removed: tensor_parallel_num_weight_shards is set already; TP 4 (half.yaml:3)",
    )
    assert [each["message"]["text"] for each in results][1:] == [added, removed]
    assert [each["locations"][0]["physicalLocation"]["region"]["startLine"] for each in results] == [4, 2, 4]
    assert [line.partition(": ")[2] for line in ran.stderr.splitlines()][1:] == [added, removed]
    ran = run(tmp_path, "-q", "--format", "github", ".")
    said = [added.replace(" gets ", " got "), removed.replace(" is removed", " was removed")]
    assert [line.partition(": ")[2] for line in ran.stderr.splitlines()][1:] == said


@pytest.mark.parametrize("value", ["true", '"2"', "[2, true]", "{a: 1}", "2.5"])
def test_bad_values_are_in_the_words_of_yaml(tmp_path: Path, value: str) -> None:
    """Among the runs as among the problems."""
    write_files(tmp_path, {"a.yaml": RECIPE.replace("3", value)})
    data = json.loads(run(tmp_path, "--check", "--report", "r.json", ".").files["r.json"])
    said = f"gtp_weight_remat_size must be a positive integer, not {value}"
    assert data["runs"][0]["models"][0]["unknown"] == said
