"""What is wrong with the input is said in one go, each with its place, before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.errors import InputError, Problem
from orchestrator.run.sweep import Request, run
from orchestrator.run.workplace import Workplace
from tests.process.dying import ROOT
from tests.process.sweeping import PATIENCE_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def refused(bench: Bench, *args: str) -> list[str]:
    """What `sweep` says, one line a problem, once `plan` has said the same and neither has written anything."""
    before = sorted(bench.folder.rglob("*"))
    swept, planned = bench.run(*args), plan(bench, *args)
    assert (swept.returncode, planned.returncode) == (2, 2), swept.stderr + planned.stderr
    assert sorted(bench.folder.rglob("*")) == before
    assert swept.stdout == planned.stdout == ""
    assert swept.stderr == planned.stderr
    lines = [line.removeprefix("airlock:").strip() for line in swept.stderr.splitlines()]
    return [line.replace(f"{bench.folder}/", "") for line in lines if not line.endswith("in the input:")]


def plan(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "plan", str(bench.folder / "sweep.yaml"), *args]
    return subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)


def test_what_takes_long_is_announced(bench: Bench) -> None:
    """Nothing is built for the plan: the model is not there yet."""
    bench.write(name="mine", model="demo", methods=["hf_sdpa"])
    bench.env["AIRLOCK_HOME"] = str(bench.folder / "empty")
    planned = plan(bench)
    assert planned.returncode == 0, planned.stderr
    assert planned.stderr == "mine: examining environments and model, counting the prompts' tokens\n"
    bench.write(name="mine")
    assert plan(bench).stderr == ""


def places(lines: list[str]) -> list[str]:
    return [line.split(": ")[0] + ": " + line.split(": ")[1] for line in lines]


EVERYTHING = """\
name: a b
model: ./no_model
prompts: p.jsonl
methods: [hf_spda, hf_ngram, vllm_eager]
sampling:
  top_k: 5
matrix:
  batch_size: [1, 4]
environments:
  hf: vllm
  vllm: nowhere
