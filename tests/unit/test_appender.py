"""Appending to a file that may be removed, replaced, moved or cut by others meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import JournalError
from orchestrator.journal import Journal
from orchestrator.record.appender import Appender
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, replay
from tests.unit.rundirs import commit, new_run, started, state


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "file"


@pytest.fixture
def appender(file: Path) -> Iterator[Appender]:
    made = Appender(file, 0)
    made.append(b"first\n")
    yield made
    made.close()


def replaced_by(data: bytes) -> Callable[[Path], object]:
    def replace(file: Path) -> None:
        other = file.with_name("other")
        other.write_bytes(data)
        other.replace(file)

    return replace


def folder_to_file(file: Path) -> None:
    shutil.rmtree(file.parent)
    file.parent.write_text("")


MEANWHILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (Path.unlink, "was removed while this run wrote to it, and with it the 6 bytes that it held"),
    "removed with its folder": (lambda file: shutil.rmtree(file.parent), "was removed while this run wrote to it"),
    "its folder a file": (
        folder_to_file,
        "was removed while this run wrote to it",
    ),
    "replaced by nothing": (replaced_by(b""), "was replaced by another file while this run wrote to it"),
    "replaced by more": (replaced_by(b"first\nsecond\n"), "was replaced by another file"),
    "emptied": (lambda file: os.truncate(file, 0), "was cut short, from 6 bytes to 0, by something else than this run"),
    "cut": (lambda file: os.truncate(file, 3), "was cut short, from 6 bytes to 3"),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_nothing_is_appended_to_what_nobody_will_find(file: Path, appender: Appender, what: str) -> None:
    act, told = MEANWHILE[what]
    act(file)
    for _ in range(2):
        with pytest.raises(JournalError, match=f"^{file}: {told}"):
            appender.append(b"second\n")
    assert appender.size == 6


def test_another_file_of_the_same_length_is_found_the_next_time(file: Path, appender: Appender) -> None:
    """By its inode alone no file is condemned: there are file systems that give an open one another."""
    replaced_by(b"first\n")(file)
    appender.append(b"second\n")
    with pytest.raises(JournalError, match="was replaced by another file"):
        appender.append(b"third\n")


def test_a_folder_that_was_moved_is_named(file: Path, appender: Appender, tmp_path: Path) -> None:
    file.parent.rename(tmp_path / "moved")
    now = tmp_path / "moved" / "file"
    with pytest.raises(JournalError) as caught:
        appender.append(b"second\n")
    told = f"was moved while this run wrote to it: it is {now} now; --resume it with --run-dir {now.parent}"
    assert str(caught.value) == f"{file}: {told}"
    assert now.read_bytes() == b"first\n"


def test_a_file_that_was_renamed_is_to_be_moved_back(file: Path, appender: Appender) -> None:
    file.rename(file.with_name("kept"))
    with pytest.raises(JournalError, match=rf"it is {file.with_name('kept')} now; move it back"):
        appender.append(b"second\n")
    file.with_name("kept").rename(file)
    appender.append(b"second\n")
    assert file.read_bytes() == b"first\nsecond\n"


HARMLESS: dict[str, Callable[[Path], object]] = {
    "another link": lambda file: os.link(file, file.with_name("link")),
    "another mode": lambda file: file.chmod(0o400),
    "touched": lambda file: os.utime(file, (0, 0)),
    "a copy beside it": lambda file: shutil.copy(file, file.with_name("copy")),
    "more behind it": lambda file: os.truncate(file, 4000),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_costs_nothing_stops_nothing(file: Path, appender: Appender, what: str) -> None:
    HARMLESS[what](file)
    appender.append(b"second\n")
    assert file.read_bytes().startswith(b"first\nsecond\n")


def test_a_path_that_is_reached_through_links_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "file").symlink_to(tmp_path / "target")
    made = Appender(tmp_path / "link" / "file", 0)
    made.append(b"1")
    made.append(b"2")
    made.close()
    assert (tmp_path / "target").read_bytes() == b"12"


@pytest.mark.parametrize("name", [JOURNAL_NAME, RECORDS_NAME])
def test_a_batch_is_not_committed_beside_a_file_that_is_gone(tmp_path: Path, name: str) -> None:
    journal = new_run(tmp_path / "run")
    journal.emit(started())
    commit(journal, ["a"])
    kept = {one: (tmp_path / "run" / one).read_bytes() for one in (JOURNAL_NAME, RECORDS_NAME)}
    (tmp_path / "run" / name).rename(tmp_path / "kept")
    with pytest.raises(JournalError, match=f"{name}: was moved"):
        commit(journal, ["b"], batch="b2")
    if name == RECORDS_NAME:
        journal.emit(state("ready"))  # of what happened as much as possible is kept
    journal.close()
    (tmp_path / "kept").rename(tmp_path / "run" / name)
    assert (tmp_path / "run" / RECORDS_NAME).read_bytes() == kept[RECORDS_NAME]
    resumed, found = Journal.resume(tmp_path / "run")
    commit(resumed, ["b"], batch="b2")
    resumed.close()
    assert found.torn is None
    assert replay(tmp_path / "run", check=True).records == 2
