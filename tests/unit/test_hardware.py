"""Energy, power and clocks of a row: of the batches whose figures count, and of all devices or of none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import DevicesUsed
from orchestrator.outcomes import Cause
from orchestrator.provenance import DeviceUse
from orchestrator.report import RunView, rows
from orchestrator.run.telemetry import Telemetry
from orchestrator.view.hardware import Hardware
from protocol.records import BatchStats
from tests.unit.rundirs import HF, a_plan, begin, end, ended, launch, record


class Boards:
    """Readings by board; one that is not among them tells nothing."""

    def __init__(self, **power_mw: int) -> None:
        self._power_mw = power_mw

    def optional(self, uuid: str, name: str, *_: Any) -> Any:
        return self._power_mw.get(uuid) if name == "nvmlDeviceGetPowerUsage" else None


def used(*boards: str, **power_mw: int) -> list[DeviceUse]:
    telemetry = Telemetry(Boards(**power_mw), clock=lambda: 0.0)  # type: ignore[arg-type]
    telemetry.begin(boards, os.getpid())
    return telemetry.end_devices()


def test_a_board_that_tells_nothing_is_not_left_out_beside_one_that_does() -> None:
    assert used("a", "b") == []
    assert [(one.uuid, one.power_max_w) for one in used("a", "b", a=350_000)] == [("a", 350.0), ("b", None)]


def row_of(run_dir: Path, *uses: tuple[str, str, list[DeviceUse]]) -> Hardware:
    """Prompt c failed at first, and ran again alone in another worker; `uses` by worker and batch."""
    plan = a_plan((HF,), (3,), 1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    bad = Cause(cls="bad_prompt", message="x")
    for worker, names, error in (("w0", "abc", bad), ("w1", "c", None)):
        launch(journal, plan.starts[0], worker)
        values = {"point": point.id, "batch": "p-0", "incarnation": worker}
        records = [record(name, error=error if name == "c" else None, **values) for name in names]
        stats = BatchStats(wall_s=1.0, generated_tokens=3 * len(names))
        journal.commit(point=point.id, batch="p-0", incarnation=worker, records=records, stats=stats)
    for worker, batch, devices in uses:
        journal.emit(DevicesUsed(at=1.0, batch=batch, incarnation=worker, devices=devices))
    journal.emit(ended(point=point.id))
    end(journal)
    (row,) = rows(RunView.load(run_dir))
    return row.hardware


def use(uuid: str = "a", energy_j: float | None = 6.0) -> DeviceUse:
    return DeviceUse(uuid=uuid, readings=1, energy_j=energy_j, power_mean_w=300.0)


def test_a_batch_whose_figures_do_not_count_costs_nothing(tmp_path: Path) -> None:
    found = row_of(tmp_path / "run", ("w0", "p-0", [use(energy_j=1000.0)]), ("w1", "p-0", [use()]))
    assert (found.energy_j, found.energy_token_j) == (6.0, 2.0)


@pytest.mark.parametrize("silent", [use("b", None), DeviceUse(uuid="b", readings=1)])
def test_the_energy_of_some_of_the_boards_is_not_that_of_all(tmp_path: Path, silent: DeviceUse) -> None:
    assert row_of(tmp_path / "run", ("w1", "p-0", [use(), silent])).energy_j is None
