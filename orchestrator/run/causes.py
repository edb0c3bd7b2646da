"""From what a worker reported, and what was found beside it, to the class of its failure. Pure.

The tables hold what torch, CUDA, NCCL, vLLM and SGLang really say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from orchestrator.outcomes import Cause, CauseClass
from orchestrator.stores.tracebacks import MILD, exceptions, line_of
from protocol.records import ErrorInfo

_DEVICE_LOST = re.compile(
    r"GPU is lost|fallen off the bus|GPU requires (?:restart|reset)|NVML_ERROR_GPU_IS_LOST|NVML_ERROR_RESET_REQUIRED"
    r"|uncorrectable (?:ECC|NVLink) error|(?:CUDA_ERROR_|cudaError)(?:(?:ECC|NVLINK)_?UNCORRECTABLE|CONTAINED)"
    r"|Invalid access of peer GPU memory over nvlink or a hardware error|NVRM: Xid|\bXid \(PCI|Xid critical error"
    r"|Unable to determine the device handle|amdgpu: GPU reset|HSA_STATUS_ERROR_FATAL",
    re.IGNORECASE,
)
_BUSY_DEVICE = re.compile(
    # vLLM: memory that somebody else was still letting go, or holds.
    r"Error in memory profiling\. Initial free memory|less than desired (?:GPU|CPU) memory utilization"
    # SGLang
    r"|memory capacity is unbalanced\. Some GPUs may be occupied"
    # CUDA: exclusive mode, or a device that another holds alone
    r"|CUDA-capable device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE|cudaErrorDevicesUnavailable"
    r"|exclusive-thread device already in use",
    re.IGNORECASE,
)
_OOM = re.compile(
    r"(?<!avoid )(?<!avoid running )out of memory|OutOfMemory|MemoryError\b|std::bad_alloc|\bENOMEM\b"
    # numpy
    r"|Unable to allocate [\d.]+ \w+ for an array"
    # glibc also says this of thread-local storage, which is a matter of the environment
    r"|(?:can't|cannot) allocate memory(?! in static TLS)|not enough (?:GPU |host )?memory"
    r"|(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    # oneDNN, whose primitives take memory, and the allocator of Rust, which both engines' tokenizers are written in
    r"|could not create a primitive(?! descriptor)|memory allocation of \d+ bytes failed"
    # vLLM
    r"|No available memory for the cache blocks|larger than the available KV cache memory"
    r"|is less than requested memory for kv"
    # SGLang
    r"|leave no GPU memory for the KV cache|state cache is too small to serve",
    re.IGNORECASE,
)
_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno (?:28|122|27|30)\]|File too large|Read-only file system"
)
#: What shm_open, Python's SharedMemory and torch say of a segment that was there and is not.
_VANISHED = re.compile(
    r"No such file or directory: '/?(?:dev/shm/)?(?:psm_|sem\.|torch_|nccl-|vllm_|sglang_)"
    r"|unable to open shared memory object|could not (?:open|find) .*shared memory (?:file|object)",
    re.IGNORECASE,
)
#: In this order: a lost device also makes allocations fail.
_SIGNS: tuple[tuple[CauseClass, re.Pattern[str]], ...] = (
    ("device_lost", _DEVICE_LOST),
    ("busy_device", _BUSY_DEVICE),
    ("oom", _OOM),
    ("disk", _DISK),
)

#: After these a process is of no more use: the CUDA context, or the communicator, stays broken.
_BROKEN = re.compile(
    r"CUDA (?:driver |runtime )?error|cudaError|CUDA_ERROR_|Triton Error \[|device-side assert|HIP error|hipError"
    r"|HSA_STATUS_ERROR|illegal memory access|illegal instruction was encountered|misaligned address"
    r"|unspecified launch failure|cuDNN error|cuBLAS error|(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_"
    r"|EngineDead|EngineCore encountered an issue|engine (?:is|already) dead",
    re.IGNORECASE,
)
_COMMUNICATOR = re.compile(
    r"NCCL (?:error|failure)|ncclError|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|RCCL error"
    r"|DistBackendError|Connection closed by peer.*gloo|\[.*gloo.*\].*(?:reset|closed|timed out)",
    re.IGNORECASE,
)
#: Errors of one call, with which the context stays whole: the request was wrong, or too large.
_PASSING = re.compile(
    r"invalid (?:configuration |pitch )?argument|too many resources requested for launch"
    r"|too many blocks in cooperative launch|_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|BAD_PARAM)"
    r"|(?:CUDNN|CUBLAS)_STATUS_ARCH_MISMATCH",
    re.IGNORECASE,
)

#: How a line of a log begins, or ends, that tells of an error. Many lines name no level (all of SGLang's, all that
#: Transformers says, whatever is printed), and what only speaks of memory can be worded in any way.
_ERROR = re.compile(
    # the level, where it stands first, torch's too; NCCL's words at the end of an exception
    r"\[?(?:ERROR|CRITICAL|Error|E\d{3,4})\b|Cuda failure \d"
    # an exception, as Python prints it
    r"|(?:(?:\w+\.)+[A-Z]\w*|[\w.]*(?:Error|Exception)\w*)(?:: |:?$)"
    # C++, LLVM and Rust, before they abort
    r"|terminate called |\s+what\(\):|LLVM ERROR: |memory allocation of \d"
    # a program by its name, with the words of the system at the end
    r"|(?!warning)[a-z/][\w./+-]*: (?:.*: )?(?:[Oo]ut of memory|No space left on device|Disk quota exceeded"
    r"|Read-only file system|File too large|Cannot allocate memory)(?: allocating .*| \(\d+\))?$"
)

_CONFIG_TYPES = frozenset({"TypeError", "ValueError", "ValidationError", "NotImplementedError", "AssertionError"})
_REFUSALS = frozenset({"CannotHonour", "UnknownCacheShape"})  # of our own adapters
#: Engines import much of what a model needs at its load only.
_ENVIRONMENT_TYPES = frozenset({"ImportError", "ModuleNotFoundError"})
_MODEL_TYPES = frozenset({"FileNotFoundError", "OSError", "SafetensorError", "EntryNotFoundError"})
_MISREAD = re.compile(r"StrictDataclass\w*Error")  # config.json
#: EX_CONFIG of sysexits.h: a worker's first file ends so, before its first word, where the environment lacks
#: something; it has said what on a line of its own.
_REFUSED_STATUS, _REFUSAL = 78, "airlock: "
#: Classes that say little more than where it failed; evidence may name a better one.
_GENERIC = frozenset({"engine_crash", "engine_error", "config", "model", "environment"})
#: Of the end of the worker or of a child of it. The kernel's killer sends SIGKILL.
_OTHER_SIGNAL = re.compile(r"\bSIG(?!KILL)[A-Z]+")
#: What an engine says in one process when the error is another's.
_POINTS_ELSEWHERE = re.compile(
    r"See (?:root cause|stack trace) \(?above|Engine core initialization failed|EngineDead", re.IGNORECASE
)


class Kills(NamedTuple):
    """Of the kernel's out-of-memory killer, during a worker's life: in our control group, and by whichever count is
    the highest, the machine's among them. None if nobody counts."""

    ours: int = 0
    anywhere: int | None = 0


