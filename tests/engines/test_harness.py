"""Tasks of lm-evaluation-harness on two engines: through Airlock, and by the harness's own model of the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.stores.demo import DemoModel
from orchestrator.stores.home import airlock_home

FOLDER = os.environ.get("AIRLOCK_TEST_HARNESS", "")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not FOLDER, reason="AIRLOCK_TEST_HARNESS names no folder: scripts/install-harness makes one"),
    pytest.mark.usefixtures("nothing_leaked"),
]

QUESTIONS: Sequence[tuple[str, Sequence[str], int]] = (
    ("The capital of France is", (" Paris", " Rome", " a very large potato"), 0),
    ("Two and two make", (" four", " nine", " blue"), 0),
    ("The opposite of hot is ", ("green", "cold", "seventeen"), 1),
    ("Water freezes at zero degrees", (" Celsius", " Monday"), 0),
    ("A triangle has", (" five sides", " three sides"), 1),
    ("", ("The sun rises in the east.", "East the in rises sun the."), 0),
)
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "words": {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n", "Question"], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True}],
    },
    "whole": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}{{choices[answer]}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}
#: Of the harness's own models, with what makes them run as the method does, and the tasks: each kind is a load more.
OWN = {
    "hf_sdpa": ("hf", ["--model", "hf", "--device", "cpu"], "attn_implementation=sdpa", ("choices", "words", "whole")),
    "vllm_eager": (
        "vllm",
        ["--model", "vllm"],
        "enforce_eager=True,max_model_len=512,gpu_memory_utilization=0.3",
        ("choices", "words"),
    ),
}
TOLERANCE_NATS = 2e-3
#: Of the scripted engine, which has no tokenizer: bytes are its tokens, and a real tokenizer makes them.
SCRIPTED = """
import json, sys
from pathlib import Path
from lm_eval.api.instance import Instance
from transformers import ByT5Tokenizer
from orchestrator.errors import InputError
from orchestrator.harness import model
from orchestrator.harness.calls import Unanswered, Unasked

folder = Path(sys.argv[1])
ByT5Tokenizer().save_pretrained(folder / "bytes")
(folder / "bytes" / "config.json").write_text(json.dumps({"model_type": "t5", "n_positions": 64}))
fault = {"at": "prompt:2", "do": "raise"}
(folder / "sweep.yaml").write_text(json.dumps({
    "model": "scripted", "warmup": 0,
    "methods": [{"name": "lame", "base": "scripted", "engine_args": {"fault": fault}}],
    "policies": {"engine_error": {"times": 0, "loads": 0}},
}))
model._folder = lambda *_: str(folder / "bytes")
kept = []

def lm(method, **more):
    made = model.AirlockLM(method=method, sweep=str(folder / "sweep.yaml"), runs=str(folder / "runs"), **more)
    made.cache_hook.add_partial = lambda *one: kept.append(one)
    return made

def gen(context, **asked):
    said = {"until": ["~"], "max_gen_toks": 8, "do_sample": False, **asked}
    return Instance("generate_until", {}, (context, said), 0)

def refused(ask):
    try:
        ask()
    except (InputError, Unanswered, Unasked) as exc:
        return str(exc)

def scored(context, continuation):
    return Instance("loglikelihood", {}, (context, continuation), 0)

def whole(text):
    return Instance("loglikelihood_rolling", {}, (text,), 0)

