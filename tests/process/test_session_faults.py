"""What a worker does when its engine misbehaves. Each fault here is also there for other tests to order."""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from protocol import PROTOCOL_VERSION
from protocol.codec import decode_up
from protocol.errors import Malformed, PeerGone
from protocol.messages import BatchDone, BatchFailed, Beat, Fatal, Goodbye, Hello, Imported, Init, Run, Shutdown
from protocol.specs import BackendConfig
from tests.process.launching import Fifo
from tests.process.worker_peer import INCARNATION, PATIENCE_S, TOKEN, Peer, Start, batch, faulty, scripted

pytestmark = pytest.mark.usefixtures("nothing_leaked")

DEAF_FOR_S = 0.3


def early(at: str, do: str, **more: Any) -> dict[str, str]:
    return {"SCRIPTED_OPTIONS": json.dumps({"fault": {"at": at, "do": do, **more}})}


def busy(peer: Peer, config: BackendConfig, *prompts: str) -> None:
    peer.ready(config)
    peer.send(Run(batch(config, "b1", *prompts)))


# --- a batch that fails by itself -----------------------------------------


@pytest.mark.parametrize(
    ("do", "kind"), [("raise", "ScriptedFault"), ("memory_error", "MemoryError"), ("sys_exit", "SystemExit")]
)
def test_what_an_engine_raises_fails_that_batch_alone(start: Start, do: str, kind: str) -> None:
    peer, config = start(), faulty("batch:1", do)
    busy(peer, config)
    failed = peer.expect(BatchFailed)
    assert (failed.batch_id, failed.error.type) == ("b1", kind)
    assert peer.run(batch(config, "b2")).batch_id == "b2"


def test_one_prompt_fails_whatever_batch_it_is_in(start: Start) -> None:
    peer, config = start(), faulty("prompt:poison", "raise")
    busy(peer, config, "alpha", "poison")
    assert peer.expect(BatchFailed).batch_id == "b1"
    assert len(peer.run(batch(config, "b2", "alpha", "beta")).generations) == 2
    peer.send(Run(batch(config, "b3", "poison")))
    assert peer.expect(BatchFailed).batch_id == "b3"


@pytest.mark.parametrize(("do", "kind"), [("oversized", "Oversized"), ("unencodable", "Malformed")])
def test_results_that_cant_be_sent_fail_that_batch_alone(start: Start, do: str, kind: str) -> None:
    peer, config = start(), faulty("batch:1", do)
    busy(peer, config)
    failed = peer.expect(BatchFailed)
    assert (failed.batch_id, failed.error.type) == ("b1", kind)
    assert peer.run(batch(config, "b2")).batch_id == "b2"


# --- an engine that is dead -----------------------------------------------


@pytest.mark.parametrize(
    ("at", "phase"), [("load", "loading"), ("ready", "loading"), ("batch:1", "busy"), ("shutdown", "draining")]
)
def test_the_phase_of_a_fatal_error(start: Start, at: str, phase: str) -> None:
    peer, config = start(), faulty(at, "raise_fatal")
    peer.imported()
    peer.send(Init(config))
    if phase != "loading":
        peer.send(Run(batch(config, "b1")))
        peer.send(Shutdown("done"))
    while not isinstance(message := peer.receive(), Fatal):
        continue
    assert (message.phase, message.error.type, message.error.fatal) == (phase, "EngineDead", True)
    assert peer.ended() == 70


def test_a_failed_import_is_fatal(start: Start) -> None:
    peer = start(env=early("import", "raise"))
    peer.expect(Hello)
    fatal = peer.expect(Fatal)
    assert (fatal.phase, fatal.error.type) == ("importing", "ScriptedFault")
    assert peer.ended() == 70


