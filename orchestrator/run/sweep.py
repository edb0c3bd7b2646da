"""The verb `sweep`: a list of steps, each fed the last one's result, ending in an exit code."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

from orchestrator import __version__, crash, devices, plan
from orchestrator.clusters.base import Cluster
from orchestrator.console import Console
from orchestrator.definition.inputs import DIGEST_SCHEME, FIRST_SCHEME, scheme_of
from orchestrator.errors import InputError, Interrupted, JournalError, Problem
from orchestrator.events import Event, RunStarted, SurvivorsReaped
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.journal import Journal, require_free
from orchestrator.notify.telling import telling
from orchestrator.nvml import NvmlReader
from orchestrator.proc import ProcessRef
from orchestrator.provenance import Provenance
from orchestrator.reaper import Reaper
from orchestrator.record import planfile
from orchestrator.record.generations import read_records
from orchestrator.record.replay import JOURNAL_NAME, Replay, beginning
from orchestrator.remote.muster import abandoned, left_over
from orchestrator.run import lastwords, promptskept, scrutiny
from orchestrator.run.assembly import Assembly, cluster_for
from orchestrator.run.environments import Environments, usable
from orchestrator.run.ledger import Ledger
from orchestrator.run.listen import dialled
from orchestrator.run.machines import place_lines
from orchestrator.run.prepare import Ground, Prepared, prepare, survey
from orchestrator.run.provenance import collect, unlike
from orchestrator.run.signals import StopFlag
from orchestrator.run.workplace import check_sockets, check_tmpdir, remove_abandoned
from orchestrator.stores import prompts
from orchestrator.stores.home import run_tag_of
from orchestrator.view import fairness
from orchestrator.view.runview import read_plan


@dataclass(frozen=True)
class Request:
    file: Path
    overrides: tuple[str, ...] = ()
    run_dir: Path | None = None
    resume: bool = False
    accept_environment_change: bool = False
    retry_failed: bool = False
    view: str = "auto"
    listen: str = ""
    strict: bool = False


def run(request: Request) -> int:
    """Exit code of the whole sweep. Raises InputError before anything starts."""
    console = Console(mode=request.view)
    with StopFlag() as stop:
        try:
            return _run(request, console, stop)
        finally:
            console.close()


def _run(request: Request, console: Console, stop: StopFlag) -> int:
    def heed() -> None:
        if stop.signum is not None:
            raise Interrupted(stop.signum)

    stop.raises = True  # nothing is at stake before the run directory is opened
    ground = survey(request.file, request.overrides, console.say, heed)
    run_dir = request.run_dir or Path("runs") / ground.config.name
    _check_run_dir(run_dir, request.resume)
    check_tmpdir(_socket_makers(ground))
    request = replace(request, listen=dialled(request.listen, ground.config))
    if not request.listen:
        check_sockets()
    if request.resume and not request.overrides and (begun_with := _overrides_of(run_dir)):
        console.say(f"this run was begun with {_told(begun_with)}: so it goes on")
        request = replace(request, overrides=begun_with)
        ground = survey(request.file, request.overrides, console.say, heed)
    for line in place_lines(ground.machine):
        console.say(line)
    scrutiny.announce(ground, console.say)
    found = scrutiny.findings(ground)
    for line in fairness.lines(found):
        console.say(line)
    scrutiny.refuse(found, request.strict)
    prepared = prepare(ground, console.say, model_scheme(run_dir, request, console.say))
    with ExitStack() as stack:

        @cache
        def cluster() -> Cluster | None:
            found = cluster_for(prepared, run_dir)
            if found:
                stack.callback(found.close)
            return found

        if not request.resume:  # then nothing may be left to do, and no cluster be needed for it
            cluster()
        stop.raises = False
        heed()
        console.know(prepared.plan)
        journal, earlier = _open(run_dir, prepared, request, console.say)
        stack.callback(journal.close)
        crash.keep_in(run_dir / "logs")
        try:
            return _supervise(run_dir, request, prepared, journal, earlier, console, stop, cluster)
        except JournalError as exc:  # the disk, in mid run: the workers are down, what was committed stays
            console.say(f"stopped: {exc}; when that is mended, --resume goes on from what is committed")
            return EXIT_STOPPED_EARLY


def _socket_makers(ground: Ground) -> set[str]:
    """Engines that make sockets of their own in TMPDIR; vLLM does between the workers of several devices."""
    wide = any(c.get("tensor_parallel_size", 1) * c.get("pipeline_parallel_size", 1) > 1 for c in ground.config.cells)
    return {m.engine for m in ground.config.methods if m.engine == "sglang" or (m.engine == "vllm" and wide)}


def _overrides_of(run_dir: Path) -> tuple[str, ...]:
    """What --set changed when the run was begun."""
    first = beginning(run_dir)
    return tuple(first.overrides) if first else ()


def _path(override: str) -> str:
    return override.partition("=")[0].strip()


def _told(overrides: Iterable[str]) -> str:
    return " ".join(f"--set {shlex.quote(one)}" for one in overrides)


def model_scheme(run_dir: Path, request: Request, say: Callable[[str], None]) -> str:
    """How the digest of the model is made: of a run that goes on, as it was when it began."""
    scheme = DIGEST_SCHEME
    with suppress(JournalError):  # `_open` says what is wrong there
        scheme = scheme_of(read_plan(run_dir).model.digest) if request.resume else scheme
    if scheme == FIRST_SCHEME:
        say(
            "an earlier Airlock began this run and knows its model by both ends of each large file: "
            "a change between them since can't be told"
        )
    return scheme


def _check_run_dir(run_dir: Path, resume: bool) -> None:
    if not resume:
        require_free(run_dir)
    elif not (run_dir / JOURNAL_NAME).exists():
        raise InputError([Problem(str(run_dir), "", "there is no run to resume here", "leave out --resume")])


def _open(
    run_dir: Path, prepared: Prepared, request: Request, say: Callable[[str], None]
) -> tuple[Journal, Replay | None]:
    if not request.resume:
        plan_json = planfile.lines(prepared.plan)
        lines = (prompts.as_line(prompt) for prompt in prepared.prompts.prompts)
        return Journal.create(run_dir, sweep_text=prepared.ground.text, plan_json=plan_json, prompts=lines), None
    journal, earlier = Journal.resume(run_dir, evict=Reaper(run_tag_of(run_dir)).sweep)
    try:
        begun = read_plan(run_dir)
        _check_same(begun, prepared, earlier, request)
        for line in plan.unheeded(begun, prepared.plan):
            say(line)
        for line in promptskept.keep(run_dir, prepared.prompts.prompts):
            say(line)
    except BaseException:
        journal.close()
        raise
    if request.retry_failed:
        earlier.forgive(read_records(run_dir, earlier.ranges))
    if earlier.torn:
        say(f"set aside, not whole: {earlier.torn}")
    return journal, earlier


def _check_same(begun: plan.Plan, prepared: Prepared, earlier: Replay, request: Request) -> None:
    """A resumed run must be the run that was begun. Raises InputError."""
    given = {_path(one) for one in request.overrides}
    left_out = [one for one in _overrides_of(earlier.run_dir) if _path(one) not in given]
    again = f"{_told(left_out)} as well, as it was begun, or use" if left_out else "use"
    found = plan.changes(begun, prepared.plan)
    problems = [Problem(str(request.file), "", change, f"{again} another --run-dir") for change in found]
    if not request.accept_environment_change:
        hint = "--accept-environment-change to go on all the same"
        lines = environment_changes(begun, prepared.plan, earlier.environments, fingerprints(prepared.environments))
        first = next((event for event in earlier.events() if isinstance(event, Provenance)), None)
        measures = any(earlier.is_left(point.id, request.retry_failed) for point in prepared.plan.points)
        lines = chain(lines, unlike(first, prepared, earlier.run_dir, measures=measures))
        problems += [Problem(str(earlier.run_dir), "", line, hint) for line in lines]
    if problems:
        raise InputError(problems)


def environment_changes(
    begun: plan.Plan, now: plan.Plan, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[str]:
    """A sentence for each engine whose environment is not the one that the run began with, by that name or another.
    `old`, `new`: digests by name, of those that worked."""
    before = {start.config.method.engine: start.env for start in begun.starts}
    after = {start.config.method.engine: start.env for start in now.starts}
    for engine in after:
        names = before.get(engine, ""), after[engine]
        digests = old.get(names[0]), new.get(names[1])
        if None not in digests and digests[0] != digests[1]:
            which = names[1] if names[0] == names[1] else f"{names[1]} of {engine}"
            then = digests[0] if names[0] == names[1] else f"{names[0]}, {digests[0]}"
            yield f"environment {which} is not the one this run began with ({then} then, {digests[1]} now)"


def fingerprints(environments: Environments) -> dict[str, str]:
    """Environment name → digest, of those that work."""
    return {env.name: env.fingerprint.digest for env in usable(environments)}


def _supervise(
    run_dir: Path,
    request: Request,
    prepared: Prepared,
    journal: Journal,
    earlier: Replay | None,
    console: Console,
    stop: StopFlag,
    cluster: Callable[[], Cluster | None],
) -> int:
    launcher = prepared.ground.launcher
    reaper = Reaper(run_tag_of(run_dir), launcher.owned)
    reaper.become_subreaper()
    survivors = [*journal.evicted, *reaper.sweep()]
    ledger = Ledger(journal, console, earlier, prepared.plan)
    # Not the gate's: what times out here must not make it doubt a device.
    reader = devices.reader(prepared.ground.machine)
    for line in abandoned(earlier.events() if earlier else (), prepared.plan.launcher, run_dir):
        console.say(line)
    opening = _opening(prepared, request, earlier, survivors, reader)
    if _is_over(prepared, ledger, earlier):
        remove_abandoned(reaper.run_tag)
        for event in opening:
            ledger.emit(event)
        return lastwords.nothing_left(run_dir, ledger, console, stop, request.strict)
    supervisor = Assembly(prepared, run_dir, ledger, earlier, console, stop, reaper, reader, cluster()).supervisor(
        request.listen
    )
    with telling(prepared.ground.config.notify, request.file.parent, supervisor, ledger, console, stop):
        for event in opening:
            ledger.emit(event)
        code = supervisor.run()
    stop.raises = True  # all is written; what is left may take minutes, and can be asked for again
    return lastwords.results(run_dir, code, console, request.strict)


def _is_over(prepared: Prepared, ledger: Ledger, earlier: Replay | None) -> bool:
    """Of a run on a cluster its allocations must be gone as well."""
    if not lastwords.is_over(prepared.plan, ledger):
        return False
    launcher = prepared.plan.launcher
    return launcher == "local" or not left_over(earlier.events() if earlier else (), launcher)


def _opening(
    prepared: Prepared,
    request: Request,
    earlier: Replay | None,
    survivors: Sequence[ProcessRef],
    reader: NvmlReader | None,
) -> Iterator[Event]:
    """What every life of a run begins with."""
    yield _run_started(prepared, earlier, request)
    yield collect(prepared, request.file, _life(earlier), reader)
    if survivors:
        yield SurvivorsReaped(at=time.time(), processes=[f"{p.pid} {p.name}" for p in survivors])


def _life(earlier: Replay | None) -> int:
    return (earlier.lives if earlier else 0) + 1


def _run_started(prepared: Prepared, earlier: Replay | None, request: Request) -> RunStarted:
    return RunStarted(
        at=time.time(),
        life=_life(earlier),
        file=str(request.file.absolute()),
        overrides=list(request.overrides),
        pid=os.getpid(),
        airlock=__version__,
        host=socket.gethostname(),
        plan_digest=prepared.plan.digest,
        points=len(prepared.plan.points),
        environments=fingerprints(prepared.environments),
    )
