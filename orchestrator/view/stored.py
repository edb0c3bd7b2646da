"""The verb `artefacts`: what compiled artefacts are kept, and away with them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec

from orchestrator.stores.artefacts import ArtefactStore, Entry
from orchestrator.stores.home import airlock_home
from orchestrator.view.answer import Answer
from orchestrator.view.wording import bytes_text, clean, counted

Say = Callable[[str], None]


def artefacts_list(args: argparse.Namespace, _say: Say) -> int:
    """The last used first."""
    entries = _store().entries()
    if args.json:
        Answer().lines([json.dumps([_as_dict(entry) for entry in entries], indent=2)])
    else:
        Answer().lines([_line(entry) for entry in entries] or [f"nothing is kept in {_store().root}"])
    return 0


def artefacts_clear(_args: argparse.Namespace, say: Say) -> int:
    gone = _store().clear()
    freed = sum(entry.manifest.bytes for entry in gone)
    say(f"{counted(len(gone), 'entry', 'entries')} removed, {bytes_text(freed)}")
    return 0


def _store() -> ArtefactStore:
    return ArtefactStore.under(airlock_home())


def _line(entry: Entry) -> str:
    made = entry.manifest
    told = (made.about.get(name) for name in ("method", "batch", "model", "environment", "devices"))
    what = ", ".join(text for text in told if text)
    return clean(f"{made.key}  {bytes_text(made.bytes):>10}  used {_when(entry.used_at)}  {what}")


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M")


def _as_dict(entry: Entry) -> dict[str, Any]:
    return {**msgspec.to_builtins(entry.manifest), "used_at": entry.used_at}
