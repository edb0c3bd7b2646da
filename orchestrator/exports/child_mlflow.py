"""The MLflow side of `child`: one MLflow run for each item, those of rows below that of the sweep.

A run is found again by its tag `airlock.key`: who exports twice updates. A figure is logged again only where it has
changed, as one step more, by which MLflow takes the later one; one that is gone becomes NaN, and a tag is removed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from types import TracebackType
from typing import Any

#: Of metrics, and of params and tags each: MLflow takes no more than 1000 of all in a call, nor longer texts.
METRICS, OTHERS = 800, 100
PARAM_CHARACTERS, TAG_CHARACTERS = 6000, 5000
STATUS = {"finished": "FINISHED", "failed": "FAILED", "running": "RUNNING", "killed": "KILLED"}
PARENT, KEY = "mlflow.parentRunId", "airlock.key"


class Tracker:
    """options: uri, experiment. `where` says where it all went; `notes` what was cut."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        # A folder as a store has to be allowed; whoever names one has chosen it.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow
        from mlflow.tracking import MlflowClient

        self._entities = mlflow.entities
        self._client = MlflowClient(tracking_uri=options["uri"] or None)
        self.where = f"{mlflow.get_tracking_uri() if not options['uri'] else options['uri']}"
        self._experiment = self._experiment_named(options["experiment"])
        self._parent = ""
        self.notes: list[str] = []

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        """Nothing waits to be sent."""

    def _experiment_named(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name))
        if found.lifecycle_stage != "active":
            raise ValueError(f"experiment {name} was deleted in MLflow: restore it, or name another")
        return str(found.experiment_id)

    def send(self, item: Mapping[str, Any]) -> None:
        run = self._run_of(item)
        run_id = run.info.run_id
        if item["sweep"]:
            self._parent = run_id
        at = round((item["end"] or 0) * 1000)
        params = [one for one in self._params(item) if one.key not in run.data.params]
        metrics = list(self._metrics(item["metrics"], run, at))
        tags = list(self._tags(item))
        for name in {name for name in run.data.tags if name.startswith("airlock.")} - {tag.key for tag in tags} - {KEY}:
            self._client.delete_tag(run_id, name)
        chunks = (_some(metrics, METRICS), _some(params, OTHERS), _some(tags, OTHERS))
        for some in zip_longest(*chunks, fillvalue=()):
            self._client.log_batch(run_id, *some)
        for path in item["files"].values():
            self._client.log_artifact(run_id, path)
        if item["state"] == "running":
            self._client.update_run(run_id, status="RUNNING")
        else:
            self._client.set_terminated(run_id, STATUS[item["state"]], at)

    def _run_of(self, item: Mapping[str, Any]) -> Any:
        found = self._client.search_runs([self._experiment], f"tags.`{KEY}` = '{item['key']}'", max_results=1)
        if found:
            return found[0]
        tags = {KEY: item["key"], **({} if item["sweep"] else {PARENT: self._parent})}
        begun = None if item["begin"] is None else round(item["begin"] * 1000)
        return self._client.create_run(self._experiment, start_time=begun, tags=tags, run_name=item["name"])

    def _params(self, item: Mapping[str, Any]) -> Iterator[Any]:
        for name, value in item["params"].items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield self._entities.Param(name, self._cut(item, name, text, PARAM_CHARACTERS))

    def _metrics(self, told: Mapping[str, float], run: Any, at: int) -> Iterator[Any]:
        before: Mapping[str, float] = run.data.metrics
        gone = {name: math.nan for name in before if name not in told}
        for name, value in {**told, **gone}.items():
            if name not in before:
                yield self._entities.Metric(name, value, at, 0)
            elif not _same(before[name], value):
                earlier = self._client.get_metric_history(run.info.run_id, name)
                yield self._entities.Metric(name, value, at, 1 + max(one.step for one in earlier))

    def _tags(self, item: Mapping[str, Any]) -> Iterator[Any]:
        tags = {"airlock.run_id": item["run_id"], "airlock.run": item["run"]}
        tags |= {f"airlock.{name}": text for name, text in item["tags"].items()}
        for name, text in tags.items():
            yield self._entities.RunTag(name, self._cut(item, name, text, TAG_CHARACTERS))

    def _cut(self, item: Mapping[str, Any], name: str, text: str, most: int) -> str:
        if len(text) <= most:
            return text
        self.notes.append(f"{name} of {item['name']} was cut to {most} characters")
        return text[: most - 1] + "…"


def _same(before: float, now: float) -> bool:
    return before == now or (math.isnan(before) and math.isnan(now))


def _some(values: Iterable[Any], count: int) -> Iterator[list[Any]]:
    rest = iter(values)
    while some := list(islice(rest, count)):
        yield some
