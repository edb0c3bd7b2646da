"""Memory that really runs out, in torch, vLLM and SGLang, in the worker and in a child of it: each is told as such."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from orchestrator import proc
from orchestrator.events import BatchLost, WorkerReleased
from tests.engines.blows import SETUPS
from tests.engines.conftest import FindEnv
from tests.engines.deaths import MIB, PATIENCE_S, Run
from tests.process.sweeping import Bench

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked", "demo")]

BATCH = 8
SHORT = [f"Say {word}." for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
#: Their batch needs more memory at once than the batch before it had.
LONG = [f"Count to {n}: " + "one two three four five " * 70 for n in range(BATCH)]
#: For those of a machine whose CPUs are shared; memory that ran out is told, and waits for no deadline.
LONG_BATCH_S = 240
#: torch's own allocator, or oneDNN's below it: whichever asks for the bytes that are not there any more.
RAN_OUT = ("allocate memory", "could not create a primitive")
ENOUGH_BYTES = 256 * MIB
TOO_MUCH_BYTES = 4096 * 1024 * MIB
#: Above what the victim has when its first batch is under way: it gets to the end of it, and not far into the next.
SPARE_BYTES = 16 * MIB


def sweep_of(bench: Bench, setup: str, home: str, **changes: Any) -> None:
    sized = {} if setup == "hf" else {"kv_cache_bytes": ENOUGH_BYTES}
    bench.env["AIRLOCK_HOME"] = home
    bench.write(
        model="demo",
        prompts=[*SHORT, *LONG],
        methods=[SETUPS[setup].method(0), "hf_sdpa" if setup != "hf" else "hf_eager"],
        settings={"dtype": "float32", "max_model_len": 512, **sized},
        sampling={"max_new_tokens": 40, "ignore_eos": True},
        matrix={"batch_size": [BATCH]},
        limits=SETUPS[setup].limits | {"batch_s": LONG_BATCH_S},
        policies={"oom": "give_up"},
        **changes,
    )


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("m"))


@pytest.mark.parametrize(
    ("setup", "victim"), [("hf", "worker"), ("vllm_mp", "vllm_worker"), ("sglang", "scheduler")], ids=str
)
def test_in_a_batch(bench: Bench, setup: str, victim: str, home: str, find_env: FindEnv) -> None:
    for engine in ("hf", SETUPS[setup].engine):
        find_env(engine)
    sweep_of(bench, setup, home)
    sweep = Run(bench, bench.start())
    try:
        _, ref = sweep.moment("struck_0", victim, "batch")
        limit_memory(ref.pid)
        out, err = sweep.process.communicate(timeout=PATIENCE_S)
    finally:
        sweep.close()
    assert sweep.process.returncode == 1, out + err
    lost = [event for event in bench.events if isinstance(event, BatchLost)]
    assert [(one.cause.cls, one.cause.phase) for one in lost] == [("oom", "busy")], lost
    assert any(said in lost[0].cause.message for said in RAN_OUT), lost
    good = {record["prompt_id"] for record in bench.records if record["method"] == "struck_0"}
    assert good == {str(n) for n in range(BATCH)}, "the batch before it stays"
    check_the_rest(bench)


def limit_memory(pid: int) -> None:
    """What the process has by now, and hardly more."""
    pages = int((proc.read_bytes(pid, "statm") or b"0").split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


def test_in_the_load_of_a_child(bench: Bench, home: str, find_env: FindEnv) -> None:
    """vLLM's own process only says "See root cause above": what happened stands in its child's lines of the log."""
    for engine in ("hf", "vllm"):
        find_env(engine)
    sweep_of(bench, "vllm_mp", home)
    done = bench.run("--set", f"settings.kv_cache_bytes={TOO_MUCH_BYTES}", patience_s=PATIENCE_S)
    assert done.returncode == 1, done.stdout + done.stderr
    released = next(event for event in bench.events if isinstance(event, WorkerReleased))
    assert released.cause is not None
    assert (released.cause.cls, released.cause.phase) == ("oom", "loading")
    assert "less than requested memory for kv" in released.cause.message
    check_the_rest(bench)


def check_the_rest(bench: Bench) -> None:
    outcomes = bench.outcomes()
    struck = outcomes.pop("struck_0")
    assert [(end.outcome, end.cause and end.cause.cls) for end in struck] == [("failed", "oom")]
    assert [end.outcome for ends in outcomes.values() for end in ends] == ["ok"]
    bench.assert_clean()
