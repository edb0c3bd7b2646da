"""Whether a run that goes on is the run that was begun: its environments, by whatever name."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.plan import Plan
from orchestrator.run.sweep import environment_changes
from tests.unit.rundirs import a_plan

OLD = {"hf-cpu": "h1", "vllm-cpu": "v1"}


def with_vllm_in(name: str) -> Plan:
    plan = a_plan()
    return replace(plan, starts=tuple(replace(s, env=name) if s.env == "vllm-cpu" else s for s in plan.starts))


def said(now: Plan, new: dict[str, str]) -> list[str]:
    return list(environment_changes(a_plan(), now, OLD, new))


def test_the_same_environments_are_no_change() -> None:
    assert said(a_plan(), OLD) == []


def test_an_environment_that_changed_under_its_name_is_found() -> None:
    (line,) = said(a_plan(), {**OLD, "vllm-cpu": "v2"})
    assert line == "environment vllm-cpu is not the one this run began with (v1 then, v2 now)"


def test_another_environment_under_another_name_is_found() -> None:
    (line,) = said(with_vllm_in("mine"), {**OLD, "mine": "v2"})
    assert line == "environment mine of vllm is not the one this run began with (vllm-cpu, v1 then, v2 now)"


def test_the_same_packages_under_another_name_are_the_same_environment() -> None:
    assert said(with_vllm_in("mine"), {"hf-cpu": "h1", "mine": "v1"}) == []


def test_an_environment_that_did_not_work_then_or_now_says_nothing() -> None:
    assert said(a_plan(), {"hf-cpu": "h1"}) == []
    assert list(environment_changes(a_plan(), a_plan(), {"hf-cpu": "h1"}, OLD)) == []
