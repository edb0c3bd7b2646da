"""Memory is back when it is at its old level and stays there, on each device; device readings are the only fake."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import proc
from orchestrator.definition.sizes import MIB
from orchestrator.devices import Device, Holder
from orchestrator.reclaim import Reclaim
from orchestrator.run.levels import DEVICE_TOLERANCE_BYTES, STABLE_SAMPLES, Settling
from orchestrator.run.reclaim import SAMPLE_INTERVAL_S, MemoryWatch
from orchestrator.run.slots import Slot

GIB = 1024 * MIB
WORKER = proc.ProcessRef(2**22 + 1, 1, "engine")  # no such pid: it has ended
A, B = (Device(index=i, uuid=f"GPU-{x}", name="test", total_bytes=80 * GIB) for i, x in enumerate("ab"))
ONE, TWO = Slot("slot0", (A,)), Slot("slot0", (A, B))


class Readings:
    """Each device gives one reading after the other, the last one for ever. `listed` None: may not be told."""

    def __init__(self, *a: int | None, b: Sequence[int | None] = (0,)) -> None:
        self.used = {A.uuid: list(a), B.uuid: list(b)}
        self.listed: dict[str, list[Holder] | None] = {A.uuid: [], B.uuid: []}
        self.lost: set[str] = set()

    def used_bytes(self, uuid: str) -> int | None:
        values = self.used[uuid]
        return values.pop(0) if len(values) > 1 else values[0]

    def free_bytes(self, uuid: str) -> int | None:
        raise NotImplementedError(uuid)

    def holders(self, uuid: str) -> list[Holder] | None:
        return self.listed[uuid]

    def why_not(self, uuid: str) -> str:
        return f"no reading of {uuid}"


def ticking() -> Callable[[], float]:
    """A clock that moves on by one interval each time it is read."""
    ticks = itertools.count()
    return lambda: next(ticks) * SAMPLE_INTERVAL_S


def follow(readings: Readings | None, slot: Slot = ONE) -> MemoryWatch:
    """A watch over a worker that has ended."""
    watch = MemoryWatch(slot, readings, clock=ticking())
    watch.look([WORKER])
    watch.ended(-2.0)
    return watch


def polls_until_back(watch: MemoryWatch) -> int:
    return next((count for count in range(1, 50) if watch.poll() == "back"), 50)


def proof(watch: MemoryWatch, left: int = 0) -> Reclaim:
    return watch.proof(left=left, strays=[], returned=True, teardown_s=0, rung="shutdown")


def test_slow_release_is_waited_for() -> None:
    watch = follow(Readings(100 * MIB, 5 * GIB, 900 * MIB, 500 * MIB, 300 * MIB, 101 * MIB))
    assert polls_until_back(watch) == 3 + STABLE_SAMPLES
    told = proof(watch)
    assert (told.baseline_bytes, told.held_bytes, told.after_bytes) == (100 * MIB, 5 * GIB, 101 * MIB)
    assert (told.returned, told.holders, told.notes) == (True, [], [])
    assert told.wait_s == pytest.approx(2.0 + 6 * SAMPLE_INTERVAL_S)


def test_samples_of_one_moment_prove_nothing() -> None:
    now = [0.0]
    watch = MemoryWatch(ONE, Readings(0), clock=lambda: now[0])
    watch.ended(0.0)
    assert {watch.poll() for _ in range(2 * STABLE_SAMPLES)} == {"wait"}
    for _ in range(STABLE_SAMPLES - 1):
        now[0] += SAMPLE_INTERVAL_S
        last = watch.poll()
    assert last == "back"


def test_memory_that_still_moves_is_not_back() -> None:
    """Low for a moment, then high again: what comes next would start into a falling level."""
    watch = follow(Readings(100 * MIB, 0, 100 * MIB, 100 * MIB, 900 * MIB, 100 * MIB))
    assert polls_until_back(watch) == 3 + STABLE_SAMPLES


def test_a_leak_never_counts_as_back_and_is_named() -> None:
    readings = Readings(100 * MIB, 100 * MIB, 100 * MIB + DEVICE_TOLERANCE_BYTES + 1)
    watch = follow(readings)
    readings.listed[A.uuid] = [Holder(WORKER.pid, "", 900 * MIB)]
    assert polls_until_back(watch) == 50
    held = f"pid {WORKER.pid} engine (of this worker, ended) 900 MiB"
    assert watch.stuck_reason() == f"GPU 0 (GPU-a) still has 64 MiB more in use than before launch; held by {held}"
    assert watch.holders() == [held]
    assert proof(watch).holders == [held]


@pytest.mark.parametrize(
    ("listed", "why"),
    [([], "no process that can be seen here holds it"), (None, "its processes are not told: no reading of GPU-a")],
)
def test_a_leak_that_nobody_shows(listed: list[Holder] | None, why: str) -> None:
    readings = Readings(0, 0, 2 * GIB)
    readings.listed[A.uuid] = listed
    watch = follow(readings)
    assert polls_until_back(watch) == 50
    assert watch.stuck_reason() == f"GPU 0 (GPU-a) still has 2.0 GiB more in use than before launch; {why}"


def test_every_device_of_the_slot_must_come_back() -> None:
    """The sum would be back: one gives up what the other keeps."""
    watch = follow(Readings(5 * GIB, 5 * GIB, 1 * GIB, b=(1 * GIB, 1 * GIB, 5 * GIB)), TWO)
    assert polls_until_back(watch) == 50
    assert watch.stuck_reason().startswith("GPU 1 (GPU-b) still has 4.0 GiB more")
    told = proof(watch)
    assert (told.baseline_bytes, told.after_bytes) == (6 * GIB, 6 * GIB)
    assert "GPU 1 (GPU-b): 1.0 GiB in use before launch, 5.0 GiB after the end" in told.notes


def test_what_others_take_meanwhile_is_not_held_against_the_worker() -> None:
    readings = Readings(0, 0, 300 * MIB)
    watch = follow(readings)
    readings.listed[A.uuid] = [Holder(os.getpid(), "browser", 300 * MIB)]
    assert polls_until_back(watch) == STABLE_SAMPLES
    held = f"pid {os.getpid()} browser 300 MiB"
    told = proof(watch)
    assert told.notes == [f"GPU 0 (GPU-a): others took memory meanwhile: {held}"]
    assert told.holders == [held]


def test_what_others_held_before_covers_no_leak() -> None:
    readings = Readings(2 * GIB, 2 * GIB, 4 * GIB)
    readings.listed[A.uuid] = [Holder(os.getpid(), "browser", 2 * GIB)]
    watch = follow(readings)
    assert polls_until_back(watch) == 50
    assert watch.stuck_reason().endswith(
        "2.0 GiB more in use than before launch; no process that can be seen here holds it"
    )


@pytest.mark.parametrize("before", [None, [Holder(os.getpid(), "browser", None)]], ids=["no list", "no figure"])
def test_what_others_held_before_without_a_word_covers_no_leak(before: list[Holder] | None) -> None:
    """Told only afterwards: it may be in the level already."""
    readings = Readings(2 * GIB, 2 * GIB, 4 * GIB)
    readings.listed[A.uuid] = before
    watch = follow(readings)
    readings.listed[A.uuid] = [Holder(os.getpid(), "browser", 2 * GIB)]
    assert polls_until_back(watch) == 50


def test_what_each_process_held_is_told_where_there_is_more_than_one() -> None:
    readings = Readings(0, 3 * GIB, 0)
    rank = proc.ProcessRef(WORKER.pid + 1, 1, "rank 1")
    watch = MemoryWatch(TWO, readings, clock=ticking())
    readings.listed[A.uuid] = [Holder(WORKER.pid, "engine", 3 * GIB), Holder(os.getpid(), "other", 1 * GIB)]
    readings.listed[B.uuid] = [Holder(rank.pid, "rank 1", 2 * GIB)]
    watch.look([WORKER, rank])
    assert any(note.startswith("while it lived: pid ") and "other" not in note for note in proof(watch).notes)
    (told,) = (note for note in proof(watch).notes if note.startswith("while it lived"))
    assert "3.0 GiB on GPU 0 (GPU-a), pid " in told
    assert told.endswith("2.0 GiB on GPU 1 (GPU-b)")


def test_the_level_is_that_of_the_grant() -> None:
    """Launched while another worker held the device, granted when that was gone."""
    watch = MemoryWatch(ONE, Readings(9 * GIB, 1 * GIB, 1 * GIB, 3 * GIB), clock=ticking())
    watch.rebase([WORKER])
    assert watch.baseline_bytes == 1 * GIB
    watch.ended(0.0)
    assert watch.poll() == "wait"
    assert polls_until_back(watch) == 50


def test_what_the_worker_holds_at_the_grant_is_no_part_of_the_level() -> None:
    readings = Readings(0, 3 * GIB)
    watch = MemoryWatch(ONE, readings, clock=ticking())
    readings.listed[A.uuid] = [Holder(WORKER.pid, "", 2 * GIB)]
    watch.rebase([WORKER])
    assert watch.baseline_bytes == 1 * GIB
    assert watch.notes == ["GPU 0 (GPU-a): the worker held 2.0 GiB before it was to load"]


def test_a_lost_device_is_not_waited_for() -> None:
    readings = Readings(0, 0, None)
    watch = follow(readings, TWO)
    readings.lost.add(A.uuid)
    assert watch.poll() == "lost"
    assert watch.stuck_reason().startswith("GPU 0 (GPU-a) is lost: no reading of GPU-a")
    assert proof(watch).after_bytes is None


def test_unreadable_memory_is_noted_and_never_guessed() -> None:
    watch = follow(Readings(None))
    assert polls_until_back(watch) == 1
    told = proof(watch)
    assert (told.baseline_bytes, told.after_bytes) == (None, None)
    assert any("does not tell its memory in use: no reading of GPU-a" in note for note in told.notes)
    assert any("PSS of the process tree" in note for note in told.notes)


def test_where_memory_is_not_told_the_list_of_processes_is_waited_for() -> None:
    readings = Readings(None)
    watch = follow(readings)
    readings.listed[A.uuid] = [Holder(WORKER.pid, "", None), Holder(os.getpid(), "other", 5 * GIB)]
    assert watch.poll() == "wait"
    held = f"pid {WORKER.pid} engine (of this worker, ended) memory of unknown size"
    assert watch.stuck_reason() == f"GPU 0 (GPU-a) still has memory in use; held by {held}"
    readings.listed[A.uuid] = [Holder(os.getpid(), "other", 5 * GIB)]
    assert watch.poll() == "back"
    assert watch.stuck_reason() == ""


def test_a_device_that_falls_silent_is_asked_again_and_then_believed_no_more() -> None:
    watch = follow(Readings(0, 0, 900 * MIB, None, 0, 0, 0))
    assert polls_until_back(watch) == 2 + STABLE_SAMPLES
    watch = follow(Readings(0, 0, 900 * MIB, None))
    assert polls_until_back(watch) == 1 + STABLE_SAMPLES
    assert proof(watch).after_bytes is None
    assert any("does not tell its memory" in note for note in proof(watch).notes)


def test_memory_of_its_own_tree_stands_for_that_of_a_device_that_tells_nothing() -> None:
    watch = MemoryWatch(ONE, Readings(None), clock=ticking())
    mine = proc.stat(os.getpid())
    assert mine is not None
    watch.look([proc.ref(mine)])
    assert watch.held_bytes is not None
    assert watch.held_bytes > MIB


def test_a_process_left_is_never_a_return() -> None:
    watch = follow(Readings(100 * MIB))
    polls_until_back(watch)
    assert not proof(watch, left=1).returned


def test_on_a_cpu_the_end_of_the_last_process_is_the_proof() -> None:
    watch = follow(None, Slot("slot0"))
    assert watch.poll() == "back"
    told = proof(watch)
    assert (told.device, told.baseline_bytes, told.after_bytes, told.holders) == ("cpu", 0, 0, [])
    assert (watch.stuck_reason(), told.tolerance_bytes) == ("", 0)


def test_devices_without_a_reader_are_noted() -> None:
    watch = follow(None)
    assert watch.poll() == "back"
    told = proof(watch)
    assert (told.baseline_bytes, told.after_bytes) == (None, None)
    assert any("can't be read" in note for note in told.notes)


@given(st.lists(st.integers(0, 2000), max_size=30))
def test_settled_means_low_and_stable(samples: list[int]) -> None:
    settling = Settling(limit_bytes=1000, tolerance_bytes=100)
    for index, sample in enumerate(samples):
        settling = settling.add(sample)
        last = samples[max(0, index - STABLE_SAMPLES + 1) : index + 1]
        expected = len(last) == STABLE_SAMPLES and max(last) <= 1000 and max(last) - min(last) <= 100
        assert settling.settled == expected
