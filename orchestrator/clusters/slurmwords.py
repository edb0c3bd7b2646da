"""What is said to Slurm's commands and how their answers read; nothing is run here.

Values of an errand's environment stand in none of it: sbatch hands them on out of its own environment.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from orchestrator.clusters.base import Errand, JobState, Sighting

#: So long before its time limit a job is told by SIGTERM. Slurm looks every half minute: 22.05 told 31 to 61 s before
#: the limit, and ended the job half a minute after it.
NOTICE_S = 60

# --- a job -------------------------------------------------------------------------

#: Ours to say, or against one errand being one job that runs its command.
REFUSED = MappingProxyType(
    {
        "--array": "one errand is one job",
        "--wait": "submitting does not wait",
        "--wrap": "the command is the errand's",
        "--test-only": "it would submit nothing",
        "--parsable": "Airlock says it itself",
        "--quiet": "it would hide the job's id",
        "--export": "the job would lack its environment",
        "--export-file": "the job would lack its environment",
        "--output": "the log is the errand's",
        "--error": "the log is the errand's",
        "--open-mode": "a second run of the job must not empty the log",
        "--chdir": "the folder is the errand's",
        "--signal": "Airlock hears of the time limit by it",
        "--clusters": "jobs are looked up on the cluster at hand",
        "--no-requeue": "a job that is preempted is to begin anew",
        "--job-name": "Airlock names its jobs",
        "--nodes": "an allocation is one node",
        "--ntasks": "an allocation is one task",
        "--time": "write cluster: {time_limit: …}",
        "--mem": "write cluster: {memory_mib: …}",
        "--mem-per-cpu": "write cluster: {memory_mib: …}",
        "--mem-per-gpu": "write cluster: {memory_mib: …}",
        "--cpus-per-task": "write cluster: {cpus: …}",
        "--cpus-per-gpu": "write cluster: {cpus: …}",
        "--gpus": "write cluster: {gpus: …}",
        "--gpus-per-node": "write cluster: {gpus: …}",
        "--gpus-per-task": "write cluster: {gpus: …}",
        "--gpus-per-socket": "write cluster: {gpus: …}",
        "--tres-per-task": "write cluster: {gpus: …, cpus: …}",
        "--hold": "the job would never begin by itself",
        "--help": "it would submit nothing",
        "--usage": "it would submit nothing",
        "--version": "it would submit nothing",
    }
)
SHORT = MappingProxyType(
    {"-a": "--array", "-W": "--wait", "-Q": "--quiet", "-o": "--output", "-e": "--error", "-D": "--chdir"}
    | {"-M": "--clusters", "-J": "--job-name", "-N": "--nodes", "-n": "--ntasks", "-t": "--time"}
    | {"-c": "--cpus-per-task", "-G": "--gpus", "-H": "--hold", "-h": "--help", "-u": "--usage", "-V": "--version"}
)
#: Short options without a value: the next one may follow in the same word, as in -HG4.
FLAGS = "HhIkOQsuVvW"
_GRES = ("--gres", "--gre")


def refusals(options: Iterable[str], gpus: int) -> list[str]:
    """Why sbatch must not get these with a job of so many GPUs, a sentence each."""
    return [f"{option!r} {why}" for option in options if (why := _refusal(option, gpus))]


def _refusal(option: str, gpus: int) -> str:
    name, _, value = option.partition("=")
    long = name.startswith("--")
    if not option.startswith("-") or option.strip("-") == "" or (long and len(name.split()) > 1) or option in _GRES:
        return "is no option of sbatch; write both parts in one word, as in --partition=gpu"
    found = [_meant(name)] if long else [SHORT.get(f"-{letter}", "") for letter in _letters(option)]
    if refused := next((one for one in found if one in REFUSED), ""):
        return f"can't be given: {REFUSED[refused]}"
    return _other_gpus(value, gpus) if name in _GRES else ""


def _meant(name: str) -> str:
    """sbatch takes any beginning of a name that only one option has."""
    if name in REFUSED:
        return name
    return next((full for full in REFUSED if len(name) > 3 and full.startswith(name)), "")


def _letters(option: str) -> str:
    """Of the short options in one word: those without a value, and the one after them."""
    flags = len(option[1:]) - len(option[1:].lstrip(FLAGS))
    return option[1 : flags + 2]


def _other_gpus(gres: str, gpus: int) -> str:
    """It stands for our own --gres then, so it may name a type of GPU, and anything else beside as many."""
    counts = [_count(entry) for entry in gres.split(",") if "gpu" in entry]
    asked = "what can't be read" if None in counts else f"gpu:{sum(filter(None, counts))}"
    if asked == f"gpu:{gpus}":
        return ""
    return f"comes to {asked}, and cluster.gpus is {gpus}: Slurm heeds the last --gres alone, so say the same in both"


def _count(entry: str) -> int | None:
    """Of "gpu", "gpu:2", "gpu:a100" or "gpu:a100:2"."""
    name, *rest = entry.removeprefix("gres:").removeprefix("gres/").split(":")
    if name != "gpu" or len(rest) > 2:
        return None
    if rest and rest[-1].isdecimal():
        return int(rest[-1])
    multiple = rest and re.fullmatch(r"\d+[kmgtp]", rest[-1], re.IGNORECASE)
    return None if multiple or len(rest) > 1 else 1


def submission(errand: Errand) -> list[str]:
    words = ["sbatch", "--parsable", "--export=ALL", "--requeue", "--open-mode=append", "--nodes=1", "--ntasks=1"]
    words += [f"--job-name={errand.name}", f"--chdir={errand.cwd}", f"--output={file_pattern(str(errand.log))}"]
    words += [f"--signal=B:TERM@{NOTICE_S}"]
    if errand.gpus:
        words += [f"--gres=gpu:{errand.gpus}"]
    if errand.cpus is not None:
        words += [f"--cpus-per-task={errand.cpus}"]
    if errand.memory_mib is not None:
        words += [f"--mem={errand.memory_mib}M"]
    if errand.time_limit_s is not None:
        words += [f"--time={max(1, math.ceil(errand.time_limit_s / 60))}"]
    return [*words, *errand.options]


def script(errand: Errand) -> str:
    """`exec` makes the command the process that Slurm signals. Slurm itself starts a job whose folder is not there
    in /tmp, so the folder is entered once more."""
    return f"#!/bin/sh\ncd -- {shlex.quote(str(errand.cwd))} && exec {shlex.join(errand.argv)}\n"


def file_pattern(path: str) -> str:
    """Where % and \\ would mean something to Slurm they stand for themselves."""
    return path.replace("\\", "\\\\") if "\\" in path else path.replace("%", "%%")


def job_id(answer: str) -> str | None:
    """Out of `sbatch --parsable`: "12", or "12;cluster"; sites print banners round it, and have wrappers that say it
    in Slurm's usual words."""
    lines = (line.strip().removeprefix("Submitted batch job ").partition(";")[0] for line in answer.splitlines())
    lines = (line.partition(" on cluster ")[0] for line in lines)
    return next((line for line in lines if line.isascii() and line.isdigit()), None)


