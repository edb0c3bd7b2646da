"""`export --to`, with the trackers' own libraries; and with interpreters that hang, crash or lack them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.process.sweeping import PATIENCE_S
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, finished_run, launch, run_point, run_start

pytestmark = pytest.mark.usefixtures("nothing_leaked")

EXIT_INPUT, EXIT_OUTPUT = 2, 74
REPO = Path(__file__).resolve().parents[2]

#: Reads a store of MLflow in a process of its own, as its threads stay.
READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
(experiment,) = [one for one in client.search_experiments() if one.name == "mine"]
found = []
for run in client.search_runs([experiment.experiment_id]):
    history = {name: len(client.get_metric_history(run.info.run_id, name)) for name in run.data.metrics}
    files = [one.path for one in client.list_artifacts(run.info.run_id)]
    found.append({"id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
        "params": run.data.params, "metrics": run.data.metrics, "tags": run.data.tags, "files": files,
        "history": history, "times": [run.info.start_time, run.info.end_time]})
print(json.dumps(found))
"""
#: What was written offline: a log of records in blocks of 32 KiB.
READ_WANDB = """
import glob, json, struct, sys
from wandb.proto import wandb_internal_pb2 as pb

def records(path):
    data, at, whole = open(path, "rb").read(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield pb.Record.FromString(whole)
            whole = b""

def items(updates):
    return {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in updates}

found = []
for path in sorted(glob.glob(sys.argv[1] + "/offline-run-*/*.wandb")):
    one = {"config": {}, "summary": {}, "files": []}
    for record in records(path):
        if record.HasField("run"):
            run = record.run
            one |= {"id": run.run_id, "name": run.display_name, "group": run.run_group, "type": run.job_type}
            one |= {"tags": list(run.tags), "project": run.project}
        one["config"] |= items(record.config.update)
        one["summary"] |= items(record.summary.update)
        one["files"] += [entry.path for entry in record.artifact.manifest.contents]
    found.append(one)
print(json.dumps(found))
"""


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"the extra {library} is not installed")


def read(program: str, *args: str | Path) -> list[dict[str, Any]]:
    env = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run([sys.executable, "-c", program, *map(str, args)], env=env, capture_output=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def export(folder: Path, *args: str, run: str = "run", **variables: str) -> subprocess.CompletedProcess[str]:
    home = {"AIRLOCK_HOME": str(folder / "home"), "WANDB_DATA_DIR": str(folder / "data"), "PYTHONPATH": str(REPO)}
    temporary = folder / "t"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "export", run, *args],
        cwd=folder,
        env={**os.environ, **home, "TMPDIR": str(temporary), **variables},
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert list(temporary.iterdir()) == [], "nothing is left of the handover"
    return done


def half_a_run(run_dir: Path) -> None:
    """The second method has not begun."""
    plan = a_plan()
    journal = begin(run_dir, plan)
    run_start(journal, plan.starts[0], "w0-x")
    end(journal, exit_code=3, reason="no time")


def test_mlflow_has_a_run_for_each_row_below_that_of_the_sweep_and_is_updated(tmp_path: Path) -> None:
    needs("mlflow")
    to = ("--to", "mlflow", "--tracking-uri", f"file:{tmp_path}/store", "--experiment", "mine")
    half_a_run(tmp_path / "run")
    assert export(tmp_path, *to).returncode == 0
    go_on(tmp_path / "run")
    done = export(tmp_path, *to)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith(f"4 rows and the sweep are in file:{tmp_path}/store\n")
    runs = read(READ_MLFLOW, f"file:{tmp_path}/store")
    found = {run["name"]: run for run in runs}
    assert len(runs) == len(found) == 5

    sweep, row = found["run"], found["vllm_fa batch_size=2"]
    assert sorted(sweep["files"]) == ["plan.json", "report.md", "sweep.yaml"]
    assert (sweep["status"], sweep["tags"]["airlock.state"], sweep["metrics"]["records"]) == (
        "FINISHED",
        "finished",
        24,
    )
    assert sweep["times"] == [1_000_000, 1_020_000]
    assert row["tags"]["mlflow.parentRunId"] == sweep["id"]
    assert row["tags"]["airlock.run_id"] == sweep["tags"]["airlock.run_id"] == sweep["tags"]["airlock.key"]
    assert {row["params"][name] for name in ("setting_batch_size", "method_engine_args")} == {"2", '{"x": [1, 2]}'}
    assert (row["metrics"]["output_tokens_per_s"], row["metrics"]["peak_bytes"]) == (4.5, 1 << 30)
    assert (row["tags"]["airlock.outcome"], row["tags"]["airlock.engine_version"]) == ("ok", "9.9")
    changed = found["hf_sdpa batch_size=2"]
    assert "airlock.returned" not in changed["tags"], "nor what is not said any more"
    assert (changed["metrics"]["output_tokens_per_s"], changed["history"]["output_tokens_per_s"]) == (4.5, 2)
    assert (changed["metrics"]["ttft_p50_s"], changed["history"]["ttft_p50_s"]) == (0.1, 1), "nothing is doubled"
    assert math.isnan(changed["metrics"]["returned_wait_s"]), "what is not known any more"


