"""Ray: one actor for each errand, which holds the devices and the errand's lifeline. Tested with TESTED.

The driver is a process of its own (see `ray_driver`) under a warden, so nothing here imports Ray, and `python` may be
any interpreter that has it: Ray wants the same version of itself and of Python on all sides.

`submit`, `state` and `stop` may be asked in one thread while another closes.

What a node must have: Ray, and a path for `log` that it can write. Whatever the errand's command is must be there too.
What this machine must be: a node of the cluster; one without devices of its own will do.

An errand ends with the actor's process, however that went: when its driver ends, which is at `close` or when we die,
or the Ray worker is killed, or the node. Where only the raylet dies it goes on, unseen by Ray.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.clusters import raywords
from orchestrator.clusters.base import Errand, Sighting
from orchestrator.errors import ClusterError, LaunchFailed
from orchestrator.handle import Exited, Handle, LaunchSpec, WardenDied
from orchestrator.launcher import Launcher, base_environment, encode_order

DRIVER = str(Path(__file__).with_name("ray_driver.py"))
TESTED = "2.60"
START_S = 30.0  # to import Ray and connect
CALL_S = 10.0
STOP_GRACE_S = 10.0  # from SIGTERM to SIGKILL
LEAVE_S = 5.0  # for a driver to tell its cluster that it goes
CREDENTIALS = struct.Struct("3i")


@dataclass
class RayCluster:
    """
    run_tag  of the driver, and of errands that have no AIRLOCK_RUN of their own
    log      where the driver's own output goes, Ray's complaints in it
    address  as ray.init has it
    python   on this machine, one that has Ray
    """

    launcher: Launcher
    run_tag: str
    log: Path
    address: str = "auto"
    python: str = sys.executable
    grace_s: float = STOP_GRACE_S
    name: str = "ray"
    _driver: Driver | None = field(default=None, init=False, repr=False)
    _closed: bool = field(default=False, init=False, repr=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def check(self) -> list[str]:
        if self.address.startswith("ray://"):
            return [f"{self.address}: Ray's client protocol is not used; make this machine a node of the cluster"]
        try:
            version = self._ask("version")
        except ClusterError as error:
            return [str(error)]
        return [] if raywords.series(version) == TESTED else [f"Ray {version}: tested with {TESTED} only"]

    def objections(self, errand: Errand) -> list[str]:
        """Why no node that Ray has now could ever take it. Nothing is submitted."""
        if wrong := raywords.refusals(errand.options):
            return wrong
        return raywords.lacking(raywords.resources(errand), self.nodes())

    def nodes(self) -> list[raywords.Resources]:
        """What each node that Ray takes for alive has in all, free or not."""
        return list(self._ask("nodes"))

    def submit(self, errand: Errand) -> str:
        """It waits for what no node has: one that was lost may come back. If Ray gave no answer in time the errand may
        run all the same, until `close`."""
        if refused := raywords.refusals(errand.options):
            raise ClusterError("; ".join(refused))
        job = f"{errand.name}-{secrets.token_hex(4)}"
        run_tag = errand.env.get("AIRLOCK_RUN", self.run_tag)
        spec = LaunchSpec(errand.argv, errand.env, str(errand.cwd), str(errand.log), run_tag, job)
        self._ask(
            "submit",
            job=job,
            order=json.loads(encode_order(spec)),
            log=str(errand.log),
            needs=raywords.resources(errand),
            limit_s=errand.time_limit_s,
            grace_s=self.grace_s,
        )
        return job

    def state(self, job: str) -> Sighting:
        return raywords.read(self._ask("state", job=job))

    def stop(self, job: str) -> None:
        self._ask("stop", job=job, grace_s=self.grace_s)

    def close(self) -> None:
        """Ends the driver, and with it every errand that it has submitted. A call under way ends, none is taken any
        more."""
        self._closed = True
        if driver := self._driver:
            driver.hang_up()
        with self._asking:
            self._let_go()

    def _ask(self, do: str, **words: object) -> Any:
        with self._asking:
            return self._connected().ask(do, **words)

    def _connected(self) -> Driver:
        """A driver that was lost took its errands with it; the next one knows nothing of them."""
        if self._closed:
            raise ClusterError("Ray was let go of")
        if self._driver is not None and self._driver.gone():
            self._let_go()
        if self._driver is None:
            self._driver = start(self)
        return self._driver

    def _let_go(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


class Driver:
    """The driver's process and the line to it."""

    def __init__(self, handle: Handle, line: socket.socket, log_from: int) -> None:
        self._handle = handle
        self._line = line
        self._log_from = log_from  # what stands before it is of earlier drivers
        self._asked = 0
        self._gone = False
        self._heard = b""

    def hello(self) -> None:
        """Returns once it is connected."""
        self._answer(0, START_S)

    def ask(self, do: str, **words: object) -> Any:
        self._asked += 1
        with suppress(OSError):  # one that is gone shows when its answer is read
            self._line.sendall(json.dumps({"id": self._asked, "do": do, **words}).encode() + b"\n")
        return self._answer(self._asked, CALL_S)

    def gone(self) -> bool:
        told = self._handle.read_events()
        self._gone = self._gone or any(isinstance(event, (Exited, WardenDied)) for event in told)
        return self._gone

    def hang_up(self) -> None:
        """From any thread; whoever waits for an answer hears that none will come."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._line.close()
        deadline = time.monotonic() + LEAVE_S
        while not self.gone() and (left_s := deadline - time.monotonic()) > 0:
            self._handle.wait(left_s)
        self._handle.close()

    def _answer(self, number: int, timeout_s: float) -> Any:
        """Answers to what was given up on before are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            *lines, self._heard = self._heard.split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message["id"] == number and "refused" in message:
                    more = "" if number else self._last_words()  # of why no connection came about Ray prints more
                    raise ClusterError(f"Ray: {message['refused']}{more}")
                if message["id"] == number:
                    return message["value"]
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._line], [], [], left_s)[0]:
                raise ClusterError(f"Ray did not answer within {timeout_s:g} s{self._last_words()}")
            self._heard += self._receive()

    def _receive(self) -> bytes:
        with suppress(OSError):
            if text := self._line.recv(1 << 16):
                return text
        raise ClusterError(f"Ray's driver ended{self._last_words()}")

    def _last_words(self) -> str:
        return last_words(self._handle.spec.log, self._log_from)


