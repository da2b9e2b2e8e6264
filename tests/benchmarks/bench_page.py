"""How long the page of 2,000 recipes takes to make, to open and to filter.

python tests/benchmarks/bench_page.py
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from report.many import many_runs
from report.test_browser import CHROMIUM, FLAGS

from gtp_migrate.report.html import html_report

RECIPES = Path(__file__).parents[2] / "fixtures" / "recipes"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(RECIPES, Path(folder) / "recipes")
        os.chdir(folder)
        outcome = many_runs(Path("recipes"), 2000)
        started = time.perf_counter()
        text = html_report(outcome)
        print(f"made:     {time.perf_counter() - started:.2f} s, {len(text) / 1e6:.1f} MB")
        file = Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8")
        with sync_playwright() as driver:
            page = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS).new_page()
            started = time.perf_counter()
            page.goto(file.as_uri())
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            print(f"opened:   {time.perf_counter() - started:.2f} s")
            for words in ("grpo", "copy-031/ grpo_dense", ""):
                started = time.perf_counter()
                page.locator("#words").fill(words)
                page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                took = time.perf_counter() - started
                print(f"filtered: {took:.2f} s, {words!r}: {page.locator('#shown').inner_text()}")


if __name__ == "__main__":
    main()
