"""What happened in a run: the typed events of the journal, and the record of one output.

The supervisor emits each event once; the journal writes it and the console
shows it. Reports are a pure read of the same events. Times: `at` is wall time
(Unix seconds, display only); every duration comes from a monotonic clock.
"""

from __future__ import annotations

from typing import Any, Literal, Union

from msgspec import Struct, field

from orchestrator.provenance import DeviceUse, HostUse, Provenance
from protocol.records import BatchStats, ErrorInfo, RuntimeMetadata

#: Why a point, batch or worker ended as it did. The first cause wins.
CauseClass = Literal[
    "environment",  # the engine can't be built or imported
    "config",  # the engine refused its settings
    "model",  # the model can't be loaded
    "oom",  # device or host memory ran out, in the worker or a child of it
    "device_lost",  # a GPU fell off the bus: nothing can run there until a reset
    "busy_device",  # the slot is not free: a stranger holds it, or memory that did not come back
    "engine_crash",  # the worker or a child of it ended without a farewell
    "engine_error",  # the engine raised
    "hang",  # a deadline passed
    "protocol",  # the worker spoke out of turn, or nonsense
    "bad_prompt",  # this prompt alone makes the engine fail; `root` says how
    "interrupted",  # we were asked to stop: nobody is to blame
    "disk",  # no room, or no permission to write
]
OutcomeKind = Literal["ok", "partial", "failed"]
#: Of a batch that was out while the coordinator was stopped, and its records. Whether the worker was stopped too nobody
#: knows, so its times are in no figure.
FLAG_SUSPENDED = "suspended"
#: Of what ran in a worker whose warm-up batch failed.
FLAG_NO_WARMUP = "no_warmup"


class Cause(Struct, frozen=True, kw_only=True):
    """Why it ended so.

    phase            the worker's life-cycle state when it happened
    root             of a bad_prompt: the class of what the prompt does to the engine
    policy           what the sweep's policy made of it, "halve, 2 times"
    incarnation      the worker whose log has more on it
    first_traceback  the first one in the worker's log: the root, where the last is often an echo
    log_tail         the last lines of that log
    stacks           of a hung worker: its processes and their threads' stacks, taken before it was killed
    """

    cls: CauseClass
    message: str
    phase: str = ""
    exit_status: int | None = None
    signal: str | None = None
    error: ErrorInfo | None = None
    log_tail: str = ""
    root: CauseClass | None = None
    policy: str = ""
    incarnation: str = ""
    first_traceback: str = ""
    stacks: str = ""


class RecordLogprobs(Struct, frozen=True, kw_only=True):
    """Natural log-probabilities, position by position; null where the engine gave no number.

    chosen        of the output's own tokens, or of the given ones where the task was to score
    top_ids, top  the likeliest tokens of each position and theirs, the likeliest first
    """

    chosen: list[float | None]
    top_ids: list[list[int]] = field(default_factory=list)
    top: list[list[float | None]] = field(default_factory=list)


class Record(Struct, frozen=True, kw_only=True):
    """One line of generations.jsonl: one prompt of one point. The key is (point, prompt_id). `itl_s` are the
    seconds between tokens, null where the engine does not tell."""

    point: str
    batch: str
    method: str
    prompt_id: str
    prompt_digest: str
    prompt_tokens: int
    text: str
    token_ids: list[int]
    generated_tokens: int
    finish_reason: str
    ttft_s: float | None
    latency_s: float | None
    batch_size: int
    repeat: int
    incarnation: str
    itl_s: list[float | None] | None = None
    logprobs: RecordLogprobs | None = None
    flags: list[str] = field(default_factory=list)
    error: Cause | None = None


class Reclaim(Struct, frozen=True, kw_only=True):
    """Proof that an incarnation is gone and its memory back.

    processes_left   processes of this incarnation alive at the end; 0 unless quarantined
    strays_killed    descendants that outlived the worker and had to be killed, by name
    held_bytes       memory held just before teardown: device memory on a GPU slot,
                     summed PSS of the process tree on a CPU slot
    peak_bytes       the highest such figure seen
    baseline_bytes   memory in use on the slot before launch
    after_bytes      the same after teardown
    returned         memory is back at the baseline, within `tolerance_bytes`, and stable
    wait_s           from the end of the last process until it was back
    teardown_s       from the request to stop until the last process was gone
    rung             how far the ladder went: "exit", "shutdown", "terminate", "kill", "sweep"
    shm_removed      /dev/shm segments that our processes had mapped and left behind
    holders          who holds device memory of the slot at the end: "pid name bytes"
    """

    device: str
    processes_left: int
    strays_killed: list[str]
    held_bytes: int | None
    peak_bytes: int | None
    baseline_bytes: int | None
    after_bytes: int | None
    tolerance_bytes: int
    returned: bool
    wait_s: float
    teardown_s: float
    rung: str
    shm_removed: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class RunStarted(Struct, frozen=True, kw_only=True, tag="run_started"):
    """`life` counts the coordinators of this run: 1, then one more per resume."""

    at: float
    life: int
    pid: int
    airlock: str
    host: str
    plan_digest: str
    points: int
    file: str = ""  # the sweep file, as it was named
    overrides: list[str] = field(default_factory=list)  # of --set
    environments: dict[str, str] = field(default_factory=dict)  # env name → fingerprint digest


