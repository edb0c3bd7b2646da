"""What a machine's load is read from: made-up files of /proc, and real processes that burn CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator import proc
from orchestrator.events import BatchCommitted, WarmupDone
from orchestrator.provenance import HostUse
from orchestrator.run.hostload import counters, cpu_times, since, stalled_s, throttled_s
from tests.process.sweeping import Bench, method

BURN_S = 0.3
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass"
STAT = b"""cpu  30 0 0 9000 0 0 0 0 0 0
cpu0 100 20 3 1000 500 7 11 40 50 60
cpu1 1 2 3 4 5 6 7 8 9 10
cpu11 1000 0 0 0 0 0 0 0 0 0
intr 12 3 4
ctxt 99
"""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("cpus", "ticks"), [({0}, (141, 40)), ({0, 1}, (160, 48)), ({11}, (1000, 0)), ({0, 2}, None), ({0, 1, 5}, None)]
)
def test_only_the_cpus_that_we_may_use_are_counted(cpus: set[int], ticks: tuple[int, int] | None) -> None:
    expected = ticks and tuple(one * TICK_S for one in ticks)
    assert cpu_times(STAT, cpus) == (expected and pytest.approx(expected))


@pytest.mark.parametrize("text", [b"", b"cpu0 1 2 3\n"])
def test_what_is_not_shown_is_not_zero(text: bytes) -> None:
    assert cpu_times(text, {0}) is None
    assert stalled_s(text) is None
    assert throttled_s([text]) is None


def test_stalls_and_limits_by_their_own_units() -> None:
    assert stalled_s(b"some avg10=0.02 avg60=0.07 avg300=0.18 total=1500000\nfull avg10=0 total=7\n") == 1.5
    assert throttled_s([b"usage_usec 5\nnr_throttled 4\nthrottled_usec 250000\n"]) == 0.25
    assert throttled_s([b"nr_throttled 4\nthrottled_time 250000000\n", b"throttled_time 1000000000\n"]) == 1.25


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [(1.0, 3.5, 2.5), (1.0, 1.0, 0.0), (3.0, 1.0, None), (None, 1.0, None), (1.0, None, None)],
)
def test_a_counter_that_began_anew_or_is_missing_tells_nothing(
    before: float | None, after: float | None, grown: float | None
) -> None:
    found = since(HostUse(wall_s=1.0, cpus=2, steal_s=before), HostUse(wall_s=2.0, cpus=2, steal_s=after))
    assert found == HostUse(wall_s=1.0, cpus=2, steal_s=grown)


def test_other_cpus_than_before_have_no_number() -> None:
    assert since(HostUse(wall_s=0.0, cpus=2), HostUse(wall_s=1.0, cpus=3)).cpus is None


@pytest.mark.parametrize("ours", [True, False])
def test_what_a_tree_used_is_told_from_what_others_used(ours: bool) -> None:
    """The burner is below the root, dead and waited for by the time of the second reading, or not below it."""
    idle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        root = os.getpid() if ours else idle.pid
        before = counters(root, time.monotonic())
        subprocess.run([sys.executable, "-c", BURN], check=True)
        used = since(before, counters(root, time.monotonic()))
    finally:
        idle.communicate(b"\n")
    assert used.cpus == len(os.sched_getaffinity(0))
    assert used.busy_s is not None
    assert used.worker_s is not None
    few_ticks_s = 5 * TICK_S
    assert min(used.busy_s, used.wall_s) >= BURN_S - few_ticks_s
    assert (used.worker_s >= BURN_S - few_ticks_s) == ours


def test_a_root_that_is_gone_has_no_time() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert proc.children(gone.pid) is None
    assert counters(gone.pid, 0.0).worker_s is None


@pytest.mark.usefixtures("nothing_leaked")
def test_a_sweep_keeps_it_with_each_batch_that_ran(tmp_path: Path) -> None:
    """A batch that gave nothing is committed as an error record, and nothing ran for that."""
    bench = Bench(tmp_path)
    failing = method("failing", at="prompt:1", do="raise")
    bench.write(methods=["scripted", failing], matrix={"batch_size": [1]}, warmup=1)
    bench.run()
    commits = [event for event in bench.events if isinstance(event, BatchCommitted)]
    assert any(isinstance(event, WarmupDone) for event in bench.events)
    assert {one.stats is None for one in commits} == {True, False}
    for one in commits:
        assert (one.host is None) == (one.stats is None)
        if one.host and one.stats:
            assert one.host.wall_s >= one.stats.wall_s
            assert one.host.cpus == len(os.sched_getaffinity(0))
            assert None not in (one.host.busy_s, one.host.worker_s)