def go_on(run_dir: Path) -> None:
    """As if all had been measured, at half the speed: the same beginning, and so the same run."""
    start = (run_dir / "journal.jsonl").read_bytes().splitlines(keepends=True)[0]
    shutil.rmtree(run_dir)
    plan = a_plan()
    journal = begin(run_dir, plan)
    for number, one in enumerate(plan.starts):
        launch(journal, one, f"w{number}-x")
        for point in one.points:
            run_point(journal, point, f"w{number}-x", wall_s=1.0)
            journal.emit(ended(point=point.id))
    end(journal)
    assert (run_dir / "journal.jsonl").read_bytes().startswith(start)


def test_wandb_offline_has_the_same_runs_once(tmp_path: Path) -> None:
    needs("wandb")
    finished_run(tmp_path / "run")
    for _ in range(2):
        done = export(tmp_path, "--to", "wandb", "--offline", "--project", "mine")
        assert done.returncode == 0, done.stderr
    assert f"wandb sync {tmp_path}/wandb/offline-run-*" in done.stderr
    found = {run["name"]: run for run in read(READ_WANDB, tmp_path / "wandb")}
    assert len(found) == len(list((tmp_path / "wandb").glob("offline-run-*"))) == 5
    sweep, row = found["run"], found["hf_sdpa batch_size=2"]
    assert sorted(sweep["files"]) == ["plan.json", "report.md", "sweep.yaml"]
    assert {run["group"] for run in found.values()} == {sweep["id"]}
    assert (sweep["type"], row["type"], row["project"], row["tags"]) == (
        "sweep",
        "row",
        "mine",
        ["hf_sdpa", "hf", "ok"],
    )
    assert (row["config"]["setting_batch_size"], row["config"]["method_attention"]) == (2, "sdpa")
    assert (row["summary"]["output_tokens_per_s"], row["summary"]["outcome"]) == (12.0, "ok")


def test_a_name_that_is_too_long_for_wandb_is_cut_and_told_of(tmp_path: Path) -> None:
    """Offline it takes any, and its server refuses the whole run when that is sent."""
    needs("wandb")
    name = "night-" * 40
    finished_run(tmp_path / name)
    done = export(tmp_path, "--to", "wandb", "--offline", run=name)
    assert done.returncode == 0, done.stderr
    assert f"the name {name} was cut to 128 characters" in done.stderr
    names = {run["name"] for run in read(READ_WANDB, tmp_path / "wandb")}
    assert len(names) == 5
    assert name[:127] + "…" in names


def interpreter(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("setsid sleep 600 & exec sleep 600", "MLflow: said nothing for 0.5 s and was ended"),
        ("kill -SEGV $$", "MLflow: ended by SIGSEGV and said nothing"),
        ("echo no such thing; exit 3", "MLflow: ended with exit code 3: no such thing"),
        ("printf '{\"where' > $4", "MLflow: ended with exit code 0 and said nothing"),
    ],
)  # fmt: skip
def test_a_tracker_that_hangs_or_crashes_is_one_sentence(tmp_path: Path, script: str, told: str) -> None:
    finished_run(tmp_path / "run")
    patience = ("--patience-s", "0.5") if "sleep" in script else ()
    python = interpreter(tmp_path / "python", script)
    done = export(tmp_path, "--to", "mlflow", *patience, AIRLOCK_MLFLOW_PYTHON=python, MLFLOW_TRACKING_URI="none://x")
    assert done.returncode == EXIT_OUTPUT, done.stderr
    said, sentence = done.stderr.splitlines()
    assert (said, sentence.startswith(f"airlock: {told}")) == ("sending run to MLflow", True), sentence


