"""Ray's own process on our side, run by path in Ray's Python: one Ray driver that does what it reads from a socket.

A process of its own since a Ray driver is no guest: its C++ side takes SIGTERM over and ends the process where it lost
its cluster for 60 s. With it ends every errand of it, and nothing of ours.

socket   lines of JSON: {id, do, …} in, {id, value} or {id, refused} out; the first line out tells of the connection.
         Its end is ours, and the errands'.

What runs on a node is the Tether of `ray_tether`, sent there by value: no file of ours need be there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    ray: Any = importlib.import_module("ray")
except ImportError as error:
    how = "pip install 'engine-airlock[ray]', or name a Python that has it as cluster.ray_python"
    sys.exit(f"Ray is not installed for {sys.executable} ({error}): {how}")

NAMESPACE = "airlock"
HERE = Path(__file__).resolve().parent
TETHER, WARDEN = HERE / "ray_tether.py", HERE.parent / "warden.py"
BECOME_ONE = (
    "no cluster was found from here; make this machine a node of it (ray start --address=HEAD:PORT --num-cpus=0 "
    "--num-gpus=0), or name it as cluster.address"
)
ANSWER_S = 2.0  # for an actor that lives to say so
KNOCK_S = 5.0
SWEEP_S = 0.5
CALLS_MAX = 16  # at a time by one actor: one waits for the end, others come and go


@dataclass
class Job:
    """`ended` answers when the errand has, `began` once the actor has its place. outcome: once known."""

    actor: Any
    needs: dict[str, float]
    began: Any
    ended: Any
    seen: dict[str, str] = field(default_factory=dict)
    outcome: dict[str, Any] | None = None


class Driver:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.tether = load(TETHER)
        self.warden = WARDEN.read_text()

    def version(self) -> str:
        return str(ray.__version__)

    def nodes(self) -> list[dict[str, float]]:
        """What each node that lives has in all."""
        return [one["Resources"] for one in ray.nodes() if one["Alive"]]

    def submit(self, job: str, order: dict[str, Any], log: str, needs: dict[str, float], **limits: Any) -> None:
        own = {name: amount for name, amount in needs.items() if name not in ("GPU", "CPU", "memory")}
        actor = (
            ray.remote(self.tether)
            .options(
                name=job,
                namespace=NAMESPACE,
                num_gpus=needs.get("GPU", 0),
                num_cpus=needs.get("CPU", 0),
                memory=needs.get("memory"),
                resources=own,
                max_restarts=0,
                max_concurrency=CALLS_MAX,
            )
            .remote(order, log, self.warden, **limits)
        )
        self.jobs[job] = Job(actor, needs, actor.look.remote(), actor.wait.remote())

    def state(self, job: str) -> dict[str, Any]:
        self.sweep()
        if job not in self.jobs:
            return self.elsewhere(job)
        one = self.jobs[job]
        if one.outcome is not None:
            return one.outcome
        if not at_once(one.began):
            return {"state": "pending", "needs": one.needs, "free": ray.available_resources()}
        return {"seen": one.seen, **self.living(one.actor)}

    def elsewhere(self, job: str) -> dict[str, Any]:
        """One that another driver has submitted, or had: its end is its driver's."""
        try:
            return self.living(ray.get_actor(job, NAMESPACE))
        except ValueError as error:
            return {"state": "ended", "error": plain(error)}

    def living(self, actor: Any) -> dict[str, Any]:
        try:
            return {"state": "running", "seen": ray.get(actor.look.remote(), timeout=ANSWER_S)}
        except ray.exceptions.GetTimeoutError:
            return {"state": "unknown", "error": f"its actor did not answer within {ANSWER_S:g} s"}
        except ray.exceptions.RayError as error:
            return {"state": "unknown", "error": plain(error)}

    def stop(self, job: str, grace_s: float) -> None:
        """An actor that can't answer is killed, and its errand with it: SIGTERM, the warden's own grace, SIGKILL."""
        try:
            one = self.jobs.get(job)
            actor = one.actor if one else ray.get_actor(job, NAMESPACE)
        except ValueError:
            return
        placed = one is None or at_once(one.began)
        if not (placed and at_once(actor.stop.remote(grace_s), ANSWER_S)):
            ray.kill(actor)

    def sweep(self) -> None:
        """Ends the actors whose errand is over: an actor holds its devices as long as it lives."""
        for one in self.jobs.values():
            if not one.seen and at_once(one.began):
                with suppress(ray.exceptions.RayError):
                    one.seen = ray.get(one.began)
            if one.outcome is None and at_once(one.ended):
                self.settle(one)

    def settle(self, one: Job) -> None:
        try:
            one.outcome = {"state": "ended", "seen": one.seen, "told": ray.get(one.ended)}
        except ray.exceptions.ActorUnavailableError:  # for now
            one.ended = one.actor.wait.remote()
            return
        except ray.exceptions.RayError as error:
            one.outcome = {"state": self.when_lost(one), "seen": one.seen, "error": plain(error)}
        ray.kill(one.actor)

    def when_lost(self, one: Job) -> str:
        """A node is dead to Ray once its raylet is; what ran there may go on."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return "ended" if one.seen.get("node", "") in alive | {""} else "unknown"


def load(path: Path) -> Any:
    """The class in it, to be pickled with all that it needs."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)
    return module.Tether


def at_once(ref: Any, timeout_s: float = 0.0) -> bool:
    """Whether there is an answer, be it an error."""
    return bool(ray.wait([ref], timeout=timeout_s)[0])


def plain(error: Exception) -> str:
    return " ".join(str(error).split())


def answer(driver: Driver, line: bytes) -> dict[str, Any]:
    call = json.loads(line)
    number, do = call.pop("id"), call.pop("do")
    try:
        return {"id": number, "value": getattr(driver, do)(**call)}
    except Exception as error:  # Ray's own are of many kinds, and all are the caller's to hear
        return {"id": number, "refused": f"{type(error).__name__}: {plain(error)}"}


def lines(sock: socket.socket, driver: Driver) -> Iterator[bytes]:
    heard = b""
    while True:
        if not select.select([sock], [], [], SWEEP_S)[0]:
            with suppress(Exception):  # Ray's head may be away; the next one may do better
                driver.sweep()
            continue
        part = sock.recv(1 << 16)
        if not part:
            return
        *whole, heard = (heard + part).split(b"\n")
        yield from whole


def connect(address: str) -> dict[str, Any]:
    try:
        knock(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except Exception as error:  # as above
        hint = f"{BECOME_ONE} ({plain(error)})" if address == "auto" else plain(error)
        return {"id": 0, "refused": hint}
    return {"id": 0, "value": None}


def knock(address: str) -> None:
    """Raises OSError. Ray itself tries for more than a minute where nobody listens."""
    target = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = target.rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
        except OSError as error:
            raise OSError(f"no cluster at {target}: {error}") from error


def main(name: str, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{name}")
        send(sock, connect(address))
        driver = Driver()
        for line in lines(sock, driver):
            send(sock, answer(driver, line))
    ray.shutdown()


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    sock.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