def start(cluster: RayCluster) -> Driver:
    """Raises ClusterError, with nothing left."""
    log_from = cluster.log.stat().st_size if cluster.log.exists() else 0
    with socket.socket(socket.AF_UNIX) as meeting:
        name = f"airlock-ray-{secrets.token_hex(16)}"
        meeting.bind(f"\0{name}")  # without a file: nothing to remove, and no path that is too long
        meeting.listen()
        try:
            handle = cluster.launcher.launch(driver_spec(cluster, name))
        except LaunchFailed as error:
            raise ClusterError(str(error)) from error
        with ExitStack() as stack:
            stack.callback(handle.close)
            line = stack.enter_context(met(meeting, handle, log_from))
            driver = Driver(handle, line, log_from)
            driver.hello()
            stack.pop_all()
    return driver


def driver_spec(cluster: RayCluster, name: str) -> LaunchSpec:
    argv = (cluster.python, "-I", "-X", "utf8", DRIVER, name, cluster.address)
    return LaunchSpec(argv, base_environment(), "/", str(cluster.log), cluster.run_tag, name)


def met(meeting: socket.socket, handle: Handle, log_from: int) -> socket.socket:
    """The connection of our own driver, not of whoever else found the name."""
    deadline = time.monotonic() + START_S
    while (left_s := deadline - time.monotonic()) > 0:
        ready = select.select([meeting.fileno(), handle.fileno_status()], [], [], left_s)[0]
        if meeting.fileno() not in ready:  # it has ended, or is late
            break
        line, _ = meeting.accept()
        asked = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        if CREDENTIALS.unpack(asked)[0] == handle.pid:
            return line
        line.close()
    raise ClusterError(f"Ray's driver did not come{last_words(handle.spec.log, log_from)}")


def last_words(log: str, log_from: int) -> str:
    """Empty where nothing was said."""
    with open(log, "rb") as file:
        file.seek(log_from)
        said = file.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    return f"; the last line of {log}: {last}" if last else ""
