"""What is made of an errand for Ray, and of what its driver reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.base import Errand, Sighting
from orchestrator.clusters.raywords import NAMED, lacking, read, refusals, resources, series

AMOUNTS = st.dictionaries(st.sampled_from(["GPU", "CPU", "one", "two"]), st.integers(1, 4).map(float))


def errand(**more: Any) -> Errand:
    return Errand("e", ("true",), {}, Path("/"), Path("/log"), **more)


def test_an_errand_needs_what_it_says_and_nothing_else() -> None:
    assert resources(errand()) == {}
    asked = errand(gpus=2, cpus=3, memory_mib=5, options=("big=1", "node:10.0.0.1=0.01"))
    assert resources(asked) == {"GPU": 2, "CPU": 3, "memory": 5 << 20, "big": 1, "node:10.0.0.1": 0.01}


@pytest.mark.parametrize("option", ["big", "=1", "big=", "big=0", "big=-1", "big=nan", "big=inf", "--partition=gpu"])
def test_every_option_that_is_no_resource_is_named(option: str) -> None:
    assert refusals(("fine=1", option, "other")) == [
        f"{option}: a Ray resource is written name=1",
        "other: a Ray resource is written name=1",
    ]


@pytest.mark.parametrize("name", NAMED)
def test_what_the_errand_has_a_field_for_is_no_option(name: str) -> None:
    assert refusals((f"{name}=1", "fine=0.5")) == [f"{name}=1: {name} is not asked for by an option"]


@given(AMOUNTS, st.lists(AMOUNTS, max_size=4))
def test_nothing_is_lacking_exactly_where_one_node_has_it_all(needs: dict[str, float], nodes: list[Any]) -> None:
    enough = [node for node in nodes if all(node.get(name, 0) >= needs[name] for name in needs)]
    assert (lacking(needs, nodes) == []) == bool(enough)


def test_it_is_said_which_no_node_has_or_that_none_has_all() -> None:
    nodes = [{"GPU": 1.0, "one": 1.0}, {"GPU": 2.0}]
    assert lacking({"GPU": 3, "gold": 1}, nodes) == [
        "no node has GPU 3 (the most: 2)",
        "no node has gold 1 (the most: 0)",
    ]
    assert lacking({"GPU": 2, "one": 1}, nodes) == ["no node has all of GPU 2, one 1"]
    assert lacking({"GPU": 1}, []) == ["no node has GPU 1 (the most: 0)"]


STARTED = {"event": "started", "pid": 7, "start_ticks": 1}
ENDED = {**STARTED, "event": "ended", "strays": [], "killed": 0}
READ: list[tuple[dict[str, Any], Sighting]] = [
    (
        {"state": "pending", "needs": {"GPU": 1.0}, "free": {"CPU": 2.0, "node:a": 1.0}},
        Sighting("pending", reason="needs GPU 1; free in the cluster: CPU 2"),
    ),
    ({"state": "running", "seen": {"host": "a", "gpus": "0"}}, Sighting("running", "a", seen={"gpus": "0"})),
    ({"state": "unknown", "error": "no answer"}, Sighting("unknown", reason="no answer")),
    (
        {"state": "ended", "seen": {"host": "a"}, "told": {**ENDED, "code": 3, "signal": None}},
        Sighting("ended", "a", reason="exit code 3", seen={"code": "3"}),
    ),
    (
        {"state": "ended", "seen": None, "told": {**ENDED, "code": None, "signal": "SIGKILL", "strays": ["x", "y"]}},
        Sighting("ended", reason="killed by SIGKILL", seen={"signal": "SIGKILL", "strays": "x, y"}),
    ),
    (
        {"state": "ended", "told": {"event": "failed", "error": "OSError: no"}},
        Sighting("ended", reason="could not be started: OSError: no"),
    ),
    (
        {"state": "ended", "told": STARTED},
        Sighting("unknown", reason="its warden was killed; what it guarded may go on"),
    ),
]


@pytest.mark.parametrize(("report", "sighting"), READ, ids=lambda value: getattr(value, "reason", ""))
def test_a_report_is_read(report: dict[str, Any], sighting: Sighting) -> None:
    assert read(report) == sighting


def test_versions_of_one_series_are_alike() -> None:
    assert series("2.60.0") == series("2.60.1.dev0") == "2.60" != series("2.6.0")
