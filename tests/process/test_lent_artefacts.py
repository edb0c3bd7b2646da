"""Compiled artefacts in whole sweeps: who is lent what, who brings something back, and what comes of a bad entry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.events import Artefacts, BatchLost, WorkerLaunched, WorkerReady
from orchestrator.run.keeping import POLICY
from orchestrator.stores.artefacts import CACHE, ArtefactStore
from orchestrator.stores.openentry import FILES
from orchestrator.stores.trees import marks_of
from tests.process import disks
from tests.process.launching import Fifo
from tests.process.sweeping import NO_SECOND_TRY, QUICK_LIMITS, Bench

KERNEL = "inductor/kernel.json"


def compiled(where: str = "load", **options: Any) -> dict[str, Any]:
    return {"name": "compiled", "base": "scripted", "engine_args": {"cache": where, **options}}


def sweep(bench: Bench, run: str, method: dict[str, Any], expected: int = 0, **changes: Any) -> None:
    """A run directory of its own; one batch and one worker, unless that fails."""
    bench.run_dir = bench.folder / run
    bench.write(methods=[method], **{"matrix": {"batch_size": [6]}, **changes})
    done = bench.run()
    assert done.returncode == expected, done.stderr


def launched(bench: Bench) -> list[str]:
    return [event.artefacts for event in bench.events if isinstance(event, WorkerLaunched)]


def found(bench: Bench) -> list[str]:
    """What each worker that became ready found in its cache, by its own words."""
    return [event.metadata.options["artefacts"] for event in bench.events if isinstance(event, WorkerReady)]


def told(bench: Bench) -> list[str]:
    return [event.what for event in bench.events if isinstance(event, Artefacts)]


def store(bench: Bench) -> ArtefactStore:
    return ArtefactStore.under(bench.folder / "home")


def only(bench: Bench) -> Path:
    """The folder of the only entry."""
    (entry,) = store(bench).entries()
    return store(bench).root / entry.manifest.key


def poison(entry: Path) -> None:
    """An entry that is whole, and that the engine chokes on."""
    (entry / CACHE / KERNEL).write_text("not what it was")
    (entry / FILES).write_bytes(msgspec.json.encode(marks_of(entry / CACHE)))


def test_the_first_start_is_cold_and_the_next_is_warm_in_the_same_run_and_in_others(bench: Bench) -> None:
    sweep(bench, "one", compiled(), matrix={"batch_size": [6], "max_model_len": [1000, 1001]})
    assert launched(bench) == ["cold", "cold"]  # other settings are other artefacts
    assert found(bench) == ["made", "made"]
    assert told(bench) == ["kept", "kept"]
    sweep(bench, "two", compiled(), matrix={"batch_size": [6], "max_model_len": [1000]})
    assert (launched(bench), found(bench), told(bench)) == (["warm"], ["found"], [])
    sweep(bench, "three", compiled(), repeats=2, measurement={"order": "interleaved"})
    assert launched(bench) == ["cold", "warm"]  # each repeat has a worker of its own
    bench.assert_clean()


def test_a_method_that_compiles_nothing_says_nothing(bench: Bench) -> None:
    sweep(bench, "one", {"name": "plain", "base": "scripted"})
    assert (launched(bench), found(bench), told(bench)) == ([""], [""], [])
    assert not store(bench).root.exists()


def test_a_store_of_no_size_is_none(bench: Bench) -> None:
    sweep(bench, "one", compiled(), limits={**QUICK_LIMITS, "artefacts_mib": 0})
    assert (launched(bench), found(bench)) == ([""], ["made"])
    assert not store(bench).root.exists()


@pytest.mark.parametrize("fault", ["sigkill", "exit0", "segv", "hang"])
def test_a_worker_that_does_not_leave_by_itself_brings_nothing_back(bench: Bench, fault: str) -> None:
    method = compiled(fault={"at": "batch:1", "do": fault})
    sweep(bench, "one", method, 1, policies=NO_SECOND_TRY, limits={**QUICK_LIMITS, "batch_s": 1})
    assert launched(bench) == ["cold"]
    assert store(bench).entries() == []
    bench.assert_clean()


def test_a_condemned_worker_brings_nothing_back(bench: Bench) -> None:
    """It leaves when asked to, but nothing works in it any more."""
    sweep(bench, "one", compiled(fault={"at": "batch:1", "do": "ruin"}), 1, policies=NO_SECOND_TRY)
    assert store(bench).entries() == []


def test_of_two_coordinators_at_once_one_entry_stays_whole(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    """Both compile, both bring it back at the same time; their TMPDIRs are their own, the store is one."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    faults = [
        {"at": "shutdown", "do": "mark", "touch": fifo.path},
        {"at": "shutdown", "do": "mark", "gate": str(gate)},
    ]
    benches = [Bench(tmp_path / name) for name in "ab"]
    for one in benches:
        one.env["AIRLOCK_HOME"] = bench.env["AIRLOCK_HOME"]
        one.write(methods=[compiled(faults=faults)], matrix={"batch_size": [6]}, limits={**QUICK_LIMITS, "drain_s": 60})
    running = [one.start() for one in benches]
    for _ in benches:
        assert fifo.line().startswith("shutdown ")
    open_gate(gate, running)
    assert [process.returncode for process in running] == [0, 0]
    assert [launched(one) for one in benches] == [["cold"], ["cold"]]
    assert set(marks_of(only(bench) / CACHE)) == {KERNEL}
    assert len(list(store(bench).root.iterdir())) == 1
    for one in benches:
        one.assert_clean()


