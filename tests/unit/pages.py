"""Runs to make pages of, and a page taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from msgspec.structs import replace

from orchestrator.events import PointStarted
from orchestrator.outcomes import Cause
from orchestrator.page.html import page
from orchestrator.plan import Plan
from orchestrator.report import RunView, rows
from protocol.records import LoadTimes, MemoryUse
from protocol.specs import MethodSpec
from tests.unit import rundirs

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\u202e<!--{{7*7}}--> \"'&\x1b[31m"
#: Elements without an end.
_VOID = frozenset({"meta", "input", "line", "circle", "path", "rect", "img", "br", "link"})


def html_of(run_dir: Path) -> str:
    view = RunView.load(run_dir)
    return page(view, rows(view))


def many(run_dir: Path, methods: int, sizes: Sequence[int], repeats: int = 3) -> Plan:
    """Every method ran every size well, each at a speed and with repeats of its own."""
    specs = [MethodSpec(name=f"m{n:03}", engine="hf") for n in range(methods)]
    plan = rundirs.a_plan(specs, sizes, repeats)
    journal = rundirs.begin(run_dir, plan)
    memory = MemoryUse(host_peak_rss_bytes=3 << 30, weights_bytes=1 << 30)
    load = LoadTimes(import_s=2.0, tokenizer_s=0.5, weights_s=3.0, total_s=5.0)
    for number, start in enumerate(plan.starts):
        name = f"w{number}-x"
        rundirs.launch(journal, start, name, memory=memory, load=load, kv_cache_bytes=1 << 29)
        for point in start.points:
            wall_s = (1 + number / 7) * (1 + point.repeat / 50) / point.config.batch_size
            rundirs.run_point(journal, point, name, wall_s=wall_s)
            journal.emit(rundirs.ended(point=point.id))
        rundirs.release(journal, name)
    rundirs.end(journal)
    return plan


def hostile(run_dir: Path) -> None:
    """Everything that is foreign is out to break out: names, outputs, causes, logs, the sweep file."""
    plan = rundirs.a_plan((rundirs.HF, MethodSpec(name=HOSTILE, engine="vllm")), (1,), 1)
    plan = replace(plan, name=HOSTILE, notes=(HOSTILE,))
    journal = rundirs.begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        name = f"w{number}"
        rundirs.launch(journal, start, name, attention_backend=HOSTILE)
        (point,) = start.points
        journal.emit(PointStarted(at=1002.0, point=point.id, incarnation=name, prompts=3))
        for at, prompt in enumerate(rundirs.PROMPTS):
            ids = [5, 6, 7 + number]
            text = f"same start {HOSTILE * 20} {number} {HOSTILE}"
            record = rundirs.record(
                prompt, point=point.id, batch=f"b{at}", method=point.method, text=text, token_ids=ids, incarnation=name
            )
            journal.commit(
                point=point.id, batch=f"b{at}", incarnation=name, records=[record], stats=rundirs.stats(0.5, 3)
            )
        cause = Cause(cls="engine_crash", message=HOSTILE, log_tail=f"x{HOSTILE}\n" + "y" * 50_000, incarnation=name)
        journal.emit(rundirs.ended("failed" if number else "ok", point=point.id, cause=cause if number else None))
        rundirs.release(journal, name)
    rundirs.end(journal, 1, HOSTILE)
    (run_dir / "sweep.yaml").write_text(f"name: x # {HOSTILE}\n", encoding="utf-8")


def unmeasured(run_dir: Path) -> None:
    """Nothing was measured: the engine could not be loaded."""
    plan = rundirs.a_plan((rundirs.HF,), (1,), 1)
    journal = rundirs.begin(run_dir, plan)
    for start in plan.starts:
        for point in start.points:
            cause = Cause(cls="environment", message="no module named torch")
            journal.emit(rundirs.ended("failed", point=point.id, cause=cause))
    rundirs.end(journal, 1)


def lone(run_dir: Path) -> None:
    """One point, one repeat."""
    plan = rundirs.a_plan((rundirs.HF,), (2,), 1)
    journal = rundirs.begin(run_dir, plan)
    rundirs.run_start(journal, plan.starts[0], "w0-x")
    rundirs.end(journal)


def begun(run_dir: Path) -> None:
    """Its coordinator ended without a word before anything ran."""
    rundirs.begin(run_dir, rundirs.a_plan()).close()


def halfway(run_dir: Path) -> None:
    """Its coordinator ended while the second method ran."""
    plan = rundirs.a_plan()
    journal = rundirs.begin(run_dir, plan)
    rundirs.run_start(journal, plan.starts[0], "w0-x")
    rundirs.launch(journal, plan.starts[1], "w1-x")
    journal.close()


def scoring(run_dir: Path) -> None:
    plan = rundirs.a_plan((rundirs.HF, rundirs.VLLM), (2,), 1)
    starts = tuple(
        replace(
            start,
            config=replace(start.config, task="score"),
            points=tuple(replace(point, config=replace(point.config, task="score")) for point in start.points),
        )
        for start in plan.starts
    )
    plan = replace(plan, starts=starts)
    journal = rundirs.begin(run_dir, plan)
    for number, start in enumerate(plan.starts):
        rundirs.run_start(journal, start, f"w{number}-x")
    rundirs.end(journal)


KINDS: dict[str, Callable[[Path], object]] = {
    "finished": rundirs.finished_run,
    "unmeasured": unmeasured,
    "lone": lone,
    "begun": begun,
    "halfway": halfway,
    "scoring": scoring,
    "hostile": hostile,
}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Parsed(HTMLParser):
    """Elements in order, with the text that stands in them and in what they hold."""

    elements: list[Element] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self._open or self._open[-1].tag != tag:
            self.unbalanced.append(tag)
        elif self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [one for one in self.elements if one.tag == tag and wanted.items() <= one.attributes.items()]


def parsed(html: str) -> Parsed:
    found = Parsed()
    found.feed(html)
    found.close()
    return found