NO_KILLS = Kills()


def classify(phase: str, error: ErrorInfo) -> CauseClass:
    """The class of `error` that a worker reported while in `phase`."""
    if error.type in {"Malformed", "OutOfTurn"}:
        return "protocol"
    if sign := _sign("\n".join([f"{error.type}: {error.message}", *exceptions(error.traceback)])):
        return sign
    if phase == "importing" or (phase == "loading" and error.type in _ENVIRONMENT_TYPES):
        return "environment"
    if _VANISHED.search(error.message):
        return "engine_error"
    if phase == "loading" and error.type in _CONFIG_TYPES | _REFUSALS:
        return "config"
    if phase == "loading" and (error.type in _MODEL_TYPES or _MISREAD.fullmatch(error.type)):
        return "model"
    if error.type == "EngineDead":
        return "engine_crash"
    return "engine_error"


def from_error(phase: str, error: ErrorInfo, log_tail: str = "") -> Cause:
    lines = error.message.strip().splitlines()
    message = f"{error.type}: {lines[0] if lines else ''}".rstrip(": ")
    return Cause(cls=classify(phase, error), message=message, phase=phase, error=error, log_tail=log_tail)


def is_fatal(error: ErrorInfo) -> bool:
    """Whether the process that raised it is of no more use, so that every later batch would fail too.

    Memory that ran out is not: with a smaller batch the same process may go on.
    Not so for a communicator, which is broken for whatever reason it failed.
    """
    said = f"{error.type}: {error.message}"
    if error.fatal or _COMMUNICATOR.search(said) or _DEVICE_LOST.search(said):
        return True
    return bool(_BROKEN.search(said)) and not (_OOM.search(said) or _PASSING.search(said))


def refine(
    cause: Cause,
    *,
    first_traceback: str = "",
    log_tail: str = "",
    oom_kills: Kills = NO_KILLS,
    device_lost: bool = False,
    disk: str = "",
) -> Cause:
    """`cause` with the class that the evidence speaks for, and the reason in its message.

    first_traceback, log_tail  of the worker's log, its children's lines included; no traceback that the engine
                 itself calls a warning
    oom_kills    how often the kernel's out-of-memory killer acted
    device_lost  the driver says that a device of the slot is gone
    disk         which file systems that the worker writes to have no room, "" if all have
    """
    if device_lost and cause.cls in _GENERIC | {"hang", "oom"}:
        return _as(cause, "device_lost", "the driver has lost a device of the slot")
    if cause.cls == "disk":
        return _with_room(cause, disk)
    if cause.cls not in _GENERIC:
        return cause
    better = (
        _refused(cause, log_tail)
        or _killed_for_memory(cause, oom_kills, _root(first_traceback))
        or _no_page(cause, disk)
        or _told(cause, first_traceback, log_tail)  # SGLang kills its own tree when a child of it fails
        or _killed_by_somebody(cause, oom_kills.anywhere)
        or cause
    )
    if better.cls == "disk":
        return _with_room(better, disk)
    return _vanished(better, first_traceback) if better.cls in _GENERIC else better


