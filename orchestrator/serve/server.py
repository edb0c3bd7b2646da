"""`serve`: from what was asked to a server that ends at once when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from orchestrator import crash
from orchestrator.errors import InputError, Problem
from orchestrator.run.priority import BACKGROUND_NICE
from orchestrator.serve import access, address, assets, figures, shelf
from orchestrator.serve.access import Access
from orchestrator.serve.app import Dashboard
from orchestrator.serve.errands import Errands
from orchestrator.serve.guard import Guard
from orchestrator.serve.lane import Lane
from orchestrator.serve.watched import Lanes
from orchestrator.view.wording import clean

#: More are turned away, so that nobody takes all descriptors.
MOST_CONNECTIONS: Final = 200
IDLE_S: Final = 30
Say = Callable[[str], None]


def serve(named: str, listen: str, token_file: str | None, answer: Say, say: Say) -> None:
    """Returns when a signal came. `answer`: where it listens; `say`: what goes wrong. Raises InputError."""
    place, where, token = _all_of(
        lambda: shelf.place(named), lambda: address.address(listen), lambda: access.given_token(token_file)
    )
    made = "" if token or where.local else access.new_token()
    os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
    with address.bound(where, listen) as listener:
        port = listener.getsockname()[1]
        allowed = Access(token or made, f"airlock_{port}")
        errands = Errands()
        lanes = Lanes(Lane("quick"), Lane("slow", figures.prepare), Lane("drawing"), errands)
        app = Guard(Dashboard(place, allowed, lanes).app(), allowed, assets.text("login.html"), _teller(say))
        answer(where.url(port) + (f"#token={made}" if made else ""))
        if not where.local:
            say("whoever has the token sees the runs, and what goes over the network is not encrypted")
        try:
            asyncio.run(_until_told(app, listener))
        finally:
            errands.close()


def _all_of(*steps: Callable[[], Any]) -> Iterable[Any]:
    """What each gives; raises one InputError with the problems of all."""
    found, problems = [], list[Problem]()
    for step in steps:
        try:
            found.append(step())
        except InputError as exc:
            problems += exc.problems
    if problems:
        raise InputError(problems)
    return found


def _teller(say: Say) -> Callable[[Exception], str]:
    def tell(exc: Exception) -> str:
        said = crash.tell(exc)
        say("\n".join(map(clean, said.split("\n"))))
        return said.partition("\n")[0]

    return tell


async def _until_told(app: ASGIApp, listener: socket.socket) -> None:
    server = _Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what is no HTTP is turned away without a word; what nobody foresaw tells the guard
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_S,
        )
    )
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN or signum != signal.SIGHUP:
            loop.add_signal_handler(signum, server.leave)
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Its answers are short, so nobody's connection is waited for."""

    def leave(self) -> None:
        self.should_exit = self.force_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
