"""What nobody foresaw, in the coordinator itself: workers down, records kept, one sentence, the traceback kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.run.life import State
from tests.process.dying import Lives
from tests.process.sweeping import PATIENCE_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

EXIT_UNFORESEEN = 70


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with Lives(tmp_path_factory.mktemp("lives") / "log") as made:
        yield made


#: Those that a healthy worker comes to.
STATES = set(State) - {State.LAUNCHING, State.BUSY, State.TERMINATING, State.STUCK}
MOMENTS = {
    "run begun": {"event": "run_started"},
    "launching": {"event": "worker_launched"},
    **{state.value: {"event": "state_changed", "state": state} for state in sorted(STATES)},
    "busy": {"event": "batch_committed"},
    "point ended": {"event": "point_ended"},
    "worker gone": {"event": "worker_released"},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_exception_in_mid_run(bench: Bench, lives: Lives, moment: str) -> None:
    bench.write(prompts=["a", "b"], matrix={"batch_size": [1]})
    ended = lives.live({**MOMENTS[moment], "raise": "the unforeseen"}, *bench.command()[3:], env=bench.env)
    resumed = lives.live({}, *bench.command("--resume")[3:], env=bench.env)
    assert ended.code == EXIT_UNFORESEEN
    (said,) = [line for line in ended.output.splitlines() if line.startswith("airlock: ")]
    log = bench.run_dir / "logs" / "coordinator.log"
    assert said.startswith(f"airlock: unforeseen: RuntimeError: the unforeseen; the traceback is in {log}")
    assert said.endswith("--resume goes on from there")
    assert "Traceback" not in ended.output
    assert log.read_text().count("Traceback") == 1
    assert ended.gone_s < 1.0, "the coordinator ended only after its workers"
    assert resumed.code == 0, resumed.output
    assert set(bench.keys().values()) == {1}
    assert len(bench.keys()) == 2
    bench.assert_clean()


#: Runs `status`, which fails in a way that nobody foresaw.
BROKEN = """
import sys
from orchestrator import cli, verbs
def fail(_args): raise KeyError("no such thing")
verbs.status = fail
sys.exit(cli.run(["status", "run"]))
"""


def broken(home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BROKEN],
        env={**os.environ, "AIRLOCK_HOME": str(home), **env},
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_without_a_run_directory_the_traceback_is_kept_at_home(tmp_path: Path) -> None:
    done = broken(tmp_path / "home")
    assert done.returncode == EXIT_UNFORESEEN
    log = tmp_path / "home" / "logs" / "coordinator.log"
    assert done.stderr == f"airlock: unforeseen: KeyError: 'no such thing'; the traceback is in {log}\n"
    assert re.search(r"^KeyError: 'no such thing'$", log.read_text(), re.MULTILINE)
    broken(tmp_path / "home")
    assert log.read_text().count("Traceback") == 2, "the first one is the one that tells most"


def test_where_nothing_can_be_kept_the_traceback_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = broken(tmp_path / "file" / "home")
    assert done.returncode == EXIT_UNFORESEEN
    assert done.stderr.startswith("airlock: unforeseen: KeyError: 'no such thing'\nTraceback")


def test_a_full_stderr_changes_no_exit_code(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", BROKEN],
            env={**os.environ, "AIRLOCK_HOME": str(tmp_path)},
            stderr=full,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == EXIT_UNFORESEEN
