"""A real worker, spoken to over a real socket: the conversation, and what is out of turn."""

from __future__ import annotations

import platform

import pytest

from protocol import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.messages import (
    BatchFailed,
    Beat,
    Fatal,
    Hello,
    Imported,
    Init,
    Ready,
    Run,
    Shutdown,
)
from protocol.specs import BackendConfig, MethodSpec, unpack_ids
from tests.process.worker_peer import (
    EOS,
    INCARNATION,
    TOKEN,
    Peer,
    Start,
    batch,
    scripted,
)

pytestmark = pytest.mark.usefixtures("nothing_leaked")


# --- the whole course -----------------------------------------------------


def test_the_whole_conversation(start: Start) -> None:
    peer = start()
    config = scripted(max_model_len=64, stop_token_ids=(EOS,))
    assert peer.expect(Hello) == Hello(PROTOCOL_VERSION, INCARNATION, TOKEN, peer.pid, platform.python_version())
    imported = peer.expect(Imported)
    assert imported.engine_version == f"protocol {PROTOCOL_VERSION}"
    assert imported.import_s >= 0
    peer.send(Init(config))
    metadata = peer.expect(Ready).metadata
    assert (metadata.engine, metadata.device, metadata.max_model_len) == ("scripted", "cpu", 64)
    assert metadata.load.total_s >= (metadata.load.weights_s or 0) > 0
    assert metadata.load.import_s == imported.import_s
    done = peer.run(batch(config, "b1", "alpha", "beta"))
    assert (done.batch_id, [g.prompt_id for g in done.generations]) == ("b1", ["alpha", "beta"])
    assert done.stats.generated_tokens == sum(g.generated_tokens for g in done.generations) > 0
    assert all(0 < (g.ttft_s or 0) <= (g.latency_s or 0) <= done.stats.wall_s for g in done.generations)
    peer.send(Shutdown("done"))
    farewell = peer.goodbye().metadata
    assert farewell is not None
    assert farewell.load == metadata.load
    assert farewell.memory.host_rss_bytes
    assert peer.ended() == 0


def test_output_depends_on_the_prompt_and_not_on_its_company(start: Start) -> None:
    peer, config = start(), scripted()
    peer.ready(config)
    together = peer.run(batch(config, "b1", "alpha", "beta", "gamma")).generations
    alone = [peer.run(batch(config, name, name)).generations[0] for name in ("alpha", "beta", "gamma")]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]
    assert len({g.text for g in together}) == 3
    assert all(g.text == "".join(map(chr, unpack_ids(g.token_ids))) for g in together)


def test_call_time_settings_change_between_batches(start: Start) -> None:
    peer, config = start(), scripted()
    peer.ready(config)
    short = peer.run(batch(config, "b1", max_new_tokens=3)).generations
    long = peer.run(batch(config, "b2", max_new_tokens=40)).generations
    other = peer.run(batch(config, "b3", max_new_tokens=40, seed=1)).generations
    assert [g.generated_tokens for g in (*short, *long)] == [3, 3, 40, 40]
    assert {g.finish_reason for g in (*short, *long)} == {"length"}
    assert long[0].token_ids != other[0].token_ids
    assert long[0].prompt_digest == other[0].prompt_digest


def test_stop_ids_end_some_prompts_early_and_ignore_eos_none(start: Start) -> None:
    peer, config = start(), scripted(stop_token_ids=(EOS,), max_new_tokens=32)
    peer.ready(config)
    names = tuple(map(str, range(10, 30)))
    stopped = peer.run(batch(config, "b1", *names)).generations
    assert {g.finish_reason for g in stopped} == {"stop", "length"}
    for one in stopped:
        ids = unpack_ids(one.token_ids)
        assert (ids.count(EOS), ids[-1] == EOS) == ((1, True) if one.finish_reason == "stop" else (0, False))
    free = peer.run(batch(config, "b2", *names, ignore_eos=True)).generations
    assert {g.generated_tokens for g in free} == {32}


def test_warm_up_batches_are_batches(start: Start) -> None:
    peer, config = start(), scripted()
    peer.ready(config)
    assert peer.run(batch(config, "w")).batch_id == "w"


def test_beats_tell_phase_progress_and_memory(start: Start) -> None:
    peer = start()
    peer.ready(scripted({"memory_bytes": 2**26}))
    before = peer.expect(Beat)
    while before.phase != "ready":
        before = peer.expect(Beat)
    assert (before.memory.host_rss_bytes or 0) >= 2**26
    assert (before.memory.host_peak_rss_bytes or 0) >= (before.memory.host_rss_bytes or 0)
    peer.run(batch(scripted(), "b"))
    assert peer.expect(Beat).progress > before.progress


# --- out of turn ----------------------------------------------------------


def fatal_type(peer: Peer) -> str:
    fatal = peer.expect(Fatal)
    assert fatal.error.fatal
    assert peer.ended() == 70
    return fatal.error.type


def test_run_before_init(start: Start) -> None:
    peer = start()
    peer.imported()
    peer.send(Run(batch(scripted(), "b")))
    assert fatal_type(peer) == "OutOfTurn"


def test_a_second_init(start: Start) -> None:
    peer = start()
    peer.ready()
    peer.send(Init(scripted()))
    assert fatal_type(peer) == "OutOfTurn"


def test_init_for_another_engine(start: Start) -> None:
    peer = start()
    peer.imported()
    peer.send(Init(BackendConfig(method=MethodSpec(name="x", engine="hf"), model_path="")))
    assert fatal_type(peer) == "OutOfTurn"


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"\xc1garbage"], id="garbage"),
        pytest.param([b""], id="empty"),
        pytest.param([encode(Shutdown("x")), b"more"], id="two frames"),
        pytest.param([encode(Imported(0.0, ""))], id="wrong direction"),
    ],
)
def test_nonsense_from_the_coordinator(start: Start, frames: list[bytes]) -> None:
    peer = start()
    peer.ready()
    peer.send_raw(*frames)
    assert fatal_type(peer) == "Malformed"


def test_an_engine_that_does_not_exist(start: Start) -> None:
    peer = start(engine="fantasy")
    peer.expect(Hello)
    fatal = peer.expect(Fatal)
    assert (fatal.phase, fatal.error.type) == ("importing", "UnknownEngine")
    assert "scripted" in fatal.error.message
    assert peer.ended() == 70


def test_an_unknown_option_is_refused(start: Start) -> None:
    peer = start()
    peer.imported()
    peer.send(Init(scripted({"laod_s": 1})))
    fatal = peer.expect(Fatal)
    assert (fatal.phase, fatal.error.type) == ("loading", "ValidationError")
    assert "laod_s" in fatal.error.message
    assert peer.ended() == 70


def test_a_failed_batch_is_not_the_end(start: Start) -> None:
    config = scripted({"fault": {"at": "batch:1", "do": "raise"}})
    peer = start()
    peer.ready(config)
    peer.send(Run(batch(config, "b1")))
    failed = peer.expect(BatchFailed)
    assert (failed.batch_id, failed.error.type, failed.error.fatal) == ("b1", "ScriptedFault", False)
    assert "scripted_faults.py" in failed.error.traceback
    assert peer.run(batch(config, "b2")).batch_id == "b2"
