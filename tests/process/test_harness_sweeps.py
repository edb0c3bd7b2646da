"""What lm-evaluation-harness asks for runs as real sweeps: read again, gone on with, and ended with the harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.harness.calls import Call, Unanswered
from orchestrator.harness.sweeps import Sweeps
from orchestrator.report import RunView
from tests.process.launching import Fifo
from tests.process.sweeping import PATIENCE_S, QUICK_LIMITS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

CALL = Call({"max_new_tokens": 4}, tuple({"id": str(n), "prompt": [65 + n]} for n in range(4)))
ASKING = """
import sys
from pathlib import Path
from tests.process.test_harness_sweeps import CALL, sweeps_of
print(len(sweeps_of(Path(sys.argv[1]), *sys.argv[2:]).records(CALL)[1]))
"""


def sweeps_of(folder: Path, once: str = "", touch: str = "") -> Sweeps:
    """Of a method that hangs in its second batch the first time, once it has said so."""
    slow = method("slow", at="batch:2", do="hang", once=once, touch=touch) if once else "scripted"
    base = {"model": "scripted", "methods": [slow], "limits": {**QUICK_LIMITS, "batch_s": 60}, "warmup": 0}
    return Sweeps({**base, "sampling": {"batch_size": 1}}, folder)


@pytest.fixture(autouse=True)
def _home(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRLOCK_HOME", "TMPDIR"):
        monkeypatch.setenv(name, bench.env[name])


def test_what_is_done_is_read_and_what_never_began_begins(tmp_path: Path) -> None:
    sweeps = sweeps_of(tmp_path)
    sweeps.run_dir(CALL).mkdir(parents=True)
    run_dir, found = sweeps.records(CALL)
    assert [(name, one.error) for name, one in sorted(found.items())] == [(str(n), None) for n in range(4)]
    assert sweeps.records(CALL) == (run_dir, found)
    assert run_dir.parent == tmp_path
    view = RunView.load(run_dir)
    assert (len(view.starts), view.exit_code) == (2, 0)
    assert len(view.workers) == 1


def test_what_was_asked_of_one_method_can_be_asked_of_two(tmp_path: Path) -> None:
    """As the guide has it: `--set methods=…`."""
    file = sweeps_of(tmp_path).written(CALL)
    both = ["--set", "methods=scripted,{name: other, base: scripted}", "--run-dir", str(tmp_path / "both")]
    command = [sys.executable, "-m", "orchestrator", "sweep", str(file), *both]
    subprocess.run(command, cwd=Path(__file__).parents[2], timeout=PATIENCE_S, check=True, capture_output=True)
    assert [point.method for point in RunView.load(tmp_path / "both").plan.points] == ["scripted", "other"]


def test_how_a_sweep_ended_without_records_is_told(tmp_path: Path) -> None:
    sweeps = Sweeps({**sweeps_of(tmp_path).base, "nonsense": 1}, tmp_path)
    with pytest.raises(Unanswered, match="the sweep ended with exit code 2"):
        sweeps.records(CALL)


@pytest.mark.parametrize(("signum", "whole"), [(signal.SIGINT, True), (signal.SIGKILL, False)])
def test_a_harness_that_ends_takes_its_sweep_along_and_the_next_one_goes_on(
    fifo: Fifo, tmp_path: Path, signum: signal.Signals, whole: bool
) -> None:
    """`whole`: ^C, which all that stands in the foreground gets."""
    given = [str(tmp_path / "runs"), str(tmp_path / "once"), fifo.path]
    command = [sys.executable, "-c", ASKING, *given]
    told: dict[str, Any] = {"cwd": Path(__file__).parents[2], "stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    harness = subprocess.Popen(command, start_new_session=True, text=True, **told)
    fifo.line()
    (sweep,) = proc.children(harness.pid) or [0]
    ended = os.pidfd_open(sweep)
    (os.killpg if whole else os.kill)(harness.pid, signum)
    out, err = harness.communicate(timeout=PATIENCE_S)
    assert out == ""
    assert ("KeyboardInterrupt" in err) == whole
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, ended, os.WEXITED)
    os.close(ended)
    (run_dir,) = (tmp_path / "runs").glob("slow-generate-*/")
    assert RunView.load(run_dir).exit_code == (130 if whole else 143)
    again = subprocess.run(command, text=True, timeout=PATIENCE_S, check=True, **told)
    assert again.stdout == "4\n"
