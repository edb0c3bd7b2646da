"""The processes of one worker: who lives below its warden, what they hold, and that nobody is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from orchestrator.launcher import Handle
from orchestrator.reaper import ProcessRef, Reaper, subtree
from orchestrator.run.reclaim import MemoryWatch
from orchestrator.run.workplace import Workplace


@dataclass
class ProcessTree:
    """
    strays     descendants that outlived the worker, by name
    left       those that are there still, after the sweep
    looked_at  when the memory of the living was sampled last
    gone_at    when the last of them was gone; None until the sweep
    """

    name: str
    handle: Handle
    watch: MemoryWatch
    reaper: Reaper
    workplace: Workplace
    clock: Callable[[], float]
    strays: list[str] = field(default_factory=list)
    left: tuple[ProcessRef, ...] = ()
    looked_at: float = float("-inf")
    gone_at: float | None = None
    _seen: list[ProcessRef] = field(default_factory=list)

    def alive(self) -> list[ProcessRef]:
        """What lives below its warden."""
        return [ref for ref in subtree(self.handle.warden_pid) if ref.pid != self.handle.warden_pid]

    def look(self) -> None:
        """Sample the memory of the living; never while it generates, save before a kill."""
        self.looked_at = self.clock()
        if self.handle.pid is not None:
            self._seen = self.alive()
            self.workplace.note_shm(self.watch.look(self._seen))

    def find_segments(self, names: Iterable[str]) -> None:
        """`names` were just made in /dev/shm, by whomever: whoever made them may be dead in a moment."""
        if self.handle.pid is not None:
            self.workplace.note_shm(self.watch.segments.news(names, self.alive))

    def sweep(self) -> None:
        """Whoever outlived the worker is ended, as far as that can be done."""
        self.strays += [ref.name for ref in self.reaper.sweep(self.name, self._seen)]
        self.left = tuple(self.reaper.alive_of(self.name))
        self.gone_at = self.clock()
        self.watch.ended(self.gone_at)
