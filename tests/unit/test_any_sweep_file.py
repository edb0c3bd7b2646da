"""Sweep files with anything in them: each is planned, or refused with what is wrong and where, in bounded time and
memory."""

from __future__ import annotations

import json
import os
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from orchestrator import config, devices
from orchestrator.definition.sections import SECTIONS
from orchestrator.definition.sweepfile import MAX_DEPTH
from orchestrator.errors import InputError
from orchestrator.notify import recipients
from orchestrator.nvml import Device
from orchestrator.run import prepare, scrutiny
from orchestrator.view import fairness
from tests.unit.oddfiles import FILES, odd_files, text_of

#: Far more than any of these files takes, on a busy machine too.
MOST_CPU_S = 20.0
MORE_MEMORY_BYTES = 4 << 30
HERE = devices.discover()
GPUS = tuple(Device(n, f"GPU-{n}f3a", "NVIDIA H200", 140 << 30, (9, 0)) for n in range(2))
PROMPTS = '{"q": "a", "prompt": "b", "qid": 1, "answers": [5], "expected": "x"}\n{"q": "c", "prompt": "d", "qid": 2}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With what FILES name. Meanwhile this process may take so much more memory, and no more."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "p.jsonl").write_text(PROMPTS.replace('"qid": 2', '"qid": 2, "answers": ["7"]'))
    (folder / "p.csv").write_text("q;a\nwhat;is\n")
    (folder / "lengths.txt").write_text("3\n4\n")
    (folder / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "cat.png.gz").write_bytes(b"\x1f\x8b")
    for name in ("fifo", "fifo.jsonl", "fifo.parquet"):
        os.mkfifo(folder / name)
    for name in ("loop", "loop.jsonl"):
        (folder / name).symlink_to(name)
    for name, about in (("model", {"model_type": "a"}), ("vision", {"model_type": "b", "vision_config": {"c": 1}})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(about))
        (folder / name / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        (folder / name / "tokenizer.json").write_text("{}")
    usual = resource.getrlimit(resource.RLIMIT_AS)
    held = int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0]) << 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRLOCK_HOME", str(folder / "home"))
        patch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        patch.setenv("HOOK", "https://ntfy.sh/x")
        resource.setrlimit(resource.RLIMIT_AS, (held + MORE_MEMORY_BYTES, usual[1]))
        try:
            yield folder
        finally:
            resource.setrlimit(resource.RLIMIT_AS, usual)


def planned(file: dict[str, Any], folder: Path) -> list[str]:
    """What `plan` says. Raises InputError."""
    machine = replace(HERE, kind="cuda", devices=GPUS) if file.get("name") == "of_gpus" else HERE
    (folder / "s.yaml").write_text(text_of(file))
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "discover", lambda: machine)
        ground = prepare.survey(folder / "s.yaml", (), said.append)
        told = recipients.lines(ground.config.notify, folder)
        return [*said, *prepare.describe(ground, said.append), *told, *fairness.lines(scrutiny.findings(ground))]


def refusal(file: dict[str, Any], folder: Path) -> list[str]:
    """Each problem, without the folder."""
    with pytest.raises(InputError) as caught:
        planned(file, folder)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_the_files_are_good_and_cover_all_sections(folder: Path) -> None:
    assert all(planned(file, folder) for file in FILES)
    assert {name for file in FILES for name in file} == {*SECTIONS}


@settings(max_examples=200, derandomize=True)
@given(odd_files())
def test_whatever_stands_in_a_file_is_planned_or_refused_with_its_place(folder: Path, file: dict[str, Any]) -> None:
    began = time.process_time()
    problems = None
    try:
        assert planned(file, folder)
    except InputError as exc:
        problems = exc.problems
    assert problems is None or (problems and all(one.where or one.key for one in problems))
    assert time.process_time() - began < MOST_CPU_S


# --- what was found so -------------------------------------------------------------


def scripted(**sections: Any) -> dict[str, Any]:
    """`warmup`, in the fourth line, is wrong as well."""
    return {"name": "a", "model": "scripted", "methods": ["scripted"], "warmup": -1, "prompts": ["x"], **sections}


