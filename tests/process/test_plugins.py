"""Methods of other distributions, really installed: what they bring is listed, run, or refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.sweeping import PATIENCE_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
from msgspec.structs import replace
from orchestrator.methods import builtin
from protocol.specs import MethodSpec

salted = MethodSpec("acme_salted", "scripted", engine_args={"salt": "x"}, summary="scripted, with salt")

def many():
    return [salted, replace(builtin()["vllm_fa"], name="acme_fa64", engine_args={"max_num_seqs": 64})]
"""


def install(folder: Path, name: str, source: str, **entries: str) -> Path:
    """A distribution as pip would leave it in `folder`: a module and its metadata."""
    module = name.replace("-", "_")
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = [f"{entry} = {module}:{value}" for entry, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[airlock.methods]", *lines, ""]))
    return folder


def airlock(site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "AIRLOCK_HOME": str(site / "home"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "orchestrator", *args]
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)


def test_methods_of_a_distribution_are_listed_with_where_they_come_from(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "acme-methods", GOOD, ours="many")
    done = airlock(site, "methods", "--json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert (found["acme_fa64"]["origin"], found["hf_sdpa"]["origin"]) == ("acme-methods 1.2", "Airlock")
    assert found["acme_fa64"]["sets"] == ['attention_backend="FLASH_ATTN"', "max_num_seqs=64"]
    assert "; from acme-methods 1.2" in airlock(site, "methods").stdout
    assert "acme_salted" in airlock(site, "schema").stdout


def test_a_method_of_a_distribution_runs_by_name_and_as_a_base(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install(bench.folder / "site", "acme-methods", GOOD, one="salted")
    monkeypatch.setitem(bench.env, "PYTHONPATH", f"{site}:{ROOT}")
    own = {"name": "mine", "base": "acme_salted", "engine_args": {"token_s": 0.0}}
    bench.write(methods=["acme_salted", own, "scripted"], matrix={"batch_size": [4]})
    done = bench.run()
    assert done.returncode == 0, done.stderr
    texts = {m: [r["text"] for r in bench.records if r["method"] == m] for m in ("acme_salted", "mine", "scripted")}
    assert texts["acme_salted"] == texts["mine"] != texts["scripted"]
    starts = json.loads((bench.run_dir / "plan.json").read_text())["starts"]
    assert starts[0]["config"]["method"]["engine_args"] == {"salt": "x"}, "the run keeps what the name meant"
    bench.assert_clean()


SPEC = "from protocol.specs import MethodSpec, NgramSpec\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_of_the_kind", "can't be loaded: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("raise SystemExit('no\\nway')", "can't be loaded: SystemExit: no way"),
        ("def it(): 1 / 0", "can't be loaded: ZeroDivisionError: division by zero"),
        ("other = 1", "can't be loaded: AttributeError"),
        ("it = ['hf_sdpa']", "gives str, not a MethodSpec"),
        ("it = None", "gives NoneType, not a MethodSpec"),
        (f"{SPEC}it = MethodSpec('hf_sdpa', 'hf')", "hf_sdpa is a method of Airlock, and a name always means the same"),
        (f"{SPEC}it = [MethodSpec('a', 'hf')] * 2", "a is a method of acme-methods 1.2, and a name always means"),
        (f"{SPEC}it = MethodSpec('a/b', 'hf')", "a method can't be called 'a/b' (use letters"),
        (f"{SPEC}it = MethodSpec('a', 'hff')", "method 'a': Invalid enum value 'hff'"),
        (f"{SPEC}it = MethodSpec('a', 'hf', engine_args={{'dtype': 'auto'}})", "engine_args.dtype: is set by Airlock"),
        (f"{SPEC}it = MethodSpec('a', 'vllm', ngram=NgramSpec(4, 3, 2))", "ngram: min_n 4 is more than max_n 3"),
        (f"{SPEC}it = MethodSpec('a', 'vllm', engine_args={{'x': float('nan')}})", "must be a finite number"),
        (f"{SPEC}it = MethodSpec('a', 'vllm', engine_args={{'x': object()}})", "method 'a': "),
        (f"{SPEC}it = MethodSpec('a', 'vllm', summary='\\ud800')", "holds text that is no Unicode"),
        (f"{SPEC}d = {{}}\nd['a'] = d\nit = MethodSpec('a', 'vllm', engine_args=d)", "maximum recursion depth"),
        ("class Odd(BaseException): pass\nraise Odd('x')", "can't be loaded: Odd: x"),
        ("class Odd(Exception):\n    __str__ = None\nraise Odd", "can't be loaded: Odd (remove"),
        ("import os\nos._exit(0)", "can't be loaded: its process ended with exit code 0 and said nothing (remove acme"),
        ("import os\nprint('so long')\nos._exit(3)", "can't be loaded: its process ended with exit code 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "can't be loaded: its process ended by SIGKILL"),
        ("import sys\nsys.exit(0)", "can't be loaded: SystemExit: 0"),
        ("raise KeyboardInterrupt", "can't be loaded: KeyboardInterrupt (remove"),
        ("def it():\n    import os\n    os._exit(1)", "can't be loaded: its process ended with exit code 1"),
    ],
)
def test_what_a_distribution_gets_wrong_is_one_sentence_that_names_it(tmp_path: Path, source: str, says: str) -> None:
    done = airlock(install(tmp_path / "site", "acme-methods", source, it="it"), "methods")
    assert (done.returncode, done.stdout) == (2, "")
    (count, line) = done.stderr.splitlines()
    assert count == "airlock: 1 problem in the input:"
    assert line.startswith("airlock:   acme-methods 1.2: entry point it: ")
    assert says in line


def test_what_a_distribution_prints_or_leaves_running_is_not_in_the_answer(tmp_path: Path) -> None:
    does = "import atexit, os, threading\nprint('said')\nos.write(1, b'written\\n')\natexit.register(os._exit, 9)\n"
    runs = "threading.Thread(target=threading.Event().wait).start()\nos.close(1)\nos.chdir('/')\n"
    source = f"{SPEC}{does}{runs}it = MethodSpec('a', 'scripted')\n"
    done = airlock(install(tmp_path / "site", "acme-methods", source, it="it"), "methods", "--json")
    assert "a" in {one["name"] for one in json.loads(done.stdout)}
    assert done.stderr == ""


def test_a_distribution_that_never_ends_is_given_up(tmp_path: Path) -> None:
    source = "import signal, threading\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nthreading.Event().wait()\n"
    site = install(tmp_path / "site", "acme-methods", source, it="it")
    install(site, "zeta", GOOD, ours="many")
    look = (
        "from orchestrator.stores.entrypoints import collected\n"
        "found, problems = collected(timeout_s=2.0)\nprint('acme_fa64' in found, *problems, sep='\\n')"
    )
    env = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "AIRLOCK_HOME": str(site / "home")}
    done = subprocess.run([sys.executable, "-c", look], env=env, text=True, capture_output=True, check=True)
    good, problem = done.stdout.splitlines()
    assert good == "True", "the others are there all the same"
    assert problem.startswith(
        "acme-methods 1.2: entry point it: acme_methods:it can't be loaded: its process took longer"
    )


def test_a_broken_distribution_is_told_beside_what_is_wrong_with_the_sweep(bench: Bench) -> None:
    site = install(bench.folder / "site", "acme-methods", "import os\nos._exit(1)", it="it")
    bench.write(methods=["scripted"], repeats=0)
    done = airlock(site, "plan", str(bench.folder / "sweep.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "2 problems in the input" in done.stderr
    assert "repeats: must be a whole number" in done.stderr
    assert "acme-methods 1.2: entry point it: acme_methods:it can't be loaded" in done.stderr


def test_what_a_distribution_says_of_its_methods_can_not_repaint_a_terminal(tmp_path: Path) -> None:
    source = f"{SPEC}it = MethodSpec('a', 'scripted', summary='\\x1b[2Jup', engine_args={{'x': '\\x1b[3J'}})\n"
    site = install(tmp_path / "site", "acme-methods", source, it="it")
    for args in (["methods"], ["methods", "a"]):
        done = airlock(site, *args)
        assert "\\x1b[2Jup" in done.stdout
        assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("metadata", "entries", "says"),
    [
        ("", "[airlock.methods]\nx = acme:it\n", ""),
        (None, "[airlock.methods]\nx = acme:it\n", ""),
        (None, "[airlock.methods]\nx = acme:other\n", "a distribution without a name: entry point x: acme:other can't"),
        ("Name: acme\nVersion: 1\n", "[airlock.methods]\nx acme:it\n", "acme 1: entry_points.txt: can't be read"),
        ("Name: acme\nVersion: 1\n", "[airlock.methods]\nx = acme it\n", "'acme it' is no reference of the form"),
        ("Name: acme\nVersion: 1\n", "[other]\nx acme:it\n", ""),
        ("Name: acme\nVersion: 1\n", "[other]\nx\udce9 = acme:it\n", ""),
    ],
)
def test_damaged_metadata_is_told_where_it_is_ours_and_ends_nothing(
    tmp_path: Path, metadata: str | None, entries: str, says: str
) -> None:
    info = tmp_path / "acme-1.dist-info"
    info.mkdir()
    (tmp_path / "acme.py").write_text(f"{SPEC}it = MethodSpec('a', 'scripted')\n")
    (info / "entry_points.txt").write_text(entries, errors="surrogateescape")
    if metadata is not None:
        (info / "METADATA").write_text(metadata)
    done = airlock(tmp_path, "methods")
    assert done.returncode == (2 if says else 0), done.stderr
    assert says in done.stderr


def test_two_distributions_with_one_name_are_both_told_of(tmp_path: Path) -> None:
    install(tmp_path / "site", "acme-methods", GOOD, ours="salted")
    done = airlock(install(tmp_path / "site", "zeta", GOOD, theirs="salted"), "methods")
    assert done.returncode == 2
    assert "zeta 1.2: entry point theirs: acme_salted is a method of acme-methods 1.2" in done.stderr


def test_help_imports_nobody_elses_code(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "acme-methods", "raise SystemExit(9)", it="it")
    assert [airlock(site, *args).returncode for args in (["--help"], ["methods", "--help"], ["--version"])] == [0, 0, 0]
