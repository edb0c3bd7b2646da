"""Disks without room, under whole sweeps: a clear error, nothing torn, and every record after a resume."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.events import BatchLost, RunEnded, Waited, WorkerLaunched
from orchestrator.outcomes import Cause
from orchestrator.record.generations import read_records
from orchestrator.record.replay import replay
from tests.process import disks
from tests.process.disks import KIB, MIB
from tests.process.launching import Fifo
from tests.process.sweeping import NO_SECOND_TRY, PROMPTS, QUICK_LIMITS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

NO_CHECK = {"run_dir_free_mib": 0, "tmp_free_mib": 0, "shm_free_mib": 0}
STOPPED_EARLY = 3
#: Enough for a run to begin, and not for its results.
LITTLE_BYTES = 512 * KIB
#: About 1.2 MiB of results.
MANY = [f"prompt {i}" for i in range(60)]
CELLS = {"batch_size": [1, 2], "max_new_tokens": [4000]}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class DiskBench(Bench):
    """Its run directory, or its TMPDIR, may be on a disk of its own."""

    prefix: tuple[str, ...] = ()

    def command(self, *args: str) -> list[str]:
        return [*self.prefix, *super().command(*args)]

    def write_long(self, **changes: Any) -> None:
        self.write(prompts=MANY, matrix=CELLS, limits={**QUICK_LIMITS, **NO_CHECK}, **changes)

    def causes(self) -> list[Cause]:
        return [release.cause for release in self.releases() if release.cause]

    def assert_nothing_torn(self, *, cut: bool = True) -> None:
        """`cut`: what a failed write left behind the last commit is gone; btrfs can't even shorten a file then."""
        found = replay(self.run_dir)
        assert found.torn is None
        sizes = {name: (self.run_dir / name).stat().st_size for name in ("journal.jsonl", "generations.jsonl")}
        committed = {"journal.jsonl": found.journal_bytes, "generations.jsonl": found.records_bytes}
        assert sizes == committed or (not cut and all(sizes[name] >= committed[name] for name in committed))
        assert sum(1 for _ in read_records(self.run_dir, found.ranges)) == found.records
        assert not self.processes()
        assert not list(self.tmp.iterdir())

    def assert_whole(self, prompts: Sequence[str] = PROMPTS) -> None:
        points = Counter(point for point, _ in self.keys())
        assert list(points.values()) == [len(prompts)] * 2
        assert set(self.keys().values()) == {1}
        assert not [record for record in self.records if record["error"]]


@pytest.fixture
def bench(tmp_path: Path) -> DiskBench:
    return DiskBench(tmp_path / "b")


Disk = Callable[[ExitStack, Path], tuple[Path, Callable[[], object]]]


def tmpfs(stack: ExitStack, folder: Path) -> tuple[Path, Callable[[], object]]:
    disk = stack.enter_context(disks.small(folder, LITTLE_BYTES))
    return disk, lambda: disks.enlarge(disk, 64 * MIB)


def quota(stack: ExitStack, folder: Path) -> tuple[Path, Callable[[], object]]:
    part = stack.enter_context(disks.under_quota(folder, LITTLE_BYTES))
    return part, lambda: disks.allow(part, 64 * MIB)


# --- the run directory ----------------------------------------------------------


@pytest.mark.parametrize(("disk", "says"), [(tmpfs, "the disk is full"), (quota, "Disk quota exceeded")])
def test_a_run_directory_without_room_ends_in_order_and_resumes(
    bench: DiskBench, stack: ExitStack, disk: Disk, says: str
) -> None:
    folder, make_room = disk(stack, bench.folder / "disk")
    bench.run_dir = folder / "run"
    bench.write_long()
    done = bench.run()
    assert done.returncode == STOPPED_EARLY
    assert says in done.stdout + done.stderr
    assert str(bench.run_dir) in done.stdout + done.stderr
    bench.assert_nothing_torn(cut=disk is not quota)
    assert 0 < replay(bench.run_dir).records < 2 * len(MANY)
    make_room()
    assert bench.run("--resume").returncode == 0
    bench.assert_nothing_torn()
    bench.assert_whole(MANY)


def test_a_limit_on_the_size_of_files_ends_in_order_and_resumes(bench: DiskBench) -> None:
    bench.prefix = ("prlimit", f"--fsize={LITTLE_BYTES}")
    bench.write_long()
    done = bench.run()
    assert done.returncode == STOPPED_EARLY
    assert "File too large" in done.stdout + done.stderr
    assert "the disk is not full" in done.stdout + done.stderr
    bench.assert_nothing_torn()
    bench.prefix = ()
    assert bench.run("--resume").returncode == 0
    bench.assert_whole(MANY)


