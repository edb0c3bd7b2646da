"""Drives one real worker over its real socket, and keeps all that it said."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from protocol.channel import RouterChannel
from protocol.codec import decode_up
from protocol.messages import (
    BatchDone,
    BatchFailed,
    Beat,
    Fatal,
    Goodbye,
    Hello,
    Imported,
    Init,
    Ready,
    Run,
    Shutdown,
    Up,
)
from protocol.parts import join
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, pack_ids

BOOTSTRAP = Path(__file__).resolve().parents[2] / "workers" / "bootstrap.py"
INCARNATION = "t0-000001"
TOKEN = "5eed"
KV_CACHE_BYTES = 256 * 1024 * 1024
MAX_MODEL_LEN = 256

#: Ten times what a quiet machine takes: engines spin, and a busy neighbour slows them by that much.
ANSWER_S = 300.0
EXIT_S = 60.0
LAST_GASP_S = 5.0

T = TypeVar("T", bound=Up)


@dataclass
class Worker:
    """One incarnation. `close` is safe at any time and leaves nothing running."""

    python: str
    engine: str
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    said: list[Up] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tag = os.urandom(8).hex()
        self._router = RouterChannel(f"ipc://{self.folder}/s")
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [self.python, str(BOOTSTRAP), "worker"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _environment(self) -> dict[str, str]:
        temporary = self.folder / "t"
        temporary.mkdir()
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"},
            "AIRLOCK_RUN": self.tag,
            "AIRLOCK_INCARNATION": INCARNATION,
            "AIRLOCK_ENDPOINT": self._router.endpoint,
            "AIRLOCK_TOKEN": TOKEN,
            **self._router.admit(INCARNATION, TOKEN).variables,
            "AIRLOCK_ENGINE": self.engine,
            "TMPDIR": str(temporary),
            **self.env,
        }

    def expect(self, kind: type[T]) -> T:
        """The next message that is no beat. Fails if it is of another kind or the worker ends first."""
        message = self.next_message()
        assert isinstance(message, kind), f"{message}\n{self.log_tail()}"
        return message

    def next_message(self) -> Up:
        deadline = time.monotonic() + ANSWER_S
        while (left_s := deadline - time.monotonic()) > 0:
            received = self._router.receive()
            if received is None:
                ready, _, _ = select.select([self._router.socket.fileno(), self._pidfd], [], [], min(left_s, 1.0))
                assert self._pidfd not in ready or self._router.socket.poll(0), f"worker ended\n{self.log_tail()}"
                continue
            message = decode_up(join(received[1]))
            if not isinstance(message, Beat):
                self.said.append(message)
                return message
        raise AssertionError(f"no answer in {ANSWER_S} s\n{self.log_tail()}")

    def load(self, config: BackendConfig) -> Ready:
        self.expect(Hello)
        self.expect(Imported)
        self._router.send(INCARNATION.encode(), Init(config))
        return self.expect(Ready)

    def send_batch(self, batch: PromptBatch) -> None:
        self._router.send(INCARNATION.encode(), Run(batch))

    def run(self, batch: PromptBatch) -> BatchDone:
        self.send_batch(batch)
        return self.expect(BatchDone)

    def fail(self, batch: PromptBatch) -> BatchFailed:
        self.send_batch(batch)
        return self.expect(BatchFailed)

    def end(self) -> tuple[Goodbye, int]:
        self._router.send(INCARNATION.encode(), Shutdown("test is over"))
        return self.expect(Goodbye), self.wait()

    def fatal(self) -> tuple[Fatal, int]:
        return self.expect(Fatal), self.wait()

    def wait(self) -> int:
        return self._process.wait(timeout=EXIT_S)

    def survivors(self) -> list[str]:
        """Names of processes that carry this incarnation's tag and go on: Python's own tracker of shared memory ends by
        itself, an instant after the worker."""
        _, left = psutil.wait_procs(self._family(), timeout=LAST_GASP_S)
        return [process.name() for process in left]

    def _family(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _tag(process) == self.tag]

    def log_tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def close(self) -> None:
        family = self._family()
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=EXIT_S)
        self._process.wait(timeout=EXIT_S)
        os.close(self._pidfd)
        self._log.close()
        self._router.close()


def _tag(process: psutil.Process) -> str | None:
    """AIRLOCK_RUN of a live process; None for a zombie and for one that is not ours to look at."""
    try:
        dead = process.status() == psutil.STATUS_ZOMBIE
        return None if dead else process.environ().get("AIRLOCK_RUN")
    except psutil.Error:
        return None


def config(engine: str, model: str, *, method: Mapping[str, Any] | None = None, **fields: Any) -> BackendConfig:
    """Uncompiled unless `method` says otherwise: compiling takes a minute."""
    # What SGLang would choose by itself needs instructions that not every CPU has.
    native = {"attention": "torch_native"} if engine == "sglang" else {}
    spec = MethodSpec(**{"name": f"{engine}_test", "engine": engine, "eager": True, **native, **(method or {})})
    defaults = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN, "kv_cache_bytes": KV_CACHE_BYTES}
    built = BackendConfig(method=spec, model_path=model, **{**defaults, **fields})
    return msgspec.convert(msgspec.to_builtins(built), BackendConfig)


def batch(name: str, prompts: Mapping[str, Sequence[int]], stop: Sequence[int], **call: Any) -> PromptBatch:
    defaults = {"batch_size": 8, "max_new_tokens": 24, "temperature": 0.0, "top_p": 1.0, "seed": 0, "ignore_eos": False}
    params = CallParams(**{**defaults, "stop_token_ids": tuple(stop), **call})
    return PromptBatch(name, [PromptInput(id, pack_ids(ids)) for id, ids in prompts.items()], params)


def run_tool(python: str, name: str, request: Path, response: Path) -> int:
    """The exit status; the response is a file."""
    command = [python, str(BOOTSTRAP), "tool", name, str(request), str(response)]
    return subprocess.run(command, timeout=ANSWER_S, stdout=sys.stderr, check=False).returncode
