"""What real engines take of the host as we drive them: ports, files, shared memory. And what they tell when asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.launcher import Launcher, base_environment
from orchestrator.proc import ProcessRef
from orchestrator.reaper import subtree
from orchestrator.run.evidence import inspect, listens
from orchestrator.run.segments import Segments
from orchestrator.run.slots import Slot
from orchestrator.run.workplace import Workplace, worker_environment
from protocol.keys import Keys
from tests.engines import driver
from tests.engines.conftest import FindPython, Prompts
from tests.process.ports import listening, still_open

pytestmark = pytest.mark.engine

ENGINES = ["hf", "vllm", "sglang"]
#: What an engine may make in a home directory: FlashInfer's folder also holds kernels that can't be made anew.
AT_HOME = {".cache", ".cache/flashinfer"}


@dataclass
class Host:
    """Starts workers in the environment that a sweep gives them, with an empty home."""

    folder: Path
    python: FindPython
    workplace: Workplace
    stack: ExitStack

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self, engine: str, incarnation: str = "w1-test") -> driver.Worker:
        room = self.workplace.room(incarnation)
        method = driver.config(engine, "").method
        env = worker_environment(
            base_environment(), method=method, slot=Slot("own"), endpoint="", token="", keys=Keys("", ""), room=room
        )
        ours = {name: value for name, value in env.items() if not name.startswith("AIRLOCK_")}
        folder = self.folder / incarnation
        folder.mkdir()
        worker = driver.Worker(self.python(engine), engine, folder, {**ours, "HOME": str(self.home)})
        self.stack.callback(worker.close)
        return worker


@pytest.fixture
def host(tmp_path: Path, engine_env: FindPython, run_tag: str) -> Iterator[Host]:
    workplace = Workplace.create(run_tag)
    with ExitStack() as stack:
        stack.callback(workplace.remove)
        (tmp_path / "home").mkdir()
        yield Host(tmp_path, engine_env, workplace, stack)


def ephemeral() -> range:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(low), int(high) + 1)


def tree_of(worker: driver.Worker) -> list[ProcessRef]:
    return subtree(worker.pid)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_takes_is_its_own_and_given_back(
    host: Host, model: str, prompts: Prompts, run_tag: str, engine: str
) -> None:
    segments = Segments()
    worker = host.start(engine)
    worker.load(driver.config(engine, model))
    worker.run(driver.batch("b1", prompts.ids, prompts.stop))
    tree = tree_of(worker)
    segments.look(tree)
    ports = listening(tree)
    assert not [str(one) for one in ports if one.port not in ephemeral()], "a number that was chosen, not given"
    made = {str(path.relative_to(host.home)) for path in host.home.rglob("*")}
    assert not {name for name in made if not any(name == one or name.startswith(f"{one}/") for one in AT_HOME)}

    asked = [ref for ref in tree if listens(ref.pid)]
    assert asked
    told = inspect(tree, worker.folder / "log", Launcher(), run_tag=run_tag, incarnation="x")
    for ref in asked:
        assert f"--- {ref.pid} {ref.name}\n" in told
    assert told.count("Thread 0x") + told.count("Current thread 0x") >= len(asked)

    worker.end()
    assert worker.survivors() == []
    assert still_open(ports) == []
    removed, _ = segments.settle()
    assert not [path for path in removed if Path(path).exists()]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_at_once_never_collide(host: Host, model: str, prompts: Prompts, engine: str) -> None:
    """As two runs on one host do: both choose at the same time."""
    segments = Segments()
    workers = [host.start(engine, f"w{number}-test") for number in (1, 2)]
    for worker in workers:
        worker.load(driver.config(engine, model))
    answers = [worker.run(driver.batch("b1", prompts.ids, prompts.stop)) for worker in workers]
    assert [g.token_ids for g in answers[0].generations] == [g.token_ids for g in answers[1].generations]
    ports = [{one.port for one in listening(tree_of(worker))} for worker in workers]
    assert not ports[0] & ports[1]
    for worker in workers:
        segments.look(tree_of(worker))
        worker.end()
    segments.settle()
