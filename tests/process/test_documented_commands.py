"""Every command of the documents runs as it stands there, in a folder with a sweep file and finished runs, or stands
below with why it can't and with what runs it instead."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.sweeping import PATIENCE_S, QUICK_LIMITS
from tests.unit.documents import REPO, all_blocks, commands

pytestmark = pytest.mark.usefixtures("nothing_leaked")


@dataclass(frozen=True)
class Elsewhere:
    """`runs`: the file that runs it, and what of it is found there."""

    why: str
    runs: str
    by: str


CI, TEST = ".ci/run", "scripts/test"
#: By the beginning of the command; the longest that fits counts.
ELSEWHERE: Final = {
    "scripts/check": Elsewhere("takes a minute of CI already", CI, "scripts/check"),
    "scripts/test": Elsewhere("this test is part of it", CI, "scripts/test"),
    "scripts/test-gpu": Elsewhere("needs a GPU", "scripts/test-gpu", "pytest -m gpu"),
    "scripts/quickstart": Elsewhere("needs 16 GB of engines", "tests/engines/test_whole_sweeps.py", "def test_three"),
    "scripts/faults": Elsewhere("takes minutes", "tests/faults/test_matrix.py", "def test_"),
    "scripts/faults --engines": Elsewhere("needs engines", "tests/engines/test_engine_deaths.py", "def test_"),
    "scripts/soak": Elsewhere("takes minutes; a short one is a test", "tests/process/test_soak.py", "tests.soak"),
    "scripts/bench": Elsewhere("measures, on a quiet machine", "tests/unit/test_bench.py", "def test_"),
    "scripts/install-slurm": Elsewhere("installs packages of the system", CI, "scripts/install-slurm"),
    "scripts/install-ray": Elsewhere("installs a gigabyte", CI, "scripts/install-ray"),
    "pip install": Elsewhere("asks a package index", "tests/unit/test_documents.py", "def test_extras"),
    "airlock env build": Elsewhere("installs gigabytes", TEST, "env build hf vllm sglang"),
    "airlock export runs/mine --to": Elsewhere("takes a tracker", "tests/process/test_trackers.py", '"--to", "wandb"'),
    "airlock serve": Elsewhere("runs until it is told to end", "tests/process/test_serve.py", "def test_"),
    "airlock sweep runs/harness/hf_sdpa-score-DIGEST.sweep.yaml": Elsewhere(
        "needs a run of the harness", "tests/process/test_harness_sweeps.py", "--set methods="
    ),
    "airlock harness": Elsewhere("needs a real engine", "tests/engines/test_harness.py", "harness"),
}
#: What stands in a document → what stands for it here.
SUBSTITUTES: Final = {"/shared/": "shared/"}
#: Commands that say with 1 that they found something, which is for them to say.
MAY_FIND: Final = ("airlock agree", "airlock compare")
#: Extras that a command needs.
NEEDS: Final = {".parquet": "pyarrow", "--html": "vl_convert"}


def short(command: str) -> str:
    """All ways to call Airlock are one."""
    return re.sub(r"^(?:[A-Z_]+=\S+ )*(?:nohup )?(?:python -m orchestrator|airlock)(?= |$)", "airlock", command)


#: Each once, however Airlock is called; that both ways lead to it is another test's.
COMMANDS: Final = {short(command): (command, where) for command, where in reversed(commands().items())}


def elsewhere(command: str) -> Elsewhere | None:
    fits = [head for head in ELSEWHERE if re.match(rf"{re.escape(head)}(?= |$)", short(command))]
    return ELSEWHERE[max(fits, key=len)] if fits else None


class Desk:
    """A folder as one has it who follows the documents: mine.yaml and the runs mine, base and later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "t").mkdir()
        bin_dir = Path(sys.executable).parent
        self.env = {
            **os.environ,
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "AIRLOCK_HOME": str(folder / "home"),
            "HOME": str(folder),
            "TMPDIR": str(folder / "t"),
        }
        for name in ("mine", "base", "later"):
            (folder / f"{name}.yaml").write_text(json.dumps(sweep(name)))
        (folder / "other.yaml").write_text("answers: {judge: [contains, numeric]}\n")

    def start(self, command: str) -> subprocess.Popen[str]:
        for shown, here in SUBSTITUTES.items():
            command = command.replace(shown, here)
        script = f"{command}\nstatus=$?\nwait\nexit $status"
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["bash", "-c", script], cwd=self.folder, env=self.env, text=True, stdout=pipe, stderr=pipe
        )

    def run(self, command: str) -> tuple[int, str]:
        """Exit code, and all that was said."""
        if short(command).startswith("airlock sweep") and not re.search("--resume|--dry-run", command):
            named = re.search(r"--run-dir /?(\S+)", command)
            shutil.rmtree(self.folder / (named[1] if named else "runs/mine"))
        process = self.start(command)
        said = "".join(process.communicate(timeout=PATIENCE_S))
        return process.returncode, said