# --- environment ---------------------------------------------------------------------

#: A coordinator that stands in a job itself has these of that job. SLURM_RESTART_COUNT above all: a new job does not
#: set it, and would take itself for a second run.
OF_SLURM = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SCONTROL_")
#: Who the user is and where his jobs go.
KEPT = frozenset(
    {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION"}
    | {"SBATCH_CONSTRAINT", "SBATCH_WCKEY"}
)
#: Devices are Slurm's to grant. It sets these for a job with GPUs and leaves them alone in one without.
OF_DEVICES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}
)


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in ours.items() if not _left_out(name)}


def unheeded(ours: Mapping[str, str]) -> list[str]:
    """Variables a user may have meant for his jobs, which they don't get."""
    return sorted(name for name in ours if _left_out(name) and name.startswith(("SBATCH_", "SLURM_CLUSTERS")))


def _left_out(name: str) -> bool:
    return name in OF_DEVICES or (name.startswith(OF_SLURM) and name not in KEPT)


# --- what it says of a job ---------------------------------------------------------------

FIELDS = ("JobID", "State", "RestartCnt", "BatchHost", "StartTime", "Partition", "exit_code", "Reason")
END = "|"
#: All that squeue prints; REVOKED, of a federation, tells nothing here.
PENDING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING"}
)
#: COMPLETING: it was told to end, or its earlier run was; processes may be left.
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "COMPLETING"})
ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
    | {"STAGE_OUT"}
)
#: Of jobs that wait, why some never begin. Those whose node failed to start them Slurm holds, for an admin to look at
#: the node; one that somebody holds, or whose partition is down, may begin yet.
STUCK = frozenset({"launch failed requeued held", "JobHoldMaxRequeue", "DependencyNeverSatisfied"})
#: What is no text of Slurm's.
NOTHING = frozenset({"", "None", "N/A", "n/a", "(null)"})


def query(job: str) -> list[str]:
    """squeue rather than `scontrol show job`: the latter prints names, comments and paths as they are, so a job's name
    can look like its state. Here is no field that a user words."""
    return ["squeue", "--all", "--noheader", "--states=all", f"--jobs={job}", f"--Format={_format()}"]


def _format() -> str:
    return ",".join(f"{name}:{END}" for name in FIELDS)


def sighting(job: str, answer: str) -> Sighting:
    rows = (line.strip().split(END, len(FIELDS) - 1) for line in answer.splitlines())
    row = next((row for row in rows if len(row) == len(FIELDS) and row[0].strip() == job), None)
    if row is None:
        return Sighting("unknown", reason=f"squeue shows no job {job}")
    seen = {name: value.strip() for name, value in zip(FIELDS, row, strict=True)}
    seen["Reason"] = seen["Reason"].removesuffix(END).strip()
    word = seen["State"]
    state = job_state(word)
    restarts = int(seen["RestartCnt"]) if seen["RestartCnt"].isdecimal() else 0
    node = "" if state == "pending" or seen["BatchHost"] in NOTHING else seen["BatchHost"]
    stuck = state == "pending" and seen["Reason"].replace("_", " ") in STUCK
    return Sighting(state, node, restarts, reason(word, seen["Reason"]), seen, stuck)


def job_state(word: str) -> JobState:
    if word in PENDING:
        return "pending"
    if word in RUNNING:
        return "running"
    return "ended" if word in ENDED else "unknown"


def reason(state: str, why: str) -> str:
    """PENDING and RUNNING are no news beside the state of ours that they stand for."""
    return ": ".join([word for word in (state,) if word not in ("PENDING", "RUNNING")] + [why] * (why not in NOTHING))


# --- what it says when it refuses -----------------------------------------------------------

#: A controller that has too much to do for now, or too many jobs; sbatch itself tries for minutes.
BUSY = ("temporarily unable to accept job", "Socket timed out", "Unable to contact slurm controller")
NO_SUCH_JOB = "Invalid job id specified"
ALREADY_OVER = ("already completing or completed", NO_SUCH_JOB)
NOT_WAITING = ("no longer pending execution", "already finished", "already completing or completed")


def says(answer: str, *words: str) -> bool:
    return any(word.lower() in answer.lower() for word in words)
