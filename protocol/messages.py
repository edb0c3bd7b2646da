"""The whole message set. Two unions, so that direction is a type.

Up (worker → coordinator):  Hello Imported Ready BatchDone BatchFailed Fatal Beat Goodbye
Down (coordinator → worker): Init Run Shutdown

Unknown fields are skipped, so that a newer peer may add some; unknown tags
and wrong types are `Malformed`.
"""

from __future__ import annotations

from typing import Literal, Union

from msgspec import Struct, field

from protocol.records import BatchStats, ErrorInfo, Generation, MemoryUse, RuntimeMetadata
from protocol.specs import BackendConfig, PromptBatch

Phase = Literal["importing", "standby", "loading", "ready", "busy", "draining"]


class Hello(Struct, frozen=True, tag="hello", tag_field="type"):
    """First message of an incarnation. `token` proves that it is the one we launched."""

    protocol: int
    incarnation: str
    token: str
    pid: int
    python: str


class Imported(Struct, frozen=True, tag="imported", tag_field="type"):
    """The engine's libraries are imported; no device has been touched."""

    import_s: float
    engine_version: str


class Ready(Struct, frozen=True, tag="ready", tag_field="type"):
    metadata: RuntimeMetadata


class BatchDone(Struct, frozen=True, tag="batch_done", tag_field="type"):
    batch_id: str
    generations: list[Generation]
    stats: BatchStats


class BatchFailed(Struct, frozen=True, tag="batch_failed", tag_field="type"):
    """This batch gave nothing; the worker can take the next one."""

    batch_id: str
    error: ErrorInfo


class Fatal(Struct, frozen=True, tag="fatal", tag_field="type"):
    """The worker cannot go on and will exit."""

    phase: Phase
    error: ErrorInfo


class Beat(Struct, frozen=True, tag="beat", tag_field="type"):
    """Progress information, never a sign of death by its absence: a C call that
    holds the GIL starves it. `progress` counts steps of the main loop."""

    phase: Phase
    progress: int
    memory: MemoryUse = field(default_factory=MemoryUse)


class Goodbye(Struct, frozen=True, tag="goodbye", tag_field="type"):
    """The engine is shut down and the worker exits next. Metadata holds the final memory figures."""

    metadata: Union[RuntimeMetadata, None] = None


class Init(Struct, frozen=True, tag="init", tag_field="type"):
    config: BackendConfig


class Run(Struct, frozen=True, tag="run", tag_field="type"):
    batch: PromptBatch


class Shutdown(Struct, frozen=True, tag="shutdown", tag_field="type"):
    reason: str


Up = Union[Hello, Imported, Ready, BatchDone, BatchFailed, Fatal, Beat, Goodbye]
Down = Union[Init, Run, Shutdown]
Message = Union[Up, Down]
