"""Finished runs side by side, through the command line: what differs, what is worse, and the exit code of a gate."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.sweeping import NO_SECOND_TRY, PATIENCE_S, PROMPTS, Bench, method
from tests.process.test_judging import MEASURED, SALTED

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: A worker for each repeat, so that two runs can be told apart.
APART: dict[str, Any] = {
    "prompts": PROMPTS[:2],
    "matrix": {"batch_size": [2]},
    "sampling": {"max_new_tokens": 12, "ignore_eos": True},
    "measurement": {"order": "interleaved"},
    "repeats": 3,
}
GATE = ("--fail-on-regression", "10%")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Bench, Bench]:
    """The second one has another seed, another method and a variable that matters."""
    before, after = Bench(tmp_path / "before"), Bench(tmp_path / "after")
    before.write(repeats=2, matrix={"batch_size": [1, 2]})
    other = {"name": "other", "base": "scripted", "engine_args": {"salt": "x"}}
    after.write(methods=["scripted", other], repeats=2, matrix={"batch_size": [2, 4]})
    before.env.pop("OMP_NUM_THREADS", None)
    after.env["OMP_NUM_THREADS"] = "1"
    for bench in (before, after):
        done = bench.run()
        assert done.returncode == 0, done.stderr
    return before, after


def ask(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "compare", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def compare(*args: str | Path, code: int = 0) -> str:
    done = ask(*args)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    return done.stdout


def code_to_nobody(*args: str | Path) -> int:
    """Of a pipe whose reader has left, as that of `… | head -1`."""
    command = [sys.executable, "-m", "orchestrator", "compare", *map(str, args)]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(command, stdout=writing, timeout=PATIENCE_S, check=False).returncode
    finally:
        os.close(writing)


def told(*args: str | Path, code: int = 0) -> dict[str, Any]:
    """Of two runs."""
    found = json.loads(compare(*args, "--json", code=code))
    (one,) = found["comparisons"]
    assert found["exit_code"] == code
    return dict(one)


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {f"{one['cell']} {one['figure']}": one["verdict"] for one in found["changes"]}


def test_every_difference_is_named_and_a_run_differs_from_itself_in_nothing(runs: tuple[Bench, Bench]) -> None:
    found = told(*(bench.run_dir for bench in runs))
    differing = {one["what"]: (one["before"], one["after"]) for one in found["differences"]}
    assert differing["variables.OMP_NUM_THREADS"] == ("(none)", "1")
    assert differing["methods.other.method.engine_args.salt"] == ("(none)", "x")
    assert differing["methods.scripted.batch_size"] == ("[1, 2]", "[2, 4]")
    assert "prompts" not in differing
    (cell,) = found["cells"]
    assert (cell["method"], cell["settings"]) == ("scripted", {"batch_size": 2})
    assert cell["ratio"] == pytest.approx(cell["after_tokens_per_s"] / cell["before_tokens_per_s"])
    outputs = cell["outputs"]
    assert (outputs["compared"], outputs["same"], outputs["share"]) == (12, 12, 1.0)
    assert [one["cell"] for one in found["only"]] == [
        "scripted batch_size=1",
        "scripted batch_size=4",
        "other batch_size=2",
        "other batch_size=4",
    ]
    assert found["vanished"] == ["scripted batch_size=1"]
    run = runs[0].run_dir
    itself = told(run, run)
    assert itself["differences"] == itself["only"] == []
    assert {one["ratio"] for one in itself["cells"]} == {1.0}
    assert {one["distinguishable"] for one in itself["cells"]} <= {False, None}
    assert "Nothing that is recorded." in compare(run, run)


def test_a_cell_that_may_not_be_compared_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(methods=["scripted", SALTED], **MEASURED)
    assert bench.run().returncode == 0
    text, found = compare(bench.run_dir, bench.run_dir), told(bench.run_dir, bench.run_dir)
    assert [one["before_marks"] for one in found["cells"]] == [[], ["outputs garbage"]]
    assert [one["after_outcome"] for one in found["cells"]] == ["ok", "ok"]
    assert verdicts(found)["salted batch_size=2 tokens_per_s"] == "can't tell"
    assert "- it may not be compared as it is: salted batch_size=2 tokens/s" in text
    assert "salted batch_size=2, B: not to be compared as it is: outputs garbage" in text


def paced(bench: Bench, paces_s: dict[str, float], **changes: Any) -> None:
    """Methods by the seconds that a step takes them."""
    methods = [{"name": name, "base": "scripted", "engine_args": {"token_s": pace}} for name, pace in paces_s.items()]
    bench.write(methods=methods, **{**APART, **changes})


def test_of_a_fifth_and_a_fiftieth_slower_the_first_is_named(tmp_path: Path) -> None:
    """By the median time between tokens, which a busy machine moves least: a quarter more of it is a fifth slower."""
    before, after = Bench(tmp_path / "before"), Bench(tmp_path / "after")
    paced(before, {"planted": 0.05, "noise": 0.05})
    paced(after, {"planted": 0.0625, "noise": 0.051})
    for bench in (before, after):
        assert bench.run().returncode == 0
    both, itl = (before.run_dir, after.run_dir), ("--metric", "itl")
    first = compare(*both, *itl, *GATE, code=1).splitlines()[0]
    assert first.startswith("**1 regression past 10 %** in 2 comparisons: planted batch_size=2 ITL p50 +2")
    assert "noise" not in first
    found = told(*both, *itl)  # nobody asked to fail
    said = verdicts(found)
    assert said["planted batch_size=2 itl"] == "regressed"
    assert said["noise batch_size=2 itl"] in ("unchanged", "can't tell")
    assert {cell["outputs"]["share"] for cell in found["cells"]} == {1.0}
    turned = verdicts(told(*reversed(both), "--metric", "all"))
    assert {"planted batch_size=2 load", "planted batch_size=2 latency", "noise batch_size=2 peak_memory"} <= {*turned}
    assert turned["planted batch_size=2 itl"] in ("improved", "can't tell")


def test_what_failed_since_and_what_is_gone_is_a_regression(tmp_path: Path) -> None:
    before, after = Bench(tmp_path / "before"), Bench(tmp_path / "after")
    quick = {"matrix": {"batch_size": [2]}, "prompts": PROMPTS[:2], "policies": NO_SECOND_TRY}
    healthy = {"name": "flawed", "base": "scripted"}
    before.write(methods=["scripted", healthy, {"name": "gone", "base": "scripted"}], **quick)
    after.write(methods=["scripted", method("flawed", at="load", do="raise")], **quick)
    assert (before.run().returncode, after.run().returncode) == (0, 1)
    both = before.run_dir, after.run_dir
    found = told(*both, *GATE, code=1)
    (turn,) = (one for one in found["changes"] if one["figure"] == "outcome")
    assert (turn["cell"], turn["verdict"], turn["before"]) == ("flawed batch_size=2", "regressed", "ok")
    assert turn["after"].startswith("failed")
    assert turn["why"]
    assert found["vanished"] == ["gone batch_size=2"]
    first = compare(*both, *GATE, "--strict", code=1).splitlines()[0]
    assert "flawed batch_size=2 outcome failed" in first
    assert "1 cell of A missing in B" in first
    assert code_to_nobody(*both, *GATE) == 1
    same = tmp_path / "same"
    shutil.copytree(before.run_dir, same)
    assert [one["after"] for one in json.loads(compare(*both, same, "--json"))["comparisons"]] == [
        str(after.run_dir),
        str(same),
    ]
    done = ask(after.run_dir, before.run_dir, "--metric", "speed", "--strict")
    assert done.returncode == 2
    assert "2 problems in the input" in done.stderr
