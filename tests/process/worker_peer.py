"""The coordinator's end of one real worker: a ROUTER socket, its pidfd, and no more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import zmq
from msgspec.structs import replace

from orchestrator import proc
from protocol.channel import RouterChannel
from protocol.codec import decode_up
from protocol.keys import Keys, identity_of
from protocol.messages import BatchDone, Beat, Down, Goodbye, Hello, Imported, Init, Ready, Run, Up
from protocol.parts import join
from protocol.records import RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids

BOOTSTRAP = str(Path(__file__).resolve().parents[2] / "workers" / "bootstrap.py")
INCARNATION = "w1-0badcafe"
TOKEN = "c0ffee" * 4
PATIENCE_S = 20.0
#: A worker that hangs goes on beating.
BEATING_S = 60.0
EOS = 2

T = TypeVar("T")
Start = Callable[..., "Peer"]


class Gone(Exception):
    """The worker ended and has nothing more to say."""


def worker_env(endpoint: str, run_tag: str, keys: Keys, engine: str = "scripted") -> dict[str, str]:
    """What the launcher sets for a worker."""
    return {
        "PATH": os.environ["PATH"],
        "AIRLOCK_RUN": run_tag,
        "AIRLOCK_INCARNATION": INCARNATION,
        "AIRLOCK_ENDPOINT": endpoint,
        "AIRLOCK_TOKEN": TOKEN,
        **keys.variables,
        "AIRLOCK_ENGINE": engine,
    }


def scripted(engine_args: Mapping[str, Any] | None = None, **config: Any) -> BackendConfig:
    method = MethodSpec(name="s", engine="scripted", engine_args=dict(engine_args or {}))
    return BackendConfig(**{"method": method, "model_path": "", "max_new_tokens": 8, **config})


def faulty(at: str, do: str, **more: Any) -> BackendConfig:
    """With one fault, see `workers.backends.scripted_faults`."""
    return scripted({"fault": {"at": at, "do": do, **more}})


def batch(config: BackendConfig, batch_id: str, *prompts: str, **call: Any) -> PromptBatch:
    inputs = [PromptInput(one, pack_ids(map(ord, one))) for one in prompts or ("alpha", "beta")]
    return PromptBatch(batch_id, inputs, replace(CallParams.of(config), **call))


class Peer:
    """Starts a worker at once. `close` ends whatever is left."""

    def __init__(
        self, run_tag: str, engine: str = "scripted", env: Mapping[str, str] | None = None, output: str = ""
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="al-"))  # tmp_path is too long for a socket
        self.log = self.folder / "log"
        self.endpoint = f"ipc://{self.folder}/r"
        self.router = RouterChannel(self.endpoint)
        keys = self.router.admit(INCARNATION, TOKEN)
        self.env = {**worker_env(self.endpoint, run_tag, keys, engine), **(env or {})}
        with open(output or self.log, "wb") as log:
            command = [sys.executable, BOOTSTRAP, "worker"]
            self.process = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- listening ---

    def receive(self) -> Up:
        """The next message of any kind. Raises Gone, or fails when nothing comes."""
        return decode_up(self.receive_raw())

    def receive_raw(self) -> bytes:
        deadline = time.monotonic() + PATIENCE_S
        gone = False
        while (got := self.router.receive()) is None:
            if gone:
                raise Gone(self.said())
            assert time.monotonic() < deadline, f"the worker says nothing: {self.said()}"
            gone = self._wait(deadline)
        identity, frames = got
        assert identity == INCARNATION.encode()
        return join(frames)

    def _wait(self, deadline: float) -> bool:
        """Whether the worker has ended. What it sent just before may take a moment longer to come through."""
        poller = zmq.Poller()
        poller.register(self.router.socket, zmq.POLLIN)
        poller.register(self.pidfd, zmq.POLLIN)
        ready = dict(poller.poll(max(0, int((deadline - time.monotonic()) * 1000))))
        return self.pidfd in ready and not self.router.socket.poll(200)

    def expect(self, kind: type[T]) -> T:
        """The next message that is no beat, which must be of that kind."""
        deadline = time.monotonic() + BEATING_S
        while isinstance(message := self.receive(), Beat) and kind is not Beat:
            assert time.monotonic() < deadline, f"nothing but beats: {self.said()}"
        assert isinstance(message, kind), message
        return message

    def rest(self) -> list[Up]:
        """All that comes until the worker ends, beats left out."""
        messages: list[Up] = []
        deadline = time.monotonic() + BEATING_S
        with suppress(Gone):
            while True:
                messages.append(self.receive())
                assert time.monotonic() < deadline, f"it does not end: {self.said()}"
        return [m for m in messages if not isinstance(m, Beat)]

    def ended(self) -> int:
        """The exit status; nothing but beats may come before it."""
        assert self.rest() == []
        return self.process.wait(PATIENCE_S)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    # --- speaking ---

    def send(self, message: Down) -> None:
        self.router.send(INCARNATION.encode(), message)

    def send_raw(self, *frames: bytes) -> None:
        self.router.socket.send_multipart([identity_of(INCARNATION, TOKEN), *frames])

    def kill(self, signum: signal.Signals) -> None:
        signal.pidfd_send_signal(self.pidfd, signum)

    # --- the usual course ---

    def imported(self) -> Imported:
        self.expect(Hello)
        return self.expect(Imported)

    def ready(self, config: BackendConfig | None = None) -> RuntimeMetadata:
        """From the start to Ready."""
        self.imported()
        self.send(Init(config or scripted()))
        return self.expect(Ready).metadata

    def run(self, batch: PromptBatch) -> BatchDone:
        self.send(Run(batch))
        return self.expect(BatchDone)

    def goodbye(self) -> Goodbye:
        return self.expect(Goodbye)

    def close(self) -> None:
        """Children too: once the worker is gone they are ours to reap, the test being a subreaper."""
        children = [one.pid for one in proc.descendants([self.pid], proc.table())]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self.pidfd)
        self.router.close()
        shutil.rmtree(self.folder)