"""


def test_one_mistake_hides_no_other(bench: Bench) -> None:
    (bench.folder / "sweep.yaml").write_text(EVERYTHING)
    (bench.folder / "p.jsonl").write_text('{"prompt": "a", "id": 1}\n{"prompt": ""}\n{\n{"prompt": "b", "id": 1}\n')
    found = refused(bench)
    assert places(found)[:7] == [
        "sweep.yaml:1: name",
        "sweep.yaml:2: model",
        "sweep.yaml:4: methods[0]",
        "sweep.yaml:4: methods[1]",
        "sweep.yaml:6: sampling.top_k",
        "sweep.yaml:10: environments.hf",
        "sweep.yaml:11: environments.vllm",
    ]
    assert [line.split(": ")[0] for line in found[7:]] == ["p.jsonl:2", "p.jsonl:3", "p.jsonl:4"]


def test_a_missing_prompt_file_and_a_missing_model_beside_a_mistake(bench: Bench) -> None:
    (bench.folder / "sweep.yaml").write_text("name: a\nmodel: {path: m}\nprompts: {file: p.txt}\nmethods: [hf_x]\n")
    assert places(refused(bench)) == [
        "sweep.yaml:2: model.path",
        "sweep.yaml:3: prompts.file",
        "sweep.yaml:4: methods[0]",
    ]


def test_inline_prompts_have_line_and_key(bench: Bench) -> None:
    text = 'name: a\nmodel: scripted\nmethods: [scripted]\nprompts:\n  - one\n  - ""\n  - 3\n'
    (bench.folder / "sweep.yaml").write_text(text)
    assert places(refused(bench)) == ["sweep.yaml:6: prompts[1].prompt", "sweep.yaml:7: prompts[2]"]


def test_what_came_from_the_command_line_says_so(bench: Bench) -> None:
    bench.write()
    (found,) = refused(bench, "--set", "prompts=hello")
    assert found.startswith("--set prompts=hello: prompts: hello has no ending")
    assert "known endings: .arrow, .csv, .json, .jsonl, .ndjson, .parquet, .tsv, .txt" in found


def test_the_scripted_engine_with_a_real_model(bench: Bench) -> None:
    bench.write(model="demo")
    (found,) = refused(bench)
    assert "write model: scripted" in found


def test_what_a_file_holds_can_not_repaint_the_terminal(bench: Bench) -> None:
    bench.write(methods=["\x1b[2Jone", {"name": "x", "base": "\x1b[3J"}], repairs={"keep": ["\x1b[4J"]})
    done = bench.run()
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert all(f"\\x1b[{n}J" in done.stderr for n in (2, 3, 4))


def test_a_sweep_file_in_utf16(bench: Bench) -> None:
    (bench.folder / "sweep.yaml").write_bytes("name: a\n".encode("utf-16"))
    (found,) = refused(bench)
    assert "save it as UTF-8" in found


def test_bytes_that_are_no_text_have_a_line(bench: Bench) -> None:
    (bench.folder / "sweep.yaml").write_bytes(b"name: a\nmodel: \xff\n")
    (found,) = refused(bench)
    assert found.startswith("sweep.yaml:2: is not UTF-8")


@pytest.mark.parametrize(("name", "holds"), [("mine", "vllm"), ("own", "scripted")])
def test_an_environment_of_another_engine_is_refused_before_any_is_built(bench: Bench, name: str, holds: str) -> None:
    if name != "own":
        add_environment(bench, name, holds)
    bench.write(model="demo", methods=["hf_sdpa"], environments={"hf": name})
    (found,) = refused(bench)
    assert f"environments.hf: environment {name} holds {holds}, not hf" in found


def add_environment(bench: Bench, name: str, engine: str) -> None:
    """As `env add` would leave it, without importing anything."""
    folder = Path(bench.env["AIRLOCK_HOME"]) / "envs" / name
    folder.mkdir(parents=True)
    fingerprint = {"python": "3.11", "packages": {}, "recipe_digest": "", "digest": "d"}
    env = {"name": name, "engine": engine, "python": sys.executable, "fingerprint": fingerprint, "source": "user"}
    (folder / "env.json").write_text(json.dumps({"env": env}))


@pytest.mark.parametrize(
    ("name", "hint"), [("sweep.yml", "(did you mean sweep.yaml?)"), ("no/x.yaml", "(there is no folder "), ("t", "")]
)
def test_a_sweep_file_that_is_not_there(bench: Bench, name: str, hint: str) -> None:
    bench.write()
    command = [sys.executable, "-m", "orchestrator", "plan", str(bench.folder / name)]
    done = subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert f"{name}: can't be read: " in done.stderr
    assert hint in done.stderr


def test_paths_are_shown_as_written_and_as_looked_for(bench: Bench) -> None:
    prompt = {"prompt": "a", "images": ["sub/i.png"]}
    bench.write(model={"path": "./m"}, methods=["hf_sdpa"], prompts=[prompt])
    done = plan(bench)
    assert f"model.path: ./m, that is {bench.folder}/m, does not exist" in done.stderr
    assert f"prompts[0].images[0]: sub/i.png, that is {bench.folder}/sub/i.png, can't be read" in done.stderr


def test_the_plan_says_once_that_nothing_is_tokenised(bench: Bench) -> None:
    bench.write(model="demo", methods=["hf_sdpa"])
    done = plan(bench)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not tokenised") == 1


def test_where_no_socket_can_be_made_no_run_is_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the same command would be refused once TMPDIR is another, as there is a run already."""

    def refuse(_workplace: Workplace) -> None:
        raise InputError([Problem("", "TMPDIR", "takes no sockets")])

    bench.write()
    for name in ("TMPDIR", "AIRLOCK_HOME"):
        monkeypatch.setenv(name, bench.env[name])
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(Workplace, "require_sockets", refuse)
    with pytest.raises(InputError, match="takes no sockets"):
        run(Request(bench.folder / "sweep.yaml", run_dir=bench.run_dir, view="quiet"))
    assert not bench.run_dir.exists()
    assert not list(bench.tmp.iterdir())


def test_a_current_folder_that_is_gone_is_named(bench: Bench) -> None:
    """As after a job's scratch was cleared; with a run directory named in full nothing needs it."""
    bench.write()
    gone = bench.folder / "gone"
    leave = ["/bin/sh", "-c", f"mkdir '{gone}' && cd '{gone}' && rmdir '{gone}' && exec \"$@\"", "sh"]
    bench.env["PYTHONPATH"] = str(ROOT)
    relative = subprocess.run(
        [*leave, sys.executable, "-m", "orchestrator", "plan", "sweep.yaml"],
        env=bench.env,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (relative.returncode, relative.stderr) == (2, "airlock: the current folder: No such file or directory\n")
    full = subprocess.run(
        [*leave, *bench.command()], env=bench.env, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert full.returncode == 0, full.stderr
