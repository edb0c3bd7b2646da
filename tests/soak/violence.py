"""What is done to a sweep from outside, to whom and when."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from orchestrator import proc
from orchestrator.proc import ProcessRef
from orchestrator.reaper import send

LATEST_S = 1.5
#: Who → what may be done to them, as signals in a row; between them passes `pause_s`.
DEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "coordinator": (
        ("SIGKILL",),
        ("SIGKILL",),
        ("SIGKILL",),
        ("SIGTERM",),
        ("SIGINT",),
        ("SIGINT", "SIGINT"),
        ("SIGHUP",),
        ("SIGQUIT",),
        ("SIGSTOP", "SIGCONT"),
        ("SIGSTOP", "SIGKILL"),
    ),
    "warden": (("SIGKILL",), ("SIGSTOP",), ("SIGTERM",), ("SIGQUIT",)),
    "worker": (("SIGKILL",), ("SIGTERM",), ("SIGSTOP",), ("SIGSEGV",), ("SIGQUIT",)),
    "child": (("SIGKILL",), ("SIGSTOP",)),
    #: The coordinator frozen, its wardens killed, then itself: nobody is left who knows of the rest.
    "coordinator and wardens": (("SIGKILL",),),
}
WEIGHTS = {"coordinator": 6, "warden": 2, "worker": 3, "child": 1, "coordinator and wardens": 1}


@dataclass(frozen=True)
class Act:
    at_s: float
    who: str
    signals: tuple[str, ...]
    pause_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.2f} s: {' '.join(self.signals)} to {self.who}"


def random_acts(rng: Random) -> list[Act]:
    """Of one life, in the order of time."""
    acts = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        (who,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        acts.append(Act(rng.uniform(0.02, LATEST_S), who, rng.choice(DEEDS[who]), rng.uniform(0.01, 0.5)))
    return sorted(acts, key=lambda act: act.at_s)


def perform(act: Act, coordinator: ProcessRef, run_tag: str) -> int:
    """How many were hit."""
    if act.who == "coordinator and wardens":
        send(coordinator, signal.SIGSTOP)
        hit = [send(ref, signal.SIGKILL) for ref in targets("warden", run_tag)]
        return sum([send(coordinator, signal.SIGKILL), *hit])
    hits = set()
    for number, name in enumerate(act.signals):
        if number:
            time.sleep(act.pause_s)
        for ref in [coordinator] if act.who == "coordinator" else targets(act.who, run_tag):
            if send(ref, signal.Signals[name]):
                hits.add(ref)
    return len(hits)


def targets(who: str, run_tag: str) -> list[ProcessRef]:
    ours = [one for one in proc.table().values() if not one.dead and proc.belongs(one.pid, run_tag)]
    wardens = [one for one in ours if any(arg.endswith("/warden.py") for arg in proc.cmdline(one.pid))]
    workers = [one for one in ours if one.ppid in {warden.pid for warden in wardens}]
    children = [one for one in ours if one not in wardens and one not in workers]
    return refs({"warden": wardens, "worker": workers, "child": children}[who])


def refs(stats: Iterable[proc.Stat]) -> list[ProcessRef]:
    return [proc.ref(one) for one in stats]