# --- room that is asked for before a worker starts ------------------------------------


@pytest.mark.parametrize(("disk", "place"), [(tmpfs, "run_dir"), (tmpfs, "tmp"), (quota, "tmp")])
def test_no_worker_starts_where_there_is_no_room(bench: DiskBench, stack: ExitStack, disk: Disk, place: str) -> None:
    folder, make_room = disk(stack, bench.folder / "disk")
    if place == "run_dir":
        bench.run_dir = folder / "run"
    else:
        bench.tmp = folder
        bench.env["TMPDIR"] = str(folder)
    limits = {**QUICK_LIMITS, **NO_CHECK, f"{place}_free_mib": 1}
    bench.write(limits=limits, policies={"disk": {"do": "wait", "wait_s": 0.5}})
    done = bench.run()
    said = done.stdout + done.stderr
    assert done.returncode == STOPPED_EARLY, said
    assert f"{bench.run_dir if place == 'run_dir' else folder} has" in said
    assert not bench.releases()
    (waited,) = [event for event in bench.events if isinstance(event, Waited)]
    assert (waited.what, waited.over) == ("room", False)
    (ended,) = [event for event in bench.events if isinstance(event, RunEnded)]
    assert ended.reason.startswith("no room")
    make_room()
    assert bench.run("--resume").returncode == 0
    bench.assert_nothing_torn()
    bench.assert_whole()


