"""Hooks and webhooks: real programs and a real server are told, and nothing that they do changes a sweep."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator import proc
from orchestrator.console import Console
from orchestrator.definition.notifyuse import NotifyUse, Webhook
from orchestrator.errors import JournalError
from orchestrator.events import Event, Notified, RunEnded
from orchestrator.launcher import Launcher
from orchestrator.notify import notifier as notifier_module
from orchestrator.notify.message import Message, Points
from orchestrator.notify.notifier import Helper, Notifier
from orchestrator.notify.occasions import Occasions, Stand
from orchestrator.notify.recipients import lines
from orchestrator.notify.telling import telling
from orchestrator.report import RunView
from orchestrator.run.signals import StopFlag
from tests.conftest import below_us
from tests.process.ending import PRESSED_EVERY_S, SMALL
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, NO_SECOND_TRY, PATIENCE_S, Bench, method, wait_gone
from tests.unit.rundirs import a_plan

pytestmark = pytest.mark.usefixtures("nothing_leaked")

SECRET = "s3cr3t-of-the-lab"
TELL = """
import json, os, sys
told = {"argv": sys.argv[2:], "summary": json.load(sys.stdin), "nice": os.nice(0)}
told["env"] = {k: v for k, v in os.environ.items() if k.startswith("AIRLOCK_") and not k.startswith("AIRLOCK_TEST_")}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(told) + "\\n")
"""


class Server:
    """Keeps what it was sent; answers `status`."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, str], str]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.posts.append((self.path, dict(self.headers), body))
                self.send_response(outer.status)
                if outer.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(nothing_leaked: None) -> Iterator[Server]:  # noqa: ARG001
    made = Server()
    yield made
    made.close()


@pytest.fixture
def tell(tmp_path: Path) -> list[str]:
    """A command that keeps what it is told in told.jsonl."""
    (tmp_path / "tell.py").write_text(TELL)
    return [sys.executable, "tell.py", str(tmp_path / "told.jsonl")]


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]


def notified(bench: Bench) -> list[Notified]:
    return [event for event in bench.events if isinstance(event, Notified)]


# --- whole sweeps -----------------------------------------------------------------------


def test_a_command_and_a_webhook_are_told_of_the_end(
    bench: Bench, tmp_path: Path, tell: list[str], server: Server
) -> None:
    headers = {"Authorization": "Bearer env:LAB_TOKEN"}
    notify = {
        "command": [*tell, "{event}", "{exit_code}"],
        "webhook": [{"url": server.url, "headers": headers}, {"url": "env:LAB_HOOK", "format": "slack"}],
        "on": ["start", "end", "failure"],
    }
    methods = ["scripted", method("broken", at="load", do="raise")]
    bench.write(**SMALL, methods=methods, policies=NO_SECOND_TRY, notify=notify)
    bench.env |= {"LAB_TOKEN": SECRET, "LAB_HOOK": f"{server.url}/{SECRET}"}
    done = bench.run()
    assert done.returncode == 1, done.stdout + done.stderr
    start, end = sorted(told(tmp_path), key=lambda one: one["summary"]["at"])
    assert (start["argv"], end["argv"]) == (["start", ""], ["end", "1"])
    assert end["nice"] == 19
    assert end["env"] | {"AIRLOCK_HOME": ""} == {
        "AIRLOCK_HOME": "",
        "AIRLOCK_EVENT": "end",
        "AIRLOCK_RUN": str(bench.run_dir),
        "AIRLOCK_RUN_NAME": "test",
        "AIRLOCK_STATE": "finished",
        "AIRLOCK_EXIT_CODE": "1",
    }
    summary = end["summary"]
    assert summary["points"] == {"done": 1, "failed": 1, "skipped": 0, "total": 2}
    assert summary["leader"]["label"].startswith("scripted")
    (failure,) = summary["failures"]
    assert failure["label"].startswith("broken")
    assert "told to fail" in failure["cause"]
    posts = {(path, json.loads(body).get("event", "text")): headers for path, headers, body in server.posts}
    assert posts["/hook", "end"]["Authorization"] == f"Bearer {SECRET}"
    assert (f"/hook/{SECRET}", "text") in posts
    assert len(server.posts) == 4
    events = notified(bench)
    assert all(event.ok for event in events), events
    assert len(events) == 6
    view = RunView.load(bench.run_dir)
    assert (view.state, view.exit_code) == ("finished", 1)
    texts = [path.read_bytes() for path in bench.run_dir.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in texts)
    assert SECRET not in done.stdout + done.stderr
    bench.assert_clean()