class SurvivorsReaped(Struct, frozen=True, kw_only=True, tag="survivors_reaped"):
    at: float
    processes: list[str]


Early = Literal["", "standby", "teardown"]


class WorkerLaunched(Struct, frozen=True, kw_only=True, tag="worker_launched"):
    """artefacts: whether what earlier workers compiled was at hand ("warm") or not ("cold"), by which load times
    must be told apart; "" where its method compiles nothing or none are kept. cpus: "0-3", those it was held to;
    "" for all. early: its slot was still held by the worker before it, which was at work ("standby") or on its way
    out ("teardown"). start: the key of its worker start in the plan; "" in older journals."""

    at: float
    incarnation: str
    method: str
    engine: str
    env: str
    fingerprint: str
    slot: str
    pid: int
    log: str
    artefacts: Literal["", "cold", "warm"] = ""
    cpus: str = ""
    early: Early = ""
    start: str = ""


ArtefactFate = Literal["kept", "not_kept", "not_used", "dropped"]


class Artefacts(Struct, frozen=True, kw_only=True, tag="artefacts"):
    """What became of compiled artefacts: of the entry that a worker was to be lent, or of what it leaves.

    kept      the store has what it had not before
    not_kept  it has not, and why
    not_used  there is an entry that could not be lent
    dropped   the entry is damaged, or suspected of having made its worker fail: it is gone
    """

    at: float
    incarnation: str
    key: str
    what: ArtefactFate
    reason: str = ""
    bytes: int = 0


class StateChanged(Struct, frozen=True, kw_only=True, tag="state_changed"):
    at: float
    incarnation: str
    state: str
    after_s: float  # spent in the state it left


class WorkerReady(Struct, frozen=True, kw_only=True, tag="worker_ready"):
    at: float
    incarnation: str
    metadata: RuntimeMetadata
    fingerprint: str


class PointStarted(Struct, frozen=True, kw_only=True, tag="point_started"):
    at: float
    point: str
    incarnation: str
    prompts: int


class WarmupDone(Struct, frozen=True, kw_only=True, tag="warmup_done"):
    at: float
    point: str
    batch: str
    stats: BatchStats


#: What neighbours are called that import their engine and wait for a slot.
STANDBY = "standby: "


def is_standby(neighbour: str) -> bool:
    return neighbour.startswith(STANDBY)


class BatchCommitted(Struct, frozen=True, kw_only=True, tag="batch_committed"):
    """`offset` and `length` (bytes) place its records in generations.jsonl;
    `errors` of them are error records. `host`: of a batch that ran, what else ran beside it; `neighbours`: which
    other workers of this run there were meanwhile, "slot1: vllm_default"."""

    at: float
    point: str
    batch: str
    incarnation: str
    prompts: list[str]
    offset: int
    length: int
    crc: int
    stats: BatchStats | None
    errors: int = 0
    flags: list[str] = field(default_factory=list)
    host: HostUse | None = None
    neighbours: list[str] = field(default_factory=list)

    @property
    def crowded(self) -> bool:
        """Other workers were at work beside it; one that only stood by, at low priority, is none of them."""
        return any(not is_standby(one) for one in self.neighbours)


class DevicesUsed(Struct, frozen=True, kw_only=True, tag="devices_used"):
    """What the slot's GPUs did while a measured batch ran."""

    at: float
    batch: str
    incarnation: str
    devices: list[DeviceUse]


class BatchLost(Struct, frozen=True, kw_only=True, tag="batch_lost"):
    """A batch that gave nothing; its prompts run again, in halves, or end in an error record."""

    at: float
    point: str
    batch: str
    incarnation: str
    prompts: list[str]
    cause: Cause


class Probed(Struct, frozen=True, kw_only=True, tag="probed"):
    """After a failed batch that left its worker alive: whether the engine still answers another
    prompt. If not, the failure is the process's and not the batch's alone. Never measured."""

    at: float
    point: str
    batch: str
    incarnation: str
    ok: bool


class PointEnded(Struct, frozen=True, kw_only=True, tag="point_ended"):
    at: float
    point: str
    outcome: OutcomeKind
    cause: Cause | None = None


class PointSkipped(Struct, frozen=True, kw_only=True, tag="point_skipped"):
    """A point that is not measured, and neither failed nor missing: a repeat, as those before it were enough; or one
    that needs at least as much memory as point `over`, which ran out of it."""

    at: float
    point: str
    reason: str
    over: str = ""


