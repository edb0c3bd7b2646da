"""Dispatch within one point: which prompts go together, and what a failed batch becomes.

The full prompt list is cut into chunks of batch_size once; chunk k holds the
same prompts in every life of the run, minus those that are committed. So a
resumed run measures the batches that an unbroken one would have. Batches leave
in the order of the prompts. One that fails comes back as two halves; a prompt
that fails alone for the second time is poisoned: the caller gives it an error
record, if the engine has shown by then that it works.

A bad prompt in a chunk of n is found after at most ceil(log2 n) + 2 failures. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

ID_CHARACTERS = 8


@dataclass(frozen=True)
class BatchPlan:
    """Prompts that go to the engine together. `split`: fewer than the point asks
    for, because their chunk failed whole, in this life of the run or an earlier one.
    `again`: the prompt failed alone before.

    batch_id  "3f9a01bc-7" for chunk 7 of point 3f9a01bc…; "…-7.0" and "…-7.1"
              for its halves, "…-7.1.0" for a quarter; "…-w0" for a warm-up, "…-p0" for a probe
    """

    batch_id: str
    prompt_ids: tuple[str, ...]
    split: bool = False
    warmup: bool = False
    again: bool = False

    def halves(self) -> tuple[BatchPlan, BatchPlan]:
        middle = (len(self.prompt_ids) + 1) // 2
        first, second = self.prompt_ids[:middle], self.prompt_ids[middle:]
        return BatchPlan(f"{self.batch_id}.0", first, True), BatchPlan(f"{self.batch_id}.1", second, True)

    @property
    def depth(self) -> int:
        """How often its chunk was cut to come to it."""
        return self.batch_id.count(".")


class Queue:
    """What is left to do of one point, in order. A batch is out from `next_batch`
    until `done` or `failed` names it; one that is out when its worker is lost must be
    named by `failed`. A warm-up may be named, and need not. Raises KeyError for a
    batch that is not out. `bad`: those of `done` whose record is an error; they warm nothing up.
    """

    def __init__(
        self,
        point_id: str,
        prompt_ids: Sequence[str],
        batch_size: int,
        done: Collection[str] = frozenset(),
        bad: Collection[str] = frozenset(),
    ) -> None:
        self._prefix = point_id[:ID_CHARACTERS]
        self._chunks = [tuple(prompt_ids[at : at + batch_size]) for at in range(0, len(prompt_ids), batch_size)]
        self._waiting = deque(self._rest(frozenset(done)))
        self._out: dict[str, BatchPlan] = {}
        self._suspects: set[str] = set(bad)
        self._failed_alone: set[str] = set()
        self._warmups = self._probes = 0

    def _rest(self, done: frozenset[str]) -> list[BatchPlan]:
        rests = [tuple(p for p in chunk if p not in done) for chunk in self._chunks]
        return [
            BatchPlan(f"{self._prefix}-{k}", rest, split=len(rest) < len(chunk))
            for k, (chunk, rest) in enumerate(zip(self._chunks, rests, strict=True))
            if rest
        ]

    @property
    def finished(self) -> bool:
        """Nothing waits to be measured and no measured batch is out."""
        return not self._waiting and all(batch.warmup for batch in self._out.values())

    def next_batch(self) -> BatchPlan | None:
        """The next batch to measure; None when none waits."""
        return self._send(self._waiting.popleft()) if self._waiting else None

    def warmup_batch(self) -> BatchPlan | None:
        """A batch to run and not to measure: the first chunk, committed or not, without
        prompts that were part of a failure. None when nothing waits to be measured."""
        if not self._waiting:
            return None
        clean = tuple(p for p in self._chunks[0] if p not in self._suspects) or self._waiting[0].prompt_ids
        self._warmups += 1
        return self._send(BatchPlan(f"{self._prefix}-w{self._warmups - 1}", clean, warmup=True))

    def probe_batch(self, prompt_id: str) -> BatchPlan:
        """One prompt, run to see whether the engine still works, and not measured."""
        self._probes += 1
        return self._send(BatchPlan(f"{self._prefix}-p{self._probes - 1}", (prompt_id,), warmup=True))

    @property
    def clean(self) -> tuple[str, ...]:
        """Prompts that were part of no failure, or were cleared of it."""
        return tuple(p for chunk in self._chunks for p in chunk if p not in self._suspects)

    def planned(self, batch_id: str) -> BatchPlan:
        """The batch of that name, which is out."""
        return self._out[batch_id]

    def done(self, batch_id: str) -> None:
        """Every prompt of it has its record."""
        batch = self._out.pop(batch_id)
        if not batch.warmup:
            self._suspects -= set(batch.prompt_ids)

    def again(self, batch_id: str) -> None:
        """It gave nothing and is not to blame: it waits at the front as it was."""
        batch = self._out.pop(batch_id)
        if not batch.warmup:
            self._waiting.appendleft(batch)

    def failed(self, batch_id: str, *, engine_works: bool = True) -> tuple[str, ...]:
        """It gave nothing, and is to blame: its halves wait at the front, or itself if it is one prompt; behind
        all others where nothing has shown yet that the engine works at all.
        Returns the prompts that have now failed alone twice, none or one. A warm-up only casts suspicion."""
        batch = self._out.pop(batch_id)
        self._suspects |= set(batch.prompt_ids)
        if batch.warmup:
            return ()
        if len(batch.prompt_ids) > 1:
            self._wait(batch.halves(), engine_works)
            return ()
        if self._failed_alone.issuperset(batch.prompt_ids):
            return batch.prompt_ids
        # One failure may be the machine's, or what came before it in the same process.
        self._failed_alone.update(batch.prompt_ids)
        self._wait((_once_more(batch),), engine_works)
        return ()

    def later(self, batch: BatchPlan) -> None:
        """Its prompt waits behind all others."""
        self._wait((_once_more(batch),), at_front=False)

    def _wait(self, batches: tuple[BatchPlan, ...], at_front: bool) -> None:
        if at_front:
            self._waiting.extendleft(reversed(batches))
        else:
            self._waiting.extend(batches)

    def _send(self, batch: BatchPlan) -> BatchPlan:
        self._out[batch.batch_id] = batch
        return batch


def _once_more(batch: BatchPlan) -> BatchPlan:
    return replace(batch, batch_id=f"{batch.batch_id}.0", again=True)
