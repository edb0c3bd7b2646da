"""What every engine's adapter is: the Backend interface and the one table that names them all.

The session calls a backend in this order, all of it in the main thread:

    cls.prepare()        before Hello; sets what must stand before any import
    cls.import_engine()  imports the engine's libraries, touches no device
    build_backend(config)
    .load()              builds the engine
    .generate(batch)     any number of times
    .runtime_metadata()  after a batch at the earliest; fresh memory figures
    .shutdown()          once, also when load() failed half-way through SIGTERM
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import NoReturn, Protocol

from protocol.records import BatchStats, Generation, RuntimeMetadata
from protocol.specs import BackendConfig, PromptBatch
from workers.backends.outputs import Output, WrongOutputs, assemble, batch_stats, cut_at_eos
from workers.backends.plain import plain
from workers.backends.positions import Position
from workers.memory import MemoryMeter
from workers.text import clean_text

__all__ = [
    "ENGINES",
    "Backend",
    "EngineDead",
    "Host",
    "MemoryMeter",
    "Output",
    "Position",
    "UnknownEngine",
    "WrongOutputs",
    "assemble",
    "batch_stats",
    "build_backend",
    "clean_text",
    "cut_at_eos",
    "engine_class",
    "plain",
]

#: A further engine is one new file and one line here.
ENGINES: dict[str, str] = {
    "hf": "workers.backends.hf_backend:HfBackend",
    "vllm": "workers.backends.vllm_backend:VllmTextBackend",
    "sglang": "workers.backends.sglang_backend:SglangTextBackend",
    "scripted": "workers.backends.scripted_backend:ScriptedBackend",
}


class EngineDead(Exception):
    """Raised by `generate` when the engine can't take another batch: the worker reports it and exits."""


class UnknownEngine(Exception):
    """No backend has that name."""


class Host(Protocol):
    """What a backend may ask of the process it lives in. Each call is safe from
    any thread and from a signal handler."""

    def give_up(self, error: BaseException) -> NoReturn:
        """Reports `error` as fatal, lets the message leave and ends the process.
        For engines that die beside the main thread, which then never comes back."""

    def tick(self) -> None:
        """Counts one more sign of progress in the next beat."""

    def send_raw(self, frame: bytes) -> None:
        """Sends bytes as they are. Only the scripted backend has a use for it."""


class Detached:
    """The host of a backend that runs outside a session."""

    def give_up(self, error: BaseException) -> NoReturn:
        raise error

    def tick(self) -> None: ...

    def send_raw(self, frame: bytes) -> None: ...


class Backend(ABC):
    """One engine, loaded once, in one process. Any exception of `generate` other
    than EngineDead means "this batch gave nothing, the next one may"."""

    #: Set on the class by the session, before `prepare`.
    host: Host = Detached()

    def __init__(self, config: BackendConfig) -> None:
        self.config = config
        self.memory = MemoryMeter()

    @classmethod
    def prepare(cls) -> None:
        """Sets process-wide things that must stand before any import. Imports nothing; most engines need nothing."""
        return

    @classmethod
    @abstractmethod
    def import_engine(cls) -> str:
        """Imports the engine's libraries and gives the engine's version. Touches no device."""

    @abstractmethod
    def load(self) -> RuntimeMetadata:
        """Builds the engine. `load.import_s`, `load.total_s` and the blocked
        modules are filled in by the session."""

    @abstractmethod
    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        """All prompts of the batch in one call of the engine. Raises EngineDead, or
        anything else for a batch that failed by itself."""

    @abstractmethod
    def runtime_metadata(self) -> RuntimeMetadata:
        """What `load` gave, with memory figures of now."""

    @abstractmethod
    def shutdown(self) -> None:
        """Lets the engine end its own children. The process exits next in any case."""


def engine_class(engine: str) -> type[Backend]:
    """The backend of `engine`. Imports our adapter and nothing of the engine. Raises UnknownEngine."""
    try:
        module, _, name = ENGINES[engine].partition(":")
    except KeyError:
        raise UnknownEngine(f"no engine {engine!r}; there are {', '.join(sorted(ENGINES))}") from None
    found: type[Backend] = getattr(importlib.import_module(module), name)
    return found


def build_backend(config: BackendConfig) -> Backend:
    """The backend that `config.method.engine` names, not loaded yet. Raises UnknownEngine."""
    return engine_class(config.method.engine)(config)
