"""Runs cells in a few processes at once, each of them the coordinator of one cell after the other."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import msgspec

from tests.faults.cells import Cell
from tests.faults.expected import only_slow
from tests.faults.found import Found

REPOSITORY = Path(__file__).resolve().parents[2]
#: For one cell; the slowest takes about five seconds.
PATIENCE_S = 120.0
END_S = 20.0
TAIL_BYTES = 4000
#: Much of a cell is waiting, for a deadline or for a child's grace.
JOBS = max(2, min(4, os.cpu_count() or 1))


class Shard:
    """One process that runs cells, and the cell it has in hand. `prefix` is what it is started through."""

    def __init__(self, prefix: Sequence[str], *, keep: bool) -> None:
        command = [*prefix, sys.executable, "-m", "tests.faults.running", *(["--keep"] if keep else [])]
        self._said = os.memfd_create("said")  # a pipe that nobody reads would block it
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0
        )
        self._heard = b""
        self.cell: Cell | None = None
        self.deadline = 0.0

    def fileno(self) -> int:
        assert self._process.stdout
        return self._process.stdout.fileno()

    def begin(self, cell: Cell) -> None:
        self.cell, self.deadline = cell, time.monotonic() + PATIENCE_S
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{cell}\n".encode())
        except BrokenPipeError:
            return  # its end shows up where its answer is read

    def read(self) -> Found | None:
        """The answer, once it is whole. Raises EOFError if the process ended first."""
        text = os.read(self.fileno(), 1 << 16)
        if not text:
            raise EOFError
        self._heard += text
        if not self._heard.endswith(b"\n"):
            return None
        heard, self._heard = self._heard, b""
        return msgspec.json.decode(heard, type=Found)

    def fail(self, why: str, patience_s: float) -> Found:
        """What to say of the cell that took the process with it. It has `patience_s` to end by itself."""
        status = self._end(patience_s)
        size = os.fstat(self._said).st_size
        said = os.pread(self._said, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace")
        return Found(cell=str(self.cell), trouble=f"{why} (status {status})\n{said}")

    def close(self) -> None:
        """At the end of its input it clears up and goes."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._end(END_S)
        self._process.stdout.close()
        os.close(self._said)

    def _end(self, patience_s: float) -> int:
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def run(cells: Iterable[Cell], *, prefix: Sequence[str] = (), jobs: int = JOBS, keep: bool = False) -> Generator[Found]:
    """What was found in each, as it comes. Those that wait for a deadline start first.

    One in which nothing but a teardown's time is wrong is run once more, alone, and that counts.
    """
    slow: list[Cell] = []
    for found in _run(cells, prefix, jobs, keep):
        cell = Cell.named(found.cell)
        if not cell.always and only_slow(cell, found):
            slow.append(cell)
        else:
            yield found
    for found in _run(slow, prefix, 1, keep):
        yield msgspec.structs.replace(found, again=True)


def _run(cells: Iterable[Cell], prefix: Sequence[str], jobs: int, keep: bool) -> Generator[Found]:
    waiting = deque(sorted(cells, key=lambda cell: cell.waits_for is None))
    shards: list[Shard] = []
    try:
        while waiting or shards:
            while waiting and len(shards) < jobs:
                shards.append(Shard(prefix, keep=keep))
                shards[-1].begin(waiting.popleft())
            for shard in _ready(shards):
                found = _answer(shard)
                if found is None:
                    continue
                if found.trouble or not waiting:
                    shards.remove(shard)
                    shard.close()
                else:
                    shard.begin(waiting.popleft())
                yield found
    finally:
        for shard in shards:
            shard.close()


def _ready(shards: Sequence[Shard]) -> list[Shard]:
    """Those with something to read, and those whose time is up."""
    left_s = min(shard.deadline for shard in shards) - time.monotonic()
    readable, _, _ = select.select(shards, [], [], max(0.0, left_s))
    now = time.monotonic()
    return [shard for shard in shards if shard in readable or now >= shard.deadline]


def _answer(shard: Shard) -> Found | None:
    if time.monotonic() >= shard.deadline:
        return shard.fail(f"no end within {PATIENCE_S:g} s", 0.0)
    try:
        return shard.read()
    except EOFError:
        return shard.fail("the coordinator ended", END_S)