def _as(cause: Cause, cls: CauseClass, reason: str) -> Cause:
    return replace(cause, cls=cls, message=f"{cause.message}; {reason}" if cause.message else reason)


def _with_room(cause: Cause, disk: str) -> Cause:
    """The same error comes from quotas, watches and semaphores: only statvfs can say that a disk is full."""
    where = disk or (
        "run directory, TMPDIR and /dev/shm have room, so it was none of these:"
        " look for a quota, a limit on file size, watches or semaphores"
    )
    return cause if where in cause.message else _as(cause, "disk", where)


def _refused(cause: Cause, log_tail: str) -> Cause | None:
    """Every further worker in this environment would end so."""
    if cause.phase != "launching" or cause.exit_status != _REFUSED_STATUS:
        return None
    said = (line.removeprefix(_REFUSAL) for line in log_tail.splitlines() if line.startswith(_REFUSAL))
    return replace(cause, cls="environment", message=next(said, cause.message))


def _killed_for_memory(cause: Cause, kills: Kills, root: str) -> Cause | None:
    """A child may be the one that was killed; the worker then reports that its engine is gone. A kill outside of our
    control group is more likely a neighbour's where the log tells what the end began with."""
    gone = _killed(cause) or (_POINTS_ELSEWHERE.search(cause.message) and not _OTHER_SIGNAL.search(cause.message))
    count = kills.ours or (0 if root and not _POINTS_ELSEWHERE.search(root) else kills.anywhere)
    if not gone or not count:
        return None
    times = f"{count} times" if count > 1 else "once"
    return _as(cause, "oom", f"the kernel's out-of-memory killer acted {times} meanwhile")


def _killed(cause: Cause) -> bool:
    """By somebody else: a worker that reported an error is ended by us."""
    return cause.signal == "SIGKILL" and cause.error is None


def _killed_by_somebody(cause: Cause, oom_kills: int | None) -> Cause | None:
    if not _killed(cause):
        return None
    if oom_kills is None:
        return _as(cause, cause.cls, "possibly the kernel's out-of-memory killer, which can't be asked here")
    return _as(cause, cause.cls, "the kernel's out-of-memory killer did not act meanwhile")


def _no_page(cause: Cause, disk: str) -> Cause | None:
    """A write into a mapped file whose file system is full ends in SIGBUS, not in an error."""
    return _as(cause, "disk", disk) if disk and cause.signal == "SIGBUS" else None


def _told(cause: Cause, first_traceback: str, log_tail: str) -> Cause | None:
    """By the log: the process that failed first may not be the one that reported it."""
    for text in (*_errors(first_traceback), *_errors(log_tail)):
        if sign := _sign(text):
            return _as(cause, sign, _quoted(text))
    root = _root(first_traceback)
    if not root or not _POINTS_ELSEWHERE.search(cause.message) or root in cause.message:
        return None
    kind, _, message = root.partition(":")
    error = ErrorInfo(type=kind.rpartition(".")[2], message=message.strip())
    found = classify(cause.phase, error)
    return _as(cause, found if found in _GENERIC - {"engine_error"} else cause.cls, _quoted(root))


def _vanished(cause: Cause, first_traceback: str) -> Cause:
    if not any(_VANISHED.search(text) for text in (cause.message, *exceptions(first_traceback))):
        return cause
    reason = (
        "shared memory went away while it was in use: systemd removes a user's at logout where"
        " RemoveIPC=yes and the user does not linger"
    )
    return _as(cause, cause.cls, reason)


def _sign(text: str) -> CauseClass | None:
    return next((cls for cls, pattern in _SIGNS if pattern.search(text)), None)


def _errors(log: str) -> Iterator[str]:
    """The lines that tell of an error, each by itself: those round it may be another process's. Without the source
    lines of tracebacks, which name exceptions that never happened."""
    for line in map(line_of, log.splitlines()):
        logged = line.level and not line.text.startswith(" ")
        if line.level not in MILD and (logged or _ERROR.match(line.text)):
            yield line.text.strip()


def _root(first_traceback: str) -> str:
    """What it began with."""
    return next(_errors(first_traceback), "")


def _quoted(line: str) -> str:
    return f"its log says: {line[:300]}"
