"""What is said to Slurm and how its answers read; the commands themselves are tested in tests/clusters."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters import slurmwords as words
from orchestrator.clusters.base import Cluster, Errand
from orchestrator.clusters.slurm import Slurm

ERRAND = Errand(
    "night-1", ("python", "-m", "orchestrator"), {"TOKEN": "open sesame"}, Path("/run dir"), Path("/run/log")
)
#: What a command line can hold.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def errand(**changes: object) -> Errand:
    return Errand(**{**vars(ERRAND), **changes})


def test_the_adapter_is_a_cluster() -> None:
    cluster: Cluster = Slurm()
    assert cluster.name == "slurm"


# --- what is asked for ---------------------------------------------------------------


def test_a_plain_errand() -> None:
    assert words.submission(ERRAND) == [
        "sbatch",
        "--parsable",
        "--export=ALL",
        "--requeue",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        "--job-name=night-1",
        "--chdir=/run dir",
        "--output=/run/log",
        "--signal=B:TERM@60",
    ]


def test_every_wish() -> None:
    wishes = errand(gpus=2, cpus=8, memory_mib=3000, time_limit_s=90.0, options=("--partition=gpu", "--qos=low"))
    assert words.submission(wishes)[len(words.submission(ERRAND)) :] == [
        "--gres=gpu:2",
        "--cpus-per-task=8",
        "--mem=3000M",
        "--time=2",
        "--partition=gpu",
        "--qos=low",
    ]


@pytest.mark.parametrize(("seconds", "minutes"), [(0.5, 1), (60, 1), (60.1, 2), (120, 2), (3600, 60), (100_000, 1667)])
def test_time_limits_are_rounded_up(seconds: float, minutes: int) -> None:
    assert f"--time={minutes}" in words.submission(errand(time_limit_s=seconds))


def test_no_value_of_the_environment_is_said() -> None:
    said = [*words.submission(ERRAND), words.script(ERRAND)]
    assert [text for text in said if "sesame" in text] == []


@given(argv=st.lists(TEXT, min_size=1, max_size=4), cwd=TEXT.filter(bool))
def test_the_script_holds_the_command_word_for_word(argv: list[str], cwd: str) -> None:
    script = words.script(errand(argv=tuple(argv), cwd=Path(cwd)))
    assert script.startswith("#!/bin/sh\ncd -- ")
    assert shlex.split(script.removeprefix("#!/bin/sh\n")) == ["cd", "--", str(Path(cwd)), "&&", "exec", *argv]


@pytest.mark.parametrize(("path", "pattern"), [("/a b", "/a b"), ("/50%j", "/50%%j"), ("/a\\b%j", "/a\\\\b%j")])
def test_nothing_in_the_path_of_the_log_is_replaced(path: str, pattern: str) -> None:
    assert words.file_pattern(path) == pattern


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), []),
        (("--partition=gpu", "-pgpu", "--wait-all-nodes=1", "-Cgpu", "-xH", "-kOs", "--gpu-bind=none"), []),
        (("--nodelist=n1", "--ntasks-per-node=1", "--time-min=3", "--mem-bind=local", "--exclusive"), []),
        (("gpu",), ["'gpu' is no option"]),
        (("--",), ["'--' is no option"]),
        (("--array=1-3",), ["'--array=1-3' can't be given: one errand is one job"]),
        (("-a1-3", "--arr=2"), ["'-a1-3' can't be given", "'--arr=2' can't be given"]),
        (("--nodes=2", "-N2", "--ntasks=2", "-n2"), ["'--nodes=2' c", "'-N2' c", "'--ntasks=2' c", "'-n2' c"]),
        (("--time=3", "-t3", "--tim=3"), ["'--time=3' can't be given: write", "'-t3' c", "'--tim=3' c"]),
        (("--mem=0", "--mem-per-cpu=1", "--mem-per-g=1"), ["'--mem=0' c", "'--mem-per-cpu=1' c", "'--mem-per-g=1' c"]),
        (("--cpus-per-task=3", "-c3", "--cpus=3"), ["'--cpus-per-task=3' c", "'-c3' c", "'--cpus=3' c"]),
        (
            ("--job-name=x", "-Jx", "--job=x", "--no-req"),
            ["'--job-name=x' c", "'-Jx' c", "'--job=x' c", "'--no-req' c"],
        ),
        (("--wrap=x", "--qos=low", "-W"), ["'--wrap=x' can't be given", "'-W' can't be given"]),
    ],
)
def test_options_that_are_refused(options: tuple[str, ...], told: list[str]) -> None:
    found = words.refusals(options, 0)
    assert len(found) == len(told)
    assert all(sentence.startswith(begin) for sentence, begin in zip(found, told, strict=True))


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize(
    "option",
    [
        *("--gpus=8", "--gpus", "--gpus 8", "--gpu=8", "--gpus=a100:8", "-G8", "-G 8", "-G", "-G=8", "-Ga100:8"),
        *("--gpus-per-node=8", "--gpus-per-n=8", "--gpus-per-task=8", "--gpus-per-socket=8", "-sG8", "-vvsG8"),
        *("--tres-per-task=gres/gpu:8", "--gres", "--gres gpu:8", "--gres=gpu:2", "--gres=gpu:a100:2", "--gre=gpu:2"),
        *("--gres=gpu:1,gpu:1", "--gres=tmpfs:1,gpu:2", "--gres=gres:gpu:2", "--gres=gres/gpu:2", "--gres=gpu:2k"),
        *("--gres=gpu=8", "--gres=gpu:a:b:1"),
        *("--hold", "--hol", "-H", "-sH", "-HG8", "--cpus-per-gpu=4", "-sc4", "-sN2", "-Hn2", "-st5", "--help", "-V"),
    ],
)
def test_no_spelling_overrides_what_is_asked_of_an_allocation_or_holds_its_job(option: str, gpus: int) -> None:
    (said,) = words.refusals([option], gpus)
    assert said.startswith(f"{option!r} ")


@pytest.mark.parametrize(
    ("option", "gpus"),
    [
        *(("--gres=gpu", 1), ("--gres=gpu:a100", 1), ("--gres=gpu:2", 2), ("--gres=gpu:a100:2", 2)),
        *(("--gres=gpu:a100:1,gpu:h100:1", 2), ("--gres=gpu:a100:2,tmpfs:10G", 2), ("--gres=tmpfs:10G", 0)),
        *(("--gres=gpu:0", 0), ("--gres-flags=enforce-binding", 1), ("--gpu-bind=none", 1), ("--gpu-freq=high", 1)),
    ],
)
def test_a_gres_may_say_more_of_as_many_gpus(option: str, gpus: int) -> None:
    assert words.refusals([option], gpus) == []
    if option.startswith("--gres="):
        (said,) = words.refusals([option], gpus + 1)
        assert f"and cluster.gpus is {gpus + 1}" in said


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        *(("12\n", "12"), ("12;cluster\n", "12"), ("Welcome to the lab\n12\n", "12"), ("", None)),
        *(("slurm 22.05\n", None), ("Submitted batch job 12\n", "12"), ("Submitted batch job 12 on cluster a\n", "12")),
    ],
)
def test_the_id_of_a_job(answer: str, job: str | None) -> None:
    assert words.job_id(answer) == job


# --- environment ------------------------------------------------------------------------


def test_a_job_gets_nothing_of_the_job_that_the_coordinator_stands_in() -> None:
    ours = {
        "PATH": "/bin",
        "HF_TOKEN": "x",
        "SLURM_CONF": "/etc/s",
        "SBATCH_ACCOUNT": "lab",
        "SLURM_JOB_ID": "1",
        "SLURM_RESTART_COUNT": "1",
        "SLURMD_NODENAME": "n1",
        "SBATCH_ARRAY_INX": "1-3",
        "SLURM_CLUSTERS": "other",
        "SQUEUE_USERS": "x",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert set(words.environment(ours)) == {"PATH", "HF_TOKEN", "SLURM_CONF", "SBATCH_ACCOUNT"}
    assert words.unheeded(ours) == ["SBATCH_ARRAY_INX", "SLURM_CLUSTERS"]


# --- what it says of a job ------------------------------------------------------------------


def row(**changes: str) -> str:
    plain = {
        "JobID": "12",
        "State": "RUNNING",
        "RestartCnt": "0",
        "BatchHost": "n1",
        "StartTime": "2026-01-01T00:00:00",
    }
    fields = plain | {"Partition": "main", "exit_code": "0", "Reason": "None"} | changes
    return "".join(fields[name] + words.END for name in words.FIELDS) + "\n"


def test_a_job_that_runs() -> None:
    found = words.sighting("12", row(RestartCnt="2"))
    assert (found.state, found.node, found.restarts, found.reason) == ("running", "n1", 2, "")
    assert found.seen["Partition"] == "main"


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"State": "PENDING", "BatchHost": "n/a", "Reason": "Resources"}, "pending", "Resources"),
        ({"State": "PENDING", "Reason": "BeginTime"}, "pending", "BeginTime"),
        ({"State": "REQUEUE_HOLD", "Reason": "JobHoldMaxRequeue"}, "pending", "REQUEUE_HOLD: JobHoldMaxRequeue"),
        ({"State": "CONFIGURING"}, "pending", "CONFIGURING"),
        ({"State": "COMPLETING"}, "running", "COMPLETING"),
        ({"State": "TIMEOUT", "Reason": "TimeLimit"}, "ended", "TIMEOUT: TimeLimit"),
        ({"State": "FAILED", "Reason": "a reason | of a plugin"}, "ended", "FAILED: a reason | of a plugin"),
        ({"State": "COMPLETED"}, "ended", "COMPLETED"),
        ({"State": "NEW_IN_SLURM_30"}, "unknown", "NEW_IN_SLURM_30"),
        ({"RestartCnt": ""}, "running", ""),
    ],
)
def test_states_and_reasons(changes: dict[str, str], state: str, reason: str) -> None:
    found = words.sighting("12", row(**changes))
    assert (found.state, found.reason) == (state, reason)
    assert found.node == ("" if state == "pending" else "n1")


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [
        *(("launch failed requeued held", True), ("launch_failed_requeued_held", True), ("JobHoldMaxRequeue", True)),
        *(("DependencyNeverSatisfied", True), ("Dependency", False), ("Priority", False), ("None", False)),
        *(("JobHeldAdmin", False), ("JobHeldUser", False), ("PartitionDown", False), ("BadConstraints", False)),
    ],
)
def test_a_job_that_waits_for_nothing_is_told_from_one_that_somebody_holds(reason: str, stuck: bool) -> None:
    assert words.sighting("12", row(State="PENDING", RestartCnt="1", Reason=reason)).stuck is stuck
    assert words.sighting("12", row(State="RUNNING", Reason=reason)).stuck is False


def test_the_row_of_the_job_is_found() -> None:
    assert words.sighting("12", "CLUSTER: lab\n" + row(JobID="112", State="FAILED") + row()).state == "running"


@given(answer=st.text() | st.text("12|\n RUNNING"))
def test_whatever_is_answered_is_no_crash(answer: str) -> None:
    assert words.sighting("12", answer).state in ("unknown", "running", "pending", "ended")


@pytest.mark.parametrize("answer", ["", "\n", "Welcome\n", row(JobID="13"), row().replace(words.END, " ")])
def test_an_answer_without_the_job(answer: str) -> None:
    found = words.sighting("12", answer)
    assert (found.state, found.reason) == ("unknown", "squeue shows no job 12")
