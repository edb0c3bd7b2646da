"""The journal under every cut and every damage: nothing committed is lost, nothing torn is believed."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import InputError, JournalError
from orchestrator.events import BatchCommitted, StateChanged, SurvivorsReaped, WarmupDone, WorkerReady
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause
from orchestrator.record.generations import read_records
from orchestrator.record.lock import holder
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, Replay, replay
from protocol.records import FLAG_UNCLEAN_TEXT, BatchStats, LoadTimes, RuntimeMetadata
from tests.unit.rundirs import INCARNATION, POINT, commit, ended, new_run, record, started, state, stats


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def filled(run_dir: Path) -> Path:
    """Two commits of two prompts each, with other events between and none after."""
    journal = new_run(run_dir)
    journal.emit(started())
    commit(journal, ["a", "b"])
    journal.emit(state("busy"))
    commit(journal, ["c", "d"], batch="b2")
    journal.close()
    return run_dir


def prompts_of(run_dir: Path) -> list[str]:
    return [r.prompt_id for r in read_records(run_dir, replay(run_dir).ranges)]


def resumed(run_dir: Path) -> Replay:
    journal, found = Journal.resume(run_dir)
    journal.close()
    return found


# --- what was written is read back ------------------------------------------


def test_everything_comes_back(filled: Path) -> None:
    found = replay(filled)
    assert found.committed == {POINT: {"a", "b", "c", "d"}}
    assert found.records == 4
    assert found.lives == 1
    assert found.environments == {"hf-cpu": "f1"}
    assert found.torn is None
    assert [type(e).__name__ for e in found.events()] == [
        "RunStarted",
        "BatchCommitted",
        "StateChanged",
        "BatchCommitted",
    ]
    first = next(read_records(filled, found.ranges))
    assert first == record("a")


def test_the_last_outcome_of_a_point_counts(run_dir: Path) -> None:
    journal = new_run(run_dir)
    cause = Cause(cls="oom", message="no memory")
    journal.emit(ended("failed", cause=cause))
    journal.emit(ended("ok"))
    journal.close()
    assert replay(run_dir).outcomes[POINT].outcome == "ok"


def test_inputs_are_written_once_and_whole(run_dir: Path) -> None:
    prompt = {"id": "a", "token_ids": [1, 2], "digest": "x", "source": {"text": "line\nbreak \u2028 \ud800"}}
    new_run(run_dir, plan_json=b'{"name": "x"}', prompts=[prompt]).close()
    assert (run_dir / "sweep.yaml").read_text() == "name: x\n"
    assert (run_dir / "plan.json").read_bytes() == b'{"name": "x"}'
    lines = (run_dir / "prompts.jsonl").read_bytes().split(b"\n")
    assert json.loads(lines[0])["source"]["text"] == "line\nbreak \u2028 \ufffd"
    assert lines[1:] == [b""]
    assert not list(run_dir.glob(".*.tmp"))


def test_lines_are_plain_json_for_other_tools(filled: Path) -> None:
    for name in (JOURNAL_NAME, RECORDS_NAME):
        for line in (filled / name).read_text(encoding="utf-8").splitlines():
            json.loads(line)
    assert json.loads((filled / RECORDS_NAME).read_text().splitlines()[0])["token_ids"] == [5, 6, 7]


def test_a_line_separator_in_a_text_does_not_split_a_record(run_dir: Path) -> None:
    journal = new_run(run_dir)
    commit(journal, ["a"], text="x\u2028y\x85z\x00\r\n")
    journal.close()
    assert next(read_records(run_dir, replay(run_dir).ranges)).text == "x\u2028y\x85z\x00\r\n"


# --- text and numbers that JSON has not -------------------------------------


def test_lone_surrogates_of_an_output_are_replaced_and_flagged(run_dir: Path) -> None:
    journal = new_run(run_dir)
    commit(journal, ["a"], text="a\udc9db", flags=["other"])
    journal.close()
    (got,) = read_records(run_dir, replay(run_dir).ranges)
    assert (got.text, got.flags) == ("a\ufffdb", ["other", FLAG_UNCLEAN_TEXT])


def test_lone_surrogates_of_a_process_name_do_not_cost_the_run(run_dir: Path) -> None:
    journal = new_run(run_dir)
    journal.emit(SurvivorsReaped(at=1.0, processes=["12 eng\udcffine"]))
    journal.close()
    (event,) = replay(run_dir).events()
    assert event == SurvivorsReaped(at=1.0, processes=["12 eng\ufffdine"])


def test_no_nan_is_written_and_all_is_still_readable(run_dir: Path) -> None:
    journal = new_run(run_dir)
    commit(journal, ["a"], ttft_s=math.nan, latency_s=math.inf)
    metadata = RuntimeMetadata(
        engine="hf",
        engine_version="1",
        python_version="3",
        load=LoadTimes(total_s=math.nan),
        options={"x": math.nan, "y": {b"k": 1}},
    )
    journal.emit(WorkerReady(at=1.0, incarnation=INCARNATION, metadata=metadata, fingerprint="f"))
    journal.emit(WarmupDone(at=1.0, point=POINT, batch="w", stats=stats(wall_s=math.nan)))
    journal.close()
    assert b"NaN" not in (run_dir / JOURNAL_NAME).read_bytes() + (run_dir / RECORDS_NAME).read_bytes()
    (got,) = read_records(run_dir, replay(run_dir).ranges)
    assert (got.ttft_s, got.latency_s) == (None, None)
    ready = next(e for e in replay(run_dir).events() if isinstance(e, WorkerReady))
    assert ready.metadata.options["x"] is None


@pytest.mark.parametrize(
    ("given_stats", "kept"),
    [
        (stats(wall_s=math.nan), None),
        (
            BatchStats(wall_s=1.0, generated_tokens=2, extra={"a": math.inf, "b": 2.0}),
            BatchStats(wall_s=1.0, generated_tokens=2, extra={"b": 2.0}),
        ),
    ],
)
def test_figures_that_are_no_numbers_are_dropped_and_flagged(
    run_dir: Path, given_stats: BatchStats, kept: BatchStats | None
) -> None:
    journal = new_run(run_dir)
    event = journal.commit(point=POINT, batch="b1", incarnation=INCARNATION, records=[record("a")], stats=given_stats)
    journal.close()
    assert (event.stats, event.flags) == (kept, ["no_timing"])
    assert list(replay(run_dir).events()) == [event]


# --- torn tails -------------------------------------------------------------


def cut_copy(run_dir: Path, name: str, length: int) -> Path:
    copy = run_dir.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run_dir, copy)
    os.truncate(copy / name, length)
    return copy


def last_line_start(path: Path) -> int:
    return path.read_bytes()[:-1].rindex(b"\n") + 1


def test_the_journal_cut_at_every_byte_of_its_last_line(filled: Path) -> None:
    path = filled / JOURNAL_NAME
    start, size = last_line_start(path), path.stat().st_size
    for length in range(start, size):
        copy = cut_copy(filled, JOURNAL_NAME, length)
        found = resumed(copy)
        assert found.committed == {POINT: {"a", "b"}}, length
        assert (copy / JOURNAL_NAME).stat().st_size == start
        side = copy / f"{JOURNAL_NAME}.torn-1"
        assert (side.read_bytes() if side.exists() else b"") == path.read_bytes()[start:length]
        # The records that the lost line would have committed are set aside, not left to be glued to.
        assert (copy / f"{RECORDS_NAME}.torn-1").exists()
        assert found.torn is not None


def test_the_records_cut_at_every_byte_of_the_last_one(filled: Path) -> None:
    """Also inside a UTF-8 character. Only a disk that lies about syncs can do it; that batch runs again."""
    path = filled / RECORDS_NAME
    start, size = last_line_start(path), path.stat().st_size
    assert "ß".encode() in path.read_bytes()[start:size]
    for length in range(start, size):
        copy = cut_copy(filled, RECORDS_NAME, length)
        assert replay(copy).committed == {POINT: {"a", "b"}}
        journal, found = Journal.resume(copy)
        assert [c.batch for c in found.revoked] == ["b2"]
        commit(journal, ["c", "d"], batch="b2", text=f"again {length}")
        journal.close()
        again = replay(copy)
        assert (again.torn, again.revoked) == (None, [])
        assert [r.text for r in read_records(copy, again.ranges)][2:] == [f"again {length}"] * 2


def test_a_point_that_lost_records_has_not_ended(filled: Path) -> None:
    journal, _ = Journal.resume(filled)
    journal.emit(ended("ok"))
    journal.close()
    assert replay(filled).outcomes[POINT].outcome == "ok"
    os.truncate(filled / RECORDS_NAME, 700)
    assert replay(filled).outcomes == {}
    # Nor in a third life, when another point has taken the place in the file.
    journal, _ = Journal.resume(filled)
    commit(journal, ["a"], point="p-2")
    journal.close()
    assert replay(filled).outcomes == {}
    assert replay(filled).committed.keys() == {POINT, "p-2"}


def test_append_after_a_repair_glues_nothing(filled: Path) -> None:
    path = filled / JOURNAL_NAME
    os.truncate(path, path.stat().st_size - 5)
    journal, found = Journal.resume(filled)
    assert found.lives == 1
    journal.emit(started(life=2))
    commit(journal, ["c", "d"], batch="b2")
    journal.close()
    again = replay(filled)
    assert (again.lives, again.torn) == (2, None)
    assert prompts_of(filled) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("zeros", [1, 511, 4096, 60_000])
@pytest.mark.parametrize("name", [JOURNAL_NAME, RECORDS_NAME])
def test_a_zero_filled_tail(filled: Path, name: str, zeros: int) -> None:
    """What a power cut leaves: the length is there, the data is not."""
    path = filled / name
    keep = last_line_start(path) + 10
    path.write_bytes(path.read_bytes()[:keep] + bytes(zeros))
    journal, found = Journal.resume(filled)
    assert found.committed == {POINT: {"a", "b"}}
    commit(journal, ["c", "d"], batch="b2")
    journal.close()
    assert prompts_of(filled) == ["a", "b", "c", "d"]


def test_side_files_are_numbered_and_never_written_over(filled: Path) -> None:
    for number in (1, 2, 3):
        with open(filled / JOURNAL_NAME, "ab") as file:
            file.write(b"half %d" % number)
        resumed(filled)
        assert (filled / f"{JOURNAL_NAME}.torn-{number}").read_bytes() == b"half %d" % number


def test_a_reader_leaves_a_torn_tail_alone_and_says_so(filled: Path) -> None:
    with open(filled / JOURNAL_NAME, "ab") as file:
        file.write(b'{"crc":12')
    before = (filled / JOURNAL_NAME).read_bytes()
    found = replay(filled)
    assert found.torn is not None
    assert "line 5" in found.torn
    assert found.records == 4
    assert (filled / JOURNAL_NAME).read_bytes() == before


def test_a_line_without_its_newline_is_not_yet_there(filled: Path) -> None:
    path = filled / JOURNAL_NAME
    os.truncate(path, path.stat().st_size - 1)
    assert replay(filled).committed == {POINT: {"a", "b"}}


def test_uncommitted_records_are_set_aside(filled: Path) -> None:
    with open(filled / RECORDS_NAME, "ab") as file:
        file.write(b'{"point":"p-1"}\n')
    found = resumed(filled)
    assert (filled / f"{RECORDS_NAME}.torn-1").read_bytes() == b'{"point":"p-1"}\n'
    assert (filled / RECORDS_NAME).stat().st_size == found.records_bytes


# --- damage before the end --------------------------------------------------


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


@pytest.mark.parametrize("line", [1, 2, 3])
def test_damage_in_the_middle_of_the_journal_stops_with_file_and_line(filled: Path, line: int) -> None:
    path = filled / JOURNAL_NAME
    flip(path, sum(len(raw) + 1 for raw in path.read_bytes().split(b"\n")[: line - 1]) + 30)
    for read in (replay, Journal.resume):
        with pytest.raises(JournalError, match=rf"{JOURNAL_NAME}: line {line} is damaged"):
            read(filled)
    assert not list(filled.glob("*.torn-*"))
    assert holder(filled) is None


def test_damage_in_the_middle_of_the_records_stops_with_file_and_line(filled: Path) -> None:
    path = filled / RECORDS_NAME
    flip(path, path.read_bytes().index(b'"b"') + 4)
    with pytest.raises(JournalError, match=rf"{RECORDS_NAME}: damaged at line [12] .*batch b1 of point {POINT}"):
        list(read_records(filled, replay(filled).ranges))
    with pytest.raises(JournalError, match=rf"{RECORDS_NAME}: damaged"):
        Journal.resume(filled)


def test_a_missing_records_file_is_never_an_empty_one(filled: Path) -> None:
    (filled / RECORDS_NAME).unlink()
    with pytest.raises(JournalError, match=RECORDS_NAME):
        replay(filled)
    with pytest.raises(JournalError, match=RECORDS_NAME):
        Journal.resume(filled)


def test_an_event_of_another_version_stops(filled: Path) -> None:
    from orchestrator.record.replay import frame

    with open(filled / JOURNAL_NAME, "ab") as file:
        file.write(frame(b'{"type":"from_the_future","at":1}'))
    with pytest.raises(JournalError, match="line 5 is whole but not understood"):
        replay(filled)


# --- the same prompt twice --------------------------------------------------


def test_of_a_prompt_committed_twice_the_last_wins_and_comes_once(run_dir: Path) -> None:
    journal = new_run(run_dir)
    commit(journal, ["a", "b"], text="old")
    commit(journal, ["a"], point="p-2", text="other point")
    commit(journal, ["b", "c"], batch="b2", text="new")
    commit(journal, ["b"], batch="b3", text="newest")
    journal.close()
    found = replay(run_dir)
    got = [(r.point, r.prompt_id, r.text) for r in read_records(run_dir, found.ranges)]
    assert got == [(POINT, "a", "old"), ("p-2", "a", "other point"), (POINT, "c", "new"), (POINT, "b", "newest")]
    assert found.committed == {POINT: {"a", "b", "c"}, "p-2": {"a"}}
    assert found.records == len(got)


def test_a_batch_must_be_of_one_point_with_each_prompt_once(run_dir: Path) -> None:
    journal = new_run(run_dir)
    for records in ([], [record("a"), record("a")], [record("a", point="other")], [record("a", batch="other")]):
        with pytest.raises(ValueError, match="batch b1"):
            journal.commit(point=POINT, batch="b1", incarnation=INCARNATION, records=records, stats=None)
    journal.close()
    assert (run_dir / RECORDS_NAME).stat().st_size == 0


# --- where a run may begin --------------------------------------------------


def test_a_folder_with_other_contents_is_refused_and_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        new_run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep.yaml"]
    assert (tmp_path / "sweep.yaml").read_text() == "mine"


def test_a_run_is_never_written_over(filled: Path) -> None:
    with pytest.raises(InputError, match=r"holds a run already.*--resume"):
        new_run(filled)
    assert replay(filled).records == 4


def test_a_start_that_was_cut_short_may_begin_again(run_dir: Path) -> None:
    new_run(run_dir).close()
    (run_dir / JOURNAL_NAME).unlink()
    (run_dir / ".plan.json.tmp").write_text("half")
    journal = new_run(run_dir, plan_json=b'{"new": 1}')
    journal.close()
    assert (run_dir / "plan.json").read_bytes() == b'{"new": 1}'


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no run to resume"):
        Journal.resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_journal_can_be_resumed(run_dir: Path) -> None:
    new_run(run_dir).close()
    assert resumed(run_dir).lives == 0


def test_failing_prompts_leave_no_lock_behind(run_dir: Path) -> None:
    def broken() -> Iterator[dict[str, object]]:
        yield {"id": "a"}
        raise RuntimeError("reader broke")

    with pytest.raises(RuntimeError):
        new_run(run_dir, prompts=broken())
    assert holder(run_dir) is None
    new_run(run_dir).close()


# --- one writer -------------------------------------------------------------


def test_a_second_writer_is_told_who_holds_the_run(run_dir: Path) -> None:
    journal = new_run(run_dir)
    named = holder(run_dir)
    assert named is not None
    assert (named.pid, named.host) == (os.getpid(), os.uname().nodename)
    with pytest.raises(JournalError, match=f"in use by process {os.getpid()} on "):
        Journal.resume(run_dir)
    journal.close()
    journal.close()
    assert holder(run_dir) is None
    resumed(run_dir)


def test_a_copy_of_a_run_that_goes_on_is_held_by_nobody(run_dir: Path) -> None:
    journal = new_run(run_dir)
    copy = run_dir.with_name("copy")
    shutil.copytree(run_dir, copy)
    assert holder(copy) is None
    again, _ = Journal.resume(copy)
    assert holder(copy) is not None
    again.close()
    assert holder(run_dir) is not None
    journal.close()


def test_nothing_is_inherited(run_dir: Path) -> None:
    journal = new_run(run_dir)
    here = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _points_into(fd, run_dir)]
    assert len(here) == 3
    assert not any(os.get_inheritable(fd) for fd in here)
    journal.close()


def _points_into(fd: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
    except OSError:
        return False


def test_a_closed_journal_refuses(run_dir: Path) -> None:
    journal = new_run(run_dir)
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.emit(started())


# --- no room ----------------------------------------------------------------


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_short_write_is_taken_back_at_every_length(filled: Path) -> None:
    """RLIMIT_FSIZE makes the kernel take a part of a write and refuse the rest."""
    for extra in (0, 1, 17, 300):
        journal, found = Journal.resume(filled)
        sizes = {name: (filled / name).stat().st_size for name in (JOURNAL_NAME, RECORDS_NAME)}
        with file_size_limit(sizes[RECORDS_NAME] + extra), pytest.raises(JournalError, match=RECORDS_NAME) as caught:
            commit(journal, ["e"], batch="b3")
        assert "not full" in str(caught.value)
        assert "free" in str(caught.value)
        assert sizes == {name: (filled / name).stat().st_size for name in sizes}
        journal.close()
        assert replay(filled).records == found.records


def test_records_whose_commit_line_finds_no_room_are_taken_back(run_dir: Path) -> None:
    journal = new_run(run_dir)
    for _ in range(60):
        journal.emit(state("busy"))  # the journal is the longer file now, so the limit hits it first
    size = (run_dir / JOURNAL_NAME).stat().st_size
    with file_size_limit(size + 40), pytest.raises(JournalError, match=JOURNAL_NAME):
        commit(journal, ["a"])
    assert (run_dir / RECORDS_NAME).stat().st_size == 0
    assert (run_dir / JOURNAL_NAME).stat().st_size == size
    commit(journal, ["a"])
    journal.close()
    assert prompts_of(run_dir) == ["a"]


# --- anything, cut anywhere -------------------------------------------------

texts = st.text(st.characters(codec=None), max_size=30)
batches = st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=100)
@given(batches=batches, cut_journal=st.floats(0, 1), cut_records=st.floats(0, 1), zeros=st.integers(0, 50))
def test_any_cut_leaves_a_run_that_can_be_finished(
    batches: list[list[str]], cut_journal: float, cut_records: float, zeros: int
) -> None:
    """Whole batches from the front survive, never parts; and what is run again makes it complete. Where the journal
    lost more than an interrupted write can cost, nothing is touched before that is mended."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        names = [[f"{i}-{j}" for j in range(len(batch))] for i, batch in enumerate(batches)]
        begun = new_run(run_dir)
        begun.emit(started())
        _write(begun, batches, names, range(len(batches)))
        for name, share in ((JOURNAL_NAME, cut_journal), (RECORDS_NAME, cut_records)):
            data = (run_dir / name).read_bytes()
            keep = round(len(data) * share)
            (run_dir / name).write_bytes(data[:keep] + bytes(min(zeros, len(data) - keep)))
        before = contents(run_dir)
        try:
            journal, found = Journal.resume(run_dir)
        except JournalError as exc:
            cut = re.search(r"truncate -s (\d+)|holds no event", str(exc))
            assert (cut is not None, contents(run_dir)) == (True, before)
            os.truncate(run_dir / RECORDS_NAME, int(cut[1] or 0) if cut else 0)
            journal, found = Journal.resume(run_dir)
        kept = sorted(found.committed.get(POINT, set()))
        whole = next(n for n in range(len(names), -1, -1) if sum(map(len, names[:n])) <= len(kept))
        assert kept == sorted(flat(names[:whole]))
        assert (run_dir / RECORDS_NAME).stat().st_size == found.records_bytes
        _write(journal, batches, names, range(whole, len(batches)))
        final = replay(run_dir)
        assert final.torn is None
        assert [r.prompt_id for r in read_records(run_dir, final.ranges)] == flat(names)


