"""The same promises as PID 1 of a namespace, as a user without rights, and with a /proc that hides other users."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.reaper import ProcessRef
from tests.process.elsewhere import PLACES, Place, Unavailable, place
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, PATIENCE_S, PROMPTS, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")

CHILDREN = ("child_plain", "child_setsid", "child_double_fork", "child_clear_env")


@pytest.fixture(params=PLACES)
def here(nothing_leaked: None, request: pytest.FixtureRequest) -> Iterator[Place]:  # noqa: ARG001
    try:
        with place(request.param) as found:
            yield found
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture
def fifo(here: Place) -> Iterator[Fifo]:
    pipe = Fifo(here.bench.folder / "moment")
    os.chmod(pipe.path, 0o666)
    yield pipe
    pipe.close()


def gated(here: Place) -> tuple[str, dict[str, Any]]:
    gate = str(here.bench.folder / "gate")
    os.mkfifo(gate)
    os.chmod(gate, 0o666)
    return gate, method("gated", at="batch:1", do="mark", gate=gate)


def leaving(*more: dict[str, Any]) -> dict[str, Any]:
    """Makes children of every kind, then what is said."""
    faults = [*({"at": "load", "do": do} for do in CHILDREN), *more]
    return {"name": "leaving", "base": "scripted", "engine_args": {"faults": faults}}


def assert_nothing_left(bench: Bench) -> None:
    assert not bench.processes()
    assert not list(bench.tmp.iterdir())


def zombies_of(coordinator: ProcessRef) -> list[proc.Stat]:
    return [one for one in proc.table().values() if one.ppid == coordinator.pid and one.dead]


def test_workers_die_and_the_sweep_goes_on(here: Place) -> None:
    gate, waits = gated(here)
    small = {"prompts": ["a"], "matrix": {"batch_size": [1]}, "limits": {"batch_s": 20, "terminate_s": 0.3}}
    here.bench.write(methods=[leaving({"at": "batch:1", "do": "sigkill"}), waits], **small)
    running = here.start()
    fd = os.open(gate, os.O_WRONLY)
    coordinator = here.coordinator(running)
    assert zombies_of(coordinator) == []
    os.close(fd)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1, out + err
    assert {name: ends[0].outcome for name, ends in here.bench.outcomes().items()} == {
        "leaving": "failed",
        "gated": "ok",
    }
    assert len(here.bench.releases()[0].reclaim.strays_killed) == len(CHILDREN)
    assert_nothing_left(here.bench)


def test_a_warden_is_killed_and_what_it_guarded_is_found_and_reaped(here: Place, fifo: Fifo) -> None:
    once = {"once": str(here.bench.folder / "once"), "touch": fifo.path}
    gate, waits = gated(here)
    here.bench.write(
        methods=[leaving({"at": "batch:1", "do": "hang_ignore_term", **once}), waits],
        prompts=["a"],
        matrix={"batch_size": [1]},
        limits={"batch_s": 20},
    )
    running = here.start()
    fifo.line()
    coordinator = here.coordinator(running)
    (warden,) = [one.pid for one in proc.table().values() if one.ppid == coordinator.pid]
    left = here.bench.processes()
    os.kill(warden, signal.SIGKILL)
    fd = os.open(gate, os.O_WRONLY)
    wait_gone(left, GONE_AFTER_KILL_S)
    assert zombies_of(coordinator) == []
    os.close(fd)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out + err
    assert_nothing_left(here.bench)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=str)
def test_the_coordinator_ends_and_the_run_is_resumed(here: Place, fifo: Fifo, signum: signal.Signals) -> None:
    once = {"once": str(here.bench.folder / "once"), "touch": fifo.path}
    here.bench.write(methods=[leaving({"at": "batch:2", "do": "hang", **once})])
    running = here.start()
    fifo.line()
    coordinator, left = here.coordinator(running), here.bench.processes()
    os.kill(coordinator.pid, signum)
    running.communicate(timeout=PATIENCE_S)
    wait_gone(left, GONE_AFTER_KILL_S)
    if signum != signal.SIGKILL:
        assert running.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[signum]
        assert_nothing_left(here.bench)
    code, said = here.run("--resume")
    assert code == 0, said
    assert set(here.bench.keys().values()) == {1}
    assert len(here.bench.keys()) == 2 * len(PROMPTS)
    assert_nothing_left(here.bench)
