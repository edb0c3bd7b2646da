"""An outpost: what a back end starts on a machine of its own. It dials back, and works off what it is assigned.

Told to end by its back end (SIGTERM), by the coordinator, or by having lost it, it drains its worker and leaves
nothing behind. Everything it must know stands in a file that only its user can read, named by AIRLOCK_OUTPOST.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from orchestrator import __version__, crash, devices
from orchestrator.clusters.allocations import Node
from orchestrator.console import Console
from orchestrator.errors import AirlockError, EnvironmentFailed, InputError, Problem
from orchestrator.exits import EXIT_OK, EXIT_PARTIAL
from orchestrator.outcomes import Cause
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.reaper import Reaper
from orchestrator.remote.allegiance import VARIABLE, Orders, alias
from orchestrator.remote.assignment import Refused, work_off
from orchestrator.remote.link import Link
from orchestrator.remote.messages import REMOTE_VERSION, Assign, Brief, Finished, Joined
from orchestrator.run.cpusets import listed
from orchestrator.run.provenance import cpu_name
from orchestrator.run.signals import StopFlag
from orchestrator.view.wording import bytes_text
from protocol.channel import DealerChannel
from protocol.errors import Oversized
from protocol.keys import Keys

#: For the last words to be acknowledged.
FAREWELL_S: Final = 20.0


@dataclass(frozen=True)
class Life:
    """Which start of the job this is. A back end that starts it again by itself counts the starts."""

    job: str
    restarts: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Life:
        restarts = environ.get("SLURM_RESTART_COUNT", "0")
        job = environ.get("SLURM_JOB_ID") or environ.get("AIRLOCK_INCARNATION", "")
        return cls(job, int(restarts) if restarts.isdigit() else 0)


def main() -> int:
    """The exit code. Raises InputError where it was not started by a coordinator."""
    orders, life = _orders(), Life.of(os.environ)
    name = alias(orders.name, life.restarts)
    joined = Joined(version=REMOTE_VERSION, airlock=__version__, token=orders.token, node=_node(life))
    keys = Keys(orders.server_key, orders.secret_key)
    with StopFlag() as stop, _folder(orders.tag) as folder:
        crash.keep_in(folder / "logs")

        def dial() -> DealerChannel:
            return DealerChannel(orders.endpoint, name, orders.token, keys)

        link = Link(dial, joined, orders.silence_s, on_word=lambda: _heed(link, stop))
        try:
            return _serve(link, stop, folder, orders.tag)
        finally:
            link.close(FAREWELL_S)


def _orders() -> Orders:
    path = os.environ.get(VARIABLE)
    if not path:
        raise InputError([Problem("", VARIABLE, "is not set: an outpost is started by a sweep with a launcher")])
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Orders)
    except (OSError, msgspec.MsgspecError) as exc:
        raise InputError([Problem(path, "", f"holds no orders: {exc}", "the sweep may be over")]) from exc


def _node(life: Life) -> Node:
    machine = devices.discover()
    return Node(
        host=os.uname().nodename,
        job=life.job,
        pid=os.getpid(),
        devices=[device.uuid for device in machine.devices],
        kinds=[device.name for device in machine.devices],
        memory_bytes=[device.total_bytes for device in machine.devices],
        cpu=cpu_name(),
        cpus=listed(machine.cpu_ids),
    )


@contextmanager
def _folder(tag: str) -> Iterator[Path]:
    """What an earlier start of this slot left on this machine goes first, that start itself above all."""
    Reaper(tag).sweep()
    prefix = f"al-post-{tag[:8]}-"
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    (folder / "logs").mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _heed(link: Link, stop: StopFlag) -> None:
    """In the link's thread."""
    if link.kill:
        stop.ask(2)
    elif link.leave or link.lost:
        stop.ask(1)
    else:
        stop.wake()


class Teller(Console):
    """Keeps what it was shown last, for the coordinator's live view."""

    last: WorkerProgress | None = None

    def progress(self, snapshot: Progress) -> None:
        self.last = snapshot.workers[0] if snapshot.workers else None


def _serve(link: Link, stop: StopFlag, folder: Path, tag: str) -> int:
    console = Teller(sys.stderr, "plain")
    link.progress = lambda: console.last
    link.leaving = lambda: _leaving(link, stop)
    while work := _next(link, stop):
        brief, assign = work
        trouble, cause = _try(partial(work_off, brief, assign, link, stop, folder, tag, console))
        if trouble:
            console.say(trouble)
        link.tell(Finished(number=0, assignment=assign.assignment, trouble=trouble, cause=cause))
    return EXIT_PARTIAL if link.lost else EXIT_OK


def _leaving(link: Link, stop: StopFlag) -> str:
    """Why, "" while it stays."""
    return link.leave or ("the coordinator's silence" if link.lost else stop.name if stop.requested else "")


def _next(link: Link, stop: StopFlag) -> tuple[Brief, Assign] | None:
    """None once we are to leave."""
    while link.assigned.empty() and not stop.requested:
        stop.wait()
    return None if stop.requested else link.assigned.get()


def _try(work: Callable[[], str]) -> tuple[str, Cause | None]:
    """Why there is no more to be had here, or why this job can't be done here."""
    try:
        return work(), None
    except Refused as exc:
        return "", exc.cause
    except Oversized as exc:
        size, most = bytes_text(exc.size_bytes), bytes_text(exc.limit_bytes)
        message = f"a batch's records come to {size}, and at most {most} travel from an allocation: take smaller ones"
        return "", Cause(cls="protocol", message=message, phase="busy")
    except EnvironmentFailed as exc:
        return "", Cause(cls="environment", message=exc.cause, phase="environment", log_tail=exc.log_tail)
    except AirlockError as exc:
        return "", Cause(cls="model", message=str(exc), phase="preparing")