def test_an_engine_can_give_up_beside_a_main_thread_that_hangs(start: Start, fifo: Fifo, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    faults = [
        {"at": "beside", "do": "give_up", "gate": str(gate)},
        {"at": "batch:1", "do": "hang", "touch": fifo.path},
    ]
    peer = start()
    busy(peer, scripted({"faults": faults}))
    assert fifo.pids(1) == {"batch:1": peer.pid}
    os.close(os.open(gate, os.O_WRONLY))
    assert peer.expect(Fatal).error.message == "told to give up at beside"
    assert peer.ended() == 70


# --- a worker that is no more ---------------------------------------------


@pytest.mark.parametrize(
    ("do", "status"),
    [("exit0", 0), ("exit1", 1), ("segv", -signal.SIGSEGV), ("sigkill", -9), ("sigquit_group", -signal.SIGQUIT)],
)
def test_ways_to_end_without_a_word(start: Start, do: str, status: int) -> None:
    peer = start()
    busy(peer, faulty("batch:1", do))
    assert peer.ended() == status
    assert ("Segmentation fault" in peer.said()) == (do == "segv")


@pytest.mark.parametrize("at", ["hello", "import", "load", "ready", "shutdown"])
def test_ends_at_every_moment(start: Start, at: str) -> None:
    peer = start(env=early(at, "exit1"))
    if at not in ("hello", "import"):
        peer.imported()
        peer.send(Init(scripted()))
        with suppress(PeerGone):  # it may have ended by now
            peer.send(Shutdown("done"))
    assert not any(isinstance(m, (Goodbye, Fatal)) for m in peer.rest())
    assert peer.process.wait(PATIENCE_S) == 1


# --- a worker that does not answer ----------------------------------------


def test_a_hanging_batch_still_beats_and_obeys_sigterm(start: Start, fifo: Fifo) -> None:
    peer = start()
    busy(peer, faulty("batch:1", "hang", touch=fifo.path))
    fifo.line()
    assert peer.expect(Beat).phase == "busy"
    peer.kill(signal.SIGTERM)
    assert peer.goodbye().metadata is not None
    assert peer.ended() == 143


@pytest.mark.parametrize("do", ["hang_ignore_term", "spin"])
def test_some_hear_nothing_but_sigkill(start: Start, fifo: Fifo, do: str) -> None:
    peer = start()
    busy(peer, faulty("batch:1", do, touch=fifo.path))
    fifo.line()
    peer.kill(signal.SIGTERM)
    assert not select.select([peer.pidfd], [], [], DEAF_FOR_S)[0]
    peer.kill(signal.SIGKILL)
    assert peer.ended() == -signal.SIGKILL


def test_a_stopped_worker_goes_on_where_it_was(start: Start) -> None:
    peer, config = start(), faulty("batch:1", "sigstop")
    busy(peer, config)
    _, status = os.waitpid(peer.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    peer.kill(signal.SIGCONT)
    assert peer.expect(BatchDone).batch_id == "b1"


def test_a_late_answer_comes_in_full_after_sigterm(start: Start, fifo: Fifo) -> None:
    peer, config = start(), faulty("batch:1", "late_answer", touch=fifo.path)
    busy(peer, config)
    fifo.line()
    peer.kill(signal.SIGTERM)
    answer = peer.expect(BatchDone)
    assert (answer.batch_id, [g.prompt_id for g in answer.generations]) == ("b1", ["alpha", "beta"])
    peer.goodbye()
    assert peer.ended() == 143


# --- faults that strike a worker where it waits -----------------------------


def open_gate(path: Path) -> None:
    """Once the worker waits there."""
    os.close(os.open(path, os.O_WRONLY))


@pytest.mark.parametrize("do", ["exit1", "memory_error", "hang_ignore_term"])
@pytest.mark.parametrize("at", ["standby", "idle"])
def test_the_main_thread_is_struck_while_it_waits(start: Start, fifo: Fifo, tmp_path: Path, at: str, do: str) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    fault = {"at": at, "do": do, "gate": str(gate), "touch": fifo.path}
    if at == "standby":
        peer = start(env=early(**fault))
        peer.imported()
    else:
        peer = start()
        peer.ready(scripted({"fault": fault}))
    open_gate(gate)
    assert fifo.pids(1) == {at: peer.pid}
    if do == "exit1":
        assert peer.ended() == 1
    elif do == "memory_error":
        fatal = peer.expect(Fatal)
        assert (fatal.phase, fatal.error.type) == ("standby" if at == "standby" else "ready", "MemoryError")
    else:
        peer.kill(signal.SIGTERM)
        assert not select.select([peer.pidfd], [], [], DEAF_FOR_S)[0]


def test_an_answer_to_the_last_batch_once_more(start: Start, fifo: Fifo, tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    peer, config = start(), faulty("idle", "late", gate=str(gate), touch=fifo.path)
    peer.ready(config)
    peer.run(batch(config, "b1"))
    open_gate(gate)
    assert peer.expect(BatchDone).batch_id == "b1"


# --- memory that is limited -------------------------------------------------


def test_a_memory_limit_is_hit_and_can_be_told(start: Start) -> None:
    peer, config = start(), faulty("batch:1", "memory_limit")
    busy(peer, config)
    assert peer.expect(BatchFailed).error.type == "MemoryError"
    limit = next(line for line in Path(f"/proc/{peer.pid}/limits").read_text().splitlines() if "address space" in line)
    assert limit.split()[3].isdigit()
    assert peer.run(batch(config, "b2")).batch_id == "b2"


def test_a_cgroup_that_allows_more_than_is_taken_kills_nobody(start: Start, tmp_path: Path) -> None:
    """A folder stands in for the cgroup: what the worker does to join one is seen there."""
    peer, config = start(), faulty("batch:1", "memory_killed", path=str(tmp_path), bytes=2**20)
    busy(peer, config)
    assert peer.expect(BatchFailed).error.type == "MemoryError"
    assert (tmp_path / "cgroup.procs").read_text() == str(peer.pid)


# --- nonsense up the wire -------------------------------------------------


def test_garbage(start: Start) -> None:
    peer = start()
    busy(peer, faulty("batch:1", "garbage"))
    while (frame := peer.receive_raw())[:1] != b"\xc1":
        decode_up(frame)
    with pytest.raises(Malformed):
        decode_up(frame)
    peer.expect(BatchDone)


@pytest.mark.parametrize("do", ["wrong_protocol", "wrong_token"])
def test_a_wrong_hello(start: Start, do: str) -> None:
    peer = start(env=early("hello", do))
    hello = peer.expect(Hello)
    assert (hello.protocol == PROTOCOL_VERSION, hello.token == TOKEN) == (do == "wrong_token", do == "wrong_protocol")
    assert (hello.incarnation, hello.pid) == (INCARNATION, peer.pid)
    peer.kill(signal.SIGTERM)
    peer.expect(Hello)
    peer.goodbye()


def test_out_of_turn_and_late(start: Start) -> None:
    faults = [{"at": "batch:1", "do": "out_of_turn"}, {"at": "batch:1", "do": "late"}]
    peer = start()
    busy(peer, scripted({"faults": faults}))
    assert peer.expect(Imported).engine_version == "again"
    assert peer.expect(BatchDone).batch_id == "a-batch-of-long-ago"
    assert peer.expect(BatchDone).batch_id == "b1"


@pytest.mark.parametrize(
    ("do", "ids"),
    [
        ("missing", ["beta"]),
        ("duplicate", ["alpha", "beta", "alpha"]),
        ("surplus", ["alpha", "beta", "nobody-asked"]),
        ("wrong_digest", ["alpha", "beta"]),
    ],
)
def test_results_that_do_not_fit(start: Start, do: str, ids: list[str]) -> None:
    peer, config = start(), faulty("batch:2", do)
    peer.ready(config)
    right = peer.run(batch(config, "b1")).generations
    wrong = peer.run(batch(config, "b2")).generations
    assert [g.prompt_id for g in wrong] == ids
    assert (wrong[0].prompt_digest == right[0].prompt_digest) == (do in ("duplicate", "surplus"))


def test_unclean_text_arrives_clean_and_flagged(start: Start) -> None:
    peer, config = start(), faulty("batch:1", "surrogates")
    peer.ready(config)
    for one in peer.run(batch(config, "b1")).generations:
        assert one.flags == ["unclean_text"]
        assert one.text[0] == one.text[-1] == "\ufffd"
    assert peer.run(batch(config, "b2")).generations[0].flags == []


# --- how faults are ordered -----------------------------------------------


def test_once_means_once(start: Start, tmp_path: Path) -> None:
    config = faulty("load", "exit1", once=str(tmp_path / "done"))
    first = start()
    first.imported()
    first.send(Init(config))
    assert first.ended() == 1
    start().ready(config)


@pytest.mark.parametrize(
    "fault",
    [
        {"at": "lunch", "do": "raise"},
        {"at": "batch:0", "do": "raise"},
        {"at": "load", "do": "nonsense"},
        {"at": "load", "do": "missing"},
        {"at": "import", "do": "raise"},
        {"at": "load", "do": "raise", "wehn": 1},
        {"at": "load", "do": "late_answer"},
        {"at": "idle", "do": "raise"},
        {"do": "raise"},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(start: Start, fault: dict[str, Any]) -> None:
    peer = start()
    peer.imported()
    peer.send(Init(scripted({"fault": fault})))
    fatal = peer.expect(Fatal)
    assert (fatal.phase, fatal.error.type in ("ValidationError", "ValueError")) == ("loading", True)