warm = {"do_sample": True, "temperature": 0.7}
well, lame, easy = lm("scripted"), lm("lame"), lm("lame", on_failure="empty")
three = [gen("a"), gen("b"), gen("c"), gen("d")]
told = {
    "again": well.generate_until([gen("a"), gen("a"), *[gen("b", **warm)] * 3]),
    "long": well.generate_until([gen("x" * 500)]),
    "scored": well.loglikelihood([scored("a", "b"), scored("", "b"), scored("x" * 500, "yz")]),
    "rolling": well.loglikelihood_rolling([whole("b" * 200), whole("")]),
    "raised": refused(lambda: lame.generate_until(three)),
    "empty": easy.generate_until(three),
    "unlikely": easy.loglikelihood([scored(text, "b") for text in "wxyz"]),
    "odd": refused(lambda: well.generate_until([gen("a", repetition_penalty=2)])),
    "args": refused(lambda: lm(1, add_bos_token="maybe", max_length="x", batch_size="auto", nope=3, on_failure="x")),
    "path": refused(lambda: lm("../x")),
    "kept": [kind for kind, *_ in kept],
}
Path(sys.argv[2]).write_text(json.dumps(told))
"""


@dataclass(frozen=True)
class Scored:
    """`results` of each task, and of each task what every request got."""

    results: dict[str, dict[str, float]]
    answers: dict[str, list[Any]]


def write_tasks(folder: Path) -> None:
    folder.mkdir()
    rows = [{"question": q, "choices": c, "answer": a} for q, c, a in QUESTIONS]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, said in TASKS.items():
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **source, **said, "metadata": {"version": 1}}))


def evaluated(folder: Path, tasks: Sequence[str], command: Sequence[str]) -> Scored:
    out = folder / "out"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(folder)}
    more = ["--tasks", *tasks, "--include_path", str(folder.parent / "tasks"), "--batch_size", "4"]
    whole = [*command, *more, "--output_path", str(out), "--log_samples"]
    folder.mkdir()
    code, said = ended(whole, folder, {**os.environ, **offline})
    assert code == 0, said[-3000:]
    (found,) = out.rglob("results_*.json")
    results = json.loads(found.read_text())["results"]
    answers = {}
    for name in tasks:
        (samples,) = out.rglob(f"samples_{name}_*.jsonl")
        rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
        answers[name] = [row["resps"] for row in rows]
    return Scored(results, answers)


def ended(command: Sequence[str], folder: Path, environ: dict[str, str]) -> tuple[int, str]:
    """Exit code and what it said, and nothing of it is left: an engine that the harness itself starts outlives it."""
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-process.pid, 0)
        log.seek(0)
        return code, log.read()


def numbers(value: Any) -> list[float]:
    """Those in an answer, however deep; the harness logs them as text."""
    if isinstance(value, list):
        return [one for part in value for one in numbers(part)]
    return [float(value)] if str(value) not in ("True", "False") else [float(str(value) == "True")]


@pytest.mark.parametrize("method", list(OWN))
def test_a_task_scores_as_by_the_engines_own_adapter(method: str, tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    model = airlock_home() / "models" / f"demo-{DemoModel.name}"
    engine, command, more, tasks = OWN[method]
    ours = f"method={method},model=demo,dtype=float32,max_length=512,runs={tmp_path / 'runs'}"
    through = evaluated(
        tmp_path / "airlock",
        tasks,
        [f"{FOLDER}/harness/bin/python", "-m", "orchestrator", "harness", "run", "--model_args", ours],
    )
    theirs = f"pretrained={model},dtype=float32,{more}"
    own = evaluated(
        tmp_path / "own",
        tasks,
        [f"{FOLDER}/{engine}/bin/python", "-m", "lm_eval", "run", *command, "--model_args", theirs],
    )
    assert through.answers["words"] == own.answers["words"]
    for name in set(tasks) - {"words"}:
        assert numbers(through.answers[name]) == pytest.approx(numbers(own.answers[name]), abs=TOLERANCE_NATS)
    for name in tasks:
        for key, value in own.results[name].items():
            if isinstance(value, float) and "stderr" not in key:
                assert through.results[name][key] == pytest.approx(value, rel=1e-3), (name, key)
    journals = (tmp_path / "runs").glob(f"{method}-*/journal.jsonl")
    runs = sorted(path.parent.name.removeprefix(f"{method}-").partition("-")[0] for path in journals)
    assert runs == ["generate", *["score"] * (len(tasks) - 1)]


def test_what_the_harness_asks_of_the_scripted_engine(tmp_path: Path) -> None:
    told_in = tmp_path / "told.json"
    environment = {**os.environ, "AIRLOCK_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [f"{FOLDER}/harness/bin/python", "-c", SCRIPTED, str(tmp_path), str(told_in)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(told_in.read_text())
    same, once_more, *sampled = told["again"]
    assert same == once_more
    assert len(set(sampled)) == 3, "repeats of a task are other answers, not one answer thrice"
    assert "1 prompt too long for the model" in done.stderr
    assert all(likely < 0 for likely, _ in told["scored"])
    assert told["rolling"][0] < told["scored"][0][0]
    assert told["rolling"][1] == pytest.approx(told["scored"][0][0])  # the tokenizer's own end-of-sequence token
    assert "1 of 4 prompts have no answer: ScriptedFault: told to fail" in told["raised"]
    assert [not text for text in told["empty"]].count(True) == 1
    assert not told["empty"][2]
    assert [likely == float("-inf") for likely, _ in told["unlikely"]] == [False, False, True, False]
    assert told["kept"].count("generate_until") == 5 + 1 + 3, "what failed is kept nowhere as an answer"
    assert told["kept"].count("loglikelihood") == 3 + 3
    assert "repetition_penalty" in told["odd"]
    assert len(told["args"].split("\n")) == 6
    assert "../x is no method's name" in told["path"]
