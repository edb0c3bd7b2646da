"""Where an export may go: what stands there is replaced only if it is an export as well, or on demand."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from orchestrator.errors import Problem
from orchestrator.journal import PLAN_NAME, PROMPTS_NAME, SWEEP_NAME
from orchestrator.record.disk import reading
from orchestrator.record.lock import LOCK_NAME
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME

_OF_A_RUN: Final = frozenset({SWEEP_NAME, PLAN_NAME, PROMPTS_NAME, RECORDS_NAME, JOURNAL_NAME, LOCK_NAME})
#: How an export begins, as JSON lines or CSV; of Parquet the end tells.
_BEGINS: Final = re.compile(rb'\{"run":"(?:[^"\\]|\\.)*","run_id":"|(?:\xef\xbb\xbf)?"run","run_id",').match
_HEAD_BYTES: Final = 4096
_PARQUET, _MARK, _TAIL_BYTES = b"PAR1", b"airlock.schema_version", 1 << 18


def problems(path: Path, force: bool) -> list[Problem]:
    """Why nothing can be put there."""
    where, real = f"--output {path}", Path(os.path.realpath(path))
    if not real.parent.is_dir():
        return [Problem(where, "", f"there is no folder {real.parent}", "make it first")]
    if real.name in _OF_A_RUN and (real.parent / JOURNAL_NAME).exists():
        return [Problem(where, "", "is part of a run", "choose another name")]
    if not real.exists():
        return []
    if not real.is_file():
        return [Problem(where, "", "is there, and is no regular file", "without --output it goes to standard output")]
    if force or _is_export(real):
        return []
    return [Problem(where, "", "is there, and was not made by `export`", "choose another name, or --force")]


def _is_export(path: Path) -> bool:
    """An empty one is: that of a run without outputs."""
    try:
        with reading(path) as file:
            begin = file.read(_HEAD_BYTES)
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return not begin or bool(_BEGINS(begin)) or (begin.startswith(_PARQUET) and _MARK in file.read())
    except OSError:
        return False
