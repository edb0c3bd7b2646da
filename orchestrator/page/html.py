"""The report as one HTML file: the sections of the Markdown, the table to sort, the plots.

page(view, every)   the file's text. `every`: the rows, as `rows.rows(view)` gave them. Raises JournalError on damage
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Any, Final

from orchestrator import __version__
from orchestrator.journal import SWEEP_NAME
from orchestrator.page import assets, divergence, rendered, theme
from orchestrator.page.drawing import Drawn, data_of, drawn
from orchestrator.page.plots import absent
from orchestrator.page.table import table
from orchestrator.record.disk import read_regular
from orchestrator.view import asked, markdown, rest, tables, words
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row
from orchestrator.view.teardown import moment
from orchestrator.view.wording import clean, counted, joined

if TYPE_CHECKING:
    from markupsafe import Markup

#: Lines of the legend that are not folded.
_LEGEND: Final = 20
#: Of the sweep file that is shown.
_MOST_CHARACTERS: Final = 100_000
_COSTS: Final = (
    *("Load", "Memory", "Memory, estimated and told", "Energy, clocks and heat"),
    *("The host", "Counters of the engines"),
)
_COMPLETENESS: Final = "Completeness"
#: Id → title, plots, sections shown, sections folded.
_GROUPS: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]]] = {
    "speed": ("Speed", ("speed-ttft", "speed-tpot", "batch-sizes"), (), ("Latency", "Throughput", "Spread")),
    "answers": ("Answers", ("accuracy", "agreement"), ("Answers",), ("Agreement",)),
    "fairness": ("Fairness", (), ("Fairness",), ("What was asked", "What ran")),
    "cost": (
        "Load and memory",
        ("load", "memory"),
        (),
        _COSTS,
    ),
    "course": ("Course of the run", ("timeline",), (), ("Teardown",)),
    "failures": ("Failures", (), ("Failures", _COMPLETENESS), ()),
    "origins": ("Where it comes from", (), ("Where it comes from",), ("Environments", "Flags and notes", "Not known")),
    "reproduce": ("Reproduce", (), (), ()),
}
#: Said above, in a form of its own.
_ELSEWHERE: Final = ("", "Results")
_NOTHING: Final = {"failures": "Nothing failed.", "fairness": "Nothing was planned, so there is nothing to compare."}


@dataclass(frozen=True)
class Section:
    title: str
    html: Markup


@dataclass(frozen=True)
class Group:
    id: str
    title: str
    plots: list[Drawn] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    open: list[Section] = field(default_factory=list)
    folded: list[Section] = field(default_factory=list)


def page(view: RunView, every: Sequence[Row], dashboard: str = "") -> str:
    """`dashboard`: the address that leads back to it, where the page is shown by one."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    found = every[: markdown.SHOWN]
    data = data_of(view, found)
    css, script, early = theme.variables() + assets.text("page.css"), assets.bundle(), assets.text("theme.js")
    shown = list(divergence.examples(view))
    environment = Environment(
        loader=PackageLoader("orchestrator.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        policy=_policy((script, early), css),
        airlock=__version__,
        dashboard=dashboard,
        name=clean(view.plan.name),
        run_dir=clean(str(view.run_dir)),
        state=Markup(_state(view)),
        gap="" if view.complete else markdown.gap(view),
        words=words.summary(view, every),
        facts=Markup(rendered.html(markdown.facts(view))),
        table=table(found, data["rows"]),
        rest=list(rest.lines(every, markdown.SHOWN)),
        results_note=tables.RESULTS,
        legend_lines=_LEGEND,
        groups=_groups(view, every, data),
        examples=shown,
        differing=sum(bool(row.differences) for row in view.agreements.rows),
        command=_command(view),
        sweep_name=SWEEP_NAME,
        sweep=_sweep(view),
        css=Markup(css),
        early=Markup(early),
        script=Markup(script),
    )


def _policy(scripts: Iterable[str], css: str) -> str:
    """Nothing may be asked of anybody, and of scripts and styles only ours run, told by their digests."""
    told = " ".join(map(_digest, scripts))
    nothing = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return f"{nothing}; script-src {told}; style-src {_digest(css)}"


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _state(view: RunView) -> str:
    """ "finished · 4 methods · 24 points · began …" """
    code = "" if view.exit_code is None else f", exit code {view.exit_code}"
    began = f" · began {moment(view.starts[0].at)} on {view.starts[0].host}" if view.starts else ""
    methods = len({point.method for point in view.points.values()})
    told = f"{counted(methods, 'method')} · {counted(len(view.points), 'point')} · {view.plan.model.name}{began}"
    return f"<strong>{view.state}{code}</strong> · {escape(clean(told))}"


def _groups(view: RunView, every: Sequence[Row], data: Mapping[str, Any]) -> list[Group]:
    sections = {title: lines for title, lines in markdown.sections(view, every) if title not in _ELSEWHERE}
    plots, missing = {one.plot.id: one for one in drawn(data)}, absent(data)
    found = []
    for name, (title, figures, shown, folded) in _GROUPS.items():
        group = Group(
            name,
            title,
            plots=[plots[one] for one in figures if one in plots],
            absent=[missing[one] for one in figures if one in missing and one not in plots],
            open=_sections(sections, shown),
            folded=_sections(sections, folded),
        )
        told = [one for one in group.open if one.title != _COMPLETENESS]
        if not (group.plots or told or group.folded) and name in _NOTHING:
            group.absent.append(_NOTHING[name])
        found.append(group)
    known = {title for _, _, shown, folded in _GROUPS.values() for title in (*shown, *folded)}
    if other := _sections(sections, [title for title in sections if title not in known]):
        found.insert(-1, Group("more", "More", folded=other))
    return found


def _sections(sections: Mapping[str, Iterable[str]], titles: Iterable[str]) -> list[Section]:
    from markupsafe import Markup

    found = ((title, rendered.html(sections[title], title)) for title in titles if title in sections)
    return [Section(title, Markup(html)) for title, html in found if html]


def _command(view: RunView) -> str:
    """As a shell takes it."""
    first = view.starts[0] if view.starts else None
    given = asked.overrides(view.plan, first.overrides if first else ())
    settings = [word for override in given for word in ("--set", override)]
    file = (first.file if first else "") or SWEEP_NAME
    return clean(shlex.join(["python", "-m", "orchestrator", "sweep", file, *settings]))


def _sweep(view: RunView) -> str:
    """A page is passed on, and what is secret in the file is not."""
    if names := asked.secrets(view.plan):
        return f"It is not shown, as it holds the value of {clean(joined(names))}: it lies in the run directory."
    try:
        text = read_regular(view.run_dir / SWEEP_NAME).decode("utf-8", "replace")
    except OSError as exc:
        return f"It can't be read: {exc.strerror}"
    cut = text[:_MOST_CHARACTERS] + ("\n… (cut here)" if len(text) > _MOST_CHARACTERS else "")
    return "\n".join(map(clean, cut.split("\n")))
