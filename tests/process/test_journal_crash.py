"""A real writer killed at many moments, and real file systems without room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.errors import JournalError
from orchestrator.journal import Journal
from orchestrator.record.disk import set_aside
from orchestrator.record.generations import read_records
from orchestrator.record.lock import holder
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, Replay, replay
from tests.unit.rundirs import POINT, commit, new_run, started, state

pytestmark = pytest.mark.usefixtures("nothing_leaked")

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60
TMPFS_BYTES = 256 * 1024


@contextmanager
def writer(run_dir: Path, first: int = 0, limit_bytes: int = 0, *extra: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.process.journal_writer", str(run_dir), str(first), str(limit_bytes), *extra]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def acknowledged(process: subprocess.Popen[str], count: int) -> int:
    """The last batch number of `count` more acknowledgements; -1 if the writer ended before the first."""
    assert process.stdout is not None
    last = -1
    for _ in range(count):
        line = process.stdout.readline()
        if not line.endswith("\n"):
            break
        last = int(line)
    return last


def rest_of(process: subprocess.Popen[str], last: int) -> int:
    """What it still acknowledged before it was gone. Not by `communicate`, which skips what `readline` has buffered."""
    assert process.stdout is not None
    out = process.stdout.read()
    process.wait(timeout=WAIT_S)
    return max([last, *(int(line) for line in out.split("\n")[:-1])])


def check(run_dir: Path, last: int) -> Replay:
    """All acknowledged batches are there, whole; at most one more."""
    found = replay(run_dir)
    batches = [part.commit.batch for part in found.ranges]
    assert batches[: last + 1] == [f"b{n}" for n in range(last + 1)]
    assert len(batches) <= last + 2
    ids = [record.prompt_id for record in read_records(run_dir, found.ranges)]
    assert ids == [f"{n}-{x}" for n in range(len(batches)) for x in "ab"]
    return found


def test_sigkill_at_many_moments_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Each life resumes the one before, so repairs pile up as well."""
    run_dir, first = tmp_path / "run", 0
    for life in range(1, 26):
        with writer(run_dir, first) as process:
            last = acknowledged(process, life * 7 % 19 + 1)
            process.kill()
            last = rest_of(process, last)
            assert process.returncode == -signal.SIGKILL
        found = check(run_dir, last)
        assert found.lives == life
        assert holder(run_dir) is None
        first = len(found.ranges)
    journal, found = Journal.resume(run_dir)
    commit(journal, [f"{first}-a", f"{first}-b"], batch=f"b{first}")
    journal.close()
    assert len(check(run_dir, first).ranges) == first + 1


def test_a_write_torn_at_a_chosen_byte_by_the_kernel(tmp_path: Path) -> None:
    """The limit falls inside a record, inside a character, at a line's end, inside a second batch."""
    complete = tmp_path / "complete"
    journal = new_run(complete)
    commit(journal, ["0-a", "0-b"], batch="b0", text="ß☃" * 40)
    journal.close()
    length = (complete / RECORDS_NAME).stat().st_size
    character = (complete / RECORDS_NAME).read_bytes().index("☃".encode()) + 1
    for limit in (1, 100, character, character + 1, length - 1, length, length + 1, 3 * length + 50):
        run_dir = tmp_path / f"run-{limit}"
        with writer(run_dir, 0, limit) as process:
            last = rest_of(process, -1)
            assert process.returncode == -signal.SIGXFSZ
        found = check(run_dir, last)
        next_number = len(found.ranges)
        torn = (run_dir / RECORDS_NAME).stat().st_size - found.records_bytes
        assert 0 <= torn < length
        with writer(run_dir, next_number) as process:
            last = acknowledged(process, 2)
            process.kill()
            last = rest_of(process, last)
        check(run_dir, last)


def test_a_reader_beside_a_live_writer_never_sees_damage(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with writer(run_dir) as process:
        for _ in range(40):
            last = acknowledged(process, 1)
            found = replay(run_dir)
            assert len(found.ranges) > last
            assert not found.revoked
            assert sum(1 for _ in read_records(run_dir, found.ranges)) == found.records
            named = holder(run_dir)
            assert named is not None
            assert named.pid == process.pid
        with pytest.raises(JournalError, match=f"in use by process {process.pid} on {os.uname().nodename}"):
            Journal.resume(run_dir)


def test_a_child_of_a_killed_writer_does_not_hold_the_lock(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with writer(run_dir, 0, 0, "held") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline().split()[1])
        acknowledged(process, 1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=WAIT_S)
        os.kill(child, 0)  # the child is alive, and yet:
        journal, _ = Journal.resume(run_dir)
        journal.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # an orphan comes to us: we are the subreaper


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "airlock-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return ballast
    raise AssertionError("the disk never filled up")


def commit_until_full(journal: Journal) -> None:
    for number in range(1, 100):
        commit(journal, [f"x{number}"], batch=f"b{number}", text="t" * 3000)


def test_a_full_disk_costs_nothing_that_was_committed(small_disk: Path) -> None:
    run_dir = small_disk / "run"
    journal = new_run(run_dir)
    journal.emit(started())
    commit(journal, ["a"], batch="b0")
    ballast = fill(small_disk)
    with pytest.raises(JournalError) as caught:
        commit_until_full(journal)
    assert str(caught.value).startswith(str(run_dir))
    assert "0 B of 256.0 KiB free: the disk is full" in str(caught.value)
    sizes = [(run_dir / name).stat().st_size for name in (JOURNAL_NAME, RECORDS_NAME)]
    found = replay(run_dir)
    assert sizes == [found.journal_bytes, found.records_bytes]
    assert found.torn is None
    ballast.unlink()
    commit(journal, ["after"], batch="again")
    journal.emit(state("ready"))
    journal.close()
    assert "after" in replay(run_dir).committed[POINT]


def test_a_run_does_not_begin_on_a_full_disk(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(JournalError, match="the disk is full"):
        new_run(small_disk / "run")
    ballast.unlink()
    new_run(small_disk / "run").close()


def test_a_tail_that_can_not_be_set_aside_is_not_cut(small_disk: Path) -> None:
    path = small_disk / "file"
    path.write_bytes(b"good" + b"torn" * 10_000)
    fill(small_disk)
    with pytest.raises(JournalError, match="the disk is full"):
        set_aside(path, 4)
    assert path.read_bytes() == b"good" + b"torn" * 10_000
    assert not list(small_disk.glob("*.torn-*"))


def test_too_few_inodes_are_not_called_a_full_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=3", str(small_disk)], check=True)
    with pytest.raises(JournalError, match="no inodes"):
        new_run(small_disk)