def test_a_damaged_entry_costs_no_load(bench: Bench) -> None:
    sweep(bench, "one", compiled())
    (only(bench) / CACHE / KERNEL).write_text("{")
    sweep(bench, "two", compiled())
    assert (launched(bench), found(bench), told(bench)) == (["cold"], ["made"], ["dropped", "kept"])
    bench.assert_clean()


@pytest.mark.parametrize("where", ["load", "batch"])
def test_an_entry_that_the_engine_chokes_on_is_dropped_and_the_load_repeated_once_uncharged(
    bench: Bench, where: str
) -> None:
    """Where the policies allow no second try of anything; and the journal says what happened."""
    sweep(bench, "one", compiled(where))
    poison(only(bench))
    sweep(bench, "two", compiled(where), policies=NO_SECOND_TRY, warmup=1)
    assert launched(bench) == ["warm", "cold"]
    assert told(bench) == ["dropped", "kept"]
    first, second = bench.releases()
    assert first.cause is not None
    assert (first.cause.policy, second.cause) == (POLICY, None)
    assert all(record["error"] is None for record in bench.records)
    assert max(bench.keys().values()) == 1
    sweep(bench, "three", compiled(where))
    assert launched(bench) == ["warm"]
    bench.assert_clean()


def test_a_failure_that_has_another_reason_costs_one_cold_load_and_then_counts(bench: Bench) -> None:
    """It fails at its next load too, and then as often as the policies say."""
    marks = [bench.folder / "first", bench.folder / "second"]
    method = compiled(
        faults=[
            {"at": "load", "do": "raise", "once": str(marks[0])},
            {"at": "ready", "do": "raise", "once": str(marks[1])},
        ]
    )
    for mark in marks:
        mark.touch()
    sweep(bench, "one", method)
    for mark in marks:
        mark.unlink()
    sweep(bench, "two", method, 1, policies=NO_SECOND_TRY)
    assert (launched(bench), told(bench)) == (["warm", "cold"], ["dropped"])
    (end,) = bench.outcomes()["compiled"]
    assert end.cause is not None
    assert (end.outcome, end.cause.cls, end.cause.policy) == ("failed", "engine_error", "give_up")


def test_a_bad_prompt_of_a_warm_worker_is_a_bad_prompt(bench: Bench) -> None:
    """Though it is in the first batch of that worker: nothing in what the engine says points to its caches."""
    once = bench.folder / "once"
    once.touch()
    method = compiled(fault={"at": "prompt:1", "do": "raise", "once": str(once)})
    sweep(bench, "one", method, matrix={"batch_size": [3]})
    once.unlink()
    sweep(bench, "two", method, matrix={"batch_size": [3]})
    assert any(isinstance(event, BatchLost) for event in bench.events)
    assert (launched(bench), told(bench)) == (["warm"], [])