@pytest.mark.parametrize(
    ("prompts", "key"),
    [
        ({"file": "p.jsonl", "template": "Q {q"}, "template"),
        ({"file": "p.jsonl", "template": "{a[}"}, "template"),
        ({"file": "p.jsonl", "template": "\ud800"}, "template"),
        ({"file": "p.jsonl", "columns": {"prompt": "q", "id": "a[0"}}, "columns.id"),
        ({"file": "p.jsonl", "columns": {"prompt": ""}}, "columns.prompt"),
        ({"file": "p.jsonl", "fromat": "csv"}, "fromat"),
        ({"file": "p.csv", "delimiter": ";;"}, "delimiter"),
        ({"file": "p.csv", "sample": {"count": 0}}, "sample.count"),
        ({"random": {"input_tokens": 5}}, "random"),
        ({"random": {"count": 3, "input_tokens": {}}}, "random.input_tokens"),
        ({"random": {"count": 3, "input_tokens": {"uniform": [5]}}}, "random.input_tokens.uniform"),
        ({"random": {"count": 3, "input_tokens": {"uniform": []}}}, "random.input_tokens.uniform"),
        ({"random": {"count": 3, "input_tokens": {"file": "fifo"}}}, "random.input_tokens.file"),
        (
            {
                "shared_prefix": dict.fromkeys(
                    ("groups", "prompts_per_group", "system_tokens", "question_tokens"), 100_000
                )
            },
            "shared_prefix",
        ),
        ({"file": "fifo.jsonl"}, "file"),
        ({"file": "fifo.parquet"}, "file"),
        ({"file": "a" * 5000, "format": "txt"}, "file"),
    ],
)
def test_a_fault_of_prompts_is_told_once_beside_the_others_of_the_file(prompts: Any, key: str, folder: Path) -> None:
    other, own = refusal(scripted(prompts=prompts), folder)
    assert other.startswith("s.yaml:4: warmup: must be")
    assert own.startswith(f"s.yaml:5: prompts.{key}: ")


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"answers": {"judge": "regex"}}, "answers.pattern"),
        ({"answers": {"judge": []}}, "answers.judge"),
        ({"policies": {"oom": "\ud800"}}, "policies.oom"),
        ({"notify": {"webhook": {"url": "\ud800"}}}, "notify.webhook.url"),
        ({"notify": {"command": ["tell", "{event!x}"]}}, "notify.command[1]"),
        ({"notify": {"command": ["tell", "{event:{run}}"]}}, "notify.command[1]"),
        ({"notify": {"command": ["tell", "{event:999999999}"]}}, "notify.command[1]"),
        ({"devices": {"cpus": ["0-8191"] * 3000}}, "devices.cpus"),
    ],
)
def test_a_fault_of_another_section_is_told_once_too(sections: Any, key: str, folder: Path) -> None:
    other, own = refusal(scripted(**sections), folder)
    assert other.startswith("s.yaml:4: warmup: must be")
    assert own.startswith(f"s.yaml:6: {key}: ")


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"hub": "org/name", "revision": "/dev/zero"}, "model.revision"),
        ({"hub": "org/name", "revision": "../../x"}, "model.revision"),
        ({"hub": "org/name", "revision": ""}, "model.revision"),
        ("a" * 5000 + "/b", "model"),
        ("./" + "a" * 5000, "model"),
    ],
)
def test_a_model_that_can_be_none_is_not_looked_for(model: Any, key: str, folder: Path) -> None:
    own, other = refusal(scripted(model=model, methods=["hf_sdpa"]), folder)
    assert own.startswith(f"s.yaml:2: {key}: ")
    assert other.startswith("s.yaml:4: warmup: must be")


@pytest.mark.parametrize("revision", ["main", "v1.0+cu12", "refs/pr/1", "0a1b2c3d", "feature/x_y"])
def test_names_that_git_gives_are_revisions(revision: str) -> None:
    text = text_of({**scripted(model={"hub": "org/name", "revision": revision}, methods=["hf_sdpa"]), "warmup": 1})
    assert config.parse(text, "s.yaml").model.revision == revision


@pytest.mark.parametrize(
    "curve", [{"normal": {"mean": 1e308, "stddev": 1e308}}, {"lognormal": {"median": 1e308, "sigma": 10}}]
)
def test_lengths_beyond_all_numbers_are_cut_to_the_bounds(curve: dict[str, Any], folder: Path) -> None:
    asked = {"count": 50, "input_tokens": {**curve, "min": 2, "max": 9}}
    told = planned({**scripted(prompts={"random": asked}), "warmup": 1}, folder)
    assert any("of 2 to 9 tokens" in line or "of 9 tokens" in line for line in told)


def test_values_nested_up_to_the_limit_are_planned_and_deeper_ones_refused(folder: Path) -> None:
    def nested(levels: int) -> dict[str, Any]:
        value: Any = "x"
        for _ in range(levels):
            value = [value]
        return {**scripted(methods=[{"name": "own", "base": "scripted", "engine_args": {"a": value}}]), "warmup": 1}

    above = 4  # the file, methods, the method, engine_args
    assert planned(nested(MAX_DEPTH - above), folder)
    assert refusal(nested(MAX_DEPTH - above + 1), folder) == [
        "s.yaml:3: is nested too deeply, or an anchor holds an alias of itself"
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["m0: &m0 {}", *(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}" for n in range(1, 60))],
        [f"a: &a\n  ? {'k' * 9000}\n  : [1, 2]", f"b: [{', '.join(['*a'] * 5000)}]"],
    ],
    ids=["merged twice at each level", "long names again and again"],
)
def test_aliases_that_multiply_what_is_no_value_are_bounded_too(lines: list[str]) -> None:
    with pytest.raises(InputError, match="once its aliases are filled in"):
        config.parse("\n".join(lines), "s.yaml")


def test_an_anchor_may_be_used_again() -> None:
    text = "name: a\nmodel: scripted\nmethods: [&x scripted]\nprompts: [&x hello, *x]\n"
    assert config.parse(text, "s.yaml").prompts.inline == ("hello", "hello")
