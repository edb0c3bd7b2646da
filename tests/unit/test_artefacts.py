"""The store of compiled artefacts, on a real disk: what is lent, what is kept, what is never taken."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.definition.inputs import SCRIPTED
from orchestrator.events import Artefacts
from orchestrator.outcomes import Cause, CauseClass
from orchestrator.run.keeping import is_clean
from orchestrator.run.lending import NOT_KEPT, Lending, Loan, about, compiles
from orchestrator.run.life import Exited, Life, State
from orchestrator.run.slots import Slot
from orchestrator.run.workplace import Workplace, inductor_default, worker_environment
from orchestrator.stores import artefacts, trees
from orchestrator.stores.artefacts import CACHE, MANIFEST, ArtefactStore, Kept, Origin
from orchestrator.stores.envstate import EngineEnv, Fingerprint
from orchestrator.stores.openentry import FILES, LOCK, opened
from orchestrator.terminal.narrator import Narrator
from protocol.keys import Keys
from protocol.records import ErrorInfo
from protocol.specs import BackendConfig, MethodSpec

PLENTY = 1 << 30
Files = Mapping[str, bytes]
ONE = {"inductor/ab/kernel.so": b"\x7fELF" * 1000, "triton/x.json": b"{}"}
TWO = {**ONE, "inductor/cd/other.so": b"other"}


@pytest.fixture
def store(tmp_path: Path) -> ArtefactStore:
    return ArtefactStore.under(tmp_path / "home")


def made(folder: Path, files: Files) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def found(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def origin(folder: Path, incarnation: str = "w1-0") -> Origin:
    return Origin(folder, {"start": "m-1", "cpu": "2 × Z80"}, "/runs/one", incarnation, frozenset({"inductor/dynamo"}))


def keep(store: ArtefactStore, folder: Path, files: Files, key: str = "k", most_bytes: int = PLENTY) -> Kept:
    return store.keep(key, origin(made(folder, files)), most_bytes)


def lent(store: ArtefactStore, folder: Path, key: str = "k") -> dict[str, bytes]:
    assert store.lend(key, folder).warm
    return found(folder)


def test_what_is_kept_is_lent_as_a_copy_with_modes_and_times(store: ArtefactStore, tmp_path: Path) -> None:
    source = made(tmp_path / "w1", ONE)
    kernel = source / "inductor/ab/kernel.so"
    kernel.chmod(0o755)
    os.utime(kernel, ns=(1, 2_000_000_000))
    assert keep(store, source, {}).new
    assert lent(store, tmp_path / "w2") == ONE
    copy = tmp_path / "w2/inductor/ab/kernel.so"
    assert (stat.S_IMODE(copy.stat().st_mode), copy.stat().st_mtime_ns) == (0o755, 2_000_000_000)
    copy.write_bytes(b"scribbled over in place")
    assert lent(store, tmp_path / "w3") == ONE


def test_the_manifest_says_what_it_is_and_where_it_comes_from(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE)
    (entry,) = store.entries()
    assert entry.manifest.about == {"start": "m-1", "cpu": "2 × Z80"}
    assert (entry.manifest.run, entry.manifest.incarnation) == ("/runs/one", "w1-0")
    assert (entry.manifest.bytes, entry.manifest.files) == (4002, 2)


def test_nothing_is_lent_where_nothing_is(store: ArtefactStore, tmp_path: Path) -> None:
    lent = store.lend("k", tmp_path / "w1")
    assert (lent.warm, lent.trouble) == (False, "")
    assert not keep(store, tmp_path / "empty", {}).new
    assert store.entries() == []


def test_what_is_new_replaces_and_what_is_the_same_does_not(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE)
    before = (store.root / "k").stat().st_ino
    assert keep(store, tmp_path / "w2", ONE) == Kept(False, bytes=4002)
    assert (store.root / "k").stat().st_ino == before
    assert keep(store, tmp_path / "w3", TWO).new
    assert lent(store, tmp_path / "w4") == TWO
    assert [p.name for p in store.root.iterdir()] == ["k"]


def test_what_names_files_by_their_path_names_those_of_the_copy(store: ArtefactStore, tmp_path: Path) -> None:
    def listed(folder: Path) -> dict[str, bytes]:
        paths = {"x.cubin": str(folder / "triton/KEY/x.cubin"), "y": "/elsewhere"}
        return {"triton/KEY/__grp__x.json": json.dumps({"child_paths": paths}).encode(), "triton/KEY/x.cubin": b"c"}

    old, new = tmp_path / "é1", tmp_path / "w2"
    keep(store, old, listed(old))
    assert lent(store, new) == listed(new)
    assert store.keep("k", origin(new), PLENTY) == Kept(False, bytes=store.entries()[0].manifest.bytes)


def test_links_sockets_pipes_and_barred_folders_are_not_taken(store: ArtefactStore, tmp_path: Path) -> None:
    source = made(tmp_path / "w1", {**ONE, "inductor/dynamo/code_state.pkl": b"x"})
    (source / "link").symlink_to("/etc/passwd")
    (source / "folder").symlink_to("/etc")
    (source / "inductor/dangling").symlink_to("nowhere")
    os.mkfifo(source / "fifo")
    os.close(os.open(os.fsencode(source) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    here = os.getcwd()
    os.chdir(source)  # a socket's path holds 107 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        os.chdir(here)
        keep(store, source, {})
    assert lent(store, tmp_path / "w2") == ONE


def test_a_file_of_another_user_is_not_taken(store: ArtefactStore, tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give files away")
    source = made(tmp_path / "w1", TWO)
    os.chown(source / "inductor/cd/other.so", 12345, -1)
    keep(store, source, {})
    assert lent(store, tmp_path / "w2") == ONE


def test_no_special_bit_outlives_the_copy(store: ArtefactStore, tmp_path: Path) -> None:
    source = made(tmp_path / "w1", {"x": b"x"})
    (source / "x").chmod(0o6777)
    keep(store, source, {})
    lent(store, tmp_path / "w2")
    assert stat.S_IMODE((tmp_path / "w2/x").stat().st_mode) == 0o755


def damage_bytes(entry: Path) -> None:
    (entry / CACHE / "inductor/ab/kernel.so").write_bytes(b"\x7fELF" * 999 + b"ELF\x7f")


def damage_length(entry: Path) -> None:
    os.truncate(entry / CACHE / "inductor/ab/kernel.so", 5)


def damage_by_link(entry: Path) -> None:
    (entry / CACHE / "triton/x.json").unlink()
    (entry / CACHE / "triton/x.json").symlink_to("/etc/passwd")


def damage_by_pipe(entry: Path) -> None:
    (entry / CACHE / "triton/x.json").unlink()
    os.mkfifo(entry / CACHE / "triton/x.json")


def damage_list(entry: Path) -> None:
    os.truncate(entry / FILES, 30)


def damage_paths(entry: Path) -> None:
    (entry / FILES).write_text('{"../../../outside": [0, 0, 420]}')


@pytest.mark.parametrize(
    "damage",
    [
        damage_bytes,
        damage_length,
        damage_by_link,
        damage_by_pipe,
        damage_list,
        damage_paths,
        lambda entry: (entry / FILES).unlink(),
        lambda entry: (entry / CACHE / "triton/x.json").unlink(),
    ],
)
def test_a_damaged_entry_is_said_dropped_and_leaves_nothing(store: ArtefactStore, tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    keep(store, tmp_path / "w1", ONE)
    damage(store.root / "k")
    lent = store.lend("k", tmp_path / "w2")
    assert (lent.warm, lent.dropped) == (False, True)
    assert "artefacts k are damaged" in lent.trouble
    assert found(tmp_path / "w2") == {}
    assert list(store.root.iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_what_others_may_write_into_is_not_executed(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE)
    store.root.chmod(0o777)
    lent = store.lend("k", tmp_path / "w2")
    assert (lent.warm, lent.dropped) == (False, False)
    assert "others may write" in lent.trouble


def test_a_reader_gets_his_copy_though_the_entry_is_replaced_meanwhile(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE)
    with opened(store.root / "k") as reading:
        assert reading is not None
        assert reading.share()
        marks = reading.marks()
        keep(store, tmp_path / "w2", TWO)
        trees.copy_marked(reading.fd, CACHE, marks, tmp_path / "copy")
    assert found(tmp_path / "copy") == ONE
    assert len(list(store.root.iterdir())) == 2  # what was read waits aside
    keep(store, tmp_path / "w3", {"third": b"3"})
    assert [p.name for p in store.root.iterdir()] == ["k"]


def test_an_entry_being_removed_is_not_waited_for(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE)
    fd = os.open(store.root / "k" / LOCK, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not store.lend("k", tmp_path / "w2").warm
    os.close(fd)
    assert lent(store, tmp_path / "w2") == ONE


def test_of_many_at_once_one_stays_whole(store: ArtefactStore, tmp_path: Path) -> None:
    """Each keeps a set of its own; readers copy meanwhile. Nobody ever sees a mixture."""
    sets = {n: {f"{n}/{k}": bytes([n]) * 4096 for k in range(20)} for n in range(4)}
    for n, files in sets.items():
        made(tmp_path / f"w{n}", files)
    seen: list[dict[str, bytes]] = []

    def write(n: int) -> None:
        for _ in range(10):
            store.keep("k", origin(tmp_path / f"w{n}"), PLENTY)

    def read(n: int) -> None:
        for turn in range(10):
            folder = tmp_path / f"r{n}-{turn}"
            if store.lend("k", folder).warm:
                seen.append(found(folder))
            else:
                assert found(folder) == {}

    threads = [threading.Thread(target=work, args=(n,)) for n in sets for work in (write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lent(store, tmp_path / "last") in sets.values()
    assert all(one in sets.values() for one in seen)
    store.keep("k", origin(made(tmp_path / "z", TWO)), PLENTY)
    assert [p.name for p in store.root.iterdir()] == ["k"]


def test_what_a_killed_coordinator_left_half_made_is_never_lent_and_goes(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE)
    half = store.root / f"{artefacts.NEW}x"
    made(half, {LOCK: b"", f"{CACHE}/y": b"y"})
    with opened(half) as alive:
        assert alive is not None
        assert alive.own()
        keep(store, tmp_path / "w2", TWO)
        assert half.exists()  # its maker lives
    keep(store, tmp_path / "w3", {"third": b"3"})
    assert not half.exists()
    assert [e.manifest.key for e in store.entries()] == ["k"]


def test_too_large_is_not_kept_and_said(store: ArtefactStore, tmp_path: Path) -> None:
    kept = keep(store, tmp_path / "w1", ONE, most_bytes=4001)
    assert not kept.new
    assert "larger than 3.9 KiB" in kept.trouble
    assert store.entries() == []


def test_what_was_not_used_for_longest_makes_room(store: ArtefactStore, tmp_path: Path) -> None:
    for at, key in enumerate("abc"):
        keep(store, tmp_path / key, {"x": bytes(1000)}, key)
        os.utime(store.root / key / LOCK, (at, at))
    lent(store, tmp_path / "used", "a")
    assert keep(store, tmp_path / "d", {"x": bytes(1000)}, "d", most_bytes=3500).new
    assert {e.manifest.key for e in store.entries()} == {"a", "c", "d"}


def test_what_can_t_be_read_makes_room_first(store: ArtefactStore, tmp_path: Path) -> None:
    keep(store, tmp_path / "w1", ONE, "a")
    keep(store, tmp_path / "w2", ONE, "b")
    os.truncate(store.root / "a" / MANIFEST, 3)
    store.trim(PLENTY)
    assert [p.name for p in store.root.iterdir()] == ["b"]


def test_clear_leaves_nothing(store: ArtefactStore, tmp_path: Path) -> None:
    assert store.clear() == []
    keep(store, tmp_path / "w1", ONE, "a")
    keep(store, tmp_path / "w2", ONE, "b")
    os.truncate(store.root / "a" / MANIFEST, 3)
    made(store.root / f"{artefacts.OLD}z", {"x": b"x"})
    assert [e.manifest.key for e in store.clear()] == ["b"]
    assert list(store.root.iterdir()) == []


def test_a_store_that_can_t_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    store = ArtefactStore.under(tmp_path / "home")
    assert not store.lend("k", tmp_path / "w0").warm
    assert "Not a directory" in keep(store, tmp_path / "w1", ONE).trouble


# --- on loan ------------------------------------------------------------------


def config(engine: str, device: str = "cpu", **method: object) -> BackendConfig:
    spec = MethodSpec(name="m", engine=engine, **method)  # type: ignore[arg-type]
    return BackendConfig(method=spec, model_path="/m", device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (config("hf", attention="sdpa"), False),
        (config("hf", compile="default"), True),
        (config("hf", rocket_bucket=True, compile="default"), True),
        (config("hf", attention="flex_attention"), True),
        (config("hf", "cuda", attention="sdpa"), True),
        (config("vllm"), True),
        (config("vllm", eager=True), False),
        (config("vllm", engine_args={"enforce_eager": True}), False),
        (config("vllm", "cuda", eager=True), True),
        (config("sglang", attention="torch_native"), False),
        (config("sglang", attention="flex_attention"), True),
        (config("sglang", engine_args={"enable_torch_compile": True}), True),
        (config("scripted"), False),
        (config("scripted", engine_args={"cache": "load"}), True),
    ],
)
def test_who_has_artefacts(found: BackendConfig, expected: bool) -> None:
    assert compiles(found) is expected


LOADED = BackendConfig(method=MethodSpec("m", "vllm"), model_path="/m")


def what(config: BackendConfig = LOADED, versions: str = "v", **environment: str) -> dict[str, str]:
    env = EngineEnv("vllm", "vllm", "python", Fingerprint("3.11", {}, "", versions), "recipe")
    return about(config, env, Slot("slot0"), environment)


def test_the_key_is_of_all_that_can_change_what_is_compiled_and_of_nothing_else() -> None:
    moved = replace(LOADED, model_path="/elsewhere", method=replace(LOADED.method, summary="best of all"))
    assert what() == what(moved) == what(PATH="/bin", HOME="/root")
    others = [
        what(replace(LOADED, batch_size=2)),
        what(replace(LOADED, max_model_len=512)),
        what(replace(LOADED, method=replace(LOADED.method, eager=False))),
        what(versions="w"),
        what(OMP_NUM_THREADS="1"),
        what(TORCHINDUCTOR_FREEZING="1"),
        what(LD_LIBRARY_PATH="/opt/cuda"),
        what(CUTE_DSL_ARCH="sm_90a"),
    ]
    assert len({str(one) for one in (what(), *others)}) == 1 + len(others)


def test_another_model_has_other_artefacts(store: ArtefactStore, tmp_path: Path) -> None:
    one, other = (Lending(store, replace(SCRIPTED, digest=digest), "/runs/one", 1) for digest in ("1", "2"))
    loan = one.lend(what(), "w1", made(tmp_path / "w1", ONE))
    assert one.take_back(loan).new
    assert other.lend(what(), "w2", tmp_path / "w2").state == "cold"
    assert store.entries()[0].manifest.about["model"] == "scripted 1"


def test_no_value_of_a_variable_stands_in_the_manifest() -> None:
    assert "hunter2" not in str(what(VLLM_API_KEY="hunter2"))


def cause(cls: CauseClass, phase: str = "loading", signal: str | None = None, error: str = "") -> Cause:
    return Cause(
        cls=cls, message="", phase=phase, signal=signal, error=ErrorInfo(type=error, message="") if error else None
    )


WARM = Loan("k", Origin(Path("/tmp/al-1/w1/cache"), {}, "r", "w1"), "warm")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (cause("engine_crash"), True),
        (cause("engine_error"), True),
        (cause("hang"), True),
        (cause("config"), True),
        (cause("oom"), False),
        (cause("busy_device"), False),
        (cause("interrupted"), False),
        (cause("disk"), False),
        (cause("engine_crash", "busy", "SIGSEGV"), True),
        (cause("engine_crash", "busy", "SIGILL"), True),
        (cause("engine_crash", "busy", "SIGKILL"), False),
        (cause("engine_error", "busy", error="UnpicklingError"), True),
        (cause("engine_error", "busy", error="ValueError"), False),
    ],
)
def test_what_a_warm_worker_s_end_says_of_what_it_was_lent(found: Cause, expected: bool) -> None:
    assert WARM.suspected_of(found) is expected
    assert not Loan("k", WARM.origin, "cold").suspected_of(found)
    assert not Loan("k", WARM.origin, "warm", proved=True).suspected_of(found)


def test_an_answer_that_names_the_cache_betrays_it() -> None:
    missing = "[Errno 2] No such file or directory: '/tmp/al-1/w1/cache/inductor/ab/x.so'"
    assert WARM.betrayed_by(ErrorInfo(type="FileNotFoundError", message=missing))
    assert not WARM.betrayed_by(ErrorInfo(type="FileNotFoundError", message=missing.replace("w1", "w2")))
    assert not WARM.betrayed_by(ErrorInfo(type="ValueError", message="told to fail"))


def test_a_dropped_key_stays_cold_in_this_run_and_is_kept_for_the_next(store: ArtefactStore, tmp_path: Path) -> None:
    lending = Lending(store, SCRIPTED, "/runs/one", 1)

    def borrow(name: str) -> Loan:
        return lending.lend(what(), name, made(tmp_path / name, {}))

    cold = borrow("w1")
    made(tmp_path / "w1", ONE)
    assert lending.take_back(cold).new
    warm = borrow("w2")
    assert (cold.state, warm.state) == ("cold", "warm")
    lending.drop(warm)
    again = borrow("w3")
    made(tmp_path / "w3", TWO)
    assert lending.take_back(again).new
    assert (again.state, borrow("w4").state) == ("cold", "cold")
    assert Lending(store, SCRIPTED, "/runs/two", 1).lend(what(), "w5", tmp_path / "w5").state == "warm"


def test_without_room_for_any_there_is_no_store(store: ArtefactStore, tmp_path: Path) -> None:
    assert Lending(store, SCRIPTED, "/runs/one", 0).lend({}, "w1", tmp_path) == Loan()


def test_what_a_run_must_not_learn_from_another_is_not_kept(store: ArtefactStore, tmp_path: Path) -> None:
    made(tmp_path / "w1", {**ONE, **{f"{folder}/x": b"x" for folder in NOT_KEPT}})
    lending = Lending(store, SCRIPTED, "/runs/one", 1)
    loan = lending.lend({}, "w1", tmp_path / "w1")
    assert lending.take_back(loan).new
    lending.lend({}, "w2", tmp_path / "w2")
    assert found(tmp_path / "w2") == ONE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"farewell": False}, False),
        ({"exited": Exited(1, None)}, False),
        ({"exited": Exited(None, "SIGKILL")}, False),
        ({"exited": None}, False),
        ({"state": State.STUCK}, False),
        ({"cause": Cause(cls="hang", message="")}, False),
    ],
)
def test_only_a_clean_end_brings_artefacts_back(change: dict[str, object], expected: bool) -> None:
    life = {"state": State.RELEASED, "since": 0.0, "deadline": 0.0, "farewell": True, "exited": Exited(0, None)}
    assert is_clean(Life(**{**life, **change})) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "rest", "expected", "bad"),
    [
        ("kept", {"bytes": 3 << 20}, "compiled artefacts kept, 3.0 MiB", False),
        ("not_kept", {"reason": "the disk is full"}, "compiled artefacts not kept: the disk is full", True),
        ("dropped", {"reason": "a.so has changed"}, "compiled artefacts dropped: a.so has changed", True),
    ],
)
def test_the_console_tells(what: Any, rest: dict[str, Any], expected: str, bad: bool) -> None:
    event = Artefacts(at=0.0, incarnation="w1-0", key="k", what=what, **rest)
    line = Narrator().line(event)
    assert line is not None
    assert (line.text, line.bad) == (f"w1-0: {expected}", bad)


def test_names_and_paths_of_any_bytes_can_be_told(store: ArtefactStore, tmp_path: Path) -> None:
    source = Origin(made(tmp_path / "w1", ONE), {"model": "/m/\udcff"}, "/runs/\udcff", "w1-0")
    assert store.keep("k", source, PLENTY).new
    assert store.entries()[0].manifest.about == {"model": "/m/\ufffd"}


def test_what_torch_puts_into_tmpdir_is_in_the_cache_and_the_code_of_models_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    workplace = Workplace.create("0123456789abcdef")
    room = workplace.room("w1-0")
    (room / inductor_default() / "precompiled_headers").mkdir()
    assert [p.name for p in (room / CACHE).rglob("precompiled_headers")] == ["precompiled_headers"]
    env = worker_environment(
        {}, method=MethodSpec("m", "hf"), slot=Slot("slot0"), endpoint="", token="", keys=Keys("a", "b"), room=room
    )
    assert not Path(env["HF_MODULES_CACHE"]).is_relative_to(room / CACHE)
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).parent == room / CACHE
    workplace.remove()
