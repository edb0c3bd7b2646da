"""Whether a run that goes on is the run that was begun: its environments, by whatever name, and its model."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from orchestrator.definition.inputs import DIGEST_SCHEME, FIRST_SCHEME, PromptSet
from orchestrator.plan import Plan
from orchestrator.provenance import DeviceFound, Provenance
from orchestrator.run.lending import HEEDED
from orchestrator.run.prepare import Ground, Prepared
from orchestrator.run.provenance import changed_variables, other_machine
from orchestrator.run.sweep import Request, environment_changes, model_scheme
from orchestrator.stores.envstate import EngineEnv, Fingerprint
from protocol.specs import MethodSpec
from tests.unit.rundirs import HF, a_plan, begin

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


VARIABLES = {"VLLM_USE_X": "1", "OMP_NUM_THREADS": "4", "HF_HOME": "/h", "SGLANG_Y": "1", "VLLM_LOGGING_LEVEL": "INFO"}


def test_variables_that_decide_how_an_engine_of_the_run_works_are_found() -> None:
    now = {"VLLM_USE_X": "0", "VLLM_HOST_IP": "::1", "TORCH_LOGS": "+all", "SLURM_JOB_ID": "8", "TORCH_COMPILE_Z": "on"}
    assert list(changed_variables(VARIABLES, now, [MethodSpec("h", "hf"), MethodSpec("v", "vllm")])) == [
        "the variable OMP_NUM_THREADS is not what this run began with (4 then, not set now)",
        "the variable TORCH_COMPILE_Z is not what this run began with (not set then, on now)",
        "the variable VLLM_USE_X is not what this run began with (1 then, 0 now)",
    ]
    assert list(changed_variables(VARIABLES, dict(VARIABLES), [MethodSpec("v", "vllm")])) == []


def test_variables_that_no_worker_has_of_the_caller_are_no_change() -> None:
    """Each method may have its own, as the report advises for threads."""
    own = MethodSpec("own", "hf", env_vars={"OMP_NUM_THREADS": "4"})
    for methods, told in (([own], 0), ([own, MethodSpec("plain", "hf")], 1)):
        found = changed_variables({"OMP_NUM_THREADS": "8"}, {"OMP_NUM_THREADS": "2"}, methods)
        assert len(list(found)) == told


@pytest.mark.parametrize(
    "name", ["FLASHINFER_WORKSPACE_BASE", "VLLM_RPC_BASE_PATH", "VLLM_DO_NOT_TRACK", "VLLM_API_KEY", "KMP_WARNINGS"]
)
def test_where_and_how_much_is_told_is_no_change(name: str) -> None:
    """A folder of each job, say, by which an unattended run would not go on."""
    assert list(changed_variables({name: "/job/1"}, {name: "/job/2"}, [MethodSpec("v", "vllm")])) == []


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (["A100", "A100"], {"A100"}, ""),
        (["A100", "H100"], {"H100"}, ""),
        (["A100"], {"H100"}, "the GPU of this machine is H100, and this run began on A100"),
        ([], set(), "the CPU of this machine is Xeon, and this run began on Epyc"),
        ([], {"H100"}, ""),  # nothing was told of them
    ],
)
def test_another_kind_of_machine_is_found(then: list[str], now: set[str], told: str) -> None:
    gpus = [DeviceFound(uuid=f"GPU-{n}", name=name) for n, name in enumerate(then)]
    first = cast(Provenance, SimpleNamespace(devices=gpus, cpu="Epyc"))
    assert list(other_machine(first, now, "Xeon")) == ([told] if told else [])
    assert list(other_machine(first, {one.name for one in gpus}, "Epyc")) == []
    assert list(other_machine(first, {one.name for one in gpus}, "")) == []


@pytest.mark.parametrize(("digest", "scheme"), [("0123456789abcdef", FIRST_SCHEME), ("v2-0123", DIGEST_SCHEME)])
def test_a_run_that_goes_on_knows_its_model_as_it_did(tmp_path: Path, digest: str, scheme: str) -> None:
    plan = replace(a_plan(), model=replace(a_plan().model, digest=digest))
    begin(tmp_path / "run", plan).close()
    heard: list[str] = []
    assert model_scheme(tmp_path / "run", Request(Path("x"), resume=True), heard.append) == scheme
    assert ["can't be told" in line for line in heard] == [True] * (scheme == FIRST_SCHEME)


def test_a_run_that_begins_knows_its_model_by_the_newest_scheme(tmp_path: Path) -> None:
    assert model_scheme(tmp_path, Request(Path("x")), pytest.fail) == DIGEST_SCHEME


def test_what_decides_is_known_by_who_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.sh").write_text("#!/bin/sh\n")
    (tmp_path / "w.sh").chmod(0o755)
    own = MethodSpec(name="own", engine="scripted", worker=(str(tmp_path / "w.sh"),))
    ground = cast(Ground, SimpleNamespace(config=SimpleNamespace(methods=(own, HF))))
    plain = EngineEnv("plain", "hf", "/python", Fingerprint.of("3.11", {}, ""), "user")
    plugged = replace(plain, name="plugged", installed={"my-plugin": "2"}, plugins=("my-plugin",))
    for name in [name for name in os.environ if name.startswith(HEEDED)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_SETTINGS", str(tmp_path / "w.sh"))
    monkeypatch.setenv("EDITOR", str(tmp_path / "w.sh"))
    prepared = Prepared(ground, a_plan().model, PromptSet("", (), False), a_plan(), {"a": plugged, "b": plain})
    assert {name: list(files) for name, files in prepared.files.items()} == {
        "own": [str(tmp_path / "w.sh")],
        "environment plugged": ["my-plugin"],
        "the caller's variables": [str(tmp_path / "w.sh")],
    }
