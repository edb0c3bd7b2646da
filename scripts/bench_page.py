"""How large the HTML report of a run is, and how soon a browser shows it. Run by scripts/bench."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.figures import Figure
from tests.unit import pages

METHODS, SIZES, REPEATS = 20, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), 3
MOST_MB, MOST_S = 6.0, 2.0
OPENED = 5
WIDTH, HEIGHT = 1440, 900


def page(folder: Path) -> Iterator[Figure]:
    """The HTML report of 200 points × 3 repeats: its size, and the time to open it in a headless Chromium."""
    from playwright.sync_api import sync_playwright

    browser = os.environ.get("AIRLOCK_TEST_CHROMIUM") or shutil.which("chromium")
    if browser is None:
        raise SystemExit("there is no chromium: scripts/install-browser")
    pages.many(folder / "run", METHODS, SIZES, REPEATS)
    began = time.perf_counter()
    html = pages.html_of(folder / "run")
    made_s = time.perf_counter() - began
    told = f"report of {METHODS * len(SIZES)} points × {REPEATS} repeats"
    yield Figure(told, len(html.encode()) / 1e6, "MB", "what it may have", MOST_MB, most=1.0)
    yield Figure("  made in", made_s, "s")
    files = {"whole": html, "bare": "<!doctype html><title>x</title><p>x"}
    for name, text in files.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        taken = {name: statistics.median(_opened_s(chromium, folder / f"{name}.html")) for name in files}
        chromium.close()
    yield Figure("  opens in", taken["whole"], "s", "what it may take", MOST_S, most=1.0)
    yield Figure("  of it an empty page", taken["bare"], "s", "the whole", taken["whole"])


def _opened_s(chromium: Any, file: Path) -> Iterator[float]:
    """Until all is loaded and the first screen is painted, in a window of its own each time."""
    for _ in range(OPENED):
        window = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        began = time.perf_counter()
        window.goto(file.as_uri(), wait_until="load")
        window.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        yield time.perf_counter() - began
        window.close()
