"""The page in a real browser: it draws, sorts and filters, fits the screen, and asks the network for nothing.

AIRLOCK_TEST_CHROMIUM names the browser, else `chromium` of PATH is taken; without one these tests skip, or where
AIRLOCK_TEST_BROWSER is "required" fail.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.proc import ProcessRef
from tests.conftest import SETTLE_S, below_us, settled
from tests.unit import pages

PATIENCE_MS = 30_000
WIDE, NARROW = 1440, 390
#: Marks of a plot, whatever their kind; axes and legends have none of these.
MARKS = ".role-mark path, .role-mark rect, .role-mark line, .role-mark text"
_DRAWN = "() => [...document.querySelectorAll('figure[data-plot]')].every(one => one.dataset.drawn === 'live')"
#: Words of up to 20 letters that stand on more than one line.
_BROKEN = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll('td, th')) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      for (const found of walk.currentNode.data.matchAll(/\\p{L}{2,20}/gu)) {
        const range = document.createRange();
        range.setStart(walk.currentNode, found.index);
        range.setEnd(walk.currentNode, found.index + found[0].length);
        const lines = new Set([...range.getClientRects()].map(one => Math.round(one.top)));
        if (lines.size > 1) broken.push(found[0]);
      }
    }
  }
  return broken;
}"""
_FIGURE = "at => document.querySelectorAll('figure[data-plot]')[at].scrollIntoView()"


def chromium() -> str:
    path = os.environ.get("AIRLOCK_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
    if not path:
        required = os.environ.get("AIRLOCK_TEST_BROWSER") == "required"
        (pytest.fail if required else pytest.skip)("no Chromium: set AIRLOCK_TEST_CHROMIUM to one")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = chromium()
    api = pytest.importorskip("playwright.sync_api")
    before = below_us()
    with api.sync_playwright() as playwright:
        # In a container root has no user namespace of its own, which the sandbox needs.
        opened = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()
    assert not settled(lambda: left_since(before), time.monotonic() + SETTLE_S)


def left_since(before: set[ProcessRef]) -> set[ProcessRef]:
    """The browser leaves orphans, which come to us, and are ours to reap, once a test has made us a subreaper."""
    for one in below_us() - before:
        with suppress(ChildProcessError):
            os.waitpid(one.pid, os.WNOHANG)
    return below_us() - before


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages.many(folder / "usual", 4, (1, 2, 4), 3)
    for name in ("hostile", "halfway", "lone"):
        pages.KINDS[name](folder / name)
    for name in ("usual", "hostile", "halfway", "lone"):
        (folder / f"{name}.html").write_text(pages.html_of(folder / name), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ("usual", "hostile", "halfway", "lone")}


@dataclass
class Tab:
    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def see_all(self) -> None:
        """Each plot is drawn when it comes near the screen."""
        for at in range(self.page.locator("figure[data-plot]").count()):
            self.page.evaluate(_FIGURE, at)
            self.page.wait_for_function(f"() => document.querySelectorAll('figure[data-plot]')[{at}].dataset.drawn")
        self.page.wait_for_function(_DRAWN)

    def see(self, name: str) -> None:
        self.page.locator(f"#plot-{name}").scroll_into_view_if_needed()
        self.page.locator(f"#plot-{name}[data-drawn=live]").wait_for()

    def background(self) -> str:
        return str(self.page.evaluate("() => getComputedStyle(document.body).backgroundColor"))


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    opened = []

    def go(path: Path, width: int = WIDE, scheme: str = "light", scripts: bool = True) -> Tab:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=scripts)
        opened.append(context)
        context.set_default_timeout(PATIENCE_MS)
        found = Tab(context.new_page())
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.on("request", lambda request: found.asked.append(request.url))
        found.page.goto(path.as_uri())
        return found

    yield go
    for context in opened:
        context.close()


