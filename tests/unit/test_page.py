"""The report as one HTML file: what is in it, and that nothing foreign gets out of its place."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.page import rendered
from orchestrator.page.command import target
from orchestrator.page.drawing import in_script
from orchestrator.page.html import page as make
from orchestrator.page.theme import COLOURS, themed, variables
from orchestrator.report import RunView, rows
from orchestrator.view.markdown import sections
from orchestrator.view.markup import cell, fenced, grid
from orchestrator.view.wording import clean
from tests.unit import pages, rundirs
from tests.unit.pages import KINDS, Parsed, html_of, parsed

MOST_BYTES = 6 << 20


Made = Callable[[str], str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The page of a run of one of KINDS."""

    @cache
    def make(kind: str) -> str:
        run_dir = tmp_path_factory.mktemp(kind) / "run"
        KINDS[kind](run_dir)
        return html_of(run_dir)

    return make


@pytest.fixture(scope="module", params=list(KINDS))
def html(request: pytest.FixtureRequest, made: Made) -> str:
    return made(str(request.param))


@pytest.fixture(scope="module")
def page(html: str) -> Parsed:
    return parsed(html)


def test_it_is_whole_and_asks_for_nothing(page: Parsed) -> None:
    assert not page.unbalanced
    assert page.elements[0].tag == "html"
    assert not [one for one in page.elements if one.tag in ("link", "img", "iframe", "object", "embed", "base", "form")]
    for element in page.elements:
        assert not [name for name in element.attributes if name.startswith("on") or name in ("src", "style")], element
        assert element.attributes.get("href", "#").startswith("#")


def test_only_its_own_scripts_and_styles_may_run(page: Parsed) -> None:
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    told = policy.attributes["content"]
    assert told.startswith("default-src 'none'")
    assert "unsafe" not in told
    scripts = [one for one in page.all("script") if one.attributes.get("type") != "application/json"]
    assert len(scripts) == 2
    for element in (*scripts, *page.all("style")):
        assert f"'sha256-{b64encode(sha256(element.text.encode()).digest()).decode()}'" in told


def test_every_plot_has_a_picture_a_specification_and_words(page: Parsed) -> None:
    for figure in page.all("figure"):
        name = figure.attributes["data-plot"]
        (canvas,) = [one for one in page.all("div", role="img") if one.attributes["aria-describedby"] == f"alt-{name}"]
        (caption,) = page.all("figcaption", id=f"alt-{name}")
        (script,) = page.all("script", id=f"spec-{name}")
        assert len(caption.text) > 20
        assert json.loads(script.text)["data"]["values"]
        assert page.all("h3", id=canvas.attributes["aria-labelledby"])
    assert len(page.all("svg", class_="marks")) == len(page.all("figure"))


def test_it_can_be_walked_by_headings_and_landmarks(page: Parsed) -> None:
    names = [
        one.attributes["href"][1:] for one in page.all("a") if one.text != "" and "why" not in one.attributes["href"]
    ]
    ids = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    assert set(names) <= set(ids)
    assert [len(page.all(tag)) for tag in ("main", "nav", "h1", "header", "footer")] == [1] * 5
    assert all(one.text.strip() for one in page.all("caption"))
    levels = [int(one.tag[1]) for one in page.elements if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert all(later - before <= 1 for before, later in pairwise(levels))


def test_what_is_not_known_has_its_reason_in_text(page: Parsed) -> None:
    numbers = {one.attributes["href"][1:] for one in page.all("a", class_="why")}
    assert numbers <= {one.attributes["id"] for one in page.all("li") if "id" in one.attributes}
    for unknown in page.all("abbr"):
        assert unknown.attributes["title"]


def test_nothing_foreign_is_markup(made: Made) -> None:
    html = made("hostile")
    page = parsed(html)
    assert html.count("<!--") == 0
    assert not page.all("img")
    assert "{{7*7}}" in page.all("h1")[0].text  # and is not 49
    assert html.count("</script>") == len(page.all("script"))
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f\u202e\u2028]", html.replace(page.all("script", type="module")[0].text, "")
    )
    assert max(map(len, page.all("pre")[0].text.splitlines())) <= rendered.MOST_CHARACTERS + 40
    for script in page.all("script", type="application/json"):
        json.loads(script.text)


def test_differing_outputs_stand_side_by_side(made: Made) -> None:
    page = parsed(made("hostile"))
    sides = page.all("p", class_="said")
    assert len(sides) == 2
    assert [mark.text[0] for mark in page.all("mark")] == ["0", "1"]
    assert [one.text for one in page.all("b")] == ["7", "8"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("unmeasured", "the run is finished and no batch of it was measured"),
        ("begun", "the run is crashed and no batch of it was measured"),
        ("lone", "all rows have one batch size"),
        ("scoring", "total tokens/s: of prompt and continuation"),
        ("finished", "Nothing failed."),
    ],
)
def test_what_is_not_drawn_is_said(kind: str, said: str, made: Made) -> None:
    assert said in parsed(made(kind)).all("main")[0].text


def test_it_says_what_the_markdown_says(tmp_path: Path) -> None:
    """All its sections, rendered: every cell of every table stands there."""
    rundirs.finished_run(tmp_path / "run")
    view = RunView.load(tmp_path / "run")
    text = parsed(html_of(tmp_path / "run")).all("main")[0].text.replace("\u00a0", " ")
    every = rows(view)
    for line in (line for title, lines in sections(view, every) for line in lines if title != "Results"):
        if line.startswith("| "):
            for one in line[2:-2].split(" | "):
                assert one.replace("\\", "") in text, line


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    run_dir = tmp_path_factory.mktemp("long") / "run"
    rundirs.finished_run(run_dir)
    return RunView.load(run_dir)


