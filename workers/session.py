"""A worker's life, as one conversation with the coordinator.

Hello → import → Imported → wait for Init → load → Ready → (Run → BatchDone or
BatchFailed)* → Shutdown → Goodbye. The main thread belongs to the engine; the
wire has its own.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from msgspec.structs import replace

import protocol
from protocol.channel import DealerChannel
from protocol.connections import is_local
from protocol.errors import Malformed, Oversized
from protocol.keys import Keys
from protocol.messages import BatchDone, BatchFailed, Fatal, Goodbye, Hello, Imported, Init, Phase, Ready, Run, Shutdown
from protocol.records import ErrorInfo, LoadTimes, RuntimeMetadata
from protocol.specs import PromptBatch
from workers import compat
from workers.backends.base import Backend, EngineDead, build_backend, engine_class
from workers.lifeline import Priority
from workers.readahead import ReadAhead
from workers.termination import Terminated, Termination
from workers.text import message_of, traceback_of
from workers.wire import Wire

EXIT_OK = 0
EXIT_FATAL = 70
EXIT_TERMINATED = 143
#: Set for a worker that stands by: the model whose weights it may read into the page cache meanwhile.
READ_AHEAD = "AIRLOCK_READ_AHEAD"


class OutOfTurn(Exception):
    """The coordinator sent something that makes no sense now."""


class Misconfigured(Exception):
    """The environment does not say whose worker this is."""


@dataclass(frozen=True)
class Identity:
    """Who launched us and as what; set in the environment at exec. A local socket has no `server_key`."""

    endpoint: str
    incarnation: str
    token: str = field(repr=False)
    engine: str
    server_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Identity:
        """Raises Misconfigured, naming every variable that is missing."""
        names = {name: f"AIRLOCK_{name.upper()}" for name in cls.__dataclass_fields__}
        found = {name: environ.get(variable, "") for name, variable in names.items()}
        optional = {"server_key"} if is_local(found["endpoint"]) else set()
        if missing := [names[name] for name, value in found.items() if not value and name not in optional]:
            raise Misconfigured(f"a worker is started by the coordinator only; not set: {', '.join(missing)}")
        return cls(**found)

    def dial(self) -> DealerChannel:
        return DealerChannel(self.endpoint, self.incarnation, self.token, Keys(self.server_key, self.secret_key))


class Session:
    """`run` is called once and gives the exit status. Also the backend's Host."""

    def __init__(self, identity: Identity, priority: Priority) -> None:
        self._identity = identity
        self._wire = Wire(identity.dial())
        self._priority = priority
        self._read_ahead: ReadAhead | None = None
        self._termination = Termination()
        self._backend: Backend | None = None
        self._ready = False
        self._times = LoadTimes()
        self._notes: list[str] = []

    def run(self) -> int:
        self._termination.install()
        try:
            try:
                status = self._converse()
            except Terminated:
                status = self._leave(EXIT_TERMINATED)
        except BaseException as exc:
            status = self._fatal(exc)
        self._wire.close()
        return status

    # --- what a backend may ask, from any thread ---

    def give_up(self, error: BaseException) -> NoReturn:
        self._fatal(error)
        self._wire.close()
        os._exit(EXIT_FATAL)

    def tick(self) -> None:
        self._wire.progress += 1

    def send_raw(self, frame: bytes) -> None:
        self._wire.send_raw(frame)

    # --- the conversation ---

    def _converse(self) -> int:
        self._import(self._introduce())
        while True:
            message = self._next()
            if isinstance(message, Shutdown):
                return self._leave(EXIT_OK)
            if isinstance(message, Init):
                self._on_init(message)
            else:
                self._on_run(message)

    def _introduce(self) -> type[Backend]:
        try:
            backend = engine_class(self._identity.engine)
            backend.host = self
            with self._termination.window():
                backend.prepare()
        finally:  # without a Hello nobody would listen to the error
            self._wire.send(self._hello())
        return backend

    def _hello(self) -> Hello:
        me = self._identity
        return Hello(protocol.PROTOCOL_VERSION, me.incarnation, me.token, os.getpid(), platform.python_version())

    def _import(self, backend: type[Backend]) -> None:
        started = time.monotonic()
        gc.disable()  # an import makes no garbage; a fifth of its time goes into looking for some
        try:
            with self._termination.window():
                version = backend.import_engine()
        finally:
            # All that is there is old, as it would be after a collection, which takes a tenth of the import.
            gc.freeze()
            gc.unfreeze()
            gc.enable()
        self._times = LoadTimes(import_s=time.monotonic() - started)
        self._enter("standby")
        self._wire.send(Imported(self._times.import_s, version))
        if folder := os.environ.get(READ_AHEAD):
            self._read_ahead = ReadAhead(folder)
            self._read_ahead.start()

    def _next(self) -> Init | Run | Shutdown:
        self._termination.install()
        with self._termination.window():
            return self._wire.receive()

    def _on_init(self, message: Init) -> None:
        if self._backend is not None:
            raise OutOfTurn("a second Init; one process loads one engine once")
        if message.config.method.engine != self._identity.engine:
            raise OutOfTurn(
                f"Init for engine {message.config.method.engine!r} in a worker of {self._identity.engine!r}"
            )
        self._enter("loading")
        started = time.monotonic()
        if self._read_ahead:
            self._read_ahead.stop()
        note = self._priority.restore()
        self._backend = build_backend(message.config)
        with self._termination.window():
            metadata = self._backend.load()
        self._times = replace(metadata.load, import_s=self._times.import_s, total_s=time.monotonic() - started)
        self._notes = [*compat.notes(), *([note] if note else [])]
        self._ready = True
        self._enter("ready")
        self._wire.send(Ready(self._complete(metadata)))

    def _on_run(self, message: Run) -> None:
        if self._backend is None or not self._ready:
            raise OutOfTurn("Run before Init")
        self._enter("busy")
        answer = self._answer(self._backend, message.batch)
        self._enter("ready")
        try:
            self._wire.send(answer)
        except (Malformed, Oversized) as exc:
            self._wire.send(BatchFailed(message.batch.batch_id, error_info(exc)))

    def _answer(self, backend: Backend, batch: PromptBatch) -> BatchDone | BatchFailed:
        try:
            with self._termination.window():
                generations, stats = backend.generate(batch)
        except (Terminated, EngineDead):
            raise
        except BaseException as exc:
            return BatchFailed(batch.batch_id, error_info(exc))
        return BatchDone(batch.batch_id, generations, stats)

    def _leave(self, status: int) -> int:
        """The engine's own shutdown; SIGTERM no longer interrupts, the warden has SIGKILL."""
        self._enter("draining")
        if self._backend is None:
            self._wire.send(Goodbye())
            return status
        metadata = None
        try:
            metadata = self._complete(self._backend.runtime_metadata()) if self._ready else None
        finally:
            self._backend.shutdown()
        self._wire.send(Goodbye(metadata))
        return status

    def _complete(self, metadata: RuntimeMetadata) -> RuntimeMetadata:
        """With what the backend can't know."""
        return replace(
            metadata,
            patches=[*compat.patches(), *metadata.patches],
            notes=[*self._notes, *metadata.notes],
            load=self._times,
        )

    def _fatal(self, exc: BaseException) -> int:
        self._wire.send(Fatal(self._wire.phase, error_info(exc, fatal=True)))
        return EXIT_FATAL

    def _enter(self, phase: Phase) -> None:
        self._wire.phase = phase
        self._wire.progress += 1


def error_info(exc: BaseException, *, fatal: bool = False) -> ErrorInfo:
    """`exc` as it crosses the wire. Never raises."""
    message = compat.explained(exc, message_of(exc))
    return ErrorInfo(type=type(exc).__name__, message=message, traceback=traceback_of(exc), fatal=fatal)
