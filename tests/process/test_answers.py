"""Readers whose output is full, closed, gone or left, and run directories that hold other things than files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from tests.process.sweeping import PATIENCE_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

EXIT_INPUT, EXIT_OUTPUT = 2, 74
OF_A_RUN = (
    *("status RUN", "status RUN --json", "report RUN", "export RUN", "export RUN --format csv"),
    *("agree RUN", "compare RUN RUN --json"),
)
OTHERS = ("methods", "schema", "env list", "artefacts list", "plan FILE", "--help", "--version")
#: So that an export is more than a buffer takes, and fails in the middle as well as at the end.
MANY = [f"prompt {i}" for i in range(40)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("run"))
    made.write(prompts=MANY)
    assert made.run().returncode == 0
    return made


def argv(command: str, run_dir: Path) -> list[str]:
    places = {"RUN": str(run_dir), "FILE": str(run_dir.parent / "sweep.yaml")}
    return [sys.executable, "-m", "orchestrator", *(places.get(word, word) for word in command.split())]


@contextmanager
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@contextmanager
def terminal_gone() -> Iterator[int]:
    master, slave = os.openpty()
    os.close(master)
    yield slave
    os.close(slave)


@contextmanager
def reader_left() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def read_only() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDONLY)
    yield fd
    os.close(fd)


OUTPUTS = {"full": full, "terminal gone": terminal_gone, "read only": read_only, "reader left": reader_left}


def answer(bench: Bench, command: str, stdout: int, shell: str = 'exec "$@"') -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *argv(command, bench.run_dir)],
        env={name: value for name, value in bench.env.items() if name != "PYTHONUNBUFFERED"},
        text=True,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "output"), [*product(OF_A_RUN, OUTPUTS), *product(OTHERS, ("full", "reader left"))], ids=str
)
def test_an_answer_that_does_not_arrive_is_a_failure_unless_its_reader_has_left(
    bench: Bench, command: str, output: str
) -> None:
    with OUTPUTS[output]() as stdout:
        done = answer(bench, command, stdout)
    if output == "reader left":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == EXIT_OUTPUT, done.stderr
        assert done.stderr.startswith("airlock: standard output: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [*OF_A_RUN, *OTHERS])
def test_an_output_that_is_closed_from_the_start(bench: Bench, command: str) -> None:
    done = answer(bench, command, subprocess.DEVNULL, 'exec "$@" >&-')
    if command.startswith("--"):  # argparse turns to stderr
        assert done.returncode == 0
    else:
        assert (done.returncode, done.stderr) == (EXIT_OUTPUT, "airlock: standard output: Bad file descriptor\n")


@pytest.mark.parametrize("command", OF_A_RUN)
def test_an_errors_output_that_is_closed_changes_nothing(bench: Bench, command: str) -> None:
    done = answer(bench, command, subprocess.PIPE, 'exec "$@" 2>&-')
    assert done.returncode == 0
    assert done.stdout == answer(bench, command, subprocess.PIPE).stdout


@pytest.mark.parametrize("command", OF_A_RUN)
def test_a_locale_that_can_not_say_it_all(tmp_path: Path, command: str) -> None:
    bench = Bench(tmp_path)
    bench.write(prompts=["Grüße ☃ 🦙"])
    assert bench.run().returncode == 0
    bench.env |= {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(argv(command, bench.run_dir), env=bench.env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# --- what is no file ------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)  # its whole path is too long for a socket
        made.bind(path.name)
        os.fchdir(here)
        os.close(here)


KINDS: dict[str, Callable[[Path], None]] = {"fifo": fifo, "device": device, "folder": folder, "socket": unix_socket}


@pytest.mark.parametrize("name", ["journal.jsonl", "generations.jsonl", "plan.json", "prompts.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_where_a_file_should_is_said_and_not_read(
    bench: Bench, tmp_path: Path, name: str, kind: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(bench.run_dir, copy)
    (copy / name).unlink()
    KINDS[kind](copy / name)
    done = subprocess.run(
        argv("export RUN", copy), env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == EXIT_INPUT
    assert done.stderr.startswith(f"airlock: {copy / name}: ")
    assert "a regular file is expected" in done.stderr or "Is a directory" in done.stderr


@pytest.mark.parametrize("name", ["journal.jsonl", "generations.jsonl", "plan.json", "lock"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_such_a_thing_is_not_resumed(bench: Bench, tmp_path: Path, name: str, kind: str) -> None:
    copy = Bench(tmp_path)
    shutil.copy(bench.folder / "sweep.yaml", copy.folder)
    shutil.copytree(bench.run_dir, copy.run_dir)
    (copy.run_dir / name).unlink(missing_ok=True)
    KINDS[kind](copy.run_dir / name)
    done = copy.run("--resume")
    assert done.returncode == EXIT_INPUT, done.stdout + done.stderr
    assert str(copy.run_dir / name) in done.stderr
    assert "Traceback" not in done.stderr
