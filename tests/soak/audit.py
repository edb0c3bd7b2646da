"""What must hold of a run that was killed and resumed: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import proc
from orchestrator.events import WorkerLaunched, WorkerReleased
from orchestrator.record.generations import read_records
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, replay
from orchestrator.view.runview import read_plan
from protocol.specs import CallParams, pack_ids
from workers.backends.scripted_backend import answer_ids

Key = tuple[str, str]
SHM = Path("/dev/shm")


@dataclass
class Audit:
    """Of one run directory, over all its lives. The lists say what is wrong."""

    run_dir: Path
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    committed: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    slowest_teardown_s: float = 0.0

    @property
    def problems(self) -> list[str]:
        return [*self.lost, *self.twice, *self.left, *self.wrong]

    def after_a_life(self) -> None:
        """What was committed is still there, as it was."""
        if not (self.run_dir / JOURNAL_NAME).exists():
            self.lost += [f"{key} with the whole journal" for key in self.committed]
            return
        found = replay(self.run_dir)
        records = list(read_records(self.run_dir, found.ranges))
        now = {(r.point, r.prompt_id): (r.token_ids, r.text, r.error and r.error.cls) for r in records}
        self.twice += [f"{key} is committed twice" for key, n in Counter(map(_key, records)).items() if n > 1]
        self.lost += [f"{key} was committed and is gone" for key in self.committed if key not in now]
        self.lost += [f"{key} has changed" for key, was in self.committed.items() if now.get(key, was) != was]
        self.committed = now

    def at_the_end(self, untouched: Iterable[str]) -> None:
        """`untouched`: methods that nothing was done to, so all their points must be ok."""
        found = replay(self.run_dir)
        plan = read_plan(self.run_dir)
        prompts = self._prompts()
        for point in plan.points:
            end = found.outcomes.get(point.id)
            if end is None:
                self.lost.append(f"point {point.id} of {point.method} has no outcome")
            elif end.outcome == "ok":
                self.lost += [
                    f"{(point.id, p)} is missing though its point is ok" for p in self._missing(point.id, prompts)
                ]
            elif point.method in untouched:
                self.wrong.append(f"{point.method} failed though nothing was done to it: {end.cause}")
            self._compare(point, prompts)
        self._lines(len(self.committed))
        for event in found.events():
            if isinstance(event, WorkerReleased):
                self.slowest_teardown_s = max(self.slowest_teardown_s, event.reclaim.teardown_s)

    def resources(self, tmp: Path, run_tag: str) -> None:
        """Once no life is left that could clear away."""
        self.left += [f"process {one.pid} {one.name}" for one in living(run_tag)]
        self.left += [f"temporary {path.name}" for path in tmp.iterdir()]
        launched = [event for event in replay(self.run_dir).events() if isinstance(event, WorkerLaunched)]
        theirs = {f"airlock-scripted-{event.incarnation}" for event in launched}
        segments = theirs & set(os.listdir(SHM) if SHM.is_dir() else ())
        self.left += [f"shared memory {name}" for name in sorted(segments)]

    def _prompts(self) -> Mapping[str, list[int]]:
        lines = (self.run_dir / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
        return {prompt["id"]: prompt["token_ids"] for prompt in map(json.loads, lines)}

    def _missing(self, point: str, prompts: Iterable[str]) -> list[str]:
        return [p for p in prompts if self.committed.get((point, p), (None, None, "absent"))[2] is not None]

    def _compare(self, point: Any, prompts: Mapping[str, list[int]]) -> None:
        """With what an unbroken run would have said: a scripted engine's answers depend on nothing else."""
        call, salt = CallParams.of(point.config), point.config.method.engine_args.get("salt", "")
        for prompt, ids in prompts.items():
            said = self.committed.get((point.id, prompt))
            if said and said[2] is None and list(said[0]) != answer_ids(pack_ids(ids), call, salt):
                self.wrong.append(f"{(point.id, prompt)} is not what an unbroken run gives")

    def _lines(self, expected: int) -> None:
        path = self.run_dir / RECORDS_NAME
        lines = path.read_bytes().splitlines() if path.exists() else []
        if len(lines) != expected:
            self.twice.append(f"{RECORDS_NAME} holds {len(lines)} records, {expected} are committed")


def _key(record: Any) -> Key:
    return record.point, record.prompt_id


def living(run_tag: str) -> list[proc.Stat]:
    """By tag or mark; those of them that came to us as orphans and are over are reaped on the way."""
    found = []
    for one in proc.table().values():
        if one.pid == os.getpid() or not proc.belongs(one.pid, run_tag):
            continue
        if not one.dead:
            found.append(one)
        elif one.ppid == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)
    return found
