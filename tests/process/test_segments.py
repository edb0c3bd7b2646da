"""Whose a segment in /dev/shm is: real processes make them, share them, leave them, and die."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import reaper
from orchestrator.handle import Handle
from orchestrator.proc import ProcessRef
from orchestrator.reaper import subtree
from orchestrator.run.segments import OVERFLOW, Segment, Segments, ShmWatch, listing, maker, remove_unused
from tests.process.launching import PATIENCE_S, Launching, to_the_end
from tests.process.sweeping import Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

SHM = "/dev/shm"
#: Makes one segment in each way that is named, says so, and stays until it is killed.
MAKER = f"""
import mmap, os, signal, sys
tag, report, *ways = sys.argv[1:]
names = {{"torch": f"torch_{{os.getpid()}}_{{tag}}_0", "omp": f"__KMP_REGISTERED_LIB_{{os.getpid()}}_{{tag}}"}}
kept = []
for way in ways:
    if way == "and_end":
        continue
    fd = os.open(f"{SHM}/{{names.get(way, f'airlock-test-{{tag}}-{{way}}')}}", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    if way == "mapped":
        kept.append(mmap.mmap(fd, 4096))
    if way != "open":
        os.close(fd)
os.write(os.open(report, os.O_WRONLY), b"made %d\\n" % os.getpid())
if "and_end" not in ways:
    signal.pause()
"""


class Makers:
    def __init__(self, launching: Launching) -> None:
        self.launching = launching

    def make(self, *ways: str, tag: str = "") -> tuple[Handle, list[ProcessRef]]:
        """A process that has made them, and its tree."""
        spec = self.launching.python(MAKER, self.tag + tag, self.launching.fifo.path, *ways)
        handle = self.launching.launch(spec)
        self.launching.fifo.pids(1)
        return handle, subtree(handle.warden_pid)

    @property
    def tag(self) -> str:
        return self.launching.run_tag

    def name(self, way: str, tag: str = "") -> str:
        return f"{SHM}/airlock-test-{self.tag}{tag}-{way}"

    def settle(self, segments: Segments) -> tuple[list[str], str]:
        """What was removed, and what is said of others of this test; other programs run here too."""
        removed, notes = segments.settle()
        return removed, " ".join(note for note in notes if self.tag in note)

    def left(self) -> set[str]:
        return {str(path) for path in Path(SHM).iterdir() if self.tag in path.name}


@pytest.fixture
def makers(launching: Launching) -> Iterator[Makers]:
    found = Makers(launching)
    yield found
    for path in found.left():
        os.unlink(path)


def end(handle: Handle) -> None:
    handle.kill()
    to_the_end(handle)


def test_what_its_processes_had_goes_with_them(makers: Makers) -> None:
    segments = Segments()
    handle, tree = makers.make("mapped", "open")
    seen = segments.look(tree)
    assert [one.path for one in seen] == [makers.name("mapped"), makers.name("open")]
    assert segments.look(tree) == []
    end(handle)
    assert makers.settle(segments) == ([makers.name("mapped"), makers.name("open")], "")
    assert makers.left() == set()


def test_what_it_made_and_let_go_of_goes_only_if_its_name_tells(makers: Makers) -> None:
    segments = Segments()
    handle, tree = makers.make("torch", "omp", "closed")
    assert segments.look(tree) == []
    end(handle)
    removed, notes = makers.settle(segments)
    assert len(removed) == 2
    assert all(str(ref.pid) in " ".join(removed) for ref in tree if ref.pid == handle.pid)
    assert makers.left() == {makers.name("closed")}
    assert makers.name("closed") in notes
    assert "appeared while it ran and nobody has" in notes


def test_a_strangers_segments_made_at_the_same_time_are_left(makers: Makers) -> None:
    segments = Segments()
    ours, tree = makers.make("mapped")
    stranger, _ = makers.make("mapped", "torch", "closed", tag="x")
    gone, _ = makers.make("mapped", "torch", "and_end", tag="y")
    to_the_end(gone)
    segments.look(tree)
    before = makers.left() - {makers.name("mapped")}
    end(ours)
    removed, notes = makers.settle(segments)
    assert removed == [makers.name("mapped")]
    assert makers.left() == before
    assert len(before) == 5
    assert makers.name("mapped", "x") not in notes, "somebody has it, so it is nobody's business"
    assert makers.name("mapped", "y") in notes
    end(stranger)


def test_what_another_still_has_is_left_to_it(makers: Makers) -> None:
    segments = Segments()
    handle, tree = makers.make("mapped")
    segments.look(tree)
    fd = os.open(makers.name("mapped"), os.O_RDONLY)
    end(handle)
    assert makers.settle(segments) == ([], "")
    os.close(fd)
    assert makers.settle(segments) == ([makers.name("mapped")], "")


def test_what_was_there_before_is_never_ours(makers: Makers) -> None:
    first, _ = makers.make("mapped", "and_end")
    to_the_end(first)
    segments = Segments()
    handle, tree = makers.make("mapped")  # opens the one that is there
    segments.look(tree)
    end(handle)
    assert makers.settle(segments) == ([], "")
    assert makers.left() == {makers.name("mapped")}


def test_a_name_that_was_given_to_another_meanwhile_is_another_segment(makers: Makers) -> None:
    segments = Segments()
    handle, tree = makers.make("mapped")
    segments.look(tree)
    end(handle)
    os.unlink(makers.name("mapped"))
    second, _ = makers.make("mapped", "and_end")
    to_the_end(second)
    assert segments.settle()[0] == []
    assert makers.left() == {makers.name("mapped")}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's segment")
def test_another_users_segment_is_left(makers: Makers) -> None:
    segments = Segments()
    handle, tree = makers.make("mapped", "torch")
    for path in makers.left():
        os.chown(path, 65534, 65534)
    segments.look(tree)
    end(handle)
    assert makers.settle(segments) == ([], "")
    assert len(makers.left()) == 2


def test_notes_of_a_killed_life_are_read_by_the_next(makers: Makers) -> None:
    segments = Segments()
    handle, tree = makers.make("mapped", "open")
    notes = [one.note for one in segments.look(tree)]
    end(handle)
    read = [one for one in map(Segment.of_note, [*notes, "", "12", f"{SHM}/x", "7 /etc/passwd", "x /dev/shm/y"]) if one]
    assert set(read) == segments.ours
    assert remove_unused(read) == [makers.name("mapped"), makers.name("open")]
    assert remove_unused(read) == []


def test_a_strangers_folder_that_vanishes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As joblib's do."""
    passing, kept, read = tmp_path / "joblib_memmapping_folder", tmp_path / "kept", os.scandir
    passing.mkdir()
    kept.touch()

    def scandir(path: str | Path) -> Any:
        if Path(path) == passing:
            passing.rmdir()
        return read(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(reaper, "SHM", f"{tmp_path}/")
    assert [one.path for one in listing()] == [str(kept)]
    assert not passing.exists()
    passing.mkdir()
    assert reaper.shm_paths({kept.stat().st_ino}) == {str(kept)}


# --- news ---------------------------------------------------------------------


@pytest.fixture
def watch() -> Iterator[ShmWatch]:
    made = ShmWatch()
    yield made
    made.close()


def told(watch: ShmWatch) -> frozenset[str]:
    fd = watch.fileno()
    assert fd is not None
    assert select.select([fd], [], [], PATIENCE_S)[0]
    return watch.read()


def test_a_segment_made_in_a_batch_is_known_before_its_maker_can_die(makers: Makers, watch: ShmWatch) -> None:
    segments = Segments()
    handle, _ = makers.make("mapped")
    fresh = segments.news(told(watch), lambda: subtree(handle.warden_pid))
    assert [one.path for one in fresh] == [makers.name("mapped")]
    end(handle)
    assert segments.settle()[0] == [makers.name("mapped")]


def test_names_that_are_gone_or_known_cost_no_look(makers: Makers, watch: ShmWatch) -> None:
    segments = Segments()
    handle, tree = makers.make("mapped")
    segments.look(tree)
    asked: list[str] = []

    def look() -> list[ProcessRef]:
        asked.append("look")
        return tree

    names = [name for name in told(watch) if makers.tag in name]
    assert names
    assert segments.news([*names, "sem.gone-already"], look) == []
    assert asked == []
    assert segments.news([OVERFLOW], look) == []
    assert asked == ["look"]
    end(handle)
    segments.settle()


def test_looks_take_a_small_share_of_the_time_however_much_strangers_make(
    makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("orchestrator.run.segments.time.monotonic", lambda: now[0])
    segments = Segments()
    spent_s = 0.0

    def look() -> list[ProcessRef]:
        nonlocal spent_s
        spent_s += 0.01
        now[0] += 0.01
        return []

    Path(makers.name("strange")).touch()
    began = now[0]
    for _ in range(10_000):
        segments.news([f"airlock-test-{makers.tag}-strange"], look)
        now[0] += 0.001
    assert 0 < spent_s < 0.06 * (now[0] - began)


def test_nothing_is_told_where_nothing_can_be_watched(tmp_path: Path) -> None:
    watch = ShmWatch(str(tmp_path / "none"))
    assert watch.fileno() is None
    assert watch.read() == frozenset()
    watch.close()


def test_news_that_are_too_many_are_told_as_such(tmp_path: Path) -> None:
    watch = ShmWatch(str(tmp_path))
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2):
        os.close(os.open(tmp_path / f"{number:05}", os.O_CREAT | os.O_WRONLY))
        os.rename(tmp_path / f"{number:05}", tmp_path / f"m{number:05}")
    os.close(os.open(tmp_path / "one-more", os.O_CREAT | os.O_WRONLY))
    assert OVERFLOW in watch.read()
    assert watch.read() == frozenset()
    watch.close()


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        ("torch_4242_3921047_12", 4242),
        ("__KMP_REGISTERED_LIB_4242_0", 4242),
        ("cuda.shm.0.1092.1", 0x1092),
        ("psm_4242abcd", None),
        ("sem.mp-4242", None),
        ("torch_shm_4242", None),
        ("mytorch_4242_1", None),
    ],
)
def test_the_maker_by_the_name(name: str, pid: int | None) -> None:
    assert maker(name) == pid


