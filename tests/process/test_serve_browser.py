"""The dashboard in a real browser: it draws, moves by itself, fits the screen and asks nobody else for anything.

Where the browser comes from: see `test_page_browser`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.process.serving import Served, served
from tests.process.test_page_browser import MARKS, NARROW, PATIENCE_MS, WIDE, browser
from tests.unit import pages
from tests.unit.rundirs import a_plan, begin, end, ended, launch, release, run_point

__all__ = ["browser"]

TOKEN = "a-token-of-our-own-making"
_FITS = "() => document.documentElement.scrollWidth <= innerWidth"
_FIGURE = "at => document.querySelectorAll('figure')[at].scrollIntoView()"


@dataclass
class Tab:
    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def see_all(self) -> None:
        self.page.wait_for_selector("figure")
        for at in range(self.page.locator("figure").count()):
            self.page.evaluate(_FIGURE, at)
            self.page.wait_for_function(f"() => document.querySelectorAll('figure')[{at}].dataset.drawn")

    @property
    def background(self) -> str:
        return str(self.page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor"))

    def wait_for(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.wait_for()


Go = Callable[..., Tab]


@pytest.fixture
def tab(browser: Any) -> Iterator[Go]:
    opened = []

    def go(url: str, width: int = WIDE, scheme: str = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(context)
        context.set_default_timeout(PATIENCE_MS)
        found = Tab(context.new_page())
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.on("request", lambda request: found.asked.append(urlsplit(request.url).netloc))
        found.page.goto(url)
        return found

    yield go
    for context in opened:
        context.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("serve")
    pages.many(found / "runs" / "usual", 4, (1, 2, 4), 3)
    for name in ("hostile", "halfway", "unmeasured"):
        pages.KINDS[name](found / "runs" / name)
    (found / "runs" / "broken").mkdir()
    (found / "runs" / "broken" / "plan.json").write_text("{")
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder / "runs", home=folder / "home") as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_list_on_every_screen(server: Served, tab: Go, width: int, scheme: str) -> None:
    seen = tab(server.url, width, scheme)
    seen.wait_for("#runs tr", "plan.json")
    assert seen.page.locator("#runs tbody tr").count() == 5
    seen.wait_for("#runs tr", "36 of 36")
    seen.wait_for("#runs tr:has(.state.finished.bad)", "! finished, ")
    assert seen.page.evaluate(_FITS)
    assert seen.said == []
    assert set(seen.asked) == {urlsplit(server.url).netloc}


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("usual", WIDE, "light"), ("usual", NARROW, "dark"), ("hostile", NARROW, "light"), ("hostile", WIDE, "dark")],
)
def test_a_run_on_every_screen(server: Served, tab: Go, name: str, width: int, scheme: str) -> None:
    seen = tab(f"{server.url}runs/{server.key(name)}", width, scheme)
    seen.see_all()
    figures = seen.page.locator("figure")
    assert figures.count() >= 3
    assert all(figures.nth(at).locator(MARKS).count() for at in range(figures.count()))
    seen.page.locator("#table tbody tr").first.wait_for()
    assert seen.page.evaluate(_FITS)
    assert seen.said == []
    assert set(seen.asked) == {urlsplit(server.url).netloc}


def test_light_and_dark_differ(server: Served, tab: Go) -> None:
    url = f"{server.url}runs/{server.key('usual')}"
    assert tab(url).background != tab(url, scheme="dark").background


def test_a_run_without_figures_says_so(server: Served, tab: Go) -> None:
    seen = tab(f"{server.url}runs/{server.key('unmeasured')}")
    seen.wait_for("#absent li", "Nothing to plot")
    seen.page.locator("#troubles li").first.wait_for()
    assert seen.said == []


def test_a_log_is_shown_and_followed(server: Served, folder: Path, tab: Go) -> None:
    log = folder / "runs" / "usual" / "logs" / "w0-x.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("<b>first line</b>\n")
    seen = tab(f"{server.url}runs/{server.key('usual')}")
    seen.page.locator("#log-name option", has_text="w0-x.log").wait_for(state="attached")
    seen.page.get_by_label("Log of").select_option("w0-x.log")
    seen.wait_for("#log", "<b>first line</b>")
    with log.open("a") as file:
        file.write("second line\n")
    seen.wait_for("#log", "second line")
    assert seen.said == []


def test_the_whole_report_opens_from_there(server: Served, tab: Go) -> None:
    seen = tab(f"{server.url}runs/{server.key('usual')}")
    seen.page.get_by_role("link", name="The whole report").click()
    seen.page.locator("h1").wait_for()
    seen.page.wait_for_selector("figure[data-plot]")
    assert seen.said == []


def test_figures_move_without_a_reload(folder: Path, tab: Go) -> None:
    plan = a_plan()
    journal = begin(folder / "live" / "run", plan)
    with served(folder / "live", home=folder / "home") as server:
        seen = tab(server.url)
        seen.wait_for("#runs .state", "running")
        seen.wait_for("#runs .points", "0 of 8")
        run = tab(f"{server.url}runs/{server.key('run')}", NARROW)
        run.wait_for("#points", "0 of 8 points done")
        run.page.evaluate("() => { window.same = true; }")
        for number, start in enumerate(plan.starts):
            launch(journal, start, f"w{number}-x")
            for point in start.points:
                run_point(journal, point, f"w{number}-x", wall_s=0.5 + 0.1 * point.repeat)
                journal.emit(ended(point=point.id))
            if not number:
                run.wait_for("#points", "4 of 8 points done")
                run.wait_for("#slots li", "hf_sdpa")
                seen.wait_for("#runs .points", "4 of 8")
                run.see_all()
            release(journal, f"w{number}-x")
        end(journal)
        run.wait_for("#state", "finished")
        run.wait_for("#table tbody tr:nth-child(4)", "ok")
        run.page.wait_for_function("() => [...document.querySelectorAll('figure')].some(one => one.dataset.drawn > 1)")
        run.wait_for("#news", "finished: 8 of 8 points done")
        seen.wait_for("#news", "run: finished")
        assert run.page.evaluate("() => window.same")
        assert run.page.evaluate(_FITS)
        assert seen.said == run.said == []


@pytest.mark.parametrize("way", ["address", "form"])
def test_a_token_lets_in_and_leaves_no_trace_in_the_address(folder: Path, tab: Go, way: str) -> None:
    with served(folder / "runs", home=folder / "home", AIRLOCK_SERVE_TOKEN=TOKEN) as server:
        seen = tab(f"{server.url}#token={TOKEN}" if way == "address" else server.url)
        if way == "form":
            seen.page.get_by_label("Token").fill("not the token")
            seen.page.get_by_role("button", name="Open").click()
            seen.wait_for("#said", "not the token")
            seen.page.get_by_label("Token").fill(TOKEN)
            seen.page.get_by_role("button", name="Open").click()
        seen.wait_for("#runs tr", "usual")
        assert TOKEN not in seen.page.url
        assert TOKEN not in str(seen.page.evaluate("() => document.cookie + JSON.stringify(localStorage)"))


def test_a_server_that_is_gone_is_told_and_one_that_is_back_is_asked(folder: Path, tab: Go) -> None:
    with served(folder / "runs", home=folder / "home") as server:
        seen = tab(server.url)
        seen.wait_for("#runs tr", "usual")
        server.stop()
        seen.wait_for("#link", "may be old")
        with served(folder / "runs", "--listen", f":{server.port}", home=folder / "home"):
            seen.page.locator("#link:empty").wait_for(state="attached")