class WorkerReleased(Struct, frozen=True, kw_only=True, tag="worker_released"):
    """`dropped` counts messages under this worker's identity that did not count, by kind; `slow_paths`
    are lines of its log that tell of a slower way that the engine took."""

    at: float
    incarnation: str
    exit_status: int | None
    signal: str | None
    cause: Cause | None
    reclaim: Reclaim
    metadata: RuntimeMetadata | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    slow_paths: list[str] = field(default_factory=list)


class SlotQuarantined(Struct, frozen=True, kw_only=True, tag="slot_quarantined"):
    """Nothing more runs there in this life. `incarnation` is empty where a stranger holds the slot."""

    at: float
    slot: str
    incarnation: str
    reason: str
    holders: list[str] = field(default_factory=list)


class Node(Struct, frozen=True, kw_only=True):
    """A machine of a cluster, and what of it one allocation may use. `job`: as its back end names it."""

    host: str
    job: str = ""
    pid: int = 0
    devices: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    memory_bytes: list[int | None] = field(default_factory=list)
    cpu: str = ""
    cpus: str = ""


class SlotAsked(Struct, frozen=True, kw_only=True, tag="slot_asked"):
    """An allocation was asked for. It is there until `slot_left` tells of it."""

    at: float
    slot: str
    job: str
    attempt: int


class SlotJoined(Struct, frozen=True, kw_only=True, tag="slot_joined"):
    """An outpost has dialled back. `restarts`: how often the back end has begun its job anew by itself."""

    at: float
    slot: str
    attempt: int
    restarts: int
    node: Node


class SlotLeft(Struct, frozen=True, kw_only=True, tag="slot_left"):
    """An allocation is not used any more; what was out there runs again elsewhere."""

    at: float
    slot: str
    job: str
    attempt: int
    reason: str


class Waiting(Struct, frozen=True, kw_only=True, tag="waiting"):
    """A wait begins, for `most_s` seconds at most; `waited` ends it."""

    at: float
    what: Literal["slot", "room"]
    reason: str
    most_s: float
    slot: str = ""


class Waited(Struct, frozen=True, kw_only=True, tag="waited"):
    """Time that is charged to no method: for a slot that somebody holds, for room on a disk, or
    while this coordinator itself was stopped. Written when it is over; `over` is false where it did not help."""

    at: float
    what: Literal["slot", "room", "suspended"]
    reason: str
    wait_s: float
    over: bool = True
    slot: str = ""


class Notified(Struct, frozen=True, kw_only=True, tag="notified"):
    """Somebody was told of the run, or could not be: `said` is why. May come after the run's end."""

    at: float
    occasion: str
    to: str
    ok: bool
    said: str = ""


#: The run ended before its plan: no slot or no room is left. Beside 0, 1, 2, 130 and 143.
EXIT_STOPPED_EARLY = 3
#: Exit codes from here on mean "ended by signal (code - 128)".
_SIGNALLED = 128


def ended_as(exit_code: int) -> Literal["finished", "stopped", "interrupted"]:
    """What became of a run that came to say how it ended."""
    if exit_code >= _SIGNALLED:
        return "interrupted"
    return "stopped" if exit_code == EXIT_STOPPED_EARLY else "finished"


class RunEnded(Struct, frozen=True, kw_only=True, tag="run_ended"):
    """`measured_s` is the time inside engines' generate calls, warm-up excluded; `dropped` counts
    what came over the wire from nobody of ours, by kind."""

    at: float
    exit_code: int
    wall_s: float
    measured_s: float
    reason: str = ""
    dropped: dict[str, int] = field(default_factory=dict)


Event = Union[
    RunStarted,
    Provenance,
    SurvivorsReaped,
    WorkerLaunched,
    Artefacts,
    StateChanged,
    WorkerReady,
    PointStarted,
    WarmupDone,
    BatchCommitted,
    DevicesUsed,
    BatchLost,
    Probed,
    PointEnded,
    PointSkipped,
    WorkerReleased,
    SlotQuarantined,
    SlotAsked,
    SlotJoined,
    SlotLeft,
    Waiting,
    Waited,
    Notified,
    RunEnded,
]


class WorkerProgress(Struct, frozen=True, kw_only=True):
    """What one worker is doing. None: not known.

    state               of its life; "busy" while it has a point, from the journal
    settings            by which its point is told from others
    batches_done        of its worker start, in this life of the run; `batches_total` with those that are left
    tokens_per_s        generated ones, of the last batch
    memory_bytes        the resident sets of its processes; on GPUs the most memory seen in use on its devices
    memory_total_bytes  what these devices have
    """

    slot: str = ""
    incarnation: str = ""
    method: str = ""
    state: str = ""
    point: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    batches_done: int = 0
    batches_total: int = 0
    tokens_per_s: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


class Progress(Struct, frozen=True, kw_only=True):
    """A snapshot for the live view; never journalled. `points_done` have ended well, `points_failed` otherwise; `eta_s`
    until the last worker is gone, None where it can't be told."""

    workers: list[WorkerProgress] = field(default_factory=list)
    points_done: int = 0
    points_failed: int = 0
    points_skipped: int = 0
    points_total: int = 0
    eta_s: float | None = None
