"""A Ray cluster of the tests' own: two nodes on one host, a GPU each by Ray's count, while one command runs.

    python -m tests.clusters.raycluster COMMAND ...

makes network, PID and mount namespaces, starts a head and a second node in them, with token authentication, runs
COMMAND inside and exits as it did. All of it, errands and what they detached too, dies with that. The second node has a
PID namespace of its own, so that it can die whole. Needs what scripts/install-ray makes, and the right to unshare.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.reaper import ProcessRef, subtree
from orchestrator.stores.home import airlock_home

REPO = Path(__file__).resolve().parents[2]
MODULE = "tests.clusters.raycluster"
INSIDE = "--inside"
NAMESPACES = ("unshare", "--net", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child")
NODE_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
#: What a node's process 1 does: it reaps what comes to it, and stays whatever ends.
INIT = ("sh", "-c", '"$@"; while sleep 1; do :; done', "sh")
PORT = 6379
ADDRESS = f"127.0.0.1:{PORT}"
HEAD, SECOND = "one", "two"
GPU_OF = {HEAD: "0", SECOND: "1"}  # of those that this one machine has
#: On the namespace's own file system: Ray's sockets need a short path.
FOLDER = Path("/mnt")
TMP = FOLDER / "tmp"  # what is killed leaves its folders there
CPUS_PER_NODE, GPUS_PER_NODE = 2, 1
START_S = 60.0
STARTED = "Ray runtime started."
STEP_S = 0.05
#: By default Ray takes a node for alive for a quarter of a minute after its end.
SOON_DEAD = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
SMALL = ("--object-store-memory=80000000", "--disable-usage-stats")


def ray_python() -> Path:
    named = os.environ.get("AIRLOCK_TEST_RAY_PYTHON")
    return Path(named) if named else airlock_home() / "ray" / "bin" / "python"


def why_not() -> str:
    """Why this machine can't have such a cluster; "" if it can."""
    if not ray_python().exists():
        return f"no Ray: {ray_python()} is not there (scripts/install-ray makes it)"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def command(*argv: str) -> list[str]:
    """What runs argv in a cluster of its own."""
    return [sys.executable, "-m", MODULE, *argv]


@dataclass(frozen=True)
class Nodes:
    """Inside the namespaces. Each node has a resource of its own name."""

    folder: Path = FOLDER

    def start(self) -> int:
        self._start(HEAD, (), "--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}/ray")
        until(lambda: self.started(HEAD), "head", START_S)
        pid = self.start_second()
        until(lambda: self.started(SECOND), "second node", START_S)
        return pid

    def start_second(self) -> int:
        return self._start(SECOND, (*NODE_NAMESPACE, *INIT), f"--address={ADDRESS}")

    def started(self, name: str) -> bool:
        return STARTED in (self.folder / f"{name}.log").read_text(errors="replace")

    def second(self) -> ProcessRef:
        """What holds the second node's namespace; whoever kills it kills all of the node."""
        return below(1, NODE_NAMESPACE[0])[0]

    def replaced(self, lost: ProcessRef) -> bool:
        """Whether another second node has come after this one."""
        return below(1, NODE_NAMESPACE[0]) not in ([], [lost]) and self.started(SECOND)

    def raylet(self) -> ProcessRef:
        """The second node's."""
        return below(self.second().pid, "raylet/raylet")[0]

    def _start(self, name: str, prefix: Sequence[str], *how: str) -> int:
        have = [f"--num-cpus={CPUS_PER_NODE}", f"--num-gpus={GPUS_PER_NODE}", "--resources", json.dumps({name: 10})]
        ray = [str(ray_python()), "-m", "ray.scripts.scripts", "start", *SMALL, *have, *how]
        with (self.folder / f"{name}.log").open("wb") as log:
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": GPU_OF[name]}
            return subprocess.Popen([*prefix, *ray], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid


def below(root: int, word: str) -> list[ProcessRef]:
    """Those whose program has this in its name, nearest first."""
    return [ref for ref in subtree(root) if word in next(iter(proc.cmdline(ref.pid)), "")]


def until(true: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s"
        select.select([], [], [], STEP_S)


def variables() -> dict[str, str]:
    token = secrets.token_hex(32)
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    where = {"HOME": str(FOLDER), "TMPDIR": str(TMP), "AIRLOCK_HOME": str(airlock_home())}
    return {**auth, **SOON_DEAD, **where}


def inside(argv: Sequence[str]) -> int:
    """As process 1 of the namespaces."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for folder in (FOLDER, Path("/dev/shm")):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    TMP.mkdir()
    os.environ |= variables()
    nodes = Nodes()
    try:
        second = nodes.start()
    except AssertionError:
        for log in sorted(FOLDER.glob("*.log")):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}\n")
        raise
    return watch(nodes, second, subprocess.Popen(argv).pid)


def watch(nodes: Nodes, second: int, wanted: int) -> int:
    """Reaps all that comes, as a process 1 must, and starts the second node again where it died. Ends with `wanted`."""
    while True:
        pid, status = os.wait()
        if pid == second:
            second = nodes.start_second()
        if pid == wanted:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main(argv: Sequence[str]) -> int:
    if argv[0] == INSIDE:
        return inside(argv[1:])
    if reason := why_not():
        sys.exit(f"raycluster: {reason}")
    os.chdir(REPO)
    return os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, "-m", MODULE, INSIDE, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
