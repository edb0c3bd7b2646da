"""Every death of a real engine's processes, in real sweeps: who is struck, with what, at which moment.

A sweep takes a chain of blows: one for each worker that it starts, each answered by its
policy with a fresh worker. The worker after the last blow must do all the work, and another
method after it. So a blow costs one load. A blow that an engine survives ends its chain.

    python -m tests.engines.deaths [NAME...]     the whole matrix, or some of it; with * and ? as in file names
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

from orchestrator import proc
from orchestrator.errors import JournalError
from orchestrator.events import Event, PointEnded, StateChanged, WorkerLaunched, WorkerReady, WorkerReleased
from orchestrator.outcomes import Cause
from orchestrator.proc import ProcessRef
from orchestrator.reaper import alive, send, subtree
from orchestrator.stores.home import airlock_home
from tests.engines.blows import COORDINATOR, KILL, LIMITED, MATRIX, PHASES, SETUPS, STOP, TITLES, Blow, Setup, chains
from tests.process.sweeping import GONE_AFTER_KILL_S, Bench, wait_gone

PROMPTS = ["Name a colour.", "Say hello."]
MIB = 1024 * 1024

#: Until the moment of a blow, and for a whole run: engines spin, and neighbours slow them ten-fold.
MOMENT_S, PATIENCE_S = 300.0, 900.0
STEP_S = 0.03
#: The tree has computed for this long since it entered its load or its batch: it is in the middle of it.
MIDDLE_CPU_S = 0.5

#: What a death may cost before somebody acts on it, beyond the deadline where only that can tell.
NOTICED_S = 10.0
#: From the worker's own end to the end of all that it started.
KILLED_S = 1.0
#: From the first sign of the end: the worker's report, `terminate_s` and a kill.
TEARDOWN_S = 5.0
ENDING = ("draining", "terminating", "killing", "reaped")
KERNEL_ACTED = "out-of-memory killer acted"
#: Fresh workers enough for any chain.
POLICIES = {cls: {"do": "retry", "times": 20, "loads": 20} for cls in ("engine_crash", "oom", "hang")}

T = TypeVar("T")


class TooLate(AssertionError):
    """The moment of a blow did not come."""


@dataclass(frozen=True)
class Struck:
    """`at`: wall-clock seconds, as in the journal."""

    blow: Blow
    incarnation: str
    victim: ProcessRef
    at: float


@dataclass(frozen=True)
class Verdict:
    """What became of one blow. `faults` says in words what should not have been."""

    blow: Blow
    noticed_s: float | None
    teardown_s: float
    cause: str
    faults: tuple[str, ...]


# --- a sweep with its blows ---------------------------------------------------


def write_sweep(bench: Bench, setup: Setup, methods: int) -> None:
    sized = {} if setup.engine == "hf" else {"kv_cache_bytes": 256 * MIB}
    bench.env["AIRLOCK_HOME"] = str(airlock_home())
    bench.write(
        model="demo",
        prompts=PROMPTS,
        methods=[*(setup.method(n) for n in range(methods)), setup.other],
        settings={"dtype": "float32", "max_model_len": 256, **sized, **setup.settings},
        sampling={"max_new_tokens": setup.tokens, "ignore_eos": True},
        matrix={"batch_size": [len(PROMPTS)]},
        limits=setup.limits,
        policies=POLICIES,
    )


def strike(folder: Path, setup: Setup, blows: Sequence[Blow]) -> list[Verdict]:
    """One sweep that takes all these blows, none of them the coordinator's. Raises TooLate."""
    bench, ordered = Bench(folder), chains(blows)
    write_sweep(bench, setup, len(ordered))
    sweep = Run(bench, bench.start())
    try:
        struck = [sweep.strike(setup.method(n)["name"], blow) for n, chain in enumerate(ordered) for blow in chain]
        sweep.finish()
    finally:
        sweep.close()
    assert not (missing := whole(bench)), missing
    return [judge(bench, one) for one in struck]


def strike_coordinator(folder: Path, blow: Blow) -> Verdict:
    """Killed at the moment, then resumed. `teardown_s`: until all its children were gone. Raises TooLate."""
    bench, setup = Bench(folder), SETUPS[blow.setup]
    write_sweep(bench, setup, 1)
    sweep = Run(bench, bench.start())
    try:
        sweep.moment(setup.method(0)["name"], blow.victim, blow.moment)
        left, at = bench.processes(), time.monotonic()
        sweep.process.kill()
        sweep.process.communicate()
        wait_gone(left, GONE_AFTER_KILL_S)
        gone_s = time.monotonic() - at
    finally:
        sweep.close()
    resumed = bench.run("--resume", patience_s=PATIENCE_S)
    faults = [f"resume ended with {resumed.returncode}: {resumed.stderr}"] if resumed.returncode else []
    return Verdict(blow, None, gone_s, "resumed", (*faults, *whole(bench)))