def test_hooks_that_go_wrong_are_a_line_and_an_event_each(bench: Bench, tmp_path: Path, tell: list[str]) -> None:
    daemon = "import os, time; os.fork() or os.setsid() or os.fork() or time.sleep(1000)"
    commands = [
        ["./nosuch"],
        ["sh", "-c", "echo first; echo no mail today >&2; exit 3"],
        ["sh", "-c", "kill -9 $$"],
        ["yes"],
        [sys.executable, "-c", daemon],
        ["true"],
        tell,
    ]
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    notify = {"command": commands, "webhook": f"http://127.0.0.1:{port}/x", "on": ["end"]}
    bench.write(**SMALL, notify=notify)
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    said = {event.to: event.said for event in notified(bench)}
    assert said["./nosuch"] == "can't be started: No such file or directory"
    assert said["sh"] == "exit status 3: no mail today"
    assert said["sh (2)"] == "signal 9"
    assert said["yes"] == "ended, as it said more than 1 MiB"
    assert said["true"] == said[sys.executable] == said[f"{sys.executable} (2)"] == ""
    assert "can't be reached" in said[f"the webhook at http://127.0.0.1:{port}"]
    for event in notified(bench):
        assert f"{event.to} could not be told (end): {event.said}" in done.stdout or event.ok
    assert "warning: notify: ./nosuch can't be found" in done.stdout
    assert len(told(tmp_path)) == 1
    assert RunView.load(bench.run_dir).exit_code == 0
    assert isinstance([one for one in bench.events if not isinstance(one, Notified)][-1], RunEnded)
    bench.assert_clean()


def hanging(fifo: Fifo) -> list[str]:
    code = f"import os, signal, time; signal.signal(15, signal.SIG_IGN); open({fifo.path!r}, 'w').write('here\\n')"
    return [sys.executable, "-c", f"{code}; time.sleep(1000)"]


def test_no_hook_outlives_a_coordinator_that_is_killed(bench: Bench, fifo: Fifo) -> None:
    notify = {"command": hanging(fifo), "on": ["start"]}
    bench.write(**SMALL, methods=[method("slow", at="batch:2", do="hang")], notify=notify)
    running = bench.start()
    fifo.line()
    processes = bench.processes()
    assert any("time.sleep(1000)" in " ".join(proc.cmdline(ref.pid)) for ref in processes)
    running.kill()
    running.communicate()
    wait_gone([*processes, *below_us()], GONE_AFTER_KILL_S)  # a worker may have begun meanwhile


def test_a_second_interrupt_waits_for_no_hook(bench: Bench, fifo: Fifo) -> None:
    bench.write(**SMALL, notify={"command": hanging(fifo), "on": ["end"]})
    running = bench.start()
    fifo.line()
    began, ended = time.monotonic(), os.pidfd_open(running.pid)
    while not select.select([ended], [], [], PRESSED_EVERY_S)[0]:
        running.send_signal(signal.SIGINT)
        assert time.monotonic() - began < PATIENCE_S
    os.close(ended)
    out, err = running.communicate()
    assert time.monotonic() - began < notifier_module.END_S
    assert running.returncode in (0, 130), out + err
    assert "could not be told (end): no time was left" in out
    bench.assert_clean()


