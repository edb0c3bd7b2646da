"""Whole sweeps on the cluster of `raycluster`, and what dies in them; test_ray_sweeps.py runs this inside it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.clusters.allocations import SlotAsked, SlotJoined, SlotLeft
from orchestrator.events import Event, WorkerLaunched
from orchestrator.reaper import ProcessRef, Reaper, alive, send, subtree
from orchestrator.stores.home import run_tag_of, tag_of
from tests.clusters.raycluster import ADDRESS, CPUS_PER_NODE, GPU_OF, HEAD, SECOND, START_S, Nodes, ray_python, until
from tests.process.sweeping import PATIENCE_S, PROMPTS, QUICK_LIMITS, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: By the number that each node's has.
GPUS = ("GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000")
SLOTS = ("ray0", "ray1")
METHODS = ("one", "two")
SILENCE_S = 5.0
#: The silence, a new allocation, Ray's own time to notice, the wardens' grace, and a drain.
GONE_S = 25.0
A_NODE_EACH = MappingProxyType({"cpus": CPUS_PER_NODE})
HIDDEN = ("child_setsid", "child_clear_env")
EACH = 4 + len(HIDDEN)  # the outpost's warden, the outpost, the worker's warden, the worker


class RayBench(Bench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nodes = Nodes()
        self.begun = folder / "begun"

    def write(self, **changes: Any) -> None:
        cluster = {"slots": 2, "address": ADDRESS, "ray_python": str(ray_python()), "silence_s": SILENCE_S}
        cluster |= {"listen": "tcp://127.0.0.1", "attempts": 5, **changes.pop("cluster")}
        super().write(launcher="ray", cluster=cluster, **changes)

    def write_held(self, cluster: Mapping[str, int]) -> None:
        """Two methods, each held in its second batch, with children that hide, the first time that it comes there."""
        methods = [{"name": name, "base": "scripted", "engine_args": {"faults": self.held(name)}} for name in METHODS]
        limits = {**QUICK_LIMITS, "batch_s": 2 * PATIENCE_S}
        self.write(methods=methods, matrix={"batch_size": [3]}, limits=limits, cluster=cluster)

    def held(self, name: str) -> list[dict[str, str]]:
        os.mkfifo(self.gate(name))
        faults: list[dict[str, str]] = [{"do": do} for do in HIDDEN]
        faults += [{"do": "mark", "touch": str(self.begun)}, {"do": "mark", "gate": str(self.gate(name))}]
        at = {"at": "batch:2"}
        return [{**at, "once": str(self.folder / f"{name}{n}"), **fault} for n, fault in enumerate(faults)]

    def gate(self, name: str) -> Path:
        return self.folder / f"gate-{name}"

    def go_on(self, name: str) -> None:
        """Somebody waits at the gate, or this would not return."""
        self.gate(name).open("w").close()

    # --- while it runs ------------------------------------------------------------------

    @contextmanager
    def both_held(self, cluster: Mapping[str, int] = A_NODE_EACH) -> Iterator[subprocess.Popen[str]]:
        self.write_held(cluster)
        with self.start() as running:
            try:
                until(lambda: len(self.held_ones()) == len(METHODS), "batches", PATIENCE_S)
                assert all(len(self.there(slot)) == EACH for slot in SLOTS)
                yield running
            except BaseException:
                running.kill()
                raise
            finally:
                self.said = running.communicate(timeout=PATIENCE_S)

    def held_ones(self) -> list[str]:
        return self.begun.read_text().splitlines() if self.begun.exists() else []

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def left(self, slot: str) -> list[SlotLeft]:
        return [event for event in self.of(SlotLeft) if event.slot == slot]

    def method_of(self, slot: str) -> str:
        return str(next(launch.method for launch in self.of(WorkerLaunched) if launch.slot == slot))

    def there(self, *slots: str) -> set[ProcessRef]:
        """Processes of these slots, on any node."""
        tags = [self.tag(slot) for slot in slots or SLOTS]
        return {proc.ref(s) for s in proc.table().values() if not s.dead and any(proc.belongs(s.pid, t) for t in tags)}

    def tag(self, slot: str) -> str:
        return tag_of(self.run_dir / "slots" / slot)

    def on_second(self) -> str:
        """The slot that the second node was given to."""
        below = set(subtree(self.nodes.second().pid))
        (found,) = [slot for slot in SLOTS if self.there(slot) & below]
        return found

    def outposts(self) -> list[str]:
        """Whom each carries the tag of: its successor on the machine must be able to find it."""
        found = [ref.pid for ref in self.there() if "outpost" in proc.cmdline(ref.pid)]
        return sorted(
            slot for slot in SLOTS for pid in found if proc.environ_value(pid, "AIRLOCK_RUN") == self.tag(slot)
        )

    def ray_worker(self) -> ProcessRef:
        """The second node's actor."""
        below = subtree(self.nodes.second().pid)
        (found,) = [ref for ref in below if "ray::Tether" in " ".join(proc.cmdline(ref.pid))]
        return found

    def driver(self) -> ProcessRef:
        return next(proc.ref(s) for s in proc.table().values() if "ray_driver.py" in " ".join(proc.cmdline(s.pid)))

    # --- when it is over ----------------------------------------------------------------

    def assert_whole(self) -> None:
        """Each prompt of each point once, and every allocation asked for has left."""
        assert {end.outcome for ends in self.outcomes().values() for end in ends} == {"ok"}, self.said
        keys = self.keys()
        assert set(keys.values()) == {1}
        assert len(keys) == len(METHODS) * len(PROMPTS)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        tags = [*map(self.tag, SLOTS), run_tag_of(self.run_dir), tag_of(self.run_dir / "driver")]
        until(lambda: not any(Reaper(tag).survivors() for tag in tags), "end of all", GONE_S)
        jobs = {event.job for event in self.of(SlotAsked)}
        assert jobs == {event.job for event in self.of(SlotLeft)}
        assert not (self.run_dir / "outposts").exists()