@pytest.mark.parametrize(
    ("tracker", "chosen", "advice"),
    [
        ("mlflow", {"MLFLOW_TRACKING_URI": "none://x"}, "--tracking-uri file:./mlruns keeps it in a folder here"),
        ("wandb", {"WANDB_MODE": "online"}, "--offline keeps it in a folder here, to be sent later"),
    ],
)
def test_one_that_fails_is_told_with_the_way_that_needs_no_server(
    tmp_path: Path, tracker: str, chosen: dict[str, str], advice: str
) -> None:
    finished_run(tmp_path / "run")
    python = {f"AIRLOCK_{tracker.upper()}_PYTHON": interpreter(tmp_path / "python", "echo no such thing; exit 3")}
    unset = dict.fromkeys(chosen, "")
    assert export(tmp_path, "--to", tracker, **python, **unset).stderr.endswith(f"no such thing ({advice})\n")
    assert export(tmp_path, "--to", tracker, **python, **chosen).stderr.endswith("no such thing\n")


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_library_that_is_not_there_is_said_with_what_to_install(tmp_path: Path, tracker: str) -> None:
    finished_run(tmp_path / "run")
    variable = f"AIRLOCK_{tracker.upper()}_PYTHON"
    python = interpreter(tmp_path / "python", f'exec {sys.executable} -I -S "$@"')
    done = export(tmp_path, "--to", tracker, **{variable: python})
    assert done.returncode == EXIT_INPUT
    assert f"{tracker} can't be imported by {python}: No module named '{tracker}'" in done.stderr
    assert f"(pip install 'engine-airlock[{tracker}]', or name a Python that has it as {variable})" in done.stderr


def test_everything_wrong_is_said_before_anything_is_read(tmp_path: Path) -> None:
    done = export(
        tmp_path,
        *("--to", "mlflow", "--offline", "--format", "csv", "--what", "rows", "--patience-s", "0"),
        AIRLOCK_MLFLOW_PYTHON="/no/python",
    )
    assert (done.returncode, "5 problems in the input" in done.stderr) == (EXIT_INPUT, True)
    assert "AIRLOCK_MLFLOW_PYTHON: its interpreter /no/python does not exist" in done.stderr


def test_a_damaged_run_sends_nothing(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    with (tmp_path / "run" / "generations.jsonl").open("r+b") as file:
        file.write(b"x")
    python = interpreter(tmp_path / "python", f"touch {tmp_path}/was-started")
    done = export(tmp_path, "--to", "mlflow", AIRLOCK_MLFLOW_PYTHON=python)
    assert (done.returncode, "generations.jsonl: damaged at line 1" in done.stderr) == (EXIT_INPUT, True)
    assert not (tmp_path / "was-started").exists()


def test_values_of_secrets_stay_here(tmp_path: Path) -> None:
    plan = a_plan((replace(HF, env_vars={"X_API_KEYS": "hunter2"}), VLLM))
    journal = begin(tmp_path / "run", plan)
    run_start(journal, plan.starts[0], "w0")
    end(journal)
    answer = """printf '{"where": "here", "notes": []}' > $4"""
    python = interpreter(tmp_path / "python", f"cp $3 $(dirname $3)/report.md {tmp_path}; {answer}")
    done = export(tmp_path, "--to", "wandb", AIRLOCK_WANDB_PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert "sweep.yaml and plan.json stay here: they hold the value of X_API_KEYS" in done.stderr
    assert [name for name in ("items", "report.md") if "hunter2" in (tmp_path / name).read_text()] == []
    sweep = json.loads((tmp_path / "items").read_text().splitlines()[1])
    assert list(sweep["files"]) == ["report.md"]