class Run:
    """A sweep under way, followed through its journal."""

    def __init__(self, bench: Bench, process: subprocess.Popen[str]) -> None:
        self.bench, self.process = bench, process
        self._pidfd = os.pidfd_open(process.pid)
        self._struck: set[str] = set()
        self._cpu_s: dict[str, float] = {}  # by incarnation, when it entered the moment

    def strike(self, method: str, blow: Blow) -> Struck:
        incarnation, victim = self.moment(method, blow.victim, blow.moment)
        self._struck.add(incarnation)
        if not send(victim, blow.signum):
            raise TooLate(f"{blow}: {victim} had just ended")
        return Struck(blow, incarnation, victim, time.time())

    def moment(self, method: str, victim: str, moment: str) -> tuple[str, ProcessRef]:
        """Returns in the middle of that load or batch, with the worker's name and the victim. Raises TooLate."""
        worker = self._until(lambda: self._launched(method), f"no further worker of {method}")
        late = f"{worker.incarnation}: no {victim} in the middle of its {moment}"
        return worker.incarnation, self._until(lambda: self._victim(worker, victim, moment), late)

    def finish(self) -> None:
        """To the end of the sweep, which must not fail."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, out + err

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        os.close(self._pidfd)

    def _events(self) -> list[Event]:
        with suppress(JournalError):  # it has not begun
            return self.bench.events
        return []

    def _launched(self, method: str) -> WorkerLaunched | None:
        for event in self._events():
            if isinstance(event, WorkerLaunched) and event.method == method and event.incarnation not in self._struck:
                return event
        return None

    def _victim(self, worker: WorkerLaunched, victim: str, moment: str) -> ProcessRef | None:
        """None until the moment has come."""
        if not self._is_in(worker.incarnation, moment):
            return None
        tree = tree_of(worker.pid)
        computed_s = cpu_s(tree)
        computed_s -= self._cpu_s.setdefault(worker.incarnation, computed_s)
        titled = victim in TITLES
        found = [one for one in tree if not titled or one.name.startswith(TITLES[victim])]
        # Children get their titles while they load.
        in_the_middle = computed_s >= MIDDLE_CPU_S or (titled and moment == "load")
        return found[0] if found and in_the_middle else None

    def _is_in(self, incarnation: str, moment: str) -> bool:
        followed = (StateChanged, WorkerReady)
        mine = [event for event in self._events() if isinstance(event, followed) and event.incarnation == incarnation]
        if moment == "batch":
            return any(isinstance(event, WorkerReady) for event in mine)
        return bool(mine) and isinstance(mine[-1], StateChanged) and mine[-1].state == "loading"

    def _until(self, found: Callable[[], T | None], otherwise: str) -> T:
        deadline = time.monotonic() + MOMENT_S
        while time.monotonic() < deadline:
            if (value := found()) is not None:
                return value
            if select.select([self._pidfd], [], [], STEP_S)[0]:
                out, err = self.process.communicate()
                raise TooLate(f"{otherwise}; the sweep has ended\n{out}{err}")
        raise TooLate(f"{otherwise} in {MOMENT_S:g} s")


def tree_of(pid: int) -> list[ProcessRef]:
    """The process and what lives below it."""
    return [ref for ref in subtree(pid) if alive(ref)]


def cpu_s(tree: Iterable[ProcessRef]) -> float:
    """What the processes have computed so far."""
    fields = [(proc.read_bytes(ref.pid, "stat") or b"").rpartition(b")")[2].split() for ref in tree]
    return sum(int(one[11]) + int(one[12]) for one in fields if one) / os.sysconf("SC_CLK_TCK")


# --- what became of it --------------------------------------------------------


def judge(bench: Bench, struck: Struck) -> Verdict:
    blow, events = struck.blow, bench.events
    changes = [e for e in events if isinstance(e, StateChanged) and e.incarnation == struck.incarnation]
    release = next(e for e in bench.releases() if e.incarnation == struck.incarnation)
    acted = next((e.at - struck.at for e in changes if e.at >= struck.at and e.state in ENDING), None)
    faults = [*_wrong_cause(struck, release.cause), *_wrong_times(blow, acted, release)]
    if release.reclaim.processes_left or not release.reclaim.returned or release.reclaim.after_bytes:
        faults.append(f"not all came back: {release.reclaim}")
    cause = release.cause
    told = f"{cause.cls} while {cause.phase}: {cause.message}" if cause else "unharmed"
    return Verdict(blow, acted, release.reclaim.teardown_s, told, tuple(faults))


def _wrong_cause(struck: Struck, cause: Cause | None) -> list[str]:
    blow = struck.blow
    if blow.survivable or cause is None:
        return [] if blow.survivable and cause is None else [f"cause {cause}"]
    cls, phase = "hang" if blow.signum == STOP else "engine_crash", PHASES[blow.moment]
    if KERNEL_ACTED in cause.message:  # it counts for the whole machine: a neighbour's death may look like ours
        cls = "oom"
    faults = [] if (cause.cls, cause.phase) == (cls, phase) else [f"{cause.cls} while {cause.phase}: {cause.message}"]
    if blow.signum == KILL and not ("SIGKILL" in cause.message or cause.signal == "SIGKILL"):
        faults.append(f"does not say what killed it: {cause.message}")
    if blow.signum == KILL and blow.victim in TITLES and f"(pid {struck.victim.pid})" not in cause.message:
        faults.append(f"does not say who was killed: {cause.message}")
    return faults


def _wrong_times(blow: Blow, acted_s: float | None, release: WorkerReleased) -> list[str]:
    if blow.survivable:
        return []
    limit_s = SETUPS[blow.setup].limits[LIMITED[blow.moment]] if blow.signum == STOP else 0.0
    faults = [] if acted_s is not None and acted_s <= limit_s + NOTICED_S else [f"noticed after {acted_s} s"]
    if release.reclaim.teardown_s > TEARDOWN_S:
        faults.append(f"teardown took {release.reclaim.teardown_s:g} s")
    return faults


def whole(bench: Bench) -> list[str]:
    """What is missing of a sweep that went on to its end. Raises AssertionError where something is left."""
    bench.assert_clean()
    bad = [f"{name}: {end.outcome}: {end.cause}" for name, ends in bench.outcomes().items() for end in _bad(ends)]
    records = Counter((record["method"], record["prompt_id"]) for record in bench.records)
    bad += [f"{key} has {count} records" for key, count in records.items() if count != 1]
    slow = [f"{name}: {took_s:g} s from its end to that of all it left" for name, took_s in _killing_s(bench.events)]
    return bad + slow


def _killing_s(events: Iterable[Event]) -> Iterator[tuple[str, float]]:
    """Of each worker whose last processes took longer to end, after itself, than they may."""
    before: dict[str, str] = {}
    for event in events:
        if isinstance(event, StateChanged):
            if before.get(event.incarnation) == "killing" and event.after_s > KILLED_S:
                yield event.incarnation, event.after_s
            before[event.incarnation] = event.state


def _bad(ends: Iterable[PointEnded]) -> list[PointEnded]:
    return [end for end in ends if end.outcome != "ok"]


# --- the matrix as a whole ----------------------------------------------------


def run(blows: Iterable[Blow], folder: Path, report: Callable[[Verdict], None]) -> None:
    """Deals them all, one sweep after the other; each run directory stays under `folder`."""
    by_sweep: dict[str, list[Blow]] = {}
    for blow in blows:
        by_sweep.setdefault(str(blow) if blow.victim == COORDINATOR else blow.setup, []).append(blow)
    for name, together in by_sweep.items():
        for verdict in _dealt(made(folder / name), together):
            report(verdict)


def _dealt(folder: Path, together: list[Blow]) -> list[Verdict]:
    try:
        if together[0].victim == COORDINATOR:
            return [strike_coordinator(folder, together[0])]
        return strike(folder, SETUPS[together[0].setup], together)
    except (AssertionError, subprocess.TimeoutExpired) as exc:
        return [Verdict(blow, None, 0.0, "the sweep went wrong", (str(exc),)) for blow in together]


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def line(verdict: Verdict) -> str:
    noticed = "-" if verdict.noticed_s is None else f"{verdict.noticed_s:.1f}"
    fault = f"  FAULT: {'; '.join(verdict.faults)}" if verdict.faults else ""
    return f"{verdict.blow!s:42} {noticed:>6} {verdict.teardown_s:>6.1f}  {verdict.cause.splitlines()[0]}{fault}"


def main(names: Sequence[str]) -> int:
    """Prints a line for each blow; the status is 1 if any of them ended in a fault."""
    chosen = [blow for blow in MATRIX if not names or any(fnmatch(str(blow), name) for name in names)]
    verdicts: list[Verdict] = []

    def report(verdict: Verdict) -> None:
        verdicts.append(verdict)
        print(line(verdict), flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory(prefix="al-d-") as folder:
        run(chosen, Path(folder), report)
    return int(any(verdict.faults for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