def gone(refs: set[ProcessRef]) -> None:
    until(lambda: not any(map(alive, refs)), "end of them", GONE_S)


@pytest.fixture
def bench(tmp_path: Path) -> RayBench:
    return RayBench(tmp_path / "b")


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events if isinstance(event, (SlotAsked, SlotJoined, SlotLeft))]


def folders(bench: RayBench) -> list[Path]:
    return [path for slot in SLOTS for path in Path(tempfile.gettempdir()).glob(f"al-*{bench.tag(slot)[:8]}*")]


# --- as it should be --------------------------------------------------------------


def test_two_slots_on_two_nodes(bench: RayBench) -> None:
    with bench.both_held() as running:
        assert bench.outposts() == list(SLOTS)
        assert bench.on_second() in SLOTS
        for name in METHODS:
            bench.go_on(name)
        assert running.wait(PATIENCE_S) == 0
    bench.assert_whole()
    assert kinds(bench.events) == [*["SlotAsked"] * 2, *["SlotJoined"] * 2, *["SlotLeft"] * 2]
    assert {launch.slot for launch in bench.of(WorkerLaunched)} == set(SLOTS)
    bench.assert_clean()
    assert not folders(bench)


@pytest.mark.skipif("FAKE_NVML_STATE" not in os.environ, reason="no C compiler for the stand-in of NVIDIA's driver")
def test_each_has_the_gpu_that_it_was_granted(bench: RayBench) -> None:
    with bench.both_held({"gpus": 1}) as running:
        second = bench.on_second()
        for name in METHODS:
            bench.go_on(name)
        assert running.wait(PATIENCE_S) == 0, running.communicate()
    bench.assert_whole()
    bench.assert_clean()
    granted = {event.slot: event.node.devices for event in bench.of(SlotJoined)}
    assert granted.pop(second) == [GPUS[int(GPU_OF[SECOND])]]
    assert list(granted.values()) == [[GPUS[int(GPU_OF[HEAD])]]]


