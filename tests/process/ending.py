"""Shared by the tests of a coordinator's end: small sweeps that wait or hang, and how they are finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.process.launching import Fifo
from tests.process.sweeping import QUICK_LIMITS, Bench, method

PRESSED_EVERY_S = 0.05
PROMPTS = ["a", "b", "c"]
SMALL: dict[str, Any] = {"prompts": PROMPTS, "matrix": {"batch_size": [1]}}

#: Of the worker, those that it can be stuck in.
STATES = ("launching", "importing", "loading", "busy", "draining", "terminating")

Outputs = set[tuple[Any, ...]]


def unbroken_outputs(folder: Path) -> Outputs:
    """Of a run that nothing happens to; a scripted engine's answers depend on nothing but the prompts."""
    bench = Bench(folder)
    bench.write(**SMALL)
    assert bench.run().returncode == 0
    return outputs(bench)


def outputs(bench: Bench) -> Outputs:
    return {(r["prompt_id"], tuple(r["token_ids"]), r["text"], r["finish_reason"], r["error"]) for r in bench.records}


def finish(bench: Bench, unbroken: Outputs) -> None:
    """What was committed is part of the unbroken run; the resumed run is all of it, each record once."""
    if (bench.run_dir / "generations.jsonl").exists():
        assert outputs(bench) <= unbroken
    resumed = bench.run("--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert outputs(bench) == unbroken
    assert len(bench.records) == len(PROMPTS)
    bench.assert_clean()


def limits_for(state: str) -> dict[str, float]:
    """Nothing is taken for a hang, unless that is the way into the state."""
    batch_s = 0.3 if state == "terminating" else 20
    return {**QUICK_LIMITS, "drain_s": 1, "import_s": 20, "load_s": 20, "batch_s": batch_s}


def stuck(state: str, fifo: Fifo, folder: Path) -> dict[str, Any]:
    """A method that gets stuck in the state once, says so, heeds no SIGTERM, and passes in a later life."""
    once: dict[str, Any] = {"once": str(folder / "once"), "touch": fifo.path, "do": "hang_ignore_term"}
    match state:
        case "launching":
            return method("stuck", early=True, at="hello", **once)
        case "importing":
            return method("stuck", early=True, at="import", **once)
        case "loading":
            return method("stuck", at="load", **once)
        case "busy":
            return method("stuck", at="batch:2", **once)
        case "draining":
            return method("stuck", at="shutdown", **once)
    # SIGTERM ends the hanging batch and leads to the shutdown, which hangs as well.
    first = {"at": "batch:2", "do": "hang", "once": str(folder / "first")}
    return {"name": "stuck", "base": "scripted", "engine_args": {"faults": [first, {"at": "shutdown", **once}]}}


def gated_batch(bench: Bench, folder: Path) -> str:
    """A sweep whose second batch waits for the gate."""
    gate = str(folder / "gate")
    os.mkfifo(gate)
    # However long the test takes at the gate, it is no hang.
    limits = {**QUICK_LIMITS, "batch_s": 120}
    bench.write(**SMALL, methods=[method("gated", at="batch:2", do="mark", gate=gate)], limits=limits)
    return gate


@contextmanager
def held(gate: str) -> Iterator[None]:
    """From when the worker stands before the gate until it may pass."""
    fd = os.open(gate, os.O_WRONLY)
    try:
        yield
    finally:
        os.close(fd)