def contents(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file() and path.name != "lock"}


def flat(lists: list[list[str]]) -> list[str]:
    return [item for items in lists for item in items]


def _write(journal: Journal, batches: list[list[str]], names: list[list[str]], which: range) -> None:
    for i in which:
        records = [record(name, batch=f"b{i}", text=text) for name, text in zip(names[i], batches[i], strict=True)]
        event = journal.commit(point=POINT, batch=f"b{i}", incarnation=INCARNATION, records=records, stats=stats())
        assert isinstance(event, BatchCommitted)
        journal.emit(StateChanged(at=0.0, incarnation=INCARNATION, state="ready", after_s=0.1))
    journal.close()


@settings(max_examples=60)
@given(offset=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
@example(offset=0.859375, value=1)
def test_a_changed_byte_is_never_believed(offset: float, value: int) -> None:
    """It stops the reader, or costs the last line; no event ever differs from what was written."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        _write(new_run(run_dir), [["x"], ["y"]], [["a"], ["b"]], range(2))
        written = list(replay(run_dir).events())
        data = bytearray((run_dir / JOURNAL_NAME).read_bytes())
        data[int(len(data) * offset)] ^= value
        (run_dir / JOURNAL_NAME).write_bytes(data)
        try:
            events = list(replay(run_dir).events())
        except JournalError:
            return
        assert events == written[: len(events)]
        assert len(events) == len(written) - 1


def test_a_damaged_newline_between_whole_events_stops_the_reader(tmp_path: Path) -> None:
    """Two lines become one that is no event; the second was whole, so this is no interrupted write."""
    run_dir = tmp_path / "run"
    _write(new_run(run_dir), [["x"], ["y"]], [["a"], ["b"]], range(2))
    path = run_dir / JOURNAL_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    for number in range(len(lines) - 1):
        path.write_bytes(b"".join([*lines[:number], lines[number][:-1] + b"\x0b", *lines[number + 1 :]]))
        with pytest.raises(JournalError, match=f"line {number + 1} is damaged"):
            replay(run_dir)