# --- what dies --------------------------------------------------------------------


@contextmanager
def losing(bench: RayBench) -> Iterator[str]:
    """The block makes the second node's slot, which it is given, leave. The other one is held until then, and goes on;
    what was lost is done again."""
    with bench.both_held() as running:
        lost = bench.on_second()
        (survivor,) = set(SLOTS) - {lost}
        there = bench.there(lost)
        yield lost
        gone(there)
        until(lambda: bool(bench.left(lost)), "SlotLeft", PATIENCE_S)
        bench.go_on(bench.method_of(survivor))
        assert running.wait(PATIENCE_S) == 0, running.communicate()
    bench.assert_whole()
    assert not bench.left(survivor)[:-1]


def test_the_ray_worker_is_killed(bench: RayBench) -> None:
    with losing(bench):
        send(bench.ray_worker(), signal.SIGKILL)


def test_an_outpost_that_froze_is_ended_by_its_successor_on_that_machine(bench: RayBench) -> None:
    """Its warden froze too, so nobody hears that the Ray worker is gone, and Ray gives the devices away."""
    with losing(bench) as lost:
        worker = bench.ray_worker()
        for ref in bench.there(lost):
            send(ref, signal.SIGSTOP)
        send(worker, signal.SIGKILL)


def test_the_driver_is_killed(bench: RayBench) -> None:
    """With it both slots; the run has another one."""
    with bench.both_held() as running:
        there, driver = bench.there(), bench.driver()
        send(driver, signal.SIGKILL)
        gone(there)
        assert running.wait(2 * PATIENCE_S) == 0, running.communicate()
    bench.assert_whole()
    assert all(len(bench.left(slot)) == 2 for slot in SLOTS)


@pytest.fixture
def second(bench: RayBench) -> Iterator[ProcessRef]:
    """The node, to be lost; there is another one afterwards."""
    found = bench.nodes.second()
    yield found
    send(found, signal.SIGKILL)
    until(lambda: bench.nodes.replaced(found), "second node", START_S)


@pytest.mark.usefixtures("second")
def test_the_raylet_is_killed(bench: RayBench) -> None:
    with losing(bench):
        send(bench.nodes.raylet(), signal.SIGKILL)


def test_the_whole_node_is_killed(bench: RayBench, second: ProcessRef) -> None:
    with losing(bench):
        send(second, signal.SIGKILL)


def test_a_node_that_froze_is_given_up_and_gives_itself_up(bench: RayBench, second: ProcessRef) -> None:
    with losing(bench) as lost:
        frozen = subtree(second.pid)
        for ref in frozen:
            send(ref, signal.SIGSTOP)
        until(lambda: bool(bench.left(lost)), "SlotLeft", PATIENCE_S)
        assert bench.there(lost), "it is frozen, not gone"
        for ref in frozen:
            send(ref, signal.SIGCONT)
    assert f"not heard of for {SILENCE_S:g} s" in bench.left(lost)[0].reason


# --- the coordinator ----------------------------------------------------------------


def test_the_coordinator_is_killed(bench: RayBench) -> None:
    with bench.both_held() as running:
        there, driver = bench.there(), bench.driver()
        running.kill()
        gone({*there, driver})
    Reaper(tag_of(bench.run_dir / "driver")).sweep()  # its warden ended as a child of ours
    done = bench.run("--resume", patience_s=2 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    bench.assert_whole()
    assert len(bench.of(SlotAsked)) == 2 * len(SLOTS)


def test_the_coordinator_is_told_to_stop(bench: RayBench) -> None:
    with bench.both_held() as running:
        running.terminate()
        assert running.wait(PATIENCE_S) == 128 + signal.SIGTERM
    bench.assert_nothing_left()
    assert not folders(bench)
    assert set(bench.keys().values()) == {1}
    assert len(bench.keys()) == 3 * len(METHODS)
    assert {event.reason for event in bench.of(SlotLeft)} == {"interrupted by SIGTERM"}
