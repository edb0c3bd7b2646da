"""A model's folder that is written to while a run goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.definition.inputs import SCRIPTED, ModelInfo
from orchestrator.outcomes import Cause
from orchestrator.run import modelwatch
from orchestrator.run.life import State, StopRequested
from orchestrator.run.modelwatch import MOST_S, ModelWatch
from orchestrator.run.stint import Stint
from orchestrator.stores.modelfiles import digest_of, marks_of
from tests.unit.house import Clock, House, a_house


class Course:
    def __init__(self) -> None:
        self.causes: list[Cause] = []

    def give_up(self, cause: Cause) -> None:
        self.causes.append(cause)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text('{"model_type": "llama"}')
    (found / "model.safetensors").write_bytes(b"weights")
    (found / "tokenizer.json").write_text("{}")
    (found / "train.log").write_text("step 1")
    return found


def watch_of(folder: Path, clock: Clock | None = None) -> ModelWatch:
    model = ModelInfo("m", str(folder), digest_of(folder), None, (), None, None)
    return ModelWatch(model, clock or Clock())


def asked(watch: ModelWatch) -> list[Cause]:
    course = Course()
    while not watch.settled(cast("Any", course)):
        pass
    return course.causes


def touched(folder: Path) -> None:
    os.utime(folder / "model.safetensors", ns=(1, 1))


def copied_over(folder: Path) -> None:
    (folder / "new").write_bytes(b"weights")
    (folder / "new").replace(folder / "model.safetensors")


def logged(folder: Path) -> None:
    (folder / "train.log").write_text("step 1\nstep 2")
    (folder / "trainer_state.json").write_text("{}")
    (folder / "optimizer.pt").write_bytes(b"moments")


@pytest.mark.parametrize("change", [lambda _folder: None, touched, copied_over, logged])
def test_the_same_model_is_loaded(folder: Path, change: Callable[[Path], None]) -> None:
    watch = watch_of(folder)
    change(folder)
    assert asked(watch) == []
    assert asked(watch) == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_another_model_in_its_place_is_not(folder: Path, name: str) -> None:
    watch, before = watch_of(folder), (folder / name).read_bytes()
    (folder / name).write_bytes(before[:-1] + b"?")
    os.utime(folder / name, ns=(1, 1))
    (cause,) = asked(watch)
    assert (cause.cls, cause.phase) == ("model", "loading")
    assert f"is another one now ({name})" in cause.message
    assert digest_of(folder) in cause.message
    (folder / name).write_bytes(before)
    assert asked(watch) == [], "it is back"


def test_one_that_is_gone_is_not_either(folder: Path) -> None:
    watch = watch_of(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.bin").symlink_to(folder / "nowhere")
    (cause,) = asked(watch)
    assert "model.safetensors" in cause.message


def test_the_scripted_engine_has_no_files() -> None:
    assert asked(ModelWatch(SCRIPTED)) == []


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set no file system answers."""
    answers = threading.Event()

    def slow(path: Path) -> Any:
        answers.wait()
        return marks_of(path)

    monkeypatch.setattr(modelwatch, "SOON_S", 0.0)
    monkeypatch.setattr(modelwatch, "marks_of", slow)
    answers.set()
    yield answers
    answers.set()


def test_a_file_system_that_hangs_holds_nobody_up_for_long(folder: Path, hanging: threading.Event) -> None:
    clock, course = Clock(), cast("Any", Course())
    watch = watch_of(folder, clock)
    hanging.clear()
    assert not watch.settled(course)
    clock.now += MOST_S
    assert not watch.settled(course)
    clock.now += MOST_S
    assert watch.settled(course), "the load has a limit of its own"


def test_what_was_found_for_one_that_is_gone_is_no_answer_for_a_later_one(
    folder: Path, hanging: threading.Event
) -> None:
    clock, course = Clock(), cast("Any", Course())
    watch, before = watch_of(folder, clock), (folder / "config.json").read_bytes()
    hanging.clear()
    (folder / "config.json").write_text("{}")
    assert not watch.settled(course)
    hanging.set()
    for thread in [one for one in threading.enumerate() if one.name == "model-look"]:
        thread.join()
    (folder / "config.json").write_bytes(before)
    clock.now += 3600
    assert asked(watch) == []


def a_called_stint(house: House, watch: ModelWatch, state: State) -> tuple[Stint, list[Any]]:
    """As it is in a run but for its worker; and what that is fed."""
    fed: list[Any] = []
    gate = SimpleNamespace(slots=house.gate.slots, admits=lambda _slot, _pids: "yes")
    stop = SimpleNamespace(count=0, requested=False)
    around = SimpleNamespace(gate=gate, stop=stop, time_up=lambda: "", closed=lambda: "", model=watch)
    stint = Stint(house["a"].job, house["a"].slot, cast("Any", around))
    life = SimpleNamespace(state=state, over=False)
    processes = SimpleNamespace(alive=lambda: [])
    takes = {"feed": fed.append, "grant": fed.append, "dispatch": fed.append}
    handle = SimpleNamespace(warden_pid=1)
    stint.worker = cast("Any", SimpleNamespace(life=life, name="w1", processes=processes, handle=handle, **takes))
    stint.telemetry = cast("Any", SimpleNamespace(begin=lambda *_: None))
    return stint, fed


@pytest.mark.parametrize("state", [State.STANDBY, State.READY], ids=["before the load", "during the load"])
def test_no_worker_measures_it_and_its_points_fail(folder: Path, tmp_path: Path, state: State) -> None:
    house = a_house(tmp_path, "a")
    house.allot()
    stint, fed = a_called_stint(house, watch_of(folder), state)
    (folder / "model.safetensors").write_bytes(b"other weights")
    while not any(isinstance(one, StopRequested) for one in fed):
        stint.advance()
    assert [type(one) for one in fed] == [StopRequested], "neither loaded nor given a batch"
    cause = house.causes()["a/0"]
    assert cause is not None
    assert cause.cls == "model"


@pytest.mark.parametrize("state", [State.STANDBY, State.READY])
def test_of_the_same_one_the_worker_goes_on(folder: Path, tmp_path: Path, state: State) -> None:
    house = a_house(tmp_path, "a")
    house.allot()
    stint, fed = a_called_stint(house, watch_of(folder), state)
    while not fed:
        stint.advance()
    assert not [one for one in fed if isinstance(one, StopRequested)]
