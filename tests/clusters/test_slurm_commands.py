"""Slurm's commands where they are missing, hang or are a site's own wrappers; no Slurm is needed."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from orchestrator.clusters import slurmwords
from orchestrator.clusters.base import Errand, Unheard
from orchestrator.clusters.slurm import COMMANDS, Slurm
from orchestrator.errors import ClusterError

pytestmark = pytest.mark.usefixtures("nothing_leaked")

ERRAND = Errand("night-1", ("true",), {}, Path("/"), Path("/run/log"))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize("argument", ["$HOME", "`id`", "it's", "a\nb", "", "-n", "*", "\\", "é", "\udcff"])
def test_the_shell_hands_it_on_word_for_word(argument: str, tmp_path: Path) -> None:
    errand = Errand("one", ("/usr/bin/env", "printf", "%s", argument), {}, tmp_path, tmp_path / "log")
    script = slurmwords.script(errand)
    said = subprocess.run(["sh"], input=script.encode(errors="surrogateescape"), capture_output=True, check=True).stdout
    assert said == argument.encode(errors="surrogateescape")


def stand_in(folder: Path, command: str, body: str) -> None:
    (folder / command).write_text(f"#!/bin/sh\n{body}\n")
    (folder / command).chmod(0o755)


def test_without_slurm_it_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(path))
    assert Slurm().check() == [f"Slurm's commands are not in PATH: {', '.join(COMMANDS)}"]
    with pytest.raises(ClusterError, match="sbatch can't be run"):
        Slurm().submit(ERRAND)


def test_commands_are_found_by_our_path_and_jobs_get_theirs(path: Path) -> None:
    stand_in(path, "sbatch", '[ "$PATH" = /of/the/job ] && echo 12')
    errand = Errand("one", ("true",), {"PATH": "/of/the/job"}, Path("/"), Path("/run/log"))
    assert Slurm().submit(errand) == "12"


def test_what_a_wrapper_leaves_behind_holds_nobody_up(tmp_path: Path, path: Path) -> None:
    """The background process keeps the wrapper's output open until the test lets it go."""
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    os.mkfifo(gate)
    ours = os.open(gate, os.O_RDWR)
    stand_in(
        path,
        "sbatch",
        f"exec 3<'{gate}'; cat <&3 & echo $! >>'{pids}'; echo 'careful: maintenance on Friday' >&2; echo 12",
    )
    slurm = Slurm()
    try:
        assert [slurm.submit(ERRAND), slurm.submit(ERRAND)] == ["12", "12"]
        assert slurm.notes == ["careful: maintenance on Friday"]
    finally:
        os.close(ours)
        for pid in pids.read_text().split():
            os.waitpid(int(pid), 0)  # orphans come to this process, see `nothing_leaked`


def test_one_that_never_answers_is_given_up(tmp_path: Path, path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    stand_in(path, "sbatch", f"exec cat '{gate}'")
    with pytest.raises(Unheard, match=r"sbatch gave no answer within 0\.2 s"):
        Slurm(call_s=0.2).submit(ERRAND)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo 'sbatch: error: no such account' >&2; exit 1", "did not take night-1: sbatch: error: no such account"),
        ("exit 7", "did not take night-1: exit 7"),
        ("echo done", "did not take night-1: done"),
    ],
)
def test_a_refusal_has_slurms_own_words(path: Path, body: str, told: str) -> None:
    stand_in(path, "sbatch", body)
    with pytest.raises(ClusterError, match=told):
        Slurm().submit(ERRAND)


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    ],
)
def test_a_controller_with_too_much_to_do_refuses_nothing(path: Path, words: str) -> None:
    stand_in(path, "sbatch", f"echo '{words}' >&2; exit 1")
    with pytest.raises(Unheard, match=words.rpartition(": ")[2].partition("(")[0]):
        Slurm().submit(ERRAND)


def test_what_one_said_before_it_was_given_up_is_told(tmp_path: Path, path: Path) -> None:
    """sbatch tries for minutes where there are too many jobs."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    stand_in(
        path, "sbatch", f"echo 'Slurm temporarily unable to accept job, sleeping and retrying' >&2; exec cat '{gate}'"
    )
    with pytest.raises(Unheard, match=r"no answer within 3 s: Slurm temporarily unable to accept job, sleeping"):
        Slurm(call_s=3).submit(ERRAND)


def test_where_tmpdir_is_full_it_is_not_slurm_that_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `check` finds as well costs no attempt at an allocation: there is room again in a while."""

    def full(*_args: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for command in COMMANDS:
        stand_in(path, command, "echo 12 is UP")
    assert Slurm().check() == []
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ClusterError, match=r"sbatch can't be run: .*No space left on device"):
        Slurm().submit(ERRAND)
    assert Slurm().check() == ["scontrol can't be run: [Errno 28] No space left on device"]
