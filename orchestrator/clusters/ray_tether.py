"""The node's side of Ray: the actor that the devices are granted to. Standard library and Ray only."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ray: Any = importlib.import_module("ray")

#: Between the Ray worker, which SIGKILLs its children when it ends, and the warden, which must outlive it.
LEAP = "import os, sys; os.fork() and os._exit(0); exec(compile(sys.argv[1], 'warden', 'exec'))"


class Tether:
    """The errand hangs on this process: the warden above it has a pipe from here as its lifeline.

    Ray kills what it finds in this process's group and among its children. The warden is neither, sees the pipe's end
    however this process went, and ends all that descends from it. No thread of this process may fork: a copy of the
    pipe's end would keep the errand alive.
    """

    def __init__(self, order: dict[str, Any], log: str, warden: str, limit_s: float | None, grace_s: float) -> None:
        self.result: dict[str, Any] = {}
        self.over = threading.Event()
        self.lifeline, self.status = start(complete(order, granted()), log, warden, labels(order["env"]))
        self.seen = {"host": socket.gethostname(), "gpus": granted(), "ray_pid": str(os.getpid()), "node": node_id()}
        if limit_s is not None:
            later(limit_s, self.stop, grace_s)
        threading.Thread(target=self.follow, daemon=True).start()

    def look(self) -> dict[str, str]:
        return self.seen

    def wait(self) -> dict[str, Any]:
        """How it ended; may be asked again."""
        self.over.wait()
        return self.result

    def stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace. Who holds the devices is gone before they are given back."""
        say(self.lifeline, b"term\n")
        later(grace_s, say, self.lifeline, b"kill\n")

    def follow(self) -> None:
        with open(self.status, "rb") as events:
            for line in events:
                self.result.update(json.loads(line))
        self.over.set()


def later(seconds: float, call: Callable[..., None], *args: object) -> None:
    timer = threading.Timer(seconds, call, args)
    timer.daemon = True  # this process may end before
    timer.start()


def granted() -> str:
    """Empty where none is: an unset CUDA_VISIBLE_DEVICES, as Ray leaves it, would show all."""
    return ",".join(str(one) for one in ray.get_gpu_ids())


def node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())


def complete(order: dict[str, Any], gpus: str) -> bytes:
    env = {wire(name): wire(value) for name, value in node_environment().items()}
    return json.dumps({**order, "env": {**env, "CUDA_VISIBLE_DEVICES": gpus, **order["env"]}}).encode() + b"\n"


def node_environment() -> dict[str, str]:
    """The node's own: Ray adds OMP_NUM_THREADS and more to it, and an engine would obey."""
    raylet = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    names = {os.fsdecode(entry.partition(b"=")[0]) for entry in raylet}
    return {name: value for name, value in os.environ.items() if name in names and not name.startswith("RAY_")}


def wire(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def labels(env: dict[str, str]) -> dict[str, str]:
    """What the warden's environment holds: its Python may need the library path, and it must be found by its run."""
    found = {name: env[name] for name in ("AIRLOCK_RUN", "AIRLOCK_INCARNATION")}
    return found | {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def start(order: bytes, log: str, warden: str, env: dict[str, str]) -> tuple[int, int]:
    """The lifeline, and where the warden tells what happens."""
    orders, lifeline = os.pipe2(os.O_CLOEXEC)
    status, events = os.pipe2(os.O_CLOEXEC)
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        leap = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", LEAP, warden],  # its text: no file of ours need be there
            stdin=orders,
            stdout=events,
            stderr=output,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    leap.wait()
    os.close(orders)
    os.close(events)
    say(lifeline, order)
    return lifeline, status


def say(lifeline: int, text: bytes) -> None:
    while text:
        try:
            text = text[os.write(lifeline, text) :]
        except BrokenPipeError:  # it has ended; `follow` tells how
            return
