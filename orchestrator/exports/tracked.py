"""What a run is to a tracker of experiments: one item for the sweep, and one below it for each row of the report.

An item is plain JSON: `key` names it for ever, so that whoever exports twice updates. `params` are what was asked,
`metrics` the figures, with the unit in the name and the ends of their intervals, `tags` what it was done with and what
came of it. What is null is left out. Times are Unix seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from orchestrator import __version__
from orchestrator.exports.columns import ASKED, RUN, WORKER
from orchestrator.exports.rows import ROWS, rows
from orchestrator.exports.source import Source
from orchestrator.view.runview import RunView
from orchestrator.view.wording import settings_text

Item = dict[str, Any]
#: Of rows, what tells one from the other and what is no figure.
_TOLD = frozenset({"method", "engine", "settings", "points", "reasons", "accuracy_wrong", "other_judges"}) | {
    column.name for column in RUN
}
_STATES = {"ok": "finished", "partial": "finished", "skipped": "finished", "failed": "failed", "incomplete": "failed"}


def items(source: Source, files: Mapping[str, str]) -> Iterator[Item]:
    """The sweep first. `files`: by their name, where they are. Reads every record. Raises JournalError on damage."""
    yield _sweep(source, files)
    names = [column.name for column in ROWS]
    asked = [column.name for column in ASKED]
    for line in rows(source):
        row = dict(zip(names, line.own, strict=True))
        yield _row(source, row, dict(zip(asked, line.shared, strict=True)))


def _sweep(source: Source, files: Mapping[str, str]) -> Item:
    view, plan = source.view, source.view.plan
    counts = {"points": len(view.points), "records": view.replay.records, "starts": len(view.starts)}
    return {
        **_common(source, source.run_id, source.name),
        "sweep": True,
        "state": {"running": "running", "finished": "finished"}.get(view.state, "killed"),
        "params": {"model": plan.model.name, "prompts": len(plan.prompt_ids), "repeats": plan.repeats},
        "metrics": {"measured_s": view.measured_s, **counts},
        "tags": _told({**_digests(view), **_origin(view), "state": view.state, "exit_code": view.exit_code}),
        "files": dict(files),
    }


def _row(source: Source, row: Mapping[str, Any], asked: Mapping[str, Any]) -> Item:
    identity = msgspec.json.encode([row["method"], row["settings"]])
    key = f"{source.run_id}-{hashlib.sha256(identity).hexdigest()[:16]}"
    state = _STATES.get(row["outcome"], "running" if source.view.state == "running" else "killed")
    figures = _figures(row)
    tags = {name: value for name, value in row.items() if name not in figures and name not in _TOLD}
    return {
        **_common(source, key, f"{row['method']} {settings_text(row['settings'])}".strip()),
        "sweep": False,
        "state": state,
        "params": {"method": row["method"], "engine": row["engine"], **asked},
        "metrics": figures,
        "tags": _told({**tags, **_ran(source.view, row["points"])}),
        "files": {},
    }


def _common(source: Source, key: str, name: str) -> Item:
    view = source.view
    begun = view.starts[0].at if view.starts else None
    ended = view.endings[-1].at if view.exit_code is not None else view.last_at
    return {"key": key, "run_id": source.run_id, "run": source.name, "name": name, "begin": begun, "end": ended}


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value for name, value in row.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _told(tags: Mapping[str, Any]) -> dict[str, str]:
    """As text; nothing of what is null or empty."""
    return {name: _text(value) for name, value in tags.items() if value not in (None, "", [], (), {})}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return "; ".join(value)
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _ran(view: RunView, points: Iterable[str]) -> dict[str, Any]:
    """Of the last worker of a row that became ready."""
    workers = [worker for point in points for worker in view.workers_of(point) if worker.ready]
    if not workers or workers[-1].ready is None:
        return {}
    launched, metadata = workers[-1].launched, workers[-1].ready.metadata
    told = {column.name: getattr(metadata, column.name, None) for column in WORKER}
    return {**told, "env": launched.env, "fingerprint": launched.fingerprint, "devices": metadata.devices}


def _digests(view: RunView) -> dict[str, Any]:
    plan = view.plan
    digests = {"plan": plan.digest, "model_digest": plan.model.digest, "prompts_digest": plan.prompts_digest}
    return {**digests, "sweep": plan.name, "airlock_version": __version__, "complete": view.complete}


def _origin(view: RunView) -> dict[str, Any]:
    """Of the last start."""
    if not view.origins:
        return {}
    found = view.origins[-1]
    return {
        "airlock_commit": found.airlock and found.airlock.commit,
        "sweep_commit": found.sweep and found.sweep.commit,
        "sweep_changed": found.sweep and found.sweep.changed,
        "system": found.system,
        "kernel": found.kernel,
        "container": found.container,
        "cpu": found.cpu,
        "cpus": found.cpus,
        "memory_bytes": found.memory_bytes,
        "driver": found.driver,
        "gpus": [device.name for device in found.devices],
    }
