"""Weights that are read while a worker stands by: all of them, none where they would not fit, and never longer than
wanted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers import readahead
from workers.readahead import LEAST_BYTES, ReadAhead, weights


def model(folder: Path) -> Path:
    (folder / "a.safetensors").write_bytes(bytes(LEAST_BYTES))
    (folder / "config.json").write_text("{}")
    (folder / "sub").mkdir()
    return folder


def test_weights_are_the_large_files(tmp_path: Path) -> None:
    assert list(weights(str(model(tmp_path)))) == [str(tmp_path / "a.safetensors")]


def run(folder: str) -> None:
    one = ReadAhead(folder)
    one.start()
    one.stop()


def test_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(ReadAhead, "_read_file", lambda _self, path: read.append(path))
    one = ReadAhead(str(model(tmp_path)))
    one.start()
    one._thread.join()
    one.stop()
    assert [os.path.basename(path) for path in read] == ["a.safetensors"]


def test_what_would_not_fit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(ReadAhead, "_read_file", lambda _self, path: read.append(path))
    monkeypatch.setattr(readahead, "available_bytes", lambda: LEAST_BYTES)
    one = ReadAhead(str(model(tmp_path)))
    one.start()
    one._thread.join()
    assert not read


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    run(str(tmp_path / "none"))
    run("scripted")


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    pipe = tmp_path / "w"
    pipe.write_bytes(b"")
    os.truncate(pipe, 1 << 40)  # a hole: it would be read for minutes
    one = ReadAhead(str(tmp_path))
    one._stop.set()
    one._read_file(str(pipe))
    assert not one._thread.is_alive()
