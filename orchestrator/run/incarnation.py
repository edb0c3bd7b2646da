"""One launch of a worker: turns frames, exit news and time into life-cycle events, and performs the actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from orchestrator import lifecycle
from orchestrator.config import Limits
from orchestrator.envs import EngineEnv
from orchestrator.errors import LaunchFailed
from orchestrator.events import Early
from orchestrator.launcher import Ended, Handle, Launcher, Started, WardenDied
from orchestrator.launcher import Exited as ExitNews
from orchestrator.outcomes import Cause, CauseClass
from orchestrator.plan import WorkerStart
from orchestrator.reaper import ProcessRef, Reaper
from orchestrator.run.autopsy import Autopsy
from orchestrator.run.hearing import Hearing, fact
from orchestrator.run.lending import Lending, Loan
from orchestrator.run.life import (
    TERMINAL,
    Accept,
    Action,
    Called,
    Dispatched,
    Event,
    Exited,
    Expired,
    Failed,
    Granted,
    Inspect,
    Kill,
    Life,
    MemoryBack,
    MemoryStuck,
    Quarantine,
    SendInit,
    SendRun,
    SendShutdown,
    State,
    SubtreeGone,
    Sweep,
    Terminate,
    WardenLost,
)
from orchestrator.run.outfit import Outfitter
from orchestrator.run.processtree import ProcessTree
from orchestrator.run.reclaim import MemoryWatch
from orchestrator.run.workplace import Workplace
from protocol.channel import RouterChannel
from protocol.errors import PeerGone, WireError
from protocol.messages import BatchDone, BatchFailed, Beat, Goodbye, Init, Ready, Run, Shutdown, Up
from protocol.records import RuntimeMetadata
from protocol.specs import PromptBatch

Answer = BatchDone | BatchFailed

LOOK_AGAIN_S = 0.5


@dataclass(frozen=True)
class Services:
    """What every incarnation of a run shares."""

    launcher: Launcher
    reaper: Reaper
    channel: RouterChannel
    workplace: Workplace
    limits: Limits
    clock: Callable[[], float]
    log_dir: Path
    lending: Lending


@dataclass
class Incarnation:
    name: str
    start: WorkerStart
    env: EngineEnv
    watch: MemoryWatch
    services: Services
    on_state: Callable[[Incarnation, Life, Life], None]
    on_answer: Callable[[Incarnation, Answer], None]
    early: Early = ""
    metadata: RuntimeMetadata | None = None
    last_beat: Beat | None = None
    stuck: str = ""
    loan: Loan = field(default_factory=Loan)
    _answer: Answer | None = None
    _batch: PromptBatch | None = None
    _stopped_at: float | None = None

    def __post_init__(self) -> None:
        self.hearing = Hearing(self.name)

    def launch(self) -> None:
        """Raises LaunchFailed."""
        services = self.services
        try:
            services.workplace.restore()
            services.channel.restore()
            services.log_dir.mkdir(exist_ok=True)
        except OSError as exc:
            raise LaunchFailed(f"{exc.filename}: {exc.strerror}") from exc
        outfitter = Outfitter(services.workplace, services.lending, services.channel.endpoint)
        spec, self.loan = outfitter.spec(
            self.name,
            self.start,
            self.env,
            self.watch.slot,
            in_background=self.early == "standby",
            token=self.hearing.token,
            keys=services.channel.admit(self.name, self.hearing.token),
            log=self.log,
        )
        self.autopsy = Autopsy(self.log, services.workplace.run_tag, self.name)
        self.life = lifecycle.begin(services.clock(), services.limits, early=bool(self.early))
        self.handle: Handle = services.launcher.launch(spec)

    @cached_property
    def processes(self) -> ProcessTree:
        """Of one that was launched."""
        services = self.services
        return ProcessTree(self.name, self.handle, self.watch, services.reaper, services.workplace, services.clock)

    @property
    def log(self) -> Path:
        return self.services.log_dir / f"{self.name}.log"

    @property
    def teardown_s(self) -> float:
        """From the request to stop, or the first sign of the end, until the last process was gone."""
        gone_at = self.processes.gone_at
        return 0.0 if gone_at is None or self._stopped_at is None else gone_at - self._stopped_at

    # --- facts in -------------------------------------------------------------

    def feed(self, event: Event) -> None:
        now = self.services.clock()
        before = self.life
        self.life, actions = lifecycle.step(before, event, now, self.services.limits)
        if self.life.state is not before.state:
            if self._stopped_at is None and self.life.state in (State.DRAINING, State.TERMINATING, State.KILLING):
                self._stopped_at = now
            self.on_state(self, before, self.life)
        for action in actions:
            self._perform(action)

    def fail(self, cls: CauseClass, message: str) -> None:
        self.feed(Failed(Cause(cls=cls, message=message)))

    def dispatch(self, batch: PromptBatch) -> None:
        self._batch = batch
        self.feed(Dispatched(batch.batch_id))

    def call(self) -> None:
        """Its slot is free: from now on it waits for the memory there alone."""
        self.feed(Called())

    def grant(self, tree: Sequence[ProcessRef]) -> None:
        self.watch.rebase(tree)
        self.feed(Granted())

    def take_frames(self, parts: list[bytes]) -> None:
        """One message under our identity, in parts."""
        if self.life.state in TERMINAL:
            return
        try:
            message = self.hearing.hear(parts)
        except WireError as exc:
            self.fail("protocol", f"malformed message: {exc}")
            return
        if message:
            self._take(message)

    def _take(self, message: Up) -> None:
        match message:
            case Beat():
                self.last_beat = message
                # What it shares in /dev/shm must be known should it die before it is ready; but looking
                # costs milliseconds, and it may beat without end.
                since_s = self.services.clock() - self.processes.looked_at
                if self.life.state is State.LOADING and since_s >= LOOK_AGAIN_S:
                    self.processes.look()
            case Ready():
                self.metadata = message.metadata
            case BatchDone() | BatchFailed():
                self._answer = message
            case Goodbye():
                self.metadata = message.metadata or self.metadata
        if told := fact(message):
            self.feed(told)

    def take_news(self) -> None:
        """What the warden and its pidfd have to tell."""
        for news in self.handle.read_events():
            match news:
                case Started():
                    pass
                case ExitNews(code=code, signal=name):
                    self.feed(Exited(code, name))
                case Ended(strays=strays):
                    self.processes.strays += strays
                    self.feed(SubtreeGone(strays))
                case WardenDied():
                    if self.life.state not in (State.REAPED, *TERMINAL):
                        self.feed(WardenLost())

    def check_clock(self) -> None:
        now = self.services.clock()
        if self.life.state is State.REAPED:
            self._check_memory(now)
        elif now >= self.life.deadline:
            if self.life.state is State.LAUNCHING and self.hearing.refusal:
                self.fail("protocol", self.hearing.refusal)
            else:
                self.feed(Expired())

    def _check_memory(self, now: float) -> None:
        found = self.watch.poll()
        if found == "back":
            self.feed(MemoryBack())
        elif found == "lost" or now >= self.life.deadline:
            self.stuck = self.watch.stuck_reason()
            self.feed(MemoryStuck(self.stuck))

    # --- actions out ----------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case SendInit():
                self._send(Init(self.start.config))
            case SendRun():
                assert self._batch is not None
                self._send(Run(self._batch))
            case SendShutdown(reason=reason):
                self.processes.look()
                self._send(Shutdown(reason))
            case Accept():
                assert self._answer is not None
                self.on_answer(self, self._answer)
            case Inspect():
                self.autopsy.inspect(self.processes.alive(), self.services.launcher)
            case Terminate():
                self.processes.look()
                self.handle.terminate()
            case Kill():
                self.handle.kill()
            case Sweep():
                self.processes.sweep()
            case Quarantine(reason=reason):
                self.stuck = self.stuck or reason
            case _:  # Free is the supervisor's, told by the state
                pass

    def _send(self, message: Init | Run | Shutdown) -> None:
        try:
            self.services.channel.send(self.name.encode("ascii"), message)
        except PeerGone:
            # Its exit is on the way to us; if it lives and does not listen, the state's deadline ends it.
            self.hearing.drop("a message to a worker that is gone")
        except WireError as exc:
            self.fail("protocol", str(exc))

    def find_segments(self, names: Iterable[str]) -> None:
        """`names` were just made in /dev/shm, by whomever."""
        if self.life.state not in (State.REAPED, *TERMINAL):
            self.processes.find_segments(names)

    def settle_cause(self, *, device_lost: bool, short: str) -> Cause | None:
        """The first cause, with the evidence; None if it ended as it should."""
        if self.life.cause is None:
            return None
        return self.autopsy.settle(self.life.cause, self.life.exited, device_lost=device_lost, short=short)

    def close(self) -> None:
        self.handle.close()
        self.services.channel.dismiss(self.name, gone=not self.processes.left)
        self.services.workplace.clear(self.name)
