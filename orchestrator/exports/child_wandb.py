"""The Weights & Biases side of `child`: one run for each item, all of a sweep in one group.

Ids are made of the item's key: whoever exports twice sends the same runs, which the server, and `wandb sync` of what
was written offline, take for one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

#: Of what W&B collects by itself about this process: it is no part of the sweep that is told of.
QUIET = {
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_X_DISABLE_META": "true",
    "WANDB_X_DISABLE_MACHINE_INFO": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false",
}
#: Of each: W&B's server takes no more, and offline nobody says so before it is sent.
NAME_CHARACTERS, TAG_CHARACTERS = 128, 64


class Tracker:
    """options: project, offline."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        os.environ.update(QUIET)
        import wandb

        self._wandb = wandb
        self._options = options
        self.where = ""
        self.notes: list[str] = []

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        """Its service ends only now."""
        self._wandb.teardown()

    def send(self, item: Mapping[str, Any]) -> None:
        offline = self._options["offline"]
        run: Any = self._wandb.init(
            project=self._options["project"],
            id=item["key"],
            name=self._cut(item["name"]),
            group=item["run_id"],
            job_type="sweep" if item["sweep"] else "row",
            tags=[text[:TAG_CHARACTERS] for text in _tags(item)],
            mode="offline" if offline else None,
            resume=None if offline else "allow",
        )
        config = {**item["params"], "run": item["run"], "run_id": item["run_id"]}
        run.config.update(config, allow_val_change=True)
        gone = dict.fromkeys(name for name in dict(run.summary) if not name.startswith("_"))
        told = {**item["metrics"], **item["tags"], "began_at": item["begin"], "ended_at": item["end"]}
        run.summary.update({**gone, **told})
        if item["files"]:
            artefact = self._wandb.Artifact(f"airlock-{item['run_id']}", type="sweep")
            for path in item["files"].values():
                artefact.add_file(path)
            run.log_artifact(artefact)
        folder = Path(run.dir).parent
        self.where = self.where or (_to_sync(folder) if offline else str(run.url))
        run.finish(exit_code=1 if item["state"] == "failed" else 0)
        if offline:
            _remove_earlier(folder, item["key"])

    def _cut(self, name: str) -> str:
        """The run is known by its id, and all that is cut stands in its config too."""
        if len(name) <= NAME_CHARACTERS:
            return name
        self.notes.append(f"the name {name} was cut to {NAME_CHARACTERS} characters")
        return name[: NAME_CHARACTERS - 1] + "…"


def _tags(item: Mapping[str, Any]) -> list[str]:
    told = (item["params"].get("method"), item["params"].get("engine"), item["tags"].get("outcome"))
    return [text for text in told if text]


def _to_sync(folder: Path) -> str:
    return f"{folder.parent}: wandb sync {folder.parent / 'offline-run-*'}"


def _remove_earlier(folder: Path, key: str) -> None:
    """Offline exports of the same item that this one stands for: two of them would be sent one over the other."""
    for other in folder.parent.glob(f"offline-run-*_*-{key}"):
        if other != folder and len(other.name) == len(folder.name):
            shutil.rmtree(other)
