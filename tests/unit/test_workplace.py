"""What a worker is given: a folder, an environment, and no number of a port."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.envs import EngineEnv, Fingerprint
from orchestrator.errors import InputError
from orchestrator.plan import WorkerStart
from orchestrator.run.outfit import Outfitter
from orchestrator.run.segments import Segment
from orchestrator.run.slots import Slot
from orchestrator.run.workplace import SHM_NOTES, Workplace, check_sockets, check_tmpdir, worker_environment
from orchestrator.view import doctor
from protocol.channel import MAX_IPC_PATH_BYTES
from protocol.keys import Keys
from protocol.specs import BackendConfig, Engine, MethodSpec

TAG = "0123456789abcdef"
CALLER = {
    "PATH": "/bin",
    "VLLM_PORT": "8000",
    "SGLANG_PORT": "8000",
    "VLLM_DP_MASTER_PORT": "8001",
    "TRITON_CACHE_DIR": "/home/me/.triton",
    "TMPDIR": "/tmp",
}


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def environment(room: Path, engine: Engine = "vllm", **own: str) -> dict[str, str]:
    method = MethodSpec(name="m", engine=engine, env_vars=own)
    return worker_environment(
        CALLER, method=method, slot=Slot("own"), endpoint="ipc://x", token="t", keys=Keys("a", "b"), room=room
    )


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang", "scripted"])
def test_folders_that_the_worker_is_told_are_in_its_own_room(tmp: Path, engine: Engine) -> None:
    env = environment(tmp / "room", engine)
    told = {name: value for name, value in env.items() if name not in CALLER or name in ("TMPDIR", "TRITON_CACHE_DIR")}
    paths = {name: value for name, value in told.items() if "/" in value and "://" not in value}
    assert {"TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "SGLANG_CACHE_DIR"} <= set(
        paths
    )
    assert all(Path(value).is_relative_to(tmp / "room") for value in paths.values())
    caches = [value for name, value in paths.items() if name != "TMPDIR"]
    assert len(set(caches)) == len(caches)


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang"])
def test_no_port_is_fixed(tmp: Path, engine: Engine) -> None:
    assert not [name for name in environment(tmp, engine) if name.endswith("_PORT")]


def test_sglang_meets_in_a_file_of_its_room(tmp: Path) -> None:
    env = environment(tmp / "room", "sglang")
    assert env["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == f"file://{tmp}/room/rendezvous"
    assert "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE" not in environment(tmp, "vllm")


def test_the_method_has_the_last_word(tmp: Path) -> None:
    assert environment(tmp, TRITON_CACHE_DIR="/mine", VLLM_PORT="9").items() >= {
        ("TRITON_CACHE_DIR", "/mine"),
        ("VLLM_PORT", "9"),
    }


def test_rooms_are_private_and_gone_one_by_one(tmp: Path) -> None:
    workplace = Workplace.create(TAG)
    first, second = workplace.room("w1-aaaa"), workplace.room("w2-bbbb")
    assert first != second
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (workplace.root, first, second)} == {0o700}
    (first / "cache" / "deep").mkdir()
    workplace.clear("w1-aaaa")
    assert not first.exists()
    assert second.exists()
    workplace.remove()
    assert list(tmp.iterdir()) == []


@pytest.mark.usefixtures("tmp")
def test_a_folder_that_was_removed_is_made_again_as_private_as_it_was() -> None:
    workplace = Workplace.create(TAG)
    workplace.restore()
    workplace.remove()
    workplace.restore()
    assert stat.S_IMODE(workplace.root.stat().st_mode) == 0o700
    assert workplace.room("w1-aaaa").is_dir()


def test_only_what_an_earlier_life_of_the_same_run_left_is_removed(tmp: Path) -> None:
    earlier = Workplace.create(TAG)
    other = Workplace.create("f" * 16)
    now = Workplace.create(TAG)
    assert not earlier.root.exists()
    assert other.root.exists()
    assert set(tmp.iterdir()) == {other.root, now.root}


def test_a_note_that_can_t_be_written_ends_nothing(tmp: Path) -> None:
    workplace = Workplace.create(TAG)
    (workplace.root / SHM_NOTES).mkdir()
    workplace.note_shm([Segment("/dev/shm/x", 1)])
    assert tmp.exists()


def test_a_tmpdir_that_takes_no_folder_is_an_error_of_the_input(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp / "none"))
    with pytest.raises(InputError) as caught:
        Workplace.create(TAG)
    assert "No such file or directory" in str(caught.value)
    assert str(tmp / "none") in str(caught.value)


def test_a_tmpdir_that_takes_no_sockets_is_told(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As folders that are shared with the system round a virtual machine."""

    class Refused(socket.socket):
        def bind(self, _address: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    workplace = Workplace.create(TAG)
    workplace.require_sockets()
    assert not list(workplace.root.iterdir())
    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(InputError) as caught:
        workplace.require_sockets()
    assert f"TMPDIR: {tmp} takes no sockets: Operation not permitted" in str(caught.value)
    workplace.remove()
    with pytest.raises(InputError, match="takes no sockets"):
        check_sockets()
    assert "takes no sockets" in next(one for one in doctor._kernel() if one.subject == "TMPDIR").message
    assert not list(tmp.iterdir())


@pytest.mark.parametrize(
    ("engines", "longest"),
    [((), "/s"), (("hf",), "/s"), (("sglang",), "/w1234/tmpabcdefgh"), (("hf", "vllm"), f"/w1234/{'u' * 36}")],
)
def test_tmpdir_is_as_long_as_the_longest_socket_allows(
    monkeypatch: pytest.MonkeyPatch, engines: tuple[str, ...], longest: str
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    room = MAX_IPC_PATH_BYTES - len(f"/al-{TAG[:8]}-12345678{longest}")
    for length, fits in ((room, True), (room + 1, False)):
        monkeypatch.setattr("tempfile.tempdir", "/" + "x" * (length - 1))
        if fits:
            check_tmpdir(engines)
        else:
            with pytest.raises(InputError, match="too long for a socket's name, by 1 bytes"):
                check_tmpdir(engines)


@pytest.mark.parametrize("kind", ["missing", "a file", "not UTF-8", "relative", "roundabout", "empty"])
def test_a_tmpdir_that_python_would_pass_over_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / os.fsdecode(b"n\xff")).mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    named, told = {
        "missing": (str(tmp_path / "none"), "takes no file: No such file or directory; /"),
        "a file": (str(tmp_path / "file"), "takes no file: Not a directory; /"),
        "not UTF-8": (os.fsdecode(os.fsencode(tmp_path / "n") + b"\xff"), "is not UTF-8"),
        "relative": ("here", ""),
        "roundabout": (f"{tmp_path}/here/../here//", ""),
        "empty": ("", ""),
    }[kind]
    monkeypatch.setenv("TMPDIR", named)
    monkeypatch.setattr("tempfile.tempdir", None)
    if not told:
        check_tmpdir()
        return
    with pytest.raises(InputError) as caught:
        check_tmpdir()
    assert named in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("python", "path", "worker"),
    [
        ("/envs/mine/bin/python", "/envs/mine/bin:/bin:/usr/bin", ()),
        ("/usr/bin/python3", "/bin:/usr/bin", ()),
        ("python", "/bin:/usr/bin", ()),
        ("/envs/mine/bin/python", "/bin:/usr/bin", ("mine",)),
    ],
    ids=["its own first", "there already, behind a compiler that is meant to come first", "by name", "not its worker"],
)
def test_programs_beside_its_interpreter_are_found(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, python: str, path: str, worker: tuple[str, ...]
) -> None:
    """Engines call ninja by its bare name, and nobody activated their environment."""
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    env = EngineEnv("e", "scripted", python, Fingerprint("3.11", {}, "", ""), "user")
    for own in ({}, {"PATH": "/mine"}):
        config = BackendConfig(method=MethodSpec("m", "scripted", env_vars=own, worker=worker), model_path="m")
        outfitter = Outfitter(Workplace(tmp, TAG), cast("Any", None), "ipc://x")
        spec, _ = outfitter.spec(
            "w1-a",
            WorkerStart("m", "scripted", config, ()),
            env,
            Slot("own"),
            in_background=False,
            token="t",
            keys=Keys("a", "b"),
            log=tmp / "log",
        )
        assert spec.env["PATH"] == own.get("PATH", path)
