"""Planted defects in whole sweeps: each is named in the results, by `agree` and by the exit code of --strict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.sweeping import PATIENCE_S, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

PLAIN = {"name": "plain", "base": "scripted"}
SALTED = {"name": "salted", "base": "scripted", "engine_args": {"salt": "x"}}
MEASURED = {"matrix": {"batch_size": [2]}, "sampling": {"logprobs": 3, "max_new_tokens": 32}}


def ask(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    """One of the verbs that read."""
    command = [sys.executable, "-m", "orchestrator", *args]
    return subprocess.run(
        command, env=bench.env, cwd=bench.folder, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )


def agreement(bench: Bench, *args: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and by method what `agree` says of it."""
    done = ask(bench, "agree", str(bench.run_dir), "--json", *args)
    assert done.stdout, done.stderr
    return done.returncode, {row["method"]: row for row in json.loads(done.stdout)["rows"]}


def report(bench: Bench) -> str:
    done = ask(bench, "report", str(bench.run_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_methods_that_agree_are_not_marked(bench: Bench) -> None:
    bench.write(methods=["scripted", PLAIN], **MEASURED)
    done = bench.run("--strict")
    assert done.returncode == 0, done.stderr
    code, rows = agreement(bench)
    assert (code, rows["scripted"]["verdict"], rows["plain"]["verdict"]) == (0, "reference", "agrees")
    assert rows["plain"]["same"] == rows["plain"]["outputs"] == 6
    assert "plain *" not in done.stdout
    assert "plain \\*" not in report(bench)


def test_a_method_that_says_something_else_is_marked_before_its_speed(bench: Bench) -> None:
    bench.write(methods=["scripted", SALTED], **MEASURED)
    done = bench.run()
    assert done.returncode == 0, "a difference is a result"
    assert "salted *" in done.stdout
    assert "* salted batch_size=2: not to be compared as it is: outputs garbage" in done.stdout
    code, rows = agreement(bench)
    assert (code, rows["salted"]["verdict"], rows["salted"]["first"]) == (1, "garbage", 0)
    told = ask(bench, "agree", str(bench.run_dir))
    assert told.returncode == 1
    assert "prompt 1, after 0 tokens" in told.stdout
    text = report(bench)
    assert "| salted \\*" in text
    assert "## Agreement" in text


def test_a_length_that_the_engine_lowered_is_named_and_marked(bench: Bench) -> None:
    lowered = {"name": "lowered", "base": "scripted", "engine_args": {"lowers_to": 64}}
    bench.write(methods=["scripted", lowered], **MEASURED)
    done = bench.run("--strict")
    assert done.returncode == 1, done.stderr
    assert "lowered *" in done.stdout
    text = report(bench)
    assert "| lowered \\*" in text
    assert "max length" in text[text.index("## Fairness") :]


def test_an_engine_that_ends_outputs_elsewhere_is_named_and_marked(bench: Bench) -> None:
    """By what it held for its requests: told the ids, it went by another."""
    elsewhere = {"name": "elsewhere", "base": "scripted", "engine_args": {"stops_at": ord("q")}}
    bench.write(methods=["scripted", elsewhere], **MEASURED)
    done = bench.run("--strict")
    assert done.returncode == 1, done.stderr
    assert "elsewhere *" in done.stdout
    assert f"elsewhere asked 0, ran {ord('q')}" in report(bench)


def test_strict_gives_exit_code_1_to_a_run_whose_outputs_differ(bench: Bench) -> None:
    bench.write(methods=["scripted", SALTED], **MEASURED)
    done = bench.run("--strict")
    assert done.returncode == 1
    assert "fairness: salted batch_size=2: outputs garbage" in done.stdout


def test_strict_refuses_before_anything_starts(bench: Bench) -> None:
    threads = {"name": "threads", "base": "scripted", "env_vars": {"OMP_NUM_THREADS": "1"}}
    bench.write(methods=["scripted", threads])
    for done in (bench.run("--strict"), ask(bench, "plan", "sweep.yaml", "--strict")):
        assert done.returncode == 2
        assert "environment variable OMP_NUM_THREADS: scripted not set; threads 1" in done.stderr
    assert not bench.run_dir.exists()
    done = ask(bench, "plan", "sweep.yaml")
    assert done.returncode == 0
    assert "fairness: warning: environment variable OMP_NUM_THREADS" in done.stdout
    done = bench.run()
    assert done.returncode == 0
    assert "fairness: warning: environment variable OMP_NUM_THREADS" in done.stdout
    told = report(bench)
    before, _, after = told[told.index("## Fairness") :].partition("After, in what")
    assert "environment variable OMP_NUM_THREADS: scripted not set; threads 1" in before
    assert "OMP_NUM_THREADS" not in after.partition("\n## ")[0]


def test_other_token_ids_than_were_sent_are_named(bench: Bench) -> None:
    """As a doubled begin-of-sequence token would be: the engine's own ids are not the prompt's."""
    bench.write(methods=["scripted", method("doubled", at="batch:1", do="wrong_digest")], **MEASURED)
    assert bench.run().returncode == 1
    _, rows = agreement(bench)
    assert (rows["doubled"]["failed"], rows["doubled"]["outputs"]) == (1, 5)
    assert "the engine was given other token ids" in report(bench)


def test_another_chat_template_is_named_by_a_reference_of_another_run(bench: Bench, tmp_path: Path) -> None:
    def prompts(template: str) -> dict[str, Any]:
        inline = [{"id": f"p{n}", "prompt": f"prompt {n}"} for n in range(4)]
        return {"inline": inline, "chat_template": template}

    bench.write(prompts=prompts("off"), **MEASURED)
    assert bench.run().returncode == 0
    bench.run_dir.rename(tmp_path / "first")
    bench.write(prompts=prompts("on"), **MEASURED)
    assert bench.run().returncode == 0
    assert agreement(bench)[1]["scripted"]["verdict"] == "reference"
    code, rows = agreement(bench, "--reference", str(tmp_path / "first"))
    assert (code, rows["scripted"]["verdict"]) == (1, "other prompts")
    assert "chat template" in rows["scripted"]["why"]


def test_a_reference_run_without_a_prompt_in_common_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.write(prompts=[{"id": "only-here", "prompt": "x"}])
    assert bench.run().returncode == 0
    bench.run_dir.rename(tmp_path / "first")
    bench.write()
    assert bench.run().returncode == 0
    done = ask(bench, "agree", str(bench.run_dir), "--reference", str(tmp_path / "first"))
    assert done.returncode == 2
    assert "shares no prompt id" in done.stderr


def test_an_output_that_the_references_first_repeat_lacks_is_taken_from_another(bench: Bench, tmp_path: Path) -> None:
    flawed = method("flawed", at="batch:1", do="wrong_digest", once=str(tmp_path / "once"))
    bench.write(methods=[flawed, PLAIN], repeats=2, **MEASURED)
    assert bench.run().returncode == 1
    _, rows = agreement(bench)
    plain = rows["plain"]
    assert (plain["verdict"], plain["outputs"], plain["failed"], plain["base_repeat"]) == ("agrees", 12, 0, 1)
    told = "held against repeat 2 of the reference, as those before it have fewer outputs"
    assert told in report(bench)
    assert told in ask(bench, "agree", str(bench.run_dir)).stdout


def test_points_of_other_work_have_references_of_their_own(bench: Bench) -> None:
    bench.write(methods=["scripted", PLAIN], matrix={"max_new_tokens": [8, 16]})
    assert bench.run("--strict").returncode == 0
    done = ask(bench, "agree", str(bench.run_dir), "--json")
    verdicts = [row["verdict"] for row in json.loads(done.stdout)["rows"]]
    assert verdicts == ["reference", "reference", "agrees", "agrees"]


def test_scores_are_held_against_the_references_as_perplexity(bench: Bench) -> None:
    prompts = [{"id": f"p{n}", "prompt": f"prompt {n}", "continuation": " goes on"} for n in range(3)]
    bench.write(prompts=prompts, methods=["scripted", PLAIN], sampling={"task": "score", "logprobs": 2}, matrix={})
    assert bench.run("--strict").returncode == 0
    row = agreement(bench)[1]["plain"]
    assert row["verdict"] == "agrees"
    # Every token of the script has half of the probability.
    assert (row["perplexity"], row["perplexity_ratio"]) == (pytest.approx(2, rel=1e-6), pytest.approx(1))
    assert row["kl_max"] == pytest.approx(0, abs=1e-9)
    assert "| plain | 1 | scripted batch_size=1, repeat 1 | 3 | 3 of 3 |" in report(bench)
