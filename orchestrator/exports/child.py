"""What runs in a tracker's own interpreter: the standard library and that tracker, and nothing else of ours.

Started by path, child.py TRACKER ITEMS ANSWERS. ITEMS are JSON lines: the options, then one item each (see `tracked`).
To ANSWERS goes a line for each item, {"did": key}, and at the end {"where": …, "notes": […]} or {"error": …}.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent


def tracker_named(name: str) -> Any:
    """The module beside this one. This folder is no place to import from: it must hide nobody's module."""
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != HERE]
    spec = importlib.util.spec_from_file_location(f"airlock_child_{name}", HERE / f"child_{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(out: IO[str], **told: Any) -> None:
    out.write(json.dumps(told) + "\n")
    out.flush()


def send(name: str, lines: Iterator[str], out: IO[str]) -> None:
    options = json.loads(next(lines))
    try:
        tracker = tracker_named(name).Tracker(options)
    except ModuleNotFoundError as exc:
        answer(out, error=str(exc), missing=(exc.name or "").partition(".")[0] == name)
        return
    with tracker:
        for line in lines:
            item = json.loads(line)
            tracker.send(item)
            answer(out, did=item["key"])
    answer(out, where=tracker.where, notes=tracker.notes)


def main() -> int:
    name, items, answers = sys.argv[1:]
    with open(items, encoding="utf-8") as lines, open(answers, "w", encoding="utf-8") as out:
        try:
            send(name, iter(lines), out)
        except BaseException as exc:
            answer(out, error=f"{type(exc).__name__}: {exc}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
