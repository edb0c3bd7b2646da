"""What a worker does about an engine's import, beside importing it."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

from protocol.messages import Imported
from workers.session import Session


class Engine:
    """Its import makes what stays."""

    made: list[list[int]]
    collected = 0

    @classmethod
    def import_engine(cls) -> str:
        before = collections()
        cls.made = [[n] for n in range(20_000)]
        cls.collected = collections() - before
        return "1.0"


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_what_an_import_makes_is_not_looked_through_for_garbage() -> None:
    """Neither meanwhile nor after it, when that would be in no figure; it is as old as if it had been."""
    sent: list[Imported] = []
    wire = SimpleNamespace(send=sent.append)
    session = SimpleNamespace(_termination=SimpleNamespace(window=nullcontext), _wire=wire, _enter=lambda _state: None)
    Session._import(cast("Any", session), cast("Any", Engine))
    assert gc.isenabled()
    assert Engine.collected == 0
    young = {id(one) for one in (*gc.get_objects(generation=0), *gc.get_objects(generation=1))}
    assert not young & set(map(id, Engine.made))
    assert gc.get_freeze_count() == 0, "it may become garbage"
    assert [one.engine_version for one in sent] == ["1.0"]
