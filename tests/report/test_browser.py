"""The page, in the system's Chromium."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gtp_migrate.report.html import html_report
from gtp_migrate.report.ranks import Dimension, group

from .conftest import FIXTURES, make_reports
from .many import many_runs
from .test_hostile import NAMES, tree

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install '.[test]')")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium, or CHROMIUM=PATH)")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]

DENSE = "fixtures/recipes/grpo_dense.yaml"
MOE = "fixtures/recipes/llm/moe-30b-etp2.yaml"
UNFIT = "fixtures/recipes/llm/grpo-dense-8b-1n8g.yaml"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file. Whatever the page asks the network for, says on the console or asks a person fails the test."""
    contexts = []
    wrong: list[str] = []

    def open_page(file: Path, fragment: str = "", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: wrong.append(request.url) if request.url[:5] != "file:" else None)
        page.goto(file.as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def page(open_page: Open, fixture_reports: Path) -> Any:
    return open_page(fixture_reports / "report.html")


def shown(page: Any) -> list[str]:
    """The recipes in the table, in its order."""
    return [str(name) for name in page.locator("#table tbody:visible .open").all_inner_texts()]


def recipe(page: Any, name: str) -> Any:
    return page.locator(f'#table tbody[id="recipe={name}"]')


def opened(page: Any, name: str) -> Any:
    """The details of a recipe, opened by a click."""
    recipe(page, name).locator(".open").click()
    return recipe(page, name).locator(".details")


def data_of(page: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(page.locator("#data").inner_text() or page.locator("#data").text_content())
    return data


def test_the_verdict(page: Any) -> None:
    assert page.locator("h1").inner_text() == "No model's layout changes"
    assert "26 of 26 changed recipes proven" in page.locator(".verdict").inner_text()
    tiles = page.locator(".tiles dd").all_inner_texts()
    assert [re.match(r"[\d,]+", tile)[0] for tile in tiles] == ["32", "26", "26", "15", "1"]  # type: ignore[index]
    assert page.locator(".tiles dt").last.inner_text() == "run does not fit its GPUs"
    assert page.locator(".tiles dd").last.inner_text() == "1 before and after alike"
    assert "gtp-migrate --dry-run --report" in page.locator(".facts").inner_text()
    assert page.locator("#person li").count() == 15


BAD = """
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        model_overrides: {gtp_weight_remat_size: %d}
    """


def problems_page(open_page: Open, folder: Path, number: int) -> Any:
    files = {f"{n:02}.yaml": BAD % -n for n in range(number)}
    make_reports(folder, files, "--dry-run")
    return open_page(folder / "report/report.html")


def test_what_needs_a_person_is_all_there(page: Any) -> None:
    """No box that scrolls, and shows a part of it without a word."""
    assert page.locator(".problems").evaluate("node => node.scrollHeight <= node.clientHeight")
    assert page.locator("#person li:visible").count() == 15
    assert page.locator("#person details").count() == 0


def test_what_needs_a_person_as_copied(page: Any) -> None:
    """What is wrong and what to do are two things also without the colours, as in the other reports."""
    name = "fixtures/needs_a_person/bad_sizes.yaml"
    said = "gtp_weight_remat_size must be a positive integer or null, not 0; correct it and run again"
    for problem in (page.locator("#person li").first, opened(page, name).locator(".problems li").first):
        assert problem.inner_text().splitlines() == [f"{name}:6:7", said]


def test_what_needs_a_person_in_many_places(open_page: Open, tmp_path: Path) -> None:
    """The page says how many more there are, and shows them by keyboard and on paper."""
    page = problems_page(open_page, tmp_path, 21)
    assert page.locator("#person li").count() == 21
    assert page.locator("#person li:visible").count() == 10
    summary = page.locator("#person summary")
    assert summary.inner_text() == "11 more"
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#person li:visible").count() == 21
    page.keyboard.press("Enter")
    assert page.locator("#person li:visible").count() == 10
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#person li:visible").count() == 21
    assert not summary.is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("#person li:visible").count() == 10


def test_twenty_places_are_shown_at_once(open_page: Open, tmp_path: Path) -> None:
    page = problems_page(open_page, tmp_path, 20)
    assert page.locator("#person li:visible").count() == 20


def test_the_page_shows_the_json_report(page: Any, fixture_reports: Path) -> None:
    data = json.loads((fixture_reports / "report.json").read_text())
    assert data_of(page) == data
    assert shown(page) == [run["recipe"] for run in data["runs"]]


def test_before_and_after(page: Any) -> None:
    cells = recipe(page, MOE).locator("tr").first.locator("td").all_inner_texts()
    assert cells == ["proven", "policy.megatron_cfg", *"4224", *"4224", "16", "2", "4", "fits"]
    assert page.locator("#table .moved").count() == 0


def test_filter(page: Any) -> None:
    page.locator("#words").fill("llm GRPO")
    assert shown(page) == [
        "fixtures/recipes/llm/grpo-dense-8b-1n8g.yaml",
        "fixtures/recipes/llm/grpo-dense-8b-other-engine.yaml",
        "fixtures/recipes/llm/grpo-dense-8b-plain.yaml",
        "fixtures/recipes/llm/grpo-dense-8b-tp8.yaml",
    ]
    assert page.locator("#shown").inner_text() == "4 of 38 runs"
    page.locator("#gtp").check()
    assert "fixtures/recipes/llm/grpo-dense-8b-plain.yaml" not in shown(page)
    page.locator("#unfit").check()
    assert shown(page) == [UNFIT]
    page.locator("#words").fill("")
    page.locator("#unfit").uncheck()
    page.locator("#gtp").uncheck()
    page.locator("#state").select_option("left")
    assert set(page.locator("#table tbody:visible .state").all_inner_texts()) == {"needs a person"}


def test_filter_by_a_file_it_inherits_from(page: Any) -> None:
    page.locator("#words").fill("recipes/moe.yaml")
    assert shown(page) == [MOE, "fixtures/recipes/moe.yaml"]


def test_sort(page: Any) -> None:
    def gpus() -> list[int]:
        """Of the first model of each run, where they are known."""
        script = "all => all.filter(row => row.cells.length === 15).map(row => row.cells[11].innerText)"
        cells = page.locator("#table tbody > tr:first-child").evaluate_all(script)
        return [int(cell) for cell in cells if cell.isdigit()]

    by_gpus = page.locator("[data-sort=gpus]")
    by_gpus.click()
    assert by_gpus.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    ascending = gpus()
    assert ascending == sorted(ascending)
    by_gpus.click()
    descending = gpus()
    assert descending == sorted(ascending, reverse=True)
    page.locator("[data-sort=recipe]").click()
    assert page.locator("[aria-sort=descending], [aria-sort=ascending]").count() == 1
    assert shown(page) == sorted(shown(page))
    page.locator("[data-sort='before.gtp']").click()
    page.locator("[data-sort='before.gtp']").click()
    assert shown(page)[0] == "fixtures/recipes/odd_indents.yaml"


def test_what_can_be_sorted_says_so(page: Any) -> None:
    """Each such header has a mark, in its place and in no name; `aria-sort` says the order."""

    def marks() -> dict[str, str]:
        script = "all => all.map(one => [one.dataset.sort, getComputedStyle(one, '::after').content[1]])"
        return dict(page.locator("#table thead button").evaluate_all(script))

    assert len(marks()) == 14
    assert set(marks().values()) == {"↕"}
    gpus = page.get_by_role("columnheader").get_by_role("button", name="GPUs", exact=True)
    gpus.click()
    assert [name for name, mark in marks().items() if mark == "▲"] == ["gpus"]
    gpus.click()
    assert [name for name, mark in marks().items() if mark == "▼"] == ["gpus"]
    page.get_by_role("button", name="state", exact=True).click()
    assert [name for name, mark in marks().items() if mark != "↕"] == ["state"]
    orders = page.locator("#table th[aria-sort]").evaluate_all("all => all.map(one => one.ariaSort)")
    assert sorted(orders) == ["ascending", *["none"] * 13]
    assert page.locator("#table thead th:has(button):not([aria-sort])").count() == 0


def test_open_a_recipe(page: Any) -> None:
    assert page.locator(".diff").count() == 0
    details = opened(page, UNFIT)
    tree = details.locator(".tree").inner_text()
    assert "by defaults: in line 2" in tree
    assert re.search(rf"{DENSE} by defaults: in line 2\s+changed\s+TP 4: line 21\s+GTP 3: line 28", tree)
    assert "does not fit: TP x GTP x CP x PP needs 12 GPUs, there are 8" in details.inner_text()
    assert details.locator(".diff del").all_inner_texts() == ["gtp_weight_remat_size", "3"]
    assert details.locator(".diff ins").all_inner_texts() == [
        "tensor_parallel_num_weight_shards",
        "${mul:3,${..tensor_model_parallel_size}}",
    ]
    recipe(page, UNFIT).locator(".open").click()
    assert not details.is_visible()


def test_deep_link(open_page: Open, fixture_reports: Path) -> None:
    page = open_page(fixture_reports / "report.html", f"#recipe={MOE.replace('/', '%2F')}")
    assert recipe(page, MOE).locator(".details").is_visible()
    assert recipe(page, MOE).locator(".open").evaluate("node => node === document.activeElement")
    assert recipe(page, MOE).bounding_box()["y"] < 100
    link = recipe(page, MOE).locator(".details a").first
    assert link.get_attribute("href") == f"#recipe={MOE.replace('/', '%2F')}"


def test_deep_link_to_a_row_that_a_filter_hides(page: Any) -> None:
    page.locator("#words").fill("nothing has this name")
    page.evaluate(f"location.hash = 'recipe={MOE}'")
    recipe(page, MOE).locator(".details").wait_for()


def test_the_picture(page: Any) -> None:
    """24 GPUs with TP 4, GTP 3: 2 copies and 6 lanes."""
    details = opened(page, DENSE)
    caption = details.locator("figcaption").inner_text()
    assert caption == (
        "24 GPUs, 8 a node. TP 4 × GTP 3 × CP 1 × PP 1 = 12 GPUs a copy: 2 copies, 6 data lanes. 12 shards per weight."
    )
    assert details.locator(".node > b").all_inner_texts() == ["node 0", "node 1", "node 2"]
    assert details.locator(".gpu[data-rank]").count() == 24
    hues = details.locator(".gpu[data-rank]").evaluate_all("all => all.map(one => one.style.getPropertyValue('--hue'))")
    shades = details.locator(".gpu[data-rank]").evaluate_all(
        "all => all.map(one => one.style.getPropertyValue('--shade'))"
    )
    assert len(set(hues)) == 2
    assert hues[:12] == [hues[0]] * 12
    lanes = list(dict.fromkeys(zip(hues, shades, strict=True)))
    assert len(lanes) == 6
    assert [(hues[n], shades[n]) for n in range(0, 24, 4)] == lanes
    firsts = details.locator(".gpu.first").evaluate_all("all => all.map(one => one.dataset.rank)")
    assert firsts == ["0", "4", "8", "12", "16", "20"]


def test_hover_a_rank(page: Any) -> None:
    details = opened(page, DENSE)
    details.locator(".gpu[data-rank='17']").hover()
    tip = page.locator("#tip")
    assert tip.locator("b").first.inner_text() == "rank 17: node 2, GPU 1"
    pairs = dict(zip(tip.locator("dt").all_inner_texts(), tip.locator("dd").all_inner_texts(), strict=True))
    assert pairs["TP group"] == "16–19"
    assert pairs["GTP peers"] == "13, 17, 21"
    assert pairs["copy"] == "1 (2 in all): ranks 12–23"
    assert pairs["data lane"] == "4 (6 in all)"
    marked = {
        mark: details.locator(f".gpu.{mark}[data-rank]").evaluate_all("all => all.map(one => +one.dataset.rank)")
        for mark in ("self", "one", "two", "three")
    }
    assert marked == {"self": [17], "one": [16, 18, 19], "two": [13, 21], "three": [5]}
    page.mouse.move(5, 5)
    assert not tip.is_visible()
    assert details.locator(".lit").count() == 0


@pytest.mark.parametrize("name", [DENSE, MOE, "fixtures/recipes/llm/sft-3b-two-parents.yaml"])
def test_every_rank_is_in_the_groups_that_python_says(page: Any, name: str) -> None:
    details = opened(page, name)
    data = data_of(page)
    [run] = [run for run in data["runs"] if run["recipe"] == name]
    layout = data["layouts"][run["models"][0]["layout"]]
    dimensions = [Dimension(**each) for each in layout["dense"]], [Dimension(**each) for each in layout["expert"]]
    experts = {"ETP group": (1, ["ETP"]), "EP group": (1, ["EP"]), "expert GTP peers": (1, ["expert GTP"])}
    for rank in range(layout["ranks"]):
        details.locator(f".gpu[data-rank='{rank}']").focus()
        labels = page.locator("#tip dt").all_inner_texts()
        said = dict(zip(labels, page.locator("#tip dd").all_inner_texts(), strict=True))
        for label, (side, names) in {
            "TP group": (0, ["TP"]),
            "GTP peers": (0, ["GTP"]),
            "copy": (0, ["TP", "GTP", "CP", "PP"]),
            **(experts if name == MOE else {}),
        }.items():
            assert numbers(said[label].split(": ranks ")[-1]) == group(dimensions[side], names, rank), (rank, label)


def numbers(text: str) -> list[int]:
    """`4, 6–8` → 4, 6, 7, 8."""
    found = []
    for part in text.split(", "):
        first, _, last = part.partition("–")
        found += range(int(first), int(last or first) + 1)
    return found


def test_a_rank_says_nothing_of_experts_where_there_are_none(page: Any) -> None:
    cell = opened(page, DENSE).locator(".gpu[data-rank='17']")
    cell.focus()
    assert page.locator("#tip b").all_inner_texts() == ["rank 17: node 2, GPU 1", "Dense weights"]
    assert not re.search("expert|ETP|EP group", cell.get_attribute("aria-label"), re.IGNORECASE)
    # TP 4 and ETP 1, and no EP.
    opened(page, "fixtures/recipes/opd_teachers.yaml").locator(".gpu[data-rank='3']").first.focus()
    assert page.locator("#tip b").all_inner_texts() == ["rank 3: node 0, GPU 3", "Dense weights", "Experts"]


STAGES = """
    grpo: {}
    cluster: {gpus_per_node: 8, num_nodes: 3}
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 2
        pipeline_model_parallel_size: 2
        context_parallel_size: %d
        model_overrides: {gtp_weight_remat_size: 3}
    """


@pytest.mark.parametrize(
    ("cp", "label", "name"),
    [
        (1, "17 P1", "rank 17, pipeline stage 1 (2 in all)"),
        (2, "17 P1 C0", "rank 17, pipeline stage 1 (2 in all), context-parallel rank 0 (2 in all)"),
    ],
)
def test_a_rank_says_its_stage(open_page: Open, tmp_path: Path, cp: int, label: str, name: str) -> None:
    """Before anybody points at it: at its number, and in its name."""
    make_reports(tmp_path, {"a.yaml": STAGES % cp}, "--dry-run")
    page = open_page(tmp_path / "report/report.html")
    details = opened(page, "a.yaml")
    cell = details.locator(".gpu[data-rank='17']")
    assert cell.inner_text().split() == label.split()
    assert cell.get_attribute("aria-label") == name
    key = details.locator(".key").inner_text()
    assert "P0–P1: pipeline stage" in key
    assert ("C0–C1: context-parallel rank" in key) == (cp > 1)
    assert cell.evaluate("node => node.scrollWidth <= node.clientWidth && node.scrollHeight <= node.clientHeight")
    cell.focus()
    assert "pipeline stage 1 (2 in all): ranks 5, 17" in cell.get_attribute("aria-label")


def test_a_rank_says_no_stage_where_there_is_one_alone(page: Any) -> None:
    details = opened(page, DENSE)
    assert details.locator(".gpu[data-rank='17']").inner_text() == "17"
    assert details.locator(".gpu[data-rank='17']").get_attribute("aria-label") == "rank 17"
    assert "stage" not in details.locator(".key").inner_text()


def test_a_tp_that_comes_with_the_run(page: Any) -> None:
    details = opened(page, "fixtures/recipes/from_elsewhere.yaml")
    assert "TP comes with the run of policy.megatron_cfg: line 7" in details.locator(".tree").inner_text()
    assert details.locator("h3").all_inner_texts()[1] == "Layout of policy.megatron_cfg"
    said = "No layout to show: TP comes with the run (fixtures/recipes/from_elsewhere.yaml:7:5)."
    assert details.locator("h3 + p").first.inner_text() == said


def test_one_is_not_many(open_page: Open, tmp_path: Path) -> None:
    text = (
        (STAGES % 1)
        .replace("num_nodes: 3", "num_nodes: 1")
        .replace("gtp_weight_remat_size: 3", "gtp_weight_remat_size: 2")
    )
    few = text.replace("gpus_per_node: 8", "gpus_per_node: 1")
    make_reports(tmp_path, {"a.yaml": text, "b.yaml": few}, "--dry-run")
    page = open_page(tmp_path / "report/report.html")
    one = opened(page, "a.yaml").locator("figure").inner_text()
    assert "8 GPUs a copy: 1 copy, 2 data lanes. 4 shards per weight." in one
    assert "colour: 1 copy" in one
    assert "1 GPU, 1 a node." in opened(page, "b.yaml").locator("figcaption").inner_text()


def test_experts_have_a_view_of_their_own(page: Any) -> None:
    details = opened(page, MOE)
    details.get_by_role("button", name="experts").click()
    assert details.get_by_role("button", name="experts").get_attribute("aria-pressed") == "true"
    firsts = details.locator(".gpu.first").evaluate_all("all => all.map(one => +one.dataset.rank)")
    assert firsts == list(range(0, 16, 2))
    details.locator(".gpu[data-rank='5']").hover()
    two = details.locator(".gpu.two[data-rank]").evaluate_all("all => all.map(one => +one.dataset.rank)")
    assert two == [1, 9, 13]


def test_by_keyboard_alone(page: Any) -> None:
    def focused(what: str) -> Any:
        return page.evaluate(f"document.activeElement.{what}")

    page.keyboard.press("Tab")
    assert focused("className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused("id") == "words":
            break
    page.keyboard.type("grpo_dense")
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused("className") == "open":
            break
    page.keyboard.press("Enter")
    assert recipe(page, DENSE).locator(".details").is_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        if "gpu" in focused("className"):
            break
    assert focused("dataset.rank") == "0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert focused("dataset.rank") == "9"
    assert page.locator("#tip").is_visible()
    assert "rank 9: node 1, GPU 1. Dense weights: TP group 8–11; GTP peers 1, 5, 9" in focused("ariaLabel")
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    page.keyboard.press("End")
    assert focused("dataset.rank") == "23"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert focused("dataset.rank") == "23"


def test_read_aloud(page: Any) -> None:
    """Whatever can be acted on has a name, and the table's headers belong to its cells."""
    opened(page, MOE)
    names = page.locator("button, input, select, summary").evaluate_all(
        "all => all.map(one => one.ariaLabel || one.innerText || one.labels[0].innerText)"
    )
    assert all(names)
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("html").get_attribute("lang") == "en"
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(one => +one.tagName[1])")
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))


def contrast(page: Any, selector: str) -> float:
    """Of an element's text against what is behind it, by WCAG's formula."""
    script = """node => {
        const parse = (text) => text.match(/[\\d.]+/g).map(Number);
        let behind = node;
        while (parse(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        return [parse(getComputedStyle(node).color), parse(getComputedStyle(behind).backgroundColor)];
    }"""
    colours = page.locator(selector).first.evaluate(script)

    def luminance(colour: list[float]) -> float:
        parts = [part / 255 for part in colour[:3]]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(open_page: Open, fixture_reports: Path, scheme: str) -> None:
    page = open_page(fixture_reports / "report.html", color_scheme=scheme)
    opened(page, DENSE)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) is (scheme == "dark")
    texts = ("h1", ".hint", ".todo", ".s-proven .state", ".s-left .state", "#table td.n", ".open", ".unfit")
    for selector in (*texts, ".diff del", ".diff ins", ".diff td.line", ".tag.new", ".gpu[data-rank='8']", ".key li"):
        assert contrast(page, selector) >= 4.5, selector