def test_one_that_stands_by_is_not_waited_for_where_there_is_no_room_for_the_one_before(
    bench: DiskBench, stack: ExitStack, fifo: Fifo
) -> None:
    bench.tmp = stack.enter_context(disks.small(bench.folder / "disk", 4 * MIB))
    bench.env["TMPDIR"] = str(bench.tmp)
    full = bench.folder / "full"
    os.mkfifo(full)
    dies = method("dies", at="batch:1", do="sigkill", gate=str(full), once=str(bench.folder / "died"))
    once = str(bench.folder / "imported")
    next_one = method("next", early=True, at="import", do="mark", touch=fifo.path, once=once)
    bench.write(
        methods=[dies, next_one],
        limits={**QUICK_LIMITS, **NO_CHECK, "batch_s": 30, "tmp_free_mib": 1},
        policies={"disk": {"do": "wait", "wait_s": 0.5}},
        devices={"standby": "on"},
    )
    sweep = bench.start()
    stack.callback(sweep.kill)
    fifo.line()
    ballast = disks.fill(bench.tmp, leave_bytes=MIB // 2)
    full.write_bytes(b"")
    said = "".join(sweep.communicate(timeout=30))
    ballast.unlink()
    assert sweep.returncode == STOPPED_EARLY, said
    (ended,) = [event for event in bench.events if isinstance(event, RunEnded)]
    assert ended.reason.startswith("no room"), said
    stood_by = {event.method: event.incarnation for event in bench.events if isinstance(event, WorkerLaunched)}["next"]
    (its_end,) = [release for release in bench.releases() if release.incarnation == stood_by]
    assert its_end.cause is None
    bench.assert_nothing_torn()
    assert bench.run("--resume").returncode == 0
    bench.assert_nothing_torn()
    assert {end.outcome for ends in bench.outcomes().values() for end in ends} == {"ok"}
    assert set(bench.keys().values()) == {1}


def test_a_run_directory_that_can_t_be_made_is_an_error_of_the_input(bench: DiskBench, stack: ExitStack) -> None:
    folder, _ = quota(stack, bench.folder / "disk")
    disks.fill(folder)
    bench.run_dir = folder / "run"
    bench.write()
    done = bench.run()
    assert done.returncode in (2, STOPPED_EARLY)
    assert f"{bench.run_dir}" in done.stdout + done.stderr
    assert "Disk quota exceeded" in done.stdout + done.stderr


@pytest.mark.parametrize("inodes", [1, 2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("place", ["run_dir", "tmp"])
def test_wherever_files_run_out_it_is_said_and_resumes(
    bench: DiskBench, stack: ExitStack, place: str, inodes: int
) -> None:
    folder = stack.enter_context(disks.small(bench.folder / "disk", 64 * MIB, inodes))
    if place == "run_dir":
        bench.run_dir = folder / "run"
    else:
        bench.tmp = folder
        bench.env["TMPDIR"] = str(folder)
    shares = method("shares", at="load", do="file")
    bench.write(methods=[shares], limits={**QUICK_LIMITS, **NO_CHECK}, policies={"disk": {"do": "wait", "wait_s": 0}})
    done = bench.run()
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    began = (bench.run_dir / "journal.jsonl").exists()
    if done.returncode:
        assert str(folder) in said or any("No space left" in cause.message for cause in bench.causes()), said
        assert "No space left on device" in said or "no inodes" in said
    disks.enlarge(folder, 64 * MIB, inodes=1000)
    assert bench.run(*(["--resume", "--retry-failed"] if began else [])).returncode == 0
    bench.assert_nothing_torn()
    bench.assert_whole()


# --- what workers write -----------------------------------------------------------


@pytest.mark.parametrize("at", ["load", "batch:2"])
def test_a_worker_that_fills_its_tmpdir_is_named_with_the_room_there(
    bench: DiskBench, stack: ExitStack, at: str
) -> None:
    bench.tmp = stack.enter_context(disks.small(bench.folder / "disk", 4 * MIB))
    bench.env["TMPDIR"] = str(bench.tmp)
    fills = method("fills", at=at, do="file", bytes=8 * MIB, once=str(bench.folder / "once"))
    limits = {**QUICK_LIMITS, **NO_CHECK}
    bench.write(methods=[fills, "scripted"], limits=limits, policies=NO_SECOND_TRY)
    bench.run()
    causes = bench.causes() or [event.cause for event in bench.events if isinstance(event, BatchLost)]
    assert causes[0].cls == "disk"
    assert "No space left on device" in causes[0].message
    bench.assert_nothing_torn()
    assert all(end.outcome == "ok" for end in bench.outcomes()["scripted"])


def in_small_shm(bench: DiskBench, size_bytes: int) -> None:
    """The sweep in a mount namespace of its own, with a /dev/shm of that size."""
    mount = f"mount -t tmpfs -o size={size_bytes},mode=1777 airlock-test /dev/shm"
    probe = ["unshare", "--mount", "--propagation=private", "sh", "-c", mount]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of its own is not permitted here")
    bench.prefix = ("unshare", "--mount", "--propagation=private", "sh", "-c", f'{mount} && exec "$@"', "sh")


def test_shared_memory_without_room_is_a_fault_of_the_disk_though_it_ends_in_sigbus(bench: DiskBench) -> None:
    in_small_shm(bench, 4 * MIB)
    shares = method("shares", at="batch:1", do="shm", bytes=8 * MIB)
    bench.write(methods=[shares, "scripted"], limits={**QUICK_LIMITS, **NO_CHECK}, policies=NO_SECOND_TRY)
    bench.run()
    release = bench.releases()[0]
    assert release.signal == "SIGBUS"
    assert release.cause is not None
    assert release.cause.cls == "disk"
    assert "/dev/shm is full" in release.cause.message
    assert "/dev/shm/airlock-scripted-" in " ".join([*release.reclaim.shm_removed, *release.reclaim.notes])
    assert all(end.outcome == "ok" for end in bench.outcomes()["scripted"])
    bench.assert_nothing_torn()


def test_no_worker_starts_without_shared_memory(bench: DiskBench) -> None:
    in_small_shm(bench, 4 * MIB)
    bench.write(limits={**QUICK_LIMITS, **NO_CHECK, "shm_free_mib": 16}, policies={"disk": {"do": "wait", "wait_s": 0}})
    done = bench.run()
    assert done.returncode == STOPPED_EARLY
    assert "shared memory /dev/shm has 4.0 MiB free, 16.0 MiB are wanted" in done.stdout + done.stderr
    bench.prefix = ()
    assert bench.run("--resume").returncode == 0
    bench.assert_whole()


def test_logs_on_a_full_disk_cost_lines_and_nothing_else(bench: DiskBench, stack: ExitStack) -> None:
    gate = bench.folder / "gate"
    os.mkfifo(gate)
    first = method("first", at="batch:1", do="mark", gate=str(gate))
    floods = method("floods", at="batch:1", do="print_flood", bytes=4 * MIB)
    bench.write(methods=[first, floods], limits={**QUICK_LIMITS, **NO_CHECK, "batch_s": 30})
    sweep = bench.start()
    with gate.open("wb"):  # the first worker is in its batch: the next one's log will be on the small disk
        logs = stack.enter_context(disks.small(bench.run_dir / "logs", 64 * KIB))
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, said
    assert disks.free_bytes(logs) == 0
    assert {end.outcome for ends in bench.outcomes().values() for end in ends} == {"ok"}
    bench.assert_nothing_torn()
