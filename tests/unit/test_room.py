"""Room is asked of the real file systems; a small one stands in the process tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.run.room import Places, Wanted, full, lost_at_logout, shortages

MORE_THAN_THERE_IS = 2**40


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("run", "tmp", "shm"):
        (tmp_path / name).mkdir()
    return Places(tmp_path / "run", tmp_path / "tmp", tmp_path / "shm")


def test_where_there_is_room_nothing_is_said_and_nothing_left(places: Places) -> None:
    assert shortages(places, Wanted(1, 1, 1)) == []
    assert full(places) == ""
    assert not any(list(folder.iterdir()) for folder in (places.run_dir, places.tmp, places.shm))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(MORE_THAN_THERE_IS, 0, 0), ["the run directory"]),
        (Wanted(0, MORE_THAN_THERE_IS, 0), ["TMPDIR"]),
        (Wanted(0, 0, MORE_THAN_THERE_IS), ["shared memory"]),
        (Wanted(MORE_THAN_THERE_IS, MORE_THAN_THERE_IS, 1), ["the run directory", "TMPDIR"]),
        (Wanted(0, 0, 0), []),
    ],
)
def test_each_place_is_asked_for_what_is_wanted_of_it(places: Places, wanted: Wanted, names: list[str]) -> None:
    found = shortages(places, wanted)
    assert len(found) == len(names)
    for sentence, name in zip(found, names, strict=True):
        assert sentence.startswith(f"{name} {places.run_dir.parent}/")
        assert sentence.endswith("are wanted")
        assert " free, " in sentence


def test_a_place_that_is_gone_or_no_folder_is_said(places: Places) -> None:
    places.tmp.rmdir()
    (sentence,) = shortages(places, Wanted(1, 1, 1))
    assert sentence == f"TMPDIR {places.tmp} can't be asked for its room: No such file or directory"
    places.tmp.touch()
    assert "takes no file: Not a directory" in full(places)


def test_without_shared_memory_there_is_nothing_to_lack(places: Places) -> None:
    places.shm.rmdir()
    assert shortages(places, Wanted(1, 1, MORE_THAN_THERE_IS)) == []
    assert full(places) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_takes_no_file_is_said(places: Places) -> None:
    places.run_dir.chmod(0o500)
    assert "takes no file: Permission denied" in shortages(places, Wanted(1, 0, 0))[0]


def test_a_place_that_can_t_be_written_is_said_whatever_its_figures_are(places: Places) -> None:
    assert "the run directory /proc " in full(Places(Path("/proc"), places.tmp, places.shm))


def test_where_a_run_writes_is_where_python_s_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Places.of(Path("run")) == Places(tmp_path / "run", tmp_path, Path("/dev/shm"))


@pytest.mark.parametrize(
    ("files", "uid", "lingers", "warns"),
    [
        ({}, 1000, False, True),  # the default
        ({"logind.conf": "[Login]\n#RemoveIPC=no\n"}, 1000, False, True),
        ({"logind.conf": "[Login]\nRemoveIPC=no\n"}, 1000, False, False),
        ({"logind.conf": "RemoveIPC=no\n", "logind.conf.d/x.conf": "RemoveIPC=yes\n"}, 1000, False, True),
        ({"logind.conf.d/a.conf": "RemoveIPC=yes\n", "logind.conf.d/b.conf": "RemoveIPC=no\n"}, 1000, False, False),
        ({}, 1000, True, False),
        ({}, 999, False, False),
        ({}, 0, False, False),
    ],
)
def test_shared_memory_that_a_logout_would_take_away(
    tmp_path: Path, files: dict[str, str], uid: int, lingers: bool, warns: bool
) -> None:
    (tmp_path / "systemd" / "logind.conf.d").mkdir(parents=True)
    (tmp_path / "linger").mkdir()
    for name, text in files.items():
        (tmp_path / "systemd" / name).write_text(text)
    if lingers:
        (tmp_path / "linger" / "me").touch()
    logind = tmp_path / "systemd" / "logind.conf"
    said = lost_at_logout("me", uid, logind=logind, lingering=tmp_path / "linger")
    assert bool(said) == warns
    assert "loginctl enable-linger me" in said or not warns


def test_without_systemd_nobody_takes_it_away(tmp_path: Path) -> None:
    assert lost_at_logout("me", 1000, logind=tmp_path / "none" / "logind.conf", lingering=tmp_path) == ""
