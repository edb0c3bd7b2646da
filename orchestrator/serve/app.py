"""What is answered to which path: pages, the API, metrics. All of it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from orchestrator.serve import assets, logs, metrics
from orchestrator.serve.access import Access
from orchestrator.serve.lane import PATIENCE_S, Shared
from orchestrator.serve.sheet import Sheet, sheet
from orchestrator.serve.shelf import Found, Place, Shelf, Stamp
from orchestrator.serve.watched import Known, Lanes, Watched
from orchestrator.view.wording import clean

#: Runs that may have what is large of them in memory.
MOST_AWAKE: Final = 8
_NO_RUN: Final = "There is no such run, or no more."
_FOR_PROGRAMS: Final = ("/api/", "/assets/")
#: Of the page of a whole report, which brings a policy of its own that allows it no request.
REPORT_POLICY: Final = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'none'"


class Dashboard:
    """The answers of one server."""

    def __init__(self, place: Place, access: Access, lanes: Lanes) -> None:
        self._place, self._access, self._lanes = place, access, lanes
        self._found: Shared[Found] = Shared(lanes.quick, lambda _last: place.look())
        self._vega: Shared[Sheet] = Shared(lanes.drawing, self._draw)
        self._shelf: Shelf[Watched] = Shelf(partial(_watched, lanes), Watched.rest, MOST_AWAKE)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/runs/{key}", self.page),
                Route("/runs/{key}/report", self.report),
                Route("/assets/{name}", self.asset),
                Route("/login", self.login),
                Route("/healthz", self.health),
                Route("/metrics", self.metrics),
                Route("/api/runs", self.runs),
                Route("/api/runs/{key}", self.of_run(lambda run: run.live)),
                Route("/api/runs/{key}/figures", self.of_run(lambda run: run.figures)),
                Route("/api/runs/{key}/logs", self.logs),
                Route("/api/runs/{key}/logs/{name}", self.log),
            ],
            exception_handlers={404: _missing, 405: _missing},
        )

    def _draw(self, last: Sheet | None) -> Sheet:
        return last or assets.vega(self._lanes.errands.run("vega"))

    # --- pages ------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        key = request.path_params.get("key")
        if key is not None and await self._run(request) is None:
            return _page_of(_NO_RUN, 404)
        name = "list.html" if key is None and not self._place.alone else "run.html"
        return assets.PAGES[name].answer(request)

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = await self._vega.get() if name == assets.VEGA else assets.FILES.get(name)
        return found.answer(request) if found else _not_found("no such file")

    async def report(self, request: Request) -> Response:
        """The whole report, made when it is asked for and kept while the journal has not grown."""
        run = await self._run(request)
        if run is None:
            return _page_of(_NO_RUN, 404)
        known = await run.page.get()
        if known.values:
            return _page_of(known.values["reason"], 409)
        return known.sheet.answer(request, {"content-security-policy": REPORT_POLICY})

    async def login(self, request: Request) -> Response:
        """The token once, in a header, for a cookie that no script can read."""
        if self._access.token and not self._access.shows_token(request.headers):
            return JSONResponse({"error": "not the token"}, 401, {"www-authenticate": "Bearer"})
        response = Response(status_code=204)
        if self._access.token:
            response.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict")
        return response

    async def health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    # --- data --------------------------------------------------------------------------

    async def runs(self, request: Request) -> Response:
        found = await self._found.get()
        rows = await self._rows(found)
        folder = clean(str(self._place.folder))
        left_out = [clean(line) for line in found.left_out]
        return sheet({"folder": folder, "runs": rows, "left_out": left_out}).answer(request)

    async def metrics(self, request: Request) -> Response:
        rows = await self._rows(await self._found.get())
        body, kind = metrics.exposition(rows, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def logs(self, request: Request) -> Response:
        run = await self._run(request)
        if run is None:
            return _no_run()
        return sheet(await self._lanes.quick.run(partial(logs.listed, run.run_dir))).answer(request)

    async def log(self, request: Request) -> Response:
        run = await self._run(request)
        if run is None:
            return _no_run()
        found = await self._lanes.quick.run(partial(logs.tail, run.run_dir, request.path_params["name"]))
        return sheet(found).answer(request) if found else _not_found("no such log")

    def of_run(self, which: Callable[[Watched], Shared[Known]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            run = await self._run(request)
            return _no_run() if run is None else (await which(run).get()).sheet.answer(request)

        return answer

    async def _run(self, request: Request) -> Watched | None:
        found = await self._found.get()
        runs = self._shelf.arrange(found.runs)
        key = next(iter(runs)) if self._place.alone else request.path_params["key"]
        if key in runs:
            self._shelf.wake(key)
        return runs.get(key)

    async def _rows(self, found: Found) -> list[dict[str, Any]]:
        """Nobody waits for runs that take long to read: they are told as unread, and are there the next time."""
        runs = self._shelf.arrange(found.runs)
        return list(await asyncio.gather(*(_row(run, found.stamps[key]) for key, run in runs.items())))


async def _row(run: Watched, stamp: Stamp) -> dict[str, Any]:
    """What is quick to read may be newer."""
    known = await run.brief.glance(PATIENCE_S)
    if known is None:
        return {"key": run.key, "name": run.name, "state": "unread", "reason": "being read"}
    if known.stamp == stamp and known.values["state"] != "running":
        return known.values
    now = await run.live.glance(PATIENCE_S)
    return known.values | now.values if now else known.values


def _watched(lanes: Lanes, key: str, folder: Any) -> Watched:
    return Watched(key, folder, lanes)


def _no_run() -> Response:
    return _not_found(_NO_RUN)


def _page_of(reason: str, status: int) -> Response:
    """For who reads, and not for programs."""
    return HTMLResponse(assets.missing(reason), status)


def _not_found(what: str) -> Response:
    return JSONResponse({"error": what}, 404)


async def _missing(request: Request, exc: Exception) -> Response:
    reason, status = str(getattr(exc, "detail", exc)), getattr(exc, "status_code", 404)
    if request.url.path.startswith(_FOR_PROGRAMS):
        return JSONResponse({"error": reason}, status)
    return _page_of(reason, status)