def test_a_secret_that_is_not_set_is_told_before_anything_starts(bench: Bench) -> None:
    bench.write(**SMALL, notify={"webhook": [{"url": "env:NOT_THERE"}, "env:NOR_THIS"]})
    done = bench.run()
    assert done.returncode == 2
    assert "notify.webhook[0].url: NOT_THERE is not set in the environment (export NOT_THERE=…)" in done.stderr
    assert "notify.webhook[1].url: NOR_THIS is not set" in done.stderr
    assert not bench.run_dir.exists()


# --- a notifier alone -----------------------------------------------------------------------


@pytest.fixture
def helper(tmp_path: Path, run_tag: str) -> Callable[..., Helper]:
    def make(*commands: tuple[str, ...], **webhook: Any) -> Helper:
        hooks = (Webhook(**webhook),) if webhook else ()
        use = NotifyUse(commands=commands, webhooks=hooks, on=("quarantine", "end", "failure"))
        return Helper(use, tmp_path, tmp_path / "logs" / "notify.log", run_tag)

    return make


MESSAGE = Message(event="end", run="x", run_dir="/runs/x", host="lab", at=1.0, state="finished", exit_code=0)


@pytest.mark.parametrize(("status", "said"), [(500, "it answered 500"), (302, "it answered 302"), (204, "")])
def test_what_a_server_answers(
    helper: Callable[..., Helper], server: Server, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOOK", server.url)
    server.status = status
    (found,) = helper(url="env:LAB_HOOK").tell(1, MESSAGE, lambda: False)
    assert found.to == "the webhook at $LAB_HOOK"
    assert (found.ok, found.said[: len(said)]) == (not said, said)
    assert [path for path, _, _ in server.posts] == ["/hook"], "a secret goes to no other address"


def test_a_secret_in_an_error_is_hushed(helper: Callable[..., Helper], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOOK", f"nonsense {SECRET}")
    one = helper(("sh", "-c", "echo $LAB_HOOK; exit 1"), url="env:LAB_HOOK")
    for found in one.tell(1, MESSAGE, lambda: False):
        assert not found.ok
        assert SECRET not in found.said
    assert SECRET not in one.log.read_text()


NONSENSE = (
    "a",
    "http:///{0}",
    "http://x.invalid:{0}/",
    "http://[{0}/",
    "http://127.0.0.1:9/{0} x",
    "file:///{0}",
    "{0}\n",
)


@pytest.mark.parametrize("address", NONSENSE)
@pytest.mark.parametrize("header", [SECRET, f"{SECRET}\nX: 1", f"{SECRET}\u20ac", f" {SECRET} \n"])
def test_no_address_and_no_header_is_told_in_an_error(
    helper: Callable[..., Helper], monkeypatch: pytest.MonkeyPatch, address: str, header: str
) -> None:
    monkeypatch.setenv("LAB_HOOK", address.format(SECRET))
    monkeypatch.setenv("LAB_TOKEN", header)
    one = helper(url="env:LAB_HOOK", headers={"Authorization": "Bearer env:LAB_TOKEN"})
    (found,) = one.tell(1, MESSAGE, lambda: False)
    assert not found.ok
    assert found.said
    assert SECRET not in found.said + one.log.read_text()


def dripping(link: socket.socket) -> None:
    link.recv(1 << 16)
    with suppress(OSError):
        for byte in b"HTTP/1.1 200 " + b"x" * 60_000:
            link.sendall(bytes([byte]))
            select.select([], [], [], 0.05)  # so slow it is


def resetting(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answering(data: bytes) -> Callable[[socket.socket], None]:
    def serve(link: socket.socket) -> None:
        link.recv(1 << 16)
        link.sendall(data)

    return serve


RUDE: dict[str, tuple[Callable[[socket.socket], object], str, str]] = {
    "byte by byte": (dripping, "http", "not done within 0.5 s"),
    "silent": (lambda link: all(iter(lambda: link.recv(1 << 16), b"")), "http", "0.5 s"),
    "reset": (resetting, "http", "reset"),
    "gone": (answering(b""), "http", ""),
    "nonsense": (answering(b"\0\xff" * 9 + b"\n"), "http", "BadStatusLine"),
    "a reason without end": (answering(b"HTTP/1.1 500 " + b"x" * 9000 + b"\r\n\r\n"), "http", "answered 500"),
    "no TLS": (answering(b"HTTP/1.1 200 OK\r\n\r\n"), "https", "can't be reached"),
}


@pytest.mark.parametrize("manners", list(RUDE))
def test_a_server_without_manners_has_its_time_and_no_more(
    helper: Callable[..., Helper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manners: str
) -> None:
    serve, scheme, says = RUDE[manners]
    hurried = tmp_path / "deliver.py"
    text = Path(notifier_module.HELPER).read_text()
    hurried.write_text(text.replace("COMMAND_S, POST_S = 30.0, 15.0", "COMMAND_S, POST_S = 30.0, 0.5"))
    monkeypatch.setattr(notifier_module, "HELPER", str(hurried))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def answer() -> None:
            link, _ = listening.accept()
            with link:
                serve(link)

        server = threading.Thread(target=answer)
        server.start()
        one = helper(("touch", "told"), url=f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/x")
        command, webhook = one.tell(1, MESSAGE, lambda: False)
        server.join()
    assert command.ok
    assert (tmp_path / "told").exists()
    assert not webhook.ok
    assert says in webhook.said
    assert 0 < len(webhook.said) <= 300


OBSTINATE = {
    "kills who started it": "kill -9 $PPID; sleep 1000",
    "daemonises": "trap '' TERM HUP; setsid sh -c 'sleep 1000 & sleep 1000' </dev/null >/dev/null 2>&1 & exit 0",
    "takes no input and closes it": "exec <&-; sleep 0",
    "forks and ends": "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; exit 7",
    "stops itself": "kill -STOP $$ & sleep 1000",
}


@pytest.mark.parametrize("how", list(OBSTINATE))
def test_whatever_a_hook_does_nothing_of_it_stays(
    helper: Callable[..., Helper], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier_module, "TELL_S", 1.0 if "stops" in how else 30.0)
    (found,) = helper(("sh", "-c", OBSTINATE[how])).tell(1, MESSAGE, lambda: False)
    assert found.said == {"forks and ends": "exit status 7", "kills who started it": "it ended"}.get(
        how, "ended after 1 s" if "stops" in how else ""
    )


def test_a_program_that_may_not_be_run_is_told_of(helper: Callable[..., Helper], tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("#!/bin/sh\n")
    (tmp_path / "odd").write_text("#!/no/such/shell\n")
    (tmp_path / "odd").chmod(0o755)
    found = helper(("./hook",), ("./odd",), ("./",)).tell(1, MESSAGE, lambda: False)
    assert [one.said for one in found] == [
        "can't be started: Permission denied",
        "can't be started: No such file or directory",
        "can't be started: Permission denied",
    ]


class Sweep:
    """What a notifier is told, and what it makes of it."""

    def __init__(self, helper: Helper) -> None:
        stand = Stand(Points, lambda: None)
        self.emitted: list[Event] = []
        self.said: list[str] = []
        self.full = False
        occasions = Occasions(helper.use, a_plan(), "/runs/x", "lab", stand)
        self.notifier = Notifier(helper, occasions, self.emit, self.said.append)

    def emit(self, event: Event) -> None:
        if self.full:
            raise JournalError("the disk is full")
        self.emitted.append(event)
        self.notifier.heed(event)

    def end(self) -> None:
        self.notifier.heed(RunEnded(at=1.0, exit_code=0, wall_s=1.0, measured_s=1.0))


def test_one_that_hangs_keeps_nobody_else_waiting(
    helper: Callable[..., Helper], fifo: Fifo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier_module, "END_S", 0.2)
    sweep = Sweep(helper(tuple(hanging(fifo)), ("touch", "{event}")))
    sweep.end()
    fifo.line()
    sweep.notifier.turn()
    sweep.notifier.close()
    found = {event.to: event for event in sweep.emitted if isinstance(event, Notified)}
    assert found[sys.executable].said.startswith("no time was left: a run's end waits 0.2 s at most")
    assert found["touch"].ok
    assert (tmp_path / "end").exists()
    sweep.notifier.close()


def test_nothing_that_breaks_on_the_way_is_raised(
    helper: Callable[..., Helper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(helper(("true",)))
    sweep.full = True
    sweep.end()
    sweep.notifier.close()
    assert sweep.said == ["not written down that true was told: the disk is full"]
    (tmp_path / "logs" / "notify.log").unlink()
    (tmp_path / "logs").rmdir()
    (tmp_path / "logs").write_text("no folder")
    sweep = Sweep(helper(("true",)))
    sweep.end()
    sweep.notifier.close()
    (found,) = sweep.emitted
    assert isinstance(found, Notified)
    assert not found.ok
    monkeypatch.setattr(Launcher, "run", None)
    monkeypatch.setattr(sweep.notifier, "_occasions", None)
    sweep.end()
    assert "nobody can be told of this run" in sweep.said[-1]


@pytest.mark.parametrize(
    ("trouble", "state", "code"),
    [(JournalError("the disk is full"), "stopped", 3), (RuntimeError("a fault of ours"), "crashed", None)],
)
def test_a_run_that_can_not_write_down_its_end_is_told_of(
    bench: Bench, tmp_path: Path, tell: list[str], trouble: Exception, state: str, code: int | None
) -> None:
    bench.run_dir.mkdir()
    ledger = SimpleNamespace(listeners=[], emit=print, points_ended=0, points_failed=0, skipped={}, plan=a_plan())
    outlook = SimpleNamespace(last=None)
    reaper = SimpleNamespace(run_tag="0" * 16)
    supervisor = SimpleNamespace(run_dir=bench.run_dir, outlook=outlook, plan=a_plan(), each_turn=None, reaper=reaper)
    use, console = NotifyUse(commands=(tuple(tell),)), Console(io.StringIO(), "plain")
    telling_args = use, tmp_path, cast("Any", supervisor), cast("Any", ledger), console
    with pytest.raises(type(trouble)), StopFlag() as stop, telling(*telling_args, stop):
        raise trouble
    console.close()
    (found,) = told(tmp_path)
    assert (found["summary"]["event"], found["summary"]["state"]) == ("end", state)
    assert found["summary"]["exit_code"] == code
    assert str(trouble) in found["summary"]["what"]


def test_the_plan_says_who_is_told_and_who_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("#!/bin/sh\n")
    (tmp_path / "there").chmod(0o755)
    use = NotifyUse(commands=(("./there",), ("true",), ("./{event}",), ("./not-there",)), on=("end",))
    assert list(lines(use, tmp_path)) == [
        "on end it tells `./there`, `true`, `./{event}` and `./not-there`",
        "notify: ./not-there can't be found or is not executable; while that is so, it is told of nothing",
    ]


def test_who_is_told_too_often_is_told_no_more(
    helper: Callable[..., Helper], fifo: Fifo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier_module, "END_S", 0.0)
    monkeypatch.setattr(notifier_module, "MOST_AT_ONCE", 1)
    sweep = Sweep(helper(tuple(hanging(fifo))))
    sweep.end()
    fifo.line()
    sweep.end()
    sweep.notifier.turn()
    (found,) = sweep.emitted
    assert isinstance(found, Notified)
    assert found.said == "1 earlier messages are still under way"
    sweep.notifier.close()


def test_a_helper_needs_nothing_of_ours(tmp_path: Path) -> None:
    """It runs without site-packages, and with no folder of ours in its path."""
    order = {"message": 1, "summary": "{}", "variables": {}, "commands": [{"name": "t", "argv": ["true"]}]}
    env = {"AIRLOCK_NOTIFY": json.dumps(order | {"webhooks": []}), "PATH": os.environ["PATH"]}
    read, write = os.pipe()
    argv = [sys.executable, "-I", "-S", notifier_module.HELPER]
    pid = os.posix_spawn(sys.executable, argv, env, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    with open(read) as output:
        assert json.loads(output.read()) == {"message": 1, "to": "t", "ok": True, "said": ""}
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not list(tmp_path.iterdir())