@pytest.mark.parametrize(("fault", "starts"), [("sigkill", ["warm", "warm"]), ("segv", ["warm", "cold"])])
def test_a_death_in_the_first_batch_is_the_artefacts_fault_only_if_it_looks_like_it(
    bench: Bench, fault: str, starts: list[str]
) -> None:
    """Who was killed from outside is replaced as the policies say; bad machine code ends in a signal of its own."""
    once = bench.folder / "once"
    once.touch()
    method = compiled(fault={"at": "batch:1", "do": fault, "once": str(once)})
    sweep(bench, "one", method)
    once.unlink()
    sweep(bench, "two", method)
    assert launched(bench) == starts
    assert ("dropped" in told(bench)) is (starts[1] == "cold")
    assert any(isinstance(event, BatchLost) for event in bench.events) is (starts[1] == "warm")
    assert max(bench.keys().values()) == 1
    bench.assert_clean()


def test_the_verb_lists_what_is_kept_and_clears_it(bench: Bench) -> None:
    def artefacts(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", "artefacts", *args]
        return subprocess.run(command, env=bench.env, text=True, capture_output=True, timeout=60, check=True)

    assert "nothing is kept" in artefacts("list").stdout
    sweep(bench, "one", compiled())
    (entry,) = json.loads(artefacts("list", "--json").stdout)
    assert (entry["key"], entry["run"]) == (only(bench).name, str(bench.run_dir))
    assert artefacts("list").stdout.startswith(entry["key"])
    assert "1 entry removed" in artefacts("clear").stderr
    assert json.loads(artefacts("list", "--json").stdout) == []
    sweep(bench, "two", compiled())
    assert launched(bench) == ["cold"]


def test_what_no_cache_should_hold_is_left_behind(bench: Bench) -> None:
    sweep(bench, "one", compiled(cache_traps=True))
    kept = only(bench) / CACHE
    assert [str(path.relative_to(kept)) for path in kept.rglob("*")] == ["inductor", KERNEL]
    sweep(bench, "two", compiled(cache_traps=True))
    assert (launched(bench), found(bench)) == (["warm"], ["found"])
    bench.assert_clean()


def test_a_full_disk_under_the_store_is_a_sentence_and_no_failure(bench: Bench) -> None:
    home = bench.folder / "home"
    with disks.small(home, 256 * disks.KIB):
        disks.fill(home)
        sweep(bench, "one", compiled())
        assert (launched(bench), told(bench)) == (["cold"], ["not_kept"])
        (said,) = [event.reason for event in bench.events if isinstance(event, Artefacts)]
        assert "No space left on device" in said
        assert store(bench).entries() == []
        (home / "ballast").unlink()
        sweep(bench, "two", compiled())
        assert told(bench) == ["kept"]
        disks.fill(home)
        sweep(bench, "three", compiled())
        assert launched(bench) == ["warm"]
    bench.assert_clean()


def test_a_store_that_may_not_be_written_is_read(bench: Bench) -> None:
    """As of a shared home that is mounted read-only."""
    sweep(bench, "one", compiled())
    home = bench.folder / "home"
    shutil.copytree(home, bench.folder / "copy")
    with disks.mounted(home, "-t", "tmpfs", "airlock-test"):
        shutil.copytree(bench.folder / "copy", home, dirs_exist_ok=True)
        assert disks.done("mount", "-o", "remount,ro", home)
        sweep(bench, "two", compiled())
        assert (launched(bench), found(bench), told(bench)) == (["warm"], ["found"], [])
    bench.assert_clean()


def open_gate(gate: Path, running: Sequence[subprocess.Popen[str]]) -> None:
    """Until all have ended: whoever comes to it late finds it open, too."""
    for process in running:
        while True:
            with suppress(OSError):  # nobody waits there just now
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=0.1)
                break