def test_folders_and_links_are_no_segments(makers: Makers) -> None:
    folder = Path(makers.name("folder"))
    folder.mkdir()
    (folder / "inside").touch()
    link = Path(makers.name("link"))
    link.symlink_to("/etc/passwd")
    paths = {one.path for one in listing()}
    assert str(folder / "inside") in paths
    assert not {str(folder), str(link)} & paths
    (folder / "inside").unlink()
    folder.rmdir()
    link.unlink()


# --- in a whole sweep ---------------------------------------------------------------


def test_a_worker_that_dies_in_the_batch_in_which_it_made_one_leaves_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    dies = {
        "name": "dies",
        "base": "scripted",
        "engine_args": {
            "faults": [{"at": "batch:1", "do": "shm"}, {"at": "batch:1", "do": "sigkill", "gate": str(gate)}]
        },
    }
    bench.write(methods=[dies], policies={"engine_crash": "give_up"})
    sweep = bench.start()
    with gate.open("wb"):  # it has made its segment
        deadline = time.monotonic() + PATIENCE_S
        while not any(path.read_text() for path in bench.tmp.glob("al-*/shm")):
            assert time.monotonic() < deadline, "the segment was not noticed"
            select.select([], [], [], 0.01)
    sweep.communicate(timeout=60)
    (release, *_) = bench.releases()
    assert release.signal == "SIGKILL"
    (path,) = release.reclaim.shm_removed
    assert not os.path.exists(path)
    bench.assert_clean()
