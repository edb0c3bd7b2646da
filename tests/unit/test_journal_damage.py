"""Damage that no interrupted write can do: whoever resumes is told the line, and nothing is set aside."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import JournalError
from orchestrator.journal import Journal
from orchestrator.record.generations import read_records
from orchestrator.record.lock import holder
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, beginning, replay
from tests.unit.rundirs import POINT, commit, new_run, started, state

BATCHES = 4
KINDS: dict[str, Callable[[bytes], bytes]] = {
    "CR LF": lambda line: line[:-1] + b"\r\n",
    "a changed byte": lambda line: line[:20] + bytes([line[20] ^ 1]) + line[21:],
    "zeros": lambda line: bytes(len(line) - 1) + b"\n",
    "emptied": lambda _line: b"\n",
    "cut": lambda line: line[:15] + b"\n",
    "spaces": lambda line: line.replace(b":", b": "),
}
#: What changes a whole file, as a tool or a copy does it.
WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "CR LF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "with a mark": lambda data: b"\xef\xbb\xbf" + data,
    "as UTF-16": lambda data: data.decode().encode("utf-16"),
    "formatted": lambda data: data.replace(b",", b",\n  "),
    "emptied": lambda _data: b"",
    "zeros": lambda data: bytes(len(data)),
    "another text": lambda _data: b"nothing of the kind\n" * 999,
}


def filled(run_dir: Path, batches: int = BATCHES) -> Path:
    """Of each batch a commit and an event behind it."""
    journal = new_run(run_dir)
    journal.emit(started())
    for number in range(batches):
        commit(journal, [f"{number}-a", f"{number}-b"], batch=f"b{number}")
        journal.emit(state("ready"))
    journal.close()
    return run_dir


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def refused(run_dir: Path) -> str:
    """What is said; nothing is changed, nothing is left."""
    before = {name: (run_dir / name).read_bytes() for name in (JOURNAL_NAME, RECORDS_NAME)}
    with pytest.raises(JournalError) as caught:
        Journal.resume(run_dir)
    assert {name: (run_dir / name).read_bytes() for name in before} == before
    assert not list(run_dir.glob("*.torn-*"))
    assert holder(run_dir) is None
    return str(caught.value)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), which=st.sets(st.integers(0, 2 * BATCHES), min_size=1))
@example(kind="CR LF", which=set(range(2 * BATCHES + 1)))
def test_damage_to_more_than_the_last_line_of_the_journal_is_never_set_aside(kind: str, which: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = filled(Path(folder) / "run")
        path = run_dir / JOURNAL_NAME
        lines = lines_of(path)
        path.write_bytes(b"".join(KINDS[kind](line) if n in which else line for n, line in enumerate(lines)))
        if min(which) < len(lines) - 1:
            assert f"{path}: line {min(which) + 1} is damaged" in refused(run_dir)
            with pytest.raises(JournalError, match=f"line {min(which) + 1} is damaged"):
                replay(run_dir)
        elif kind == "CR LF":
            assert "sed -i" in refused(run_dir)
        else:
            found = replay(run_dir)
            assert found.records == 2 * BATCHES
            assert found.torn


@pytest.mark.parametrize("name", [JOURNAL_NAME, RECORDS_NAME])
@pytest.mark.parametrize("how", WHOLE)
def test_a_file_that_was_changed_as_a_whole(tmp_path: Path, name: str, how: str) -> None:
    run_dir = filled(tmp_path / "run")
    path = run_dir / name
    path.write_bytes(WHOLE[how](path.read_bytes()))
    if name == RECORDS_NAME and how in ("emptied", "zeros"):  # nothing is left that could be lost
        assert "the records of the last 4 commits are damaged or missing" in (Journal.resume(run_dir)[1].torn or "")
        return
    said = refused(run_dir)
    assert str(run_dir / name) in said
    assert ("sed -i" in said) == (how == "CR LF")


@pytest.mark.parametrize("name", [JOURNAL_NAME, RECORDS_NAME])
def test_what_is_said_of_cr_lf_takes_it_back(tmp_path: Path, name: str) -> None:
    run_dir = filled(tmp_path / "run")
    path = run_dir / name
    whole = path.read_bytes()
    path.write_bytes(WHOLE["CR LF"](whole))
    command = refused(run_dir).partition("a copy makes them: ")[2].partition(" takes that back")[0]
    assert os.waitstatus_to_exitcode(os.system(command)) == 0
    assert path.read_bytes() == whole
    assert Journal.resume(run_dir)[1].records == 2 * BATCHES


@pytest.mark.parametrize("batches", [1, BATCHES])
@pytest.mark.parametrize("left", [b"", b'{"crc":12', b"\0" * 50])
def test_a_journal_without_an_event_beside_records(tmp_path: Path, batches: int, left: bytes) -> None:
    """Its first event was on the disk before the first record was written."""
    run_dir = filled(tmp_path / "run", batches)
    (run_dir / JOURNAL_NAME).write_bytes(left)
    assert "holds no event, but generations.jsonl has" in refused(run_dir)
    for read in (replay, beginning):
        with pytest.raises(JournalError, match="put it back from a copy"):
            read(run_dir)


@pytest.mark.parametrize("lost", range(1, BATCHES + 1))
def test_a_journal_that_lost_its_last_commits(tmp_path: Path, lost: int) -> None:
    """One may be that of a batch whose commit was never written, more may not."""
    run_dir = filled(tmp_path / "run")
    path = run_dir / JOURNAL_NAME
    path.write_bytes(b"".join(lines_of(path)[: -2 * lost]))
    if lost == 1:
        journal, found = Journal.resume(run_dir)
        journal.close()
        assert found.records == 2 * (BATCHES - 1)
        assert "set aside as generations.jsonl.torn-1" in (found.torn or "")
        return
    said = refused(run_dir)
    assert f"records of {lost} more batches" in said
    # As it says: those are measured again.
    assert os.waitstatus_to_exitcode(os.system(said[said.index("truncate") :])) == 0
    assert Journal.resume(run_dir)[1].records == 2 * (BATCHES - lost)


@pytest.mark.parametrize("damaged", [(2, 3), (0, 1, 2, 3), (1, 3)])
def test_records_of_several_batches_that_were_changed_are_not_taken_for_lost(
    tmp_path: Path, damaged: tuple[int, ...]
) -> None:
    run_dir = filled(tmp_path / "run")
    path = run_dir / RECORDS_NAME
    lines = lines_of(path)
    for number in damaged:
        lines[2 * number] = lines[2 * number].replace(b"length", b"lengtt")
    path.write_bytes(b"".join(lines))
    assert f"damaged at line {2 * min(damaged) + 1}" in refused(run_dir)


def test_records_that_a_disk_lost_run_again(tmp_path: Path) -> None:
    """Missing, or zeros: of several batches only one that lied about a sync can have lost them."""
    for zeros in (0, 300, 9000):
        run_dir = filled(tmp_path / f"run{zeros}")
        path = run_dir / RECORDS_NAME
        path.write_bytes(b"".join(lines_of(path)[:3]) + bytes(zeros))
        journal, found = Journal.resume(run_dir)
        assert [one.batch for one in found.revoked] == ["b1", "b2", "b3"]
        for number in (1, 2, 3):
            commit(journal, [f"{number}-a", f"{number}-b"], batch=f"b{number}")
        journal.close()
        again = replay(run_dir, check=True)
        assert again.committed == {POINT: {f"{n}-{x}" for n in range(BATCHES) for x in "ab"}}
        assert sum(1 for _ in read_records(run_dir, again.ranges)) == 2 * BATCHES