def test_a_run_of_many_points_stays_small(finished: RunView) -> None:
    html = make(finished, list(rows(finished)) * 50)
    assert len(html.encode()) < MOST_BYTES
    assert len(parsed(html).all("tr")) > 200


def test_the_rows_that_are_not_shown_are_told(finished: RunView) -> None:
    html = make(finished, list(rows(finished)) * 150)
    assert "the first 500 of 600 rows are shown" in html
    assert len(html.encode()) < MOST_BYTES


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"X_API_KEYS": "hunter2"}, "X_API_KEYS"),
        ({"HF_ENDPOINT": "https://hunter2@example.org"}, "HF_ENDPOINT"),
        ({"OMP_NUM_THREADS": "2"}, ""),
    ],
)
def test_a_sweep_file_that_holds_a_secret_is_not_in_the_page(tmp_path: Path, own: dict[str, str], named: str) -> None:
    """Whatever the same variable is in the next method."""
    others = dict.fromkeys(own, "https://example.org") if "HF_ENDPOINT" in own else {}
    plan = rundirs.a_plan((replace(rundirs.HF, env_vars=own), replace(rundirs.VLLM, env_vars=others)), (1,), 1)
    journal = rundirs.begin(tmp_path, plan)
    rundirs.run_start(journal, plan.starts[0], "w0-x")
    rundirs.end(journal)
    (tmp_path / "sweep.yaml").write_text(f"name: x\nmethods: [{{env_vars: {own}}}]\n", encoding="utf-8")
    html = html_of(tmp_path)
    assert "hunter2" not in html
    assert (f"It is not shown, as it holds the value of {named}:" in html) == bool(named)
    assert ("methods: [{env_vars" in html) == (not named)


# --- the Markdown of the report, as HTML ------------------------------------------------


@given(st.text())
def test_a_cell_says_what_it_was_given(text: str) -> None:
    page = parsed(f"<p>{rendered.inline(cell(text))}</p>")
    assert [one.tag for one in page.elements] == ["p"]
    assert page.elements[0].text == clean(text).replace("\r", "")


def test_what_an_output_says_in_entities_of_html_stays_as_it_was_said() -> None:
    """`&lt;` in Markdown is shown as <, which no engine said."""
    assert cell("&lt;b&gt; &#124; &#x26; R&D; a & b; AT&T") == r"\&lt;b\&gt; \&#124; \&#x26; R\&D; a & b; AT&T"


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_a_table_has_the_cells_it_was_given(body: list[list[str]]) -> None:
    page = parsed(rendered.html(grid(["a", "b"], body), "of this"))
    found = [one.text for one in page.elements if one.tag in ("th", "td")]
    assert found[2:] == [clean(one) for row in body for one in row]
    assert page.all("caption")[0].text == "of this"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])), min_size=1, max_size=5))
def test_a_fence_holds_its_lines(lines: list[str]) -> None:
    page = parsed(rendered.html(fenced("\n".join(lines))))
    assert [one.tag for one in page.elements] == ["pre"]
    assert page.elements[0].text.split("\n") == list(map(clean, "\n".join(lines).splitlines() or [""]))


def test_markup_of_the_report_is_markup() -> None:
    lines = [
        "Said **so** by `--json`",
        "and on.",
        "",
        "- one",
        "  - inner",
        "- two",
        "### A head",
        "its gist",
        "",
        "rest",
    ]
    assert rendered.html(lines) == (
        "<p>Said <strong>so</strong> by <code>--json</code> and on.</p>"
        "<ul><li>one</li><ul><li>inner</li></ul><li>two</li></ul>"
        "<details><summary><h3>A head</h3><p>its gist</p></summary><p>rest</p></details>"
    )


# --- colours ------------------------------------------------------------------------------


def test_each_colour_of_the_light_ground_has_one_role() -> None:
    assert len({light for light, _ in COLOURS.values()}) == len(COLOURS)
    assert themed(COLOURS["ink"][0]) == "var(--ink)"
    assert all(f"--{role}:{dark}" in variables() for role, (_, dark) in COLOURS.items())


@pytest.mark.parametrize("role", ["ink", "soft", "link", "bad", "good", *(f"series-{n}" for n in range(1, 9))])
def test_what_is_read_stands_out_from_its_ground(role: str) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5."""
    for at in (0, 1):
        assert _contrast(COLOURS[role][at], COLOURS["paper"][at]) >= 4.5, (role, at)


def _contrast(one: str, other: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05) of relative luminances, the lighter first (WCAG 2.2)."""
    darker, lighter = sorted(map(_luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_json_ends_no_script() -> None:
    text = in_script(json.dumps({"a": pages.HOSTILE}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": pages.HOSTILE}


# --- where it goes --------------------------------------------------------------------------


def test_it_goes_beside_the_journal_unless_told(tmp_path: Path) -> None:
    rundirs.finished_run(tmp_path / "run")
    view = RunView.load(tmp_path / "run")
    assert target(view, None, True) == tmp_path / "run" / "report.html"
    assert target(view, "-", True) is None
    assert rows(view)
