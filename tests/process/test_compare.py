"""Two finished runs side by side, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.sweeping import PATIENCE_S, Bench
from tests.process.test_judging import MEASURED, SALTED

pytestmark = pytest.mark.usefixtures("nothing_leaked")


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


def compare(runs: tuple[Bench, Bench], *options: str) -> str:
    command = [sys.executable, "-m", "orchestrator", "compare", *(str(bench.run_dir) for bench in runs), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_difference_is_named_and_what_both_have_is_set_side_by_side(runs: tuple[Bench, Bench]) -> None:
    found: dict[str, Any] = json.loads(compare(runs, "--json"))
    differing = {one["what"]: (one["before"], one["after"]) for one in found["differences"]}
    assert differing["variables.OMP_NUM_THREADS"] == ("(none)", "1")
    assert differing["methods.other.method.engine_args.salt"] == ("(none)", "x")
    assert differing["methods.scripted.batch_size"] == ("[1, 2]", "[2, 4]")
    assert "prompts" not in differing
    (cell,) = found["cells"]
    assert (cell["method"], cell["settings"]) == ("scripted", {"batch_size": 2})
    assert cell["ratio"] == pytest.approx(cell["after_tokens_per_s"] / cell["before_tokens_per_s"])
    assert [one["cell"] for one in found["only"]] == [
        "scripted batch_size=1",
        "scripted batch_size=4",
        "other batch_size=2",
        "other batch_size=4",
    ]


def test_a_cell_that_may_not_be_compared_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(methods=["scripted", SALTED], **MEASURED)
    assert bench.run().returncode == 0
    text, found = compare((bench, bench)), json.loads(compare((bench, bench), "--json"))
    assert [one["before_marks"] for one in found["cells"]] == [[], ["outputs garbage"]]
    assert [one["after_outcome"] for one in found["cells"]] == ["ok", "ok"]
    assert "| salted batch_size=2 \\* |" in text
    assert "salted batch_size=2, B: not to be compared as it is: outputs garbage" in text


def test_a_run_beside_itself_differs_in_nothing(runs: tuple[Bench, Bench]) -> None:
    found = json.loads(compare((runs[0], runs[0]), "--json"))
    assert found["differences"] == found["only"] == []
    assert {one["ratio"] for one in found["cells"]} == {1.0}
    assert {one["distinguishable"] for one in found["cells"]} <= {False, None}
    assert "Nothing that is recorded." in compare((runs[0], runs[0]))
