"""How busy the machine was beside a row's batches, and what of all unrest a reader is warned of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal import Journal
from orchestrator.outcomes import Cause
from orchestrator.provenance import HostUse
from orchestrator.record.replay import replay
from orchestrator.report import Row, RunView, markdown, results, rows, table
from orchestrator.view.compare import Drift
from orchestrator.view.hardware import Hardware
from orchestrator.view.host import LEAST_S, Host, host
from orchestrator.view.stats import LogError, Ratio
from orchestrator.view.unrest import (
    MEMORY_SHARE,
    OTHERS_SHARE,
    REPEATS_SPREAD,
    WITHHELD_SHARE,
    warnings,
)
from protocol.records import BatchStats
from tests.unit.rundirs import HF, a_plan, begin, end, ended, launch, record
from tests.unit.test_report import plain

QUIET = HostUse(
    wall_s=10.0,
    cpus=4,
    busy_s=20.5,
    worker_s=20.0,
    steal_s=0.0,
    throttled_s=0.0,
    cpu_wait_s=1.0,
    memory_wait_s=0.0,
    io_wait_s=0.2,
)


def use(**changes: Any) -> HostUse:
    return HostUse(**{name: getattr(QUIET, name) for name in QUIET.__struct_fields__} | changes)


def commit(journal: Journal, point: str, batch: int, found: HostUse | None, error: Cause | None = None) -> None:
    values: dict[str, Any] = {"point": point, "batch": f"p-{batch}", "incarnation": "w0", "error": error}
    stats = BatchStats(wall_s=1.0, generated_tokens=3)
    journal.commit(
        point=point,
        batch=f"p-{batch}",
        incarnation="w0",
        records=[record("abc"[batch], **values)],
        stats=stats,
        host=found,
    )


def row_of(run_dir: Path, uses: Sequence[HostUse | None]) -> Row:
    plan = a_plan((HF,), (1,), 1)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    for number, found in enumerate(uses):
        commit(journal, plan.points[0].id, number, found)
    journal.emit(ended(point=plan.points[0].id))
    end(journal)
    (row,) = rows(RunView.load(run_dir))
    return row


def test_shares_are_of_all_batches_together(tmp_path: Path) -> None:
    """A short batch may seem to have used more than there was, as Linux counts in hundredths of a second."""
    found = row_of(tmp_path / "run", [use(), use(wall_s=0.1, busy_s=0.1, worker_s=0.4), use(busy_s=40.0)]).host
    assert found.host_s == pytest.approx(20.1)
    assert found.host_cpus == 4
    assert found.host_worker_cpus == pytest.approx(40.4 / 20.1)
    assert found.host_others_share == pytest.approx((60.6 - 40.4) / (4 * 20.1))
    assert (found.host_steal_share, found.host_throttled_share) == (0.0, 0.0)
    assert found.host_cpu_wait_share == pytest.approx(3.0 / 20.1)


@pytest.mark.parametrize(
    ("second", "missing"),
    [
        (None, "host_s"),
        (use(worker_s=None), "host_others_share"),
        (use(cpus=None), "host_steal_share"),
        (use(memory_wait_s=None), "host_memory_wait_share"),
    ],
)
def test_a_part_does_not_pass_for_the_whole(tmp_path: Path, second: HostUse | None, missing: str) -> None:
    assert getattr(row_of(tmp_path / "run", [use(), second]).host, missing) is None
    (told,) = results(RunView.load(tmp_path / "run"))["rows"]
    assert told[missing] is None
    assert "Linux does not tell" in told["reasons"][missing]


def test_a_journal_of_before_has_none_and_can_be_read(tmp_path: Path) -> None:
    assert row_of(tmp_path / "run", [None, None]).host == Host()
    assert b'"host":null' in (tmp_path / "run" / "journal.jsonl").read_bytes()
    assert "## The host" not in markdown(RunView.load(tmp_path / "run"))


def test_what_ran_again_is_not_counted(tmp_path: Path) -> None:
    plan = a_plan((HF,), (1,), 1)
    (point,) = plan.points
    journal = begin(tmp_path / "run", plan)
    launch(journal, plan.starts[0], "w0")
    commit(journal, point.id, 0, use(busy_s=40.0), error=Cause(cls="bad_prompt", message="x"))
    commit(journal, point.id, 0, use())
    end(journal)
    assert host(replay(tmp_path / "run").ranges).host_others_share == pytest.approx(0.5 / 40)


def test_the_report_has_it_all_and_warns(tmp_path: Path) -> None:
    row = row_of(tmp_path / "run", [use(busy_s=36.0, steal_s=4.0)])
    assert row.warnings == ("others used 40 % of the CPU time", "the hypervisor stole 10 % of the CPU time")
    shown = plain(table([row]))
    assert "hf_sdpa !" in shown
    assert "! hf_sdpa batch_size=1: others used 40 % of the CPU time; the hypervisor stole 10 %" in shown
    assert "not to be compared" not in shown
    text = markdown(RunView.load(tmp_path / "run"))
    assert "| hf_sdpa ! | 1 | 10 s | 4 | 2.00 | 40 % | 10 % | 0 % | 10 % | 0 % | 2 % |" in text
    assert "- ! hf_sdpa batch_size=1: others used 40 % of the CPU time" in text
    (told,) = results(RunView.load(tmp_path / "run"))["rows"]
    assert (told["warnings"], told["marks"], told["host_others_share"]) == (list(row.warnings), [], 0.4)
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("wall_s", [LEAST_S / 20, LEAST_S * 0.99])
def test_a_row_too_short_to_judge_says_so_and_has_no_share(tmp_path: Path, wall_s: float) -> None:
    """A tick is a hundredth of a second: of a short batch others may seem to have used more than there was."""
    row = row_of(tmp_path / "run", [use(wall_s=wall_s, cpus=2, busy_s=2.6 * wall_s, worker_s=0.0, steal_s=wall_s)])
    assert row.host == Host(host_s=wall_s, host_cpus=2)
    assert row.warnings == ()
    view = RunView.load(tmp_path / "run")
    (told,) = results(view)["rows"]
    assert (told["host_others_share"], told["host_worker_cpus"]) == (None, None)
    assert told["reasons"]["host_others_share"] == "its batches took less than 0.5 s in all: too short to tell"
    text = markdown(view).partition("## The host")[2].partition("##")[0]
    assert "| 2 | too short to tell | too short to tell |" in text
    assert "less than 0.5 s in all" in text


def test_no_share_is_above_the_whole(tmp_path: Path) -> None:
    changes = {"wall_s": LEAST_S, "cpus": 2, "busy_s": LEAST_S * 2.02, "worker_s": 0.0}
    assert row_of(tmp_path / "run", [use(**changes)]).host.host_others_share == 1.0


def told(**changes: Any) -> Host:
    return Host(**{"host_s": LEAST_S, "host_cpus": 4, **changes})


def drift(ratio: float, error: float) -> Drift:
    return Drift("again", 10.0, 10.0 * ratio, Ratio(ratio, False, lambda: LogError(error, 3)))


@pytest.mark.parametrize(
    ("rates", "host_", "hardware", "drift_", "said"),
    [
        ([10.0, 10.0 * (1 + REPEATS_SPREAD) + 1e-9], Host(), Hardware(), None, "repeats spread by 10 %"),
        ([], told(host_others_share=OTHERS_SHARE), Hardware(), None, "others used 10 %"),
        ([], told(host_steal_share=WITHHELD_SHARE), Hardware(), None, "the hypervisor stole 2 %"),
        ([], told(host_throttled_share=WITHHELD_SHARE), Hardware(), None, "a limit on CPU time withheld 2 %"),
        ([], told(host_memory_wait_share=MEMORY_SHARE), Hardware(), None, "waited for memory 5 %"),
        ([], Host(), Hardware(throttle=("hardware thermal slowdown",)), None, "hardware thermal slowdown"),
        ([], Host(), Hardware(), drift(0.9, 0.001), "it drifted by -10.0 %"),
    ],
)
def test_each_kind_of_unrest_is_warned_of(
    rates: list[float], host_: Host, hardware: Hardware, drift_: Drift | None, said: str
) -> None:
    (line,) = warnings(rates, host_, hardware, drift_, 0.95)
    assert said in line


@pytest.mark.parametrize(
    ("rates", "host_", "hardware", "drift_"),
    [
        ([10.0, 10.9, 10.5], Host(), Hardware(), None),
        ([10.0], Host(), Hardware(), None),
        ([0.0, 10.0], Host(), Hardware(), None),
        ([], told(host_others_share=0.09, host_steal_share=0.01, host_cpu_wait_share=0.9), Hardware(), None),
        ([], Host(), Hardware(throttle=("software power cap", "application clocks")), None),
        ([], Host(), Hardware(), drift(0.97, 0.001)),
        ([], Host(), Hardware(), drift(0.9, 1.0)),
        ([], Host(), Hardware(), Drift("again", 1.0, None, None)),
    ],
)
def test_what_is_mild_or_not_known_is_not(
    rates: list[float], host_: Host, hardware: Hardware, drift_: Drift | None
) -> None:
    assert warnings(rates, host_, hardware, drift_, 0.95) == ()
