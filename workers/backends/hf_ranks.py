"""Tensor parallelism of Transformers: each device holds its part of every layer, in a process of its own.

The worker is rank 0. The other ranks are its children, which load the same model, are handed every batch over a
pipe and make the very same calls, so that the collectives inside them meet. What they generate is thrown away.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

from msgspec.structs import replace

from protocol.records import MemoryUse
from protocol.specs import BackendConfig, PromptBatch
from workers.backends import hf_model, runtime
from workers.backends.admission import NotAdmitted
from workers.backends.base import EngineDead
from workers.backends.children import NEWS_S, Children
from workers.backends.hf_generate import Answer, Generator, Shaping
from workers.backends.hf_score import score

TITLE = "airlock-rank"
#: How long is waited for a rank that was told to end, before the end of the worker takes it along.
END_S = 2.0
#: The coordinator has the deadlines; a collective that gives up before them would hide what it waited for.
PATIENCE = timedelta(days=1)
PR_SET_NAME = 15

Order = tuple[PromptBatch, Sequence[Sequence[int]]]


class Told(NamedTuple):
    """What a rank says of itself, after the load and after each batch."""

    weights_bytes: int
    memory: MemoryUse
    devices: list[str]


class Ranks:
    """All ranks but this process. Raises EngineDead, from every method, where one of them has ended."""

    def __init__(self, config: BackendConfig, give_up: Callable[[BaseException], NoReturn]) -> None:
        self._config = config
        self._children = Children(TITLE, give_up)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self.told: list[Told] = []

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Round the load of this rank's own part."""
        with self._children.loading():
            self._start()
            yield
            self._collect()

    def together(self, batch: PromptBatch, prompts: Sequence[Sequence[int]], run: Callable[[], Answer]) -> Answer:
        """`run` here, and the same in the other ranks. Raises NotAdmitted as `run` does; after any other error the
        ranks are out of step, and no further batch can be trusted to them."""
        order: Order = (batch, prompts)
        for pipe in self._pipes:
            pipe.send(order)
        try:
            answer = run()
        except NotAdmitted:
            self._collect()
            raise
        except Exception as exc:
            raise EngineDead(str(self._children.death(NEWS_S) or f"{type(exc).__name__}: {exc}")) from exc
        self._collect()
        return answer

    def stop(self) -> None:
        self._children.stop()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(END_S)

    def _start(self) -> None:
        spawn, world = multiprocessing.get_context("spawn"), self._config.tensor_parallel_size
        store = os.path.join(tempfile.mkdtemp(prefix="ranks-"), "store")
        devices = runtime.visible_devices(self._config.device)
        for rank in range(1, world):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(self._config, rank, store, theirs), daemon=True)
            with only(devices[rank : rank + 1]):
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices[0]
        join(self._config, 0, store)

    def _collect(self) -> None:
        try:
            self.told = [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError) as exc:
            raise EngineDead(str(self._children.death(NEWS_S) or "a rank has ended")) from exc


def serve(config: BackendConfig, rank: int, store: str, pipe: Connection) -> None:
    """A rank's whole life. It ends when the worker closes the pipe, or by its own error, which the worker notices."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, f"{TITLE}-{rank}".encode(), 0, 0, 0)
    join(config, rank, store)
    model = hf_model.load_model(config)
    try:
        pipe.send(of_itself(config, model))
        generator = Generator(config, model, Shaping(), lambda: None)  # may run the model, and so do all together
        while True:
            batch, prompts = pipe.recv()
            with suppress(NotAdmitted):  # as in rank 0, which says so
                answer(config, model, generator, batch, prompts)
            pipe.send(of_itself(config, model))
    except (EOFError, OSError):
        os._exit(0)  # torch's own way out takes seconds


def answer(
    config: BackendConfig, model: Any, generator: Generator, batch: PromptBatch, prompts: Sequence[Sequence[int]]
) -> Answer:
    """Of one batch, in one rank, or in the only process that there is."""
    if batch.call.task == "score":
        return score(config, model, batch, prompts)
    return generator.answer(batch, prompts)


def of_itself(config: BackendConfig, model: Any) -> Told:
    memory = runtime.with_device_memory(MemoryUse(), config.device)
    return Told(hf_model.weights_bytes(model), memory, hf_model.device_names(config.device))


def added(own: MemoryUse, others: Sequence[MemoryUse]) -> MemoryUse:
    """Device figures of all ranks, each on a GPU of its own. Those of the host cover the children already."""
    names = [name for name in MemoryUse.__struct_fields__ if name.startswith("device_")]
    return replace(own, **{name: runtime.total(getattr(one, name) for one in (own, *others)) for name in names})


def join(config: BackendConfig, rank: int, store: str) -> None:
    """Meets the other ranks by a file. Each process sees its own GPU alone; on a CPU they share its threads."""
    import torch

    world, on_cpu = config.tensor_parallel_size, config.device == "cpu"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if on_cpu:
        torch.set_num_threads(max(1, torch.get_num_threads() // world))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank if on_cpu else 0), WORLD_SIZE=str(world))
    torch.distributed.init_process_group(
        "gloo" if on_cpu else "nccl", init_method=f"file://{store}", rank=rank, world_size=world, timeout=PATIENCE
    )


@contextmanager
def only(devices: Sequence[str]) -> Iterator[None]:
    """What is started meanwhile sees these GPUs alone; no GPUs, no difference."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    try:
        yield
    finally:
        if devices and before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
