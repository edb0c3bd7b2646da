"""What stands before every answer: who may ask, and what a browser may do with what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.serve.access import METHODS, Access, Refusal

#: Nothing from elsewhere, nothing inline.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class Guard:
    """
    login  the page that asks for the token
    tell   takes what nobody foresaw, and gives a sentence about it
    """

    def __init__(self, app: ASGIApp, access: Access, login: str, tell: Callable[[Exception], str]) -> None:
        self._app, self._access, self._login, self._tell = app, access, login, tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        try:
            refusal = self._access.refusal(scope["method"], scope["path"], Headers(scope=scope))
            app = self._app if refusal is None else self._refused(scope, refusal)
            await app(scope, receive, answer.send)
        except asyncio.CancelledError:
            await answer.instead("the server has ended", 503)
        except Exception as exc:
            await answer.instead(self._tell(exc), 500)

    def _refused(self, scope: Scope, refusal: Refusal) -> Response:
        if refusal.status == 401 and not scope["path"].startswith(("/api/", "/metrics")):
            return HTMLResponse(self._login, 401, {"www-authenticate": "Bearer"})
        headers = {405: {"allow": ", ".join(METHODS)}, 401: {"www-authenticate": "Bearer"}}
        return JSONResponse({"error": refusal.reason}, refusal.status, headers.get(refusal.status))


class _Answer:
    """Puts HEADERS on whatever is answered, those apart that the answer has itself."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)

    async def instead(self, reason: str, status: int) -> None:
        """Unless something has been answered already."""
        if not self._begun:
            await JSONResponse({"error": reason}, status)({"type": "http"}, _nothing, self.send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