def sweep(name: str) -> dict[str, Any]:
    """Two methods and two batch sizes, in one worker start each."""
    slow = {"name": "scripted_slow", "base": "scripted", "engine_args": {"token_s": 0.0005}}
    return {
        "name": name,
        "model": "scripted",
        "prompts": [{"id": f"p{n}", "prompt": f"What is {n} and {n}?", "expected": 2 * n} for n in range(4)],
        "methods": ["scripted", slow],
        "sampling": {"max_new_tokens": 8},
        "matrix": {"batch_size": [1, 2]},
        "answers": {"judge": "numeric"},
        "limits": QUICK_LIMITS,
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"))
    names = ("sweep base.yaml", "sweep later.yaml", "sweep mine.yaml", "sweep mine.yaml --run-dir /shared/runs/mine")
    for process in [made.start(f"python -m orchestrator {one}") for one in names]:
        said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    return made


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("command", "where"), [pair for pair in COMMANDS.values() if elsewhere(pair[0]) is None])
def test_a_command_runs_as_it_is_documented(desk: Desk, command: str, where: str) -> None:
    for sign, library in NEEDS.items():
        if sign in command and find_spec(library) is None:  # importing some of them starts threads
            pytest.skip(f"needs {library}")
    code, said = desk.run(command)
    fine = (0, 1) if short(command).startswith(MAY_FIND) else (0,)
    assert code in fine, f"{where}: {command}\nended with {code}:\n{said}"
    assert "Traceback" not in said


@pytest.mark.parametrize("head", ELSEWHERE)
def test_what_does_not_run_here_is_documented_and_runs_elsewhere(head: str) -> None:
    other = ELSEWHERE[head]
    assert any(elsewhere(command) is other for command in COMMANDS), f"no document has {head}"
    assert other.by in (REPO / other.runs).read_text(encoding="utf-8"), f"{other.runs} does not run {head}"


@pytest.mark.parametrize("way", ["airlock", "python -m orchestrator"])
def test_both_ways_lead_to_it_and_it_says_the_one_that_was_taken(desk: Desk, way: str) -> None:
    assert desk.run(f"{way} --version")[0] == 0
    assert f"usage: {way} report " in desk.run(f"{way} report --help")[1]
    assert f"`{way} report runs/mine` tells more" in desk.run(f"{way} watch runs/mine")[1]


EXAMPLES: Final = ("quickstart.yaml", "every-cpu-method.yaml")
WHOLE: Final = {
    **{block.where: block.text for block in all_blocks() if re.search(r"^name: (?s:.)*^methods:", block.text, re.M)},
    **{name: (REPO / "examples" / name).read_text(encoding="utf-8") for name in EXAMPLES},
}


def test_there_are_whole_sweep_files() -> None:
    assert {"README.md", "docs/guide.md"} <= {where.partition(":")[0] for where in WHOLE}


@pytest.mark.parametrize("where", WHOLE)
def test_a_whole_sweep_file_can_be_planned_on_this_machine(desk: Desk, where: str) -> None:
    (desk.folder / "shown.yaml").write_text(WHOLE[where])
    shutil.copy(REPO / "examples" / "prompts.jsonl", desk.folder)
    code, said = desk.run("airlock plan shown.yaml")
    assert code == 0, f"{where}: {said}"
    assert " worker start" in said