@pytest.mark.parametrize(
    ("kind", "width", "scheme"),
    [("usual", WIDE, "light"), ("usual", NARROW, "dark"), ("hostile", NARROW, "light"), ("hostile", WIDE, "dark")],
)
def test_every_plot_draws_on_every_screen(files: dict[str, Path], tab: Any, kind: str, width: int, scheme: str) -> None:
    seen = tab(files[kind], width, scheme)
    seen.see_all()
    figures = seen.page.locator("figure[data-plot]")
    assert figures.count() >= 5
    assert all(figures.nth(at).locator(MARKS).count() for at in range(figures.count()))
    assert seen.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert seen.said == []
    assert seen.asked == [files[kind].as_uri()]


@pytest.mark.parametrize("kind", ["halfway", "lone"])
def test_what_has_little_to_show_shows_it(files: dict[str, Path], tab: Any, kind: str) -> None:
    seen = tab(files[kind])
    seen.see_all()
    assert seen.said == []
    assert seen.page.locator("tbody tr").count()


@pytest.mark.parametrize("width", [WIDE, 1366, NARROW])
def test_no_word_of_a_table_is_broken_in_two(files: dict[str, Path], tab: Any, width: int) -> None:
    """A table that is too wide is scrolled."""
    page = tab(files["usual"], width).page
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate(_BROKEN) == []


def test_rows_are_sorted_by_keyboard(files: dict[str, Path], tab: Any) -> None:
    page = tab(files["halfway"]).page
    head = page.locator("#rows thead th", has_text="tokens/s")
    column = "() => [...document.querySelectorAll('#rows tbody tr')].map(row => row.cells[2].dataset.sort ?? null)"
    for way, sign in (("ascending", 1), ("descending", -1)):
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == way
        found = page.evaluate(column)
        known = [float(value) * sign for value in found if value is not None]
        assert known == sorted(known)
        assert None not in found[: len(known)]
        assert len(known) < len(found)
    assert page.locator("[aria-sort]").count() == 1


def test_rows_are_filtered_by_all_words(files: dict[str, Path], tab: Any) -> None:
    page = tab(files["usual"]).page
    page.get_by_label("Filter rows").fill("m001 ok")
    assert page.locator("#rows tbody tr:visible").count() == 3
    assert page.get_by_role("status").inner_text() == "3 of 12 rows"
    page.get_by_label("Filter rows").fill("nothing like it")
    assert page.locator("#rows tbody tr:visible").count() == 0
    page.get_by_label("Filter rows").fill("")
    assert page.locator("#rows tbody tr:visible").count() == 12


def test_the_theme_is_changed_with_its_plots(files: dict[str, Path], tab: Any) -> None:
    seen = tab(files["usual"])
    seen.see("memory")
    fill = "() => getComputedStyle(document.querySelector('#plot-memory .role-mark path')).fill"
    before = seen.background(), seen.page.evaluate(fill)
    seen.page.get_by_role("button", name="light and dark").click()
    after = seen.background(), seen.page.evaluate(fill)
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_a_plot_can_be_taken_along(files: dict[str, Path], tab: Any) -> None:
    seen = tab(files["usual"])
    seen.see("load")
    with seen.page.expect_download() as told:
        seen.page.locator("#plot-load button").click()
    text = Path(told.value.path()).read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert "var(" not in text
    assert seen.said == []


def test_all_is_there_without_scripts(files: dict[str, Path], tab: Any) -> None:
    page = tab(files["usual"], scripts=False).page
    assert page.locator("#rows tbody tr:visible").count() == 12
    pictures = page.locator("figure .canvas svg")
    assert pictures.count() == page.locator("figure").count()
    assert all(pictures.nth(at).locator(MARKS).count() for at in range(pictures.count()))
    assert page.get_by_label("Filter rows").is_hidden()


def test_the_printed_page_is_light_and_whole(files: dict[str, Path], tab: Any) -> None:
    seen = tab(files["usual"], scheme="dark")
    dark = seen.background()
    seen.page.emulate_media(media="print")
    assert seen.background() not in (dark, "")
    assert seen.page.get_by_role("navigation").is_hidden()
    seen.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert seen.page.locator("details:not([open])").count() == 0
    assert len(seen.page.pdf()) > 10_000