def test_print(open_page: Open, fixture_reports: Path, tmp_path: Path) -> None:
    """On paper: no controls, white, the changes of every file open; afterwards all is as before."""
    page = open_page(fixture_reports / "report.html", color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator(".filter").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # What Chromium does when somebody prints.
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.file[open] .diff").count() == 23
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.file[open]").count() == 0
    paper = page.pdf(path=str(tmp_path / "page.pdf"))
    assert paper.startswith(b"%PDF")


def test_the_table_on_paper(page: Any) -> None:
    """Its head is text, as Chromium leaves buttons out where it repeats a head; nothing is cut or runs together."""
    page.emulate_media(media="print")
    # A4 across, without its margins.
    page.set_viewport_size({"width": 1031, "height": 700})
    assert page.locator("#table thead button:visible").count() == 0
    sizes = ["TP", "ETP", "GTP", "xGTP"]
    heads = ["recipe", "state", "model", "before", "after", "GPUs", "copies", "data lanes", "fit", *sizes, *sizes]
    assert page.locator("#table thead th").all_inner_texts() == heads
    # Of the texts themselves: a cell says nothing of what sticks out of it to the left.
    script = """() => [...document.querySelectorAll("#table :is(th, td):not(:empty)")].filter((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        const text = range.getBoundingClientRect(), box = cell.getBoundingClientRect();
        return text.width && (text.left < box.left + 2 || text.right > box.right - 2);
    }).map((cell) => cell.innerText)"""
    assert page.evaluate(script) == []
    assert page.locator("#table").evaluate("node => node.getBoundingClientRect().right") <= 1030
    assert page.locator(".tiles > div").last.evaluate("node => node.getBoundingClientRect().right") <= 1030


def test_settings(page: Any) -> None:
    page.locator(".all-settings summary").click()
    rows = page.locator(".settings tbody tr")
    rows.nth(31).wait_for(state="attached")
    assert rows.count() == 32
    number = [row.split("\t")[0] for row in rows.all_inner_texts()].index(f"{DENSE}:28:7")
    assert rows.nth(number).locator("td").all_inner_texts() == [
        f"{DENSE}:28:7",
        "policy.megatron_cfg",
        "gtp_weight_remat_size: 3",
        "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
        f"TP 4 ({DENSE}:21); TP 8 (fixtures/recipes/llm/grpo-dense-8b-tp8.yaml:5)",
    ]


def test_open_all_files(page: Any) -> None:
    page.locator("#all").click()
    page.locator("details.file .diff").nth(17).wait_for()
    assert page.locator("details.file .diff").count() == 23
    page.locator("#all").click()
    assert page.locator("details.file[open]").count() == 0


def test_on_a_telephone(open_page: Open, fixture_reports: Path) -> None:
    page = open_page(fixture_reports / "report.html")
    page.set_viewport_size({"width": 390, "height": 800})
    opened(page, DENSE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def lines_of(cell: Any) -> list[dict[str, float]]:
    """Where the lines stand that a cell's text is wrapped into: left and right, without the spaces at their ends."""
    script = """node => {
        const lines = new Map();
        const walk = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) for (let n = 0; n < walk.currentNode.length; n++) {
            if (walk.currentNode.data[n] === " ") continue;
            const range = document.createRange();
            range.setStart(walk.currentNode, n);
            range.setEnd(walk.currentNode, n + 1);
            const box = range.getBoundingClientRect();
            const line = lines.get(Math.round(box.top)) || { left: Infinity, right: 0 };
            lines.set(Math.round(box.top), { left: Math.min(line.left, box.left), right: Math.max(line.right, box.right) });
        }
        return [...lines.values()];
    }"""
    lines: list[dict[str, float]] = cell.evaluate(script)
    return lines


def test_a_long_line_of_a_diff_keeps_its_indent(page: Any) -> None:
    page.set_viewport_size({"width": 900, "height": 900})
    cell = opened(page, UNFIT).locator(".diff td.new:not(.line)").first
    first, *others = lines_of(cell)
    assert others
    assert all(first["left"] < other["left"] < first["left"] + 30 for other in others)
    assert cell.inner_text().startswith("      tensor_parallel")


def test_a_diff_on_a_telephone(open_page: Open, fixture_reports: Path) -> None:
    """What is after stands under what was before, as wide as the page; what is the same stands there once."""
    page = open_page(fixture_reports / "report.html")
    page.set_viewport_size({"width": 390, "height": 800})
    diff = opened(page, UNFIT).locator(".diff")
    old, new = diff.locator("td.old:not(.line)").first, diff.locator("td.new:not(.line)").first
    assert old.bounding_box()["x"] == new.bounding_box()["x"]
    assert new.bounding_box()["y"] >= old.bounding_box()["y"] + old.bounding_box()["height"]
    assert new.bounding_box()["width"] > 230
    assert len(lines_of(new)) <= 4
    for row in diff.locator("tr.same").all():
        assert row.locator("td:visible").count() == 2
    signs = "all => all.map(one => getComputedStyle(one, '::before').content)"
    assert diff.locator(".line.old, .line.new").evaluate_all(signs) == ['"− "', '"+ "']
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # Nor does anything else beside it stick out.
    assert page.locator(".panel").evaluate("node => node.scrollWidth <= node.clientWidth")


def test_two_thousand_recipes(open_page: Open, tmp_path: Path) -> None:
    """The page holds a row a model and no more: what belongs to a recipe is made when it is opened."""
    file = tmp_path / "many.html"
    file.write_text(html_report(many_runs(FIXTURES / "recipes", 2000)), encoding="utf-8")
    page = open_page(file)
    assert page.locator("#shown").inner_text() == "2,000 runs"
    assert page.locator(".diff, .gpu").count() == 0
    assert page.locator("*").count() < 70_000
    page.locator("#words").fill("copy-031/ grpo_dense")
    assert page.locator("#shown").inner_text() == f"{len(shown(page))} of 2,000 runs"
    assert len(shown(page)) > 3
    assert all("copy-031" in name for name in shown(page))
    page.locator("#words").fill("")
    page.locator("[data-sort=gpus]").click()
    assert len(shown(page)) == 400
    assert recipe(page, shown(page)[0]).locator("td").nth(10).inner_text() == "8"
    page.get_by_role("button", name="Show all 2,000 (400 are shown)").click()
    assert len(shown(page)) == 2000
    assert not page.locator("#more").is_visible()


def test_a_thousand_ranks_and_more(open_page: Open, tmp_path: Path) -> None:
    recipe_text = """
        policy:
          megatron_cfg:
            tensor_model_parallel_size: 8
            model_overrides: {gtp_weight_remat_size: 4}
        cluster: {gpus_per_node: 8, num_nodes: 512}
    """
    make_reports(tmp_path, {"a.yaml": recipe_text})
    page = open_page(tmp_path / "report" / "report.html")
    details = opened(page, "a.yaml")
    assert details.locator(".gpu[data-rank]").count() == 2048
    assert "and 2048 more ranks" in details.inner_text()
    details.locator(".gpu[data-rank='2040']").hover()
    assert "2040–2047" in page.locator("#tip").inner_text()


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:24])
def test_hostile_names_do_nothing(open_page: Open, tmp_path: Path, name: str) -> None:
    make_reports(tmp_path, tree(name), "--dry-run")
    page = open_page(tmp_path / "report" / "report.html")
    assert page.title() == "gtp-migrate: 1 setting to migrate"
    for button in page.locator(".open").all():
        button.click()
    page.locator("#all").click()
    assert page.locator("img, iframe, h1 ~ h1").count() == 0
    assert page.locator("script").count() == 2
    assert page.title() == "gtp-migrate: 1 setting to migrate"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
    [run] = [run for run in data_of(page)["runs"] if run["changed"]]
    page.evaluate("name => { location.hash = 'recipe=' + encodeURIComponent(name) }", run["recipe"])
    assert page.evaluate("document.activeElement.textContent") == run["recipe"]
