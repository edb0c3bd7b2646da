"""Has messages told while the sweep goes on: each by a thread that starts a helper and waits for it.

Nothing of it can fail or hold up the sweep. What a helper or a hook leaves is ended with it, whatever it does; so is
all of it when the coordinator is killed, as each runs under a warden.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from orchestrator.definition.notifyuse import NotifyUse, Webhook, filled
from orchestrator.errors import JournalError, LaunchFailed
from orchestrator.events import Event, Notified
from orchestrator.launcher import Launcher, LaunchSpec
from orchestrator.notify.message import Message, request
from orchestrator.notify.occasions import Occasions

HELPER: Final = str(Path(__file__).with_name("deliver.py"))
LOG_NAME: Final = "notify.log"
INCARNATION: Final = "notify"
#: Of one message to all; its recipients have less each (see `deliver`).
TELL_S: Final = 60.0
#: How long the end of a run waits for what is still to be told.
END_S: Final = 15.0
STEP_S: Final = 0.1
#: One that hangs keeps no other from being told.
MOST_AT_ONCE: Final = 8
_LOG_BYTES: Final = 1 << 16


class _Result(msgspec.Struct):
    message: int
    to: str
    ok: bool
    said: str = ""


_decode = msgspec.json.Decoder(_Result).decode


@dataclass(frozen=True)
class Helper:
    """How a message is told: by a process in `folder`, where commands are looked for, of the run `tag`."""

    use: NotifyUse
    folder: Path
    log: Path
    tag: str

    def tell(self, number: int, message: Message, stop: Callable[[], bool]) -> list[Notified]:
        """One for each recipient. `number`: of the message, in this start of the run."""
        began = self._log_bytes()
        try:
            done = Launcher().run(self._spec(number, message), TELL_S, stop=stop)
        except LaunchFailed as exc:
            return [_notified(message, name, False, str(exc)) for name in self._names]
        found = {one.to: one for one in self._results(number, began)}
        stopped = f"no time was left: a run's end waits {END_S:g} s at most, and not after a second ^C"
        lost = stopped if done.stopped else f"ended after {TELL_S:g} s" if done.timed_out else "it ended"
        told = [found.get(name) or _Result(number, name, done.ok, "" if done.ok else lost) for name in self._names]
        return [_notified(message, one.to, one.ok, one.said) for one in told]

    def _log_bytes(self) -> int:
        self.log.parent.mkdir(exist_ok=True)
        return self.log.stat().st_size if self.log.exists() else 0

    @property
    def _names(self) -> list[str]:
        """Of all recipients, each another."""
        found = [*(command[0] for command in self.use.commands), *(webhook.name for webhook in self.use.webhooks)]
        seen = Counter[str]()
        for n, name in enumerate(found):
            seen[name] += 1
            found[n] = name if seen[name] == 1 else f"{name} ({seen[name]})"
        return found

    def _spec(self, number: int, message: Message) -> LaunchSpec:
        order = msgspec.json.encode(self._order(number, message)).decode()
        argv = (sys.executable, "-I", "-S", HELPER)
        env = {**os.environ, "AIRLOCK_NOTIFY": order}
        return LaunchSpec(argv, env, str(self.folder), str(self.log), self.tag, f"{INCARNATION}{number}")

    def _order(self, number: int, message: Message) -> dict[str, Any]:
        values, names = message.placeholders, iter(self._names)
        return {
            "message": number,
            "summary": msgspec.json.encode(message).decode(),
            "variables": {
                "AIRLOCK_EVENT": message.event,
                "AIRLOCK_RUN": message.run_dir,
                "AIRLOCK_RUN_NAME": message.run,
                "AIRLOCK_STATE": message.state,
                "AIRLOCK_EXIT_CODE": values["exit_code"],
            },
            "commands": [{"name": next(names), "argv": filled(one, values)} for one in self.use.commands],
            "webhooks": [{"name": next(names), **_posted(one, message)} for one in self.use.webhooks],
        }

    def _results(self, number: int, began: int) -> Iterator[_Result]:
        with suppress(OSError), open(self.log, "rb") as file:
            file.seek(began)
            for line in file.read(_LOG_BYTES).split(b"\n"):
                with suppress(msgspec.DecodeError):
                    if (found := _decode(line)).message == number:
                        yield found


def _posted(webhook: Webhook, message: Message) -> dict[str, Any]:
    made = request(message, webhook.format)
    return {"url": webhook.url, "headers": {**made.headers, **webhook.headers}, "body": made.body}


def _notified(message: Message, to: str, ok: bool, said: str) -> Notified:
    return Notified(at=time.time(), occasion=message.event, to=to, ok=ok, said=said)


class Notifier:
    """`heed` every event, `turn` now and then, `close` at the end: the main thread's. None of them raises."""

    def __init__(
        self, helper: Helper, occasions: Occasions, emit: Callable[[Event], None], say: Callable[[str], None]
    ) -> None:
        self._helper = helper
        self._occasions = occasions
        self._emit = emit
        self._say = say
        self._told: queue.SimpleQueue[Notified] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._threads: list[threading.Thread] = []
        self._count = 0

    def heed(self, event: Event) -> None:
        if not isinstance(event, Notified):
            self._guarded(lambda: self._occasions.heed(event))

    def turn(self) -> None:
        """Tells what is due, and writes down what was told."""
        self._guarded(self._occasions.due)
        with suppress(queue.Empty):
            while True:
                self._write_down(self._told.get_nowait())

    def ended(self, exit_code: int, reason: str) -> None:
        """Of a run that can't write down its end."""
        self._guarded(lambda: self._occasions.ended(exit_code, reason))

    def crashed(self, why: str) -> None:
        self._guarded(lambda: self._occasions.crashed(why))

    def close(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Waits END_S at most for what is still to be told, no longer than until it is `hurried`."""
        deadline = time.monotonic() + END_S
        while self._at_work() and time.monotonic() < deadline and not hurried():
            self._threads[0].join(STEP_S)
        self._hurry.set()
        for thread in self._threads:
            thread.join()  # what is under way is killed at its next step
        self.turn()

    def _guarded(self, what: Callable[[], list[Message]]) -> None:
        try:
            for message in what():
                self._put(message)
        except Exception as exc:
            self._say(f"nobody can be told of this run: {exc!r}")

    def _put(self, message: Message) -> None:
        self._count += 1
        if len(self._at_work()) >= MOST_AT_ONCE:
            self._told.put(_notified(message, "anybody", False, f"{MOST_AT_ONCE} earlier messages are still under way"))
            return
        thread = threading.Thread(target=self._tell, args=(self._count, message), name="notifier", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _at_work(self) -> list[threading.Thread]:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return self._threads

    def _tell(self, number: int, message: Message) -> None:
        # A signal taken by this thread would not wake the main thread's poll.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            found = self._helper.tell(number, message, self._hurry.is_set)
        except Exception as exc:
            found = [_notified(message, "anybody", False, repr(exc))]
        for one in found:
            self._told.put(one)

    def _write_down(self, event: Notified) -> None:
        try:
            self._emit(event)
        except JournalError as exc:
            self._say(f"not written down that {event.to} was{'' if event.ok else ' not'} told: {exc}")
