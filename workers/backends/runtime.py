"""The parts of RuntimeMetadata that are found the same way for every engine."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, Literal

from msgspec.structs import replace

from protocol.records import MemoryUse, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams

NOT_HONOURED = "_not_honoured"
FLAG_SEED = "seed_not_honoured"
FLAG_OVERRIDE = "engine_args_override"


def describe(config: BackendConfig, *, device: str, **found: Any) -> RuntimeMetadata:
    """`found` on top of what needs no engine: versions, and the devices handed to this process."""
    return RuntimeMetadata(
        **{
            "engine": config.method.engine,
            "python_version": platform.python_version(),
            "torch_version": version("torch"),
            "transformers_version": version("transformers"),
            "device": device,
            "devices": visible_devices(device),
            **found,
        }
    )


def version(distribution: str) -> str | None:
    """The installed version; None if there is no such distribution. Imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def keep_environment_readable() -> None:
    """For engines that name their children with setproctitle, which writes over
    /proc/PID/environ, and with it over the tag by which survivors are found."""
    os.environ.setdefault("SPT_NOENV", "1")


def visible_devices(device: str) -> list[str]:
    """Devices as the launcher named them. Asking CUDA would make a context in a
    process that otherwise leaves the device to its children."""
    if device != "cuda":
        return []
    return [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]


def overridden(ours: Mapping[str, Any], engine_args: Mapping[str, Any]) -> list[str]:
    """A flag for each value of ours that the method's own arguments replaced by another."""
    return [f"{FLAG_OVERRIDE}:{key}" for key, value in engine_args.items() if key in ours and ours[key] != value]


def not_honoured(asked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The flag "<name>_not_honoured" for each value that the engine says is another than was asked for.
    None and "auto" stand for what was left to the engine, None for what it does not tell: neither is a difference."""
    pairs = {name: (value, found.get(name)) for name, value in asked.items()}
    return [
        f"{name}{NOT_HONOURED}"
        for name, pair in pairs.items()
        if None not in pair and pair[0] != "auto" and _differ(*pair)
    ]


def _differ(asked: Any, found: Any) -> bool:
    """Engines write their own names in either case."""
    if isinstance(asked, str) and isinstance(found, str):
        return asked.casefold() != found.casefold()
    return bool(asked != found)


def as_asked(found: str | None, asked: str | None) -> str | None:
    """`found` by the name that was asked for, where that leaves the rest open: "fp8" for "fp8_e4m3"."""
    return asked if found is not None and asked is not None and found.startswith(asked) else found


def combined(*pairs: tuple[Any, Any]) -> tuple[Any, Any]:
    """Several things under one name, each asked for and found: all that were asked for, and what was found of these."""
    asked = [pair for pair in pairs if pair[0] is not None]
    return ([one for one, _ in asked], [one for _, one in asked]) if asked else (None, None)


def scheduling(policy: Any, ahead: Any) -> str:
    """A scheduler's word; `ahead`: it makes a step ready while the one before runs."""
    return f"{policy} async" if ahead else str(policy)


def threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def with_ends(told: RuntimeMetadata, call: CallParams, held: Iterable[int]) -> RuntimeMetadata:
    """With the rule for end of sequence of a batch, which travels with each and is not known at load.

    held  ids at which the engine ends an output of this batch, as read from what it holds for its requests
    """
    ids = sorted(set(held))
    asked = "stop" if call.stop_token_ids and not call.ignore_eos else "ignore"
    found: Literal["stop", "ignore"] = "stop" if ids else "ignore"
    flags = dict.fromkeys([*told.flags, *not_honoured({"eos": asked}, {"eos": found})])
    return replace(
        told,
        stop_token_ids=told.stop_token_ids if call.ignore_eos else ids,
        settings=replace(told.settings, eos=found),
        flags=list(flags),
    )


def with_loaded(memory: MemoryUse, at_load: MemoryUse) -> MemoryUse:
    """`memory` with what stays as it was after loading: the weights and the graphs."""
    return replace(memory, weights_bytes=at_load.weights_bytes, graphs_bytes=at_load.graphs_bytes)


def with_device_memory(memory: MemoryUse, device: str) -> MemoryUse:
    """`memory` with the figures of torch's allocator, summed over this process's
    devices. Only for engines that run in this process."""
    torch = sys.modules.get("torch")
    if device != "cuda" or torch is None or not torch.cuda.is_initialized():
        return memory
    cuda, indexes = torch.cuda, range(torch.cuda.device_count())
    return replace(
        memory,
        device_allocated_bytes=sum(cuda.memory_allocated(i) for i in indexes),
        device_reserved_bytes=sum(cuda.memory_reserved(i) for i in indexes),
        device_peak_bytes=sum(cuda.max_memory_reserved(i) for i in indexes),
        device_peak_allocated_bytes=sum(cuda.max_memory_allocated(i) for i in indexes),
    )


def total(parts: Iterable[int | None]) -> int | None:
    """Over ranks; None where one of them does not tell."""
    told = list(parts)
    return None if None in told else sum(one for one in told if one is not None)


def peak_bytes(memory: MemoryUse, device: str) -> int | None:
    """The figure of BatchStats: device memory on a GPU, resident set on a CPU."""
    return memory.device_peak_bytes if device == "cuda" else memory.host_peak_rss_bytes


class Stopwatch:
    """Seconds between its making, or its last lap, and now."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def lap_s(self) -> float:
        now = time.monotonic()
        self._since, lap = now, now - self._since
        return lap
