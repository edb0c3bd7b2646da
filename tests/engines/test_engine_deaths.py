"""Real engines whose processes are killed or stopped in the middle of a load or a batch, and their coordinator:
the sweep goes on or is resumed, no process is left, and the memory is back. See `deaths`.

AIRLOCK_TEST_DEPTH=full takes every blow of the matrix, which is most of an hour.
"""

from __future__ import annotations

import os

import pytest

from tests.engines.blows import CHOSEN, COORDINATOR, MATRIX, SETUPS, Blow
from tests.engines.conftest import FindEnv
from tests.engines.deaths import Verdict, strike, strike_coordinator

# Whole sweeps over many engine starts, 15 s each where nothing else runs.
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("nothing_leaked"), pytest.mark.timeout(1800)]

FULL = os.environ.get("AIRLOCK_TEST_DEPTH") == "full"


class Verdicts:
    """All blows of one setup are dealt in one sweep, when a test first asks for one of them."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._found: dict[Blow, Verdict] = {}
        self._failed: dict[str, BaseException] = {}

    def of(self, blow: Blow) -> Verdict:
        if blow.setup in self._failed:
            raise self._failed[blow.setup]
        if blow not in self._found:
            try:
                self._deal(blow)
            except BaseException as exc:
                self._failed[blow.setup] = exc
                raise
        return self._found[blow]

    def _deal(self, blow: Blow) -> None:
        together = [
            one for one in (MATRIX if FULL else CHOSEN) if one.setup == blow.setup and one.victim != COORDINATOR
        ]
        for verdict in strike(self._folders.mktemp("d"), SETUPS[blow.setup], together):
            self._found[verdict.blow] = verdict


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return Verdicts(tmp_path_factory)


def each(*, coordinator: bool) -> list[object]:
    skip = pytest.mark.skip(reason="AIRLOCK_TEST_DEPTH=full runs it")
    wanted = [blow for blow in MATRIX if (blow.victim == COORDINATOR) == coordinator]
    return [pytest.param(one, id=str(one), marks=[] if FULL or one in CHOSEN else [skip]) for one in wanted]


@pytest.mark.parametrize("blow", each(coordinator=False))
@pytest.mark.usefixtures("demo")
def test_the_sweep_goes_on(blow: Blow, verdicts: Verdicts, find_env: FindEnv) -> None:
    for engine in ("hf", SETUPS[blow.setup].engine):
        find_env(engine)
    verdict = verdicts.of(blow)
    assert not verdict.faults, verdict


@pytest.mark.parametrize("blow", each(coordinator=True))
@pytest.mark.usefixtures("demo")
def test_the_run_is_resumed(blow: Blow, find_env: FindEnv, tmp_path_factory: pytest.TempPathFactory) -> None:
    for engine in ("hf", SETUPS[blow.setup].engine):
        find_env(engine)
    verdict = strike_coordinator(tmp_path_factory.mktemp("d"), blow)
    assert not verdict.faults, verdict
