"""Real sweeps beside a process of the same user that wants to be heard: it is not, and the sweep does not mind."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from orchestrator import proc
from orchestrator.events import RunEnded, WorkerLaunched
from orchestrator.record.replay import replay
from protocol.channel import DealerChannel
from protocol.codec import encode
from protocol.keys import Keys
from protocol.messages import BatchDone, Hello
from protocol.porter import REFUSED_PEER
from protocol.records import BatchStats
from tests.process.adversary import PLANTED
from tests.process.launching import PATIENCE_S
from tests.process.sweeping import PROMPTS, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

REPO = Path(__file__).resolve().parents[2]
METHODS = [
    {"name": f"m{number}", "base": "scripted", "engine_args": {"salt": str(number), "token_s": 0.01}}
    for number in range(3)
]
LOCAL: tuple[str, ...] = ()
OVER_TCP = ("--listen", "tcp://127.0.0.1")
#: So that it takes seconds.
SAMPLING = {"max_new_tokens": 32}
LEAST_MESSAGES, LEAST_CONNECTIONS, LEAST_REFUSED = 1000, 500, 100
STEP_S = 0.01

T = TypeVar("T")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    one = Bench(tmp_path)
    one.write(methods=METHODS, sampling=SAMPLING)
    return one


def watched(sweep: subprocess.Popen[str], look: Callable[[], T | None]) -> T:
    """What `look` finds while the sweep runs."""
    pidfd = os.pidfd_open(sweep.pid)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            assert time.monotonic() < deadline
            assert not select.select([pidfd], [], [], STEP_S)[0], sweep.communicate()
        return found
    finally:
        os.close(pidfd)


def endpoint(bench: Bench, sweep: subprocess.Popen[str]) -> str | None:
    """Where anybody can see that the coordinator listens."""
    for path in bench.tmp.glob("al-*/s"):
        return f"ipc://{path}"
    for one in psutil.Process(sweep.pid).net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            return f"tcp://127.0.0.1:{one.laddr.port}"
    return None


def all_is_well(bench: Bench, sweep: subprocess.Popen[str]) -> None:
    _, said = sweep.communicate(timeout=PATIENCE_S * 3)
    assert sweep.returncode == 0, said
    assert len(bench.keys()) == len(METHODS) * 2 * len(PROMPTS)
    assert set(bench.keys().values()) == {1}
    assert {end.outcome for ends in bench.outcomes().values() for end in ends} == {"ok"}
    assert [release.cause for release in bench.releases()] == [None] * len(METHODS)
    for path in bench.run_dir.rglob("*"):
        assert path.is_dir() or PLANTED.encode() not in path.read_bytes(), path
    bench.assert_clean()


@pytest.mark.parametrize("listen", [LOCAL, OVER_TCP], ids=["ipc", "tcp"])
def test_without_the_token_nothing_gets_in(bench: Bench, listen: tuple[str, ...]) -> None:
    """It dials as the worker before that one does, and as others; it lies, floods and crowds the door."""
    command = [sys.executable, "-m", "tests.process.adversary", str(bench.run_dir / "logs")]
    with subprocess.Popen(command, cwd=REPO, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as adversary:
        try:
            assert adversary.stdout is not None
            assert adversary.stdin is not None
            assert adversary.stdout.readline() == "\n"  # a sweep is short, and an import may take as long
            sweep = bench.start(*listen)
            adversary.stdin.write(watched(sweep, lambda: endpoint(bench, sweep)) + "\n")
            adversary.stdin.flush()
            all_is_well(bench, sweep)
        finally:
            tried, _ = adversary.communicate(timeout=PATIENCE_S)
    (ended,) = (event for event in bench.events if isinstance(event, RunEnded))
    assert ended.dropped.get(REFUSED_PEER, 0) > LEAST_REFUSED, ended.dropped
    counts = json.loads(tried)
    assert counts["messages"] >= LEAST_MESSAGES
    assert counts["connections"] >= LEAST_CONNECTIONS


@pytest.mark.parametrize("listen", [LOCAL, OVER_TCP], ids=["ipc", "tcp"])
def test_with_all_that_an_earlier_worker_had_nothing_gets_in(bench: Bench, listen: tuple[str, ...]) -> None:
    """Its token and its keys are worth nothing once it is gone, in its own name or in another's."""
    sweep = bench.start(*listen)
    first = watched(sweep, lambda: environment(launched(bench, 1)))
    second = watched(sweep, lambda: launched(bench, 2))
    assert second.incarnation != first["AIRLOCK_INCARNATION"]
    watched(sweep, lambda: bench.releases() or None)  # the second begins to import before
    keys = Keys(first.get("AIRLOCK_SERVER_KEY", ""), first["AIRLOCK_SECRET_KEY"])
    for name in (first["AIRLOCK_INCARNATION"], second.incarnation):
        old = DealerChannel(first["AIRLOCK_ENDPOINT"], name, first["AIRLOCK_TOKEN"], keys)
        old.offer(encode(Hello(1, name, first["AIRLOCK_TOKEN"], 1, PLANTED)))
        old.offer(encode(BatchDone(PLANTED, [], BatchStats(wall_s=0.0, generated_tokens=0))))
        old.close(linger_s=STEP_S)
    all_is_well(bench, sweep)


def launched(bench: Bench, count: int) -> WorkerLaunched | None:
    """The launch of that number, if it has come."""
    if not (bench.run_dir / "journal.jsonl").exists():
        return None
    launches = [event for event in replay(bench.run_dir).events() if isinstance(event, WorkerLaunched)]
    return launches[count - 1] if len(launches) >= count else None


def environment(launch: WorkerLaunched | None) -> dict[str, str] | None:
    """Of the worker, or of its warden's other children: what anybody of the same user can read."""
    for pid in [] if launch is None else [launch.pid, *descendants(launch.pid)]:
        text = (proc.read_bytes(pid, "environ") or b"").decode()
        found = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        if "AIRLOCK_SECRET_KEY" in found:
            return found
    return None


def descendants(pid: int) -> list[int]:
    return [one.pid for one in proc.descendants([pid], proc.table())]


@pytest.mark.parametrize("where", ["tcp://0.0.0.0", "tcp://192.0.2.1", "127.0.0.1"])
def test_where_it_cannot_listen_nothing_starts(bench: Bench, where: str) -> None:
    done = bench.run("--listen", where)
    assert done.returncode == 2
    assert "--listen" in done.stderr
    assert where in done.stderr
    assert not bench.run_dir.exists()
