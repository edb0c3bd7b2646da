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
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{site}:{root}", "AIRLOCK_HOME": str(site / "home"), "COLUMNS": "200"}
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
    monkeypatch.setitem(bench.env, "PYTHONPATH", f"{site}:{Path(__file__).resolve().parents[2]}")
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
        (f"{SPEC}it = MethodSpec('a', 'hf', engine_args={{'dtype': 'auto'}})", "engine_args: dtype is set by Airlock"),
        (f"{SPEC}it = MethodSpec('a', 'vllm', ngram=NgramSpec(4, 3, 2))", "ngram: min_n 4 is more than max_n 3"),
        (f"{SPEC}it = MethodSpec('a', 'vllm', engine_args={{'x': float('nan')}})", "must be a finite number"),
        (f"{SPEC}it = MethodSpec('a', 'vllm', engine_args={{'x': object()}})", "method 'a': "),
        (f"{SPEC}it = MethodSpec('a', 'vllm', summary='\\ud800')", "holds text that is no Unicode"),
        (f"{SPEC}d = {{}}\nd['a'] = d\nit = MethodSpec('a', 'vllm', engine_args=d)", "maximum recursion depth"),
        ("class Odd(BaseException): pass\nraise Odd('x')", "can't be loaded: Odd: x"),
        ("class Odd(Exception):\n    __str__ = None\nraise Odd", "can't be loaded: Odd (remove"),
    ],
)
def test_what_a_distribution_gets_wrong_is_one_sentence_that_names_it(tmp_path: Path, source: str, says: str) -> None:
    done = airlock(install(tmp_path / "site", "acme-methods", source, it="it"), "methods")
    assert (done.returncode, done.stdout) == (2, "")
    (count, line) = done.stderr.splitlines()
    assert count == "airlock: 1 problem in the input:"
    assert line.startswith("airlock:   acme-methods 1.2: entry point it: ")
    assert says in line


def test_what_a_distribution_prints_is_not_in_the_answer(tmp_path: Path) -> None:
    source = f"{SPEC}import os\nprint('said')\nos.write(1, b'written\\n')\nit = MethodSpec('a', 'scripted')\n"
    done = airlock(install(tmp_path / "site", "acme-methods", source, it="it"), "methods", "--json")
    assert "a" in {one["name"] for one in json.loads(done.stdout)}
    assert sorted(done.stderr.split()) == ["said", "written"]


def test_what_a_distribution_says_of_its_methods_can_not_repaint_a_terminal(tmp_path: Path) -> None:
    source = f"{SPEC}it = MethodSpec('a', 'scripted', summary='\\x1b[2Jup', engine_args={{'x': '\\x1b[3J'}})\n"
    site = install(tmp_path / "site", "acme-methods", source, it="it")
    for args in (["methods"], ["methods", "a"]):
        done = airlock(site, *args)
        assert "\\x1b[2Jup" in done.stdout
        assert "\x1b" not in done.stdout


def test_two_distributions_with_one_name_are_both_told_of(tmp_path: Path) -> None:
    install(tmp_path / "site", "acme-methods", GOOD, ours="salted")
    done = airlock(install(tmp_path / "site", "zeta", GOOD, theirs="salted"), "methods")
    assert done.returncode == 2
    assert "zeta 1.2: entry point theirs: acme_salted is a method of acme-methods 1.2" in done.stderr


def test_help_imports_nobody_elses_code(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "acme-methods", "raise SystemExit(9)", it="it")
    assert [airlock(site, *args).returncode for args in (["--help"], ["methods", "--help"], ["--version"])] == [0, 0, 0]
