"""Which points can't fit, as one that needs no more memory ran out of it. Pure.

Of one method, all else equal, these settings never need less where they are larger; all others must be the same:

    batch_size              a multiple of the other, or all prompts at once: else the chunks are others, and the one
                            that ran out may be part of none. Engines that batch continuously let what their
                            cache can't hold wait, but run larger steps and capture larger graphs
    max_new_tokens          not with Transformers' buckets: what it leaves of max_model_len is the longest of them
    max_model_len, max_num_batched_tokens, ignore_eos
    kv_cache_bytes          not where it is the cache that was too small

The share of a GPU is none of them: a larger one leaves less to all that lies beside the cache. Where SGLang chooses it
by itself, it does so by what the worker is made for: then that must be the same too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from orchestrator.definition.fields import DEFAULTS
from orchestrator.definition.fits import label, varying
from orchestrator.events import PointEnded, PointSkipped
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, SweepPoint
from protocol.specs import BackendConfig

RISING: Final = (
    *("batch_size", "max_new_tokens", "max_model_len", "max_num_batched_tokens", "kv_cache_bytes", "ignore_eos"),
)
#: They decide nothing where the likeliest token is taken.
_SAMPLING: Final = ("top_p", "seed")
#: In all that engines say of a cache that is too small, or that nothing is left for.
_OF_CACHE: Final = re.compile(r"\b(?:cache|kv)\b", re.IGNORECASE)
#: Memory of a device, which is the worker's own; that of the host is everybody's.
_OF_DEVICE: Final = re.compile(r"CUDA|CUBLAS|CUDNN|HIP|GPU|\bKV\b", re.IGNORECASE)
_SHARED: Final = "other workers of this run shared the host's memory: "


class Demand(NamedTuple):
    """A point, and what its worker is made for."""

    point: SweepPoint
    start: str
    load: BackendConfig


class Demands:
    """Of the points of a plan, for the memory they need."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def too_large(
        self,
        end: PointEnded,
        ended: Mapping[str, PointEnded],
        skipped: Mapping[str, PointSkipped],
        started: Collection[str],
    ) -> tuple[list[str], str]:
        """The points that nobody has begun and that this end of another shows not to fit, and why."""
        if not ran_out(end):
            return [], ""
        failed, alike = self._demand(end.point)
        fitted = [one for one in alike if one.point.id in ended and ended[one.point.id].outcome == "ok"]
        found = [
            one.point.id
            for one in alike
            if not (one.point.id in ended or one.point.id in skipped or one.point.id in started)
            # Of a load that failed all points fail, and say so themselves.
            and (one.start != failed.start or end.point in started)
            and self._needs(one, failed, end.cause)
            and not any(self._needs(larger, one) for larger in fitted)
        ]
        return found, self._reason(failed, alike) if found else ""

    def _needs(self, more: Demand, less: Demand, cause: Cause | None = None) -> bool:
        if cause and _OF_CACHE.search(cause.message) and more.load.kv_cache_bytes != less.load.kv_cache_bytes:
            return False
        prompts = len(self._plan.prompt_ids)
        return _covers(more.point.config, less.point.config, prompts) and _rises(more.load, less.load)

    def _reason(self, failed: Demand, alike: Collection[Demand]) -> str:
        names = [name for name in varying([one.point.config for one in alike]) if name in RISING]
        settings = label(failed.point.config, names or ["batch_size"])
        return f"needs at least as much memory as point {failed.point.id} ({settings}), which ran out of it"

    def _demand(self, point: str) -> tuple[Demand, list[Demand]]:
        """Of a point, and all that it can be compared with, itself among them."""
        alike = self._groups[self._kinds[point]]
        return next(one for one in alike if one.point.id == point), alike

    @cached_property
    def _kinds(self) -> dict[str, bytes]:
        return {
            point.id: b"\n".join((kind, kind_of(point.config)))
            for start in self._plan.starts
            for kind in [_kind_of_load(start.config)]
            for point in start.points
        }

    @cached_property
    def _groups(self) -> dict[bytes, list[Demand]]:
        found: defaultdict[bytes, list[Demand]] = defaultdict(list)
        for start in self._plan.starts:
            for point in start.points:
                found[self._kinds[point.id]].append(Demand(point, start.key, start.config))
        return found


def ran_out(end: PointEnded) -> bool:
    """Whether it failed in a worker for want of memory. What no worker met is what was free at that moment, and what
    others took was not there to be had."""
    cause = end.cause
    if end.outcome != "failed" or cause is None or _SHARED in cause.message:
        return False
    return "oom" in (cause.cls, cause.root) and bool(cause.phase)


def shared(cause: Cause, device: str, others: Collection[str]) -> Cause:
    """With the `others` that were at work or importing beside a worker for `device` whose host memory ran out."""
    if cause.cls != "oom" or not others or (device != "cpu" and _OF_DEVICE.search(cause.message)):
        return cause
    return replace(cause, message=f"{cause.message}; {_SHARED}{', '.join(sorted(others))}")


def kind_of(config: BackendConfig) -> bytes:
    """The same of all whose needs can be compared: all settings that are not among those that rise."""
    same = _rising(config) if config.temperature else (*_rising(config), *_SAMPLING)
    return msgspec.json.encode(replace(config, **{name: DEFAULTS[name] for name in same}))


def _kind_of_load(config: BackendConfig) -> bytes:
    chosen = config.method.engine == "sglang" and config.device == "cuda" and config.sglang_mem_fraction_static is None
    return msgspec.json.encode(config) if chosen else kind_of(config)


def _rising(config: BackendConfig) -> Iterator[str]:
    bucketed = config.method.engine == "hf" and config.method.rocket_bucket
    return (name for name in RISING if not (bucketed and name == "max_new_tokens"))


def _covers(more: BackendConfig, less: BackendConfig, prompts: int) -> bool:
    """Of two of the same kind."""
    whole = more.batch_size % less.batch_size == 0 or more.batch_size >= prompts
    return whole and _rises(more, less)


def _rises(more: BackendConfig, less: BackendConfig) -> bool:
    pairs = ((getattr(more, name), getattr(less, name)) for name in RISING)
    return all(a == b or (a is not None and b is not None and a >= b) for a, b in pairs)
