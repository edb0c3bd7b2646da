"""plan.json: what is read is what was written, whole or not at all, by whatever layout."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.errors import JournalError
from orchestrator.plan import Plan
from orchestrator.record.planfile import PLAN_NAME, lines, read_plan
from protocol.specs import MethodSpec
from tests.unit.rundirs import HF, VLLM, a_plan
from tests.unit.test_plan import planned

ODD = MethodSpec(name='a "starts":[', engine="hf", summary='b","points":[\n', engine_args={"points": [], "x": ["]}\n"]})


def written(folder: Path, plan: Plan) -> Path:
    (folder / PLAN_NAME).write_bytes(b"".join(lines(plan)))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@given(
    methods=st.lists(st.sampled_from([HF, VLLM, ODD]), max_size=3, unique_by=lambda one: one.name),
    sizes=st.lists(st.integers(1, 9), max_size=3, unique=True),
    repeats=st.integers(0, 3),
    name=st.text(st.characters(codec="utf-8")),
)
def test_a_plan_comes_back(
    tmp_path_factory: pytest.TempPathFactory, methods: list[MethodSpec], sizes: list[int], repeats: int, name: str
) -> None:
    plan = replace(a_plan(methods, sizes or [1], repeats), name=name)
    folder = written(tmp_path_factory.mktemp("plan"), plan)
    assert read_plan(folder) == plan
    assert msgspec.json.decode((folder / PLAN_NAME).read_bytes(), type=Plan) == plan, "it is one JSON value"


@pytest.mark.parametrize("indent", [-1, 0, 1])
def test_any_other_layout_is_read_too(folder: Path, indent: int) -> None:
    plan = a_plan()
    (folder / PLAN_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=indent))
    assert read_plan(folder) == plan


def test_other_tools_find_each_point_with_its_whole_configuration(folder: Path) -> None:
    plan = planned("matrix: {batch_size: [1, 2], dtype: [auto, float32]}\nrepeats: 2\n")
    found = json.loads((written(folder, plan) / PLAN_NAME).read_text())
    assert [p["config"] for s in found["starts"] for p in s["points"]] == [
        json.loads(msgspec.json.encode(point.config)) for point in plan.points
    ]
    assert len((folder / PLAN_NAME).read_text().splitlines()) == 1 + len(plan.points) + 2 * len(plan.starts) + 1


def test_points_share_what_they_have_in_common(folder: Path) -> None:
    plan = read_plan(written(folder, a_plan([HF], [1, 2, 3], 3)))
    configs = [point.config for point in plan.points]
    assert len({id(one.method) for one in configs}) == len({id(one.model_path) for one in configs}) == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_is_no_plan(folder: Path, share: float) -> None:
    path = written(folder, a_plan()) / PLAN_NAME
    data = path.read_bytes()
    path.write_bytes(data[: round(len(data) * share)])
    with pytest.raises(JournalError, match=r"plan.json: is not a plan of this version"):
        read_plan(folder)


def test_nor_is_one_without_one_of_its_lines(folder: Path) -> None:
    path = written(folder, a_plan()) / PLAN_NAME
    whole = path.read_bytes().splitlines(keepends=True)
    plan = read_plan(folder)
    for at in range(len(whole)):
        path.write_bytes(b"".join([*whole[:at], *whole[at + 1 :]]))
        try:
            assert read_plan(folder) != plan, "a point less is another plan, as its digest says"
            assert whole[at].startswith(b'{"id"')
        except JournalError:
            assert not whole[at].startswith(b'{"id"')


def test_nor_is_what_something_was_added_to(folder: Path) -> None:
    path = written(folder, a_plan()) / PLAN_NAME
    path.write_bytes(path.read_bytes() + b"{}")
    with pytest.raises(JournalError, match="something follows it"):
        read_plan(folder)


def test_a_file_that_is_not_there_is_told_by_its_name(folder: Path) -> None:
    with pytest.raises(JournalError, match=r"plan.json: No such file"):
        read_plan(folder)
