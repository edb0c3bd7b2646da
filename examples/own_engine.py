#!/usr/bin/env python3
"""An engine of one's own for Airlock, in one file: docs/adding-an-engine.md explains it, and a test runs it.

The engine is `Parrot`, which continues a prompt with what followed there last. Below it stands its adapter, and below
that the start of a worker with it. It needs a Python in which Airlock is installed, such as the one that Airlock itself
runs with; a real engine's own has pyzmq, msgpack, msgspec and psutil added. To see it at work beside the scripted
engine:

    methods:
      - scripted
      - {name: parrot, base: scripted, worker: [/path/of/airlock/.venv/bin/python, /path/of/examples/own_engine.py]}
"""

from __future__ import annotations

import os
import platform
import sys
import time

from msgspec.structs import replace

from protocol.records import BatchStats, EngineSettings, Generation, LoadTimes, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, PromptBatch, PromptInput, unpack_ids
from workers.backends.base import ENGINES, Backend, Output, assemble, batch_stats


class Parrot:
    """The engine. Knows nothing of Airlock."""

    version = "1.0"

    def next_id(self, ids: list[int]) -> int:
        """What followed the last token where it stood before; else the first token."""
        before = [at for at, one in enumerate(ids[:-1]) if one == ids[-1]]
        return ids[before[-1] + 1] if before else ids[0]


class ParrotBackend(Backend):
    """Between Airlock and the engine: only this knows both."""

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self._parrot: Parrot | None = None
        self._load_s = 0.0

    @classmethod
    def import_engine(cls) -> str:
        """A real one imports its libraries here, and touches no device yet."""
        return Parrot.version

    def load(self) -> RuntimeMetadata:
        started = time.perf_counter()
        if unknown := ", ".join(self.config.method.engine_args):
            raise ValueError(f"Parrot takes no arguments: {unknown}")  # class config: its points fail, no others
        self._parrot = Parrot()  # a real one loads self.config.model_path in self.config.dtype
        self._load_s = time.perf_counter() - started
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        if batch.call.task != "generate" or any(prompt.images for prompt in batch.prompts):
            raise NotImplementedError("Parrot generates text out of text")  # what comes with each batch
        if batch.call.temperature > 0 or batch.call.logprobs:
            raise NotImplementedError("Parrot has no probabilities: no temperature, no logprobs")
        started = time.perf_counter()
        outputs = [self._one(prompt, batch.call, started) for prompt in batch.prompts]
        wall_s = time.perf_counter() - started  # round the engine's own call and nothing else
        generations = assemble(batch, outputs, _text, batch.call.stop_token_ids, wall_s)
        return generations, batch_stats(generations, wall_s, self.memory.read(busy=True).host_peak_rss_bytes)

    def _one(self, prompt: PromptInput, call: CallParams, started: float) -> Output:
        assert self._parrot is not None
        ids, times_s = unpack_ids(prompt.token_ids), list[float]()
        length = len(ids)
        while len(times_s) < call.max_new_tokens and (call.ignore_eos or ids[-1] not in call.stop_token_ids):
            ids.append(self._parrot.next_id(ids))
            times_s.append(time.perf_counter() - started)
            self.host.tick()  # a sign of progress, for whoever watches
        return Output(prompt.id, ids[length:], ttft_s=times_s[0], latency_s=times_s[-1], times_s=times_s)

    def runtime_metadata(self) -> RuntimeMetadata:
        """What really runs, never what was asked; what there is not, or is not known, stays null."""
        found = RuntimeMetadata(
            engine="parrot",
            engine_version=Parrot.version,
            python_version=platform.python_version(),
            compiled=False,
            threads=1,
            settings=EngineSettings(batching="static", cuda_graphs="none", compile_mode="none", speculation="none"),
            notes=["a parrot, no model: dtype, attention and KV cache do not exist"],
        )
        return replace(found, load=LoadTimes(weights_s=self._load_s), memory=self.memory.read())

    def shutdown(self) -> None:
        self._parrot = None  # a real one ends its children here; the process ends next in any case


def _text(ids: list[int]) -> str:
    """A real one decodes with the model's tokenizer; the scripted model's ids are bytes."""
    return bytes(one for one in ids if one < 256).decode("utf-8", "replace")


if __name__ == "__main__":
    from workers import bootstrap

    ENGINES[os.environ["AIRLOCK_ENGINE"]] = "__main__:ParrotBackend"
    sys.argv[1:] = ["worker"]
    bootstrap.main()
