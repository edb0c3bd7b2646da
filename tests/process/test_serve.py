"""The dashboard over real sockets: what it shows, to whom, and that it leaves runs alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator import proc
from orchestrator.events import PointEnded
from orchestrator.outcomes import Cause
from tests.process.serving import PATIENCE_S, Served, command, served
from tests.process.sweeping import GONE_AFTER_KILL_S, Bench, wait_gone
from tests.unit.rundirs import HF, a_plan, begin, end, finished_run, launch

pytestmark = pytest.mark.usefixtures("nothing_leaked")

HOSTILE = "</script><img src=x onerror=alert(1)>"
TOKEN = "a-token-of-our-own-making"
#: From the signal to the end of the process, on a machine with neighbours.
SOON_S = 10.0


def some_runs(folder: Path) -> Path:
    """One finished run, one whose plan is no plan, a link, a folder with notes."""
    finished_run(folder / "good")
    (folder / "bad").mkdir()
    (folder / "bad" / "plan.json").write_bytes(b"\xff{")
    (folder / "notes").mkdir()
    (folder / "link").symlink_to(folder / "good")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return some_runs(tmp_path / "runs")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def own(runs: Path, home: Path) -> Iterator[Served]:
    """One that a test may do with as it likes."""
    with served(runs, home=home) as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that is only asked."""
    folder = tmp_path_factory.mktemp("serve")
    with served(some_runs(folder / "runs"), home=folder / "home") as found:
        yield found


def everything_in(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Names, sizes and times: what any write, and any lock file, would change."""
    infos = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {name: (info.st_size, info.st_mtime_ns, info.st_ctime_ns) for name, info in infos.items()}


# --- what is shown ------------------------------------------------------------------


def test_runs_are_listed_and_a_broken_one_is_a_row_with_its_reason(server: Served) -> None:
    found = server.runs()
    assert found["good"]["state"] == "finished"
    assert found["good"]["points"]["done"] == 8
    assert found["good"]["best"]["label"] == "hf_sdpa batch_size=2"
    assert found["good"]["bytes"] > 0
    assert found["bad"]["state"] == "broken"
    assert "plan.json" in found["bad"]["reason"]
    left_out = server.ask("/api/runs").json["left_out"]
    assert left_out == ["link: a symbolic link, not followed", "notes: a folder that holds no run"]


def test_every_page_and_every_part_of_the_api_of_every_run(server: Served) -> None:
    paths = ["/", "/metrics", "/healthz", *(f"/assets/{name}" for name in ("run.js", "vega.js", "theme.css"))]
    for key in (server.key("good"), server.key("bad")):
        paths += [f"/runs/{key}", *(f"/api/runs/{key}{part}" for part in ("", "/figures", "/logs"))]
    assert {path: server.ask(path).status for path in paths} == dict.fromkeys(paths, 200)


def test_figures_hold_the_table_and_the_plots(server: Served) -> None:
    found = server.ask(f"/api/runs/{server.key('good')}/figures").json
    assert found["table"]["columns"][0]["cells"] == ["hf_sdpa !", "hf_sdpa !", "vllm_fa !", "vllm_fa !"]
    assert {plot["id"] for plot in found["plots"]} >= {"speed-ttft", "batch-sizes"}


def test_the_whole_report_is_made_when_it_is_asked_for(server: Served) -> None:
    found = server.ask(f"/runs/{server.key('good')}/report")
    assert (found.status, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"hf_sdpa" in found.body
    assert "frame-ancestors 'none'" in found.headers["content-security-policy"]
    refused = server.ask(f"/runs/{server.key('bad')}/report")
    assert refused.status == 409
    assert b"plan.json" in refused.body
    assert b'<a href="/">' in found.body


@pytest.mark.parametrize("path", ["/runs/none", "/runs/none/report", "/elsewhere<b>"])
def test_who_reads_is_told_on_a_page_what_is_not_there(server: Served, path: str) -> None:
    found = server.ask(path)
    assert (found.status, found.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b'<a href="/">To the runs</a>' in found.body
    assert server.ask(f"/api{path}").json["error"]


def test_one_run_alone_is_shown_at_once(runs: Path, home: Path) -> None:
    with served(runs / "good", home=home) as server:
        assert b"Results so far" in server.ask("/").body
        assert server.ask("/api/runs/-").json["name"] == "good"


def test_what_has_not_changed_is_not_sent_again(server: Served) -> None:
    path = f"/api/runs/{server.key('good')}"
    tag = server.ask(path).headers["etag"]
    for shown in (tag, f"W/{tag}", f'"other", {tag}'):
        again = server.ask(path, If_None_Match=shown)
        assert (again.status, again.body) == (304, b"")
    assert server.ask(path, If_None_Match='"other"').status == 200


def test_a_run_that_comes_is_shown_and_one_that_goes_is_not(own: Served, runs: Path) -> None:
    key = own.key("good")
    finished_run(runs / "new")
    deadline = time.monotonic() + PATIENCE_S
    while "new" not in own.runs() and time.monotonic() < deadline:
        pass
    assert own.runs()["new"]["state"] == "finished"
    shutil.rmtree(runs / "good")
    while "good" in own.runs() and time.monotonic() < deadline:
        pass
    assert own.ask(f"/api/runs/{key}").status == own.ask(f"/runs/{key}").status == 404


def test_hostile_names_are_data(runs: Path, home: Path) -> None:
    name = os.fsdecode(b'\xff\x1b[31m <img src=x onerror=alert(1)>\n"}')
    plan = a_plan([HF])
    journal = begin(runs / name, plan)
    launch(journal, plan.starts[0], "w0-x")
    cause = Cause(cls="oom", message=HOSTILE)
    journal.emit(PointEnded(at=1003.0, point=plan.points[0].id, outcome="failed", cause=cause))
    end(journal, 130)
    (runs / name / "logs").mkdir(exist_ok=True)
    (runs / name / "logs" / "w0-x.log").write_bytes(b"\x1b]0;owned\x07" + HOSTILE.encode() + b"\n")
    with served(runs, home=home) as server:
        (shown,) = (run for run in server.runs().values() if run["state"] == "interrupted")
        assert "\x1b" not in shown["name"]
        assert "\n" not in shown["name"]
        run = server.ask(f"/api/runs/{shown['key']}")
        assert run.headers["content-type"] == "application/json"
        assert run.json["troubles"][0]["text"].endswith(f"failed: oom: {HOSTILE}")
        page = server.ask(f"/runs/{shown['key']}")
        assert b"onerror" not in page.body
        log = server.ask(f"/api/runs/{shown['key']}/logs/w0-x.log").json
        assert log["lines"] == [r"\x1b]0;owned\x07" + HOSTILE]
        families = {one.name: one for one in text_string_to_metric_families(server.ask("/metrics").body.decode())}
        (sample,) = families["airlock_run_starts"].samples
        assert sample.labels["run"] == shown["name"]


# --- to whom ------------------------------------------------------------------------


def test_headers_that_keep_pages_to_themselves(server: Served) -> None:
    for path in ("/", "/api/runs", "/metrics", "/assets/run.js", "/nothing"):
        headers = server.ask(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_a_site_that_has_its_name_point_here_gets_nothing(server: Served) -> None:
    assert server.ask("/api/runs", Host="evil.example").status == 403
    assert server.ask("/api/runs", Host="evil.example", method="POST").status in (403, 405)
    assert server.ask("/api/runs", Host="localhost:1").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_done_but_read(server: Served, method: str) -> None:
    assert server.ask("/api/runs", method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/runs/..%2f..%2fetc", "/runs/%2e%2e/plan.json", "/api/runs/..", "/api/runs/link"),
        *("/assets/..%2fapp.py", "/assets/../app.py", "/assets//etc/passwd", "/api/runs/good", "/%00", "/api/runs/%ff"),
    ],
)
def test_no_path_leads_anywhere_else(server: Served, path: str) -> None:
    assert server.ask(path).status == 404


def test_no_log_but_those_of_the_run(server: Served) -> None:
    base = f"/api/runs/{server.key('good')}/logs"
    for name in ("..%2fplan.json", "%2fetc%2fpasswd", "..", "w9.log"):
        assert server.ask(f"{base}/{name}").status == 404


def test_a_token_is_needed_once_it_is_given_and_is_told_nowhere(runs: Path, home: Path) -> None:
    file = home.parent / "token"
    file.write_text(TOKEN)
    with served(runs, "--token-file", str(file), home=home) as server:
        assert TOKEN not in server.url
        for path in ("/api/runs", "/metrics"):
            assert server.ask(path).status == server.ask(path, Authorization="Bearer wrong").status == 401
        page = server.ask("/")
        assert page.status == 401
        assert b'type="password"' in page.body
        assert server.ask("/login", Authorization="Bearer wrong").status == 401
        assert server.ask("/metrics", Authorization=f"Bearer {TOKEN}").status == 200
        cookie = server.ask("/login", Authorization=f"Bearer {TOKEN}").headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert server.ask("/api/runs", Cookie=cookie.partition(";")[0]).status == 200
        assert server.ask("/healthz").status == 200
        assert TOKEN not in " ".join(server.process.args if isinstance(server.process.args, list) else [])
        _, out, err = server.stop()
        assert TOKEN not in out + err


def test_elsewhere_than_on_loopback_a_token_is_made_and_printed_once(runs: Path, home: Path) -> None:
    with served(runs, "--listen", "0.0.0.0:0", home=home) as server:
        address, _, token = server.url.partition("#token=")
        assert len(token) >= 32
        assert server.ask("/api/runs", Host="whatever.example").status == 401
        assert server.ask("/api/runs", Authorization=f"Bearer {token}").status == 200
        _, out, err = server.stop()
        assert "not encrypted" in err
        assert token not in out + err
        assert address.startswith("http://")


def test_a_token_of_the_environment(runs: Path, home: Path) -> None:
    with served(runs, home=home, AIRLOCK_SERVE_TOKEN=TOKEN) as server:
        assert server.ask("/api/runs").status == 401
        assert server.ask("/api/runs", Authorization=f"Bearer {TOKEN}").status == 200


# --- how it begins and ends ---------------------------------------------------------


def refused(*args: str, **environ: str) -> str:
    done = subprocess.run(
        command(*args), env={**os.environ, **environ}, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    said = refused(str(tmp_path / "none"), "--listen", "here", "--token-file", str(tmp_path / "none"))
    assert "3 problems" in said
    assert "is no folder" in said
    assert "127.0.0.1:8765" in said


def test_without_a_word_it_is_the_folder_runs(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-m", "orchestrator", "serve"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "runs: is no folder" in done.stderr


def test_a_port_that_is_taken(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused(str(runs), "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "1 problem" in said
    assert "in use" in said
    assert "127.0.0.1:0" in said


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_a_signal_ends_it_at_once_and_quietly(own: Served, signum: int) -> None:
    """Also with connections that are open, one of them in the middle of a request, and one that waits for a report."""
    key = own.key("good")
    asking = threading.Thread(target=lambda: own.ask(f"/runs/{key}/report"))
    with (
        socket.create_connection(("127.0.0.1", own.port)) as idle,
        socket.create_connection(("127.0.0.1", own.port)) as half,
    ):
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        half.sendall(b"GET /api/runs HT")
        with socket.create_connection(("127.0.0.1", own.port)) as noise:
            noise.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
            assert b" 400 " in noise.recv(100)
        asking.start()
        while not proc.descendants([own.process.pid], proc.table()):
            own.ask("/healthz")
        began = time.monotonic()
        assert own.stop(signum) == (0, "", "")
        assert time.monotonic() - began < SOON_S
    asking.join()


# --- beside a sweep -----------------------------------------------------------------


def test_it_runs_at_the_lowest_priority(server: Served) -> None:
    assert os.getpriority(os.PRIO_PROCESS, server.process.pid) == 19


def test_it_only_reads_the_runs(own: Served, runs: Path) -> None:
    before = everything_in(runs)
    for name in ("good", "bad"):
        key = own.key(name)
        for path in (
            f"/runs/{key}",
            f"/runs/{key}/report",
            *(f"/api/runs/{key}{p}" for p in ("", "/figures", "/logs")),
        ):
            own.ask(path)
    own.ask("/metrics")
    own.stop()
    assert everything_in(runs) == before


def slow_sweep(bench: Bench) -> None:
    """Some seconds, with a failure at the end that is told as it comes."""
    methods = [
        {"name": "one", "base": "scripted", "engine_args": {"token_s": 0.05}},
        {"name": "two", "base": "scripted", "engine_args": {"fault": {"at": "batch:1", "do": "raise"}}},
    ]
    bench.write(methods=methods, sampling={"max_new_tokens": 16}, matrix={"batch_size": [1]})


def goes_on(sweep: subprocess.Popen[str]) -> bool:
    """After a moment, so that not all of the machine is spent on asking."""
    with suppress(subprocess.TimeoutExpired):
        sweep.wait(timeout=0.3)
    return sweep.poll() is None


def values(server: Served, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(server.ask("/metrics").body.decode())
    return {
        json.dumps(sample.labels, sort_keys=True): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def test_figures_of_a_running_sweep_move_and_it_ends_as_it_would_have(bench: Bench, tmp_path: Path) -> None:
    slow_sweep(bench)
    sweep = bench.start()
    with served(bench.folder, home=tmp_path / "home") as server:
        seen: list[dict[str, Any]] = []
        tokens: set[float] = set()
        phases: set[str] = set()
        while goes_on(sweep):
            run = server.runs().get("run")
            if run and run["state"] == "running":
                seen.append(server.ask(f"/api/runs/{run['key']}").json)
                tokens |= set(values(server, "airlock_run_generated_tokens_total").values())
                phases |= set(values(server, "airlock_slot_phase"))
        out, err = sweep.communicate()
        assert len({run["records"] for run in seen}) > 1, err
        assert len(tokens) > 1
        assert any("busy" in phase for phase in phases)
        assert any(slot["tokens_per_s"] for run in seen for slot in run["slots"])
        assert any(run["eta_s"] for run in seen)
        deadline = time.monotonic() + PATIENCE_S
        whole = f"/api/runs/{server.key('run')}"
        while (last := server.ask(whole).json)["state"] == "running" and time.monotonic() < deadline:
            pass
    assert (last["state"], last["exit_code"]) == ("finished", sweep.returncode), out
    assert any("engine_error" in one["text"] for one in last["troubles"])
    bench.assert_clean()


def test_a_coordinator_that_is_killed_is_told(bench: Bench, tmp_path: Path) -> None:
    bench.write(methods=[{"name": "one", "base": "scripted", "engine_args": {"token_s": 0.5}}])
    sweep = bench.start()
    with served(bench.folder, home=tmp_path / "home") as server:
        deadline = time.monotonic() + PATIENCE_S
        while server.runs().get("run", {}).get("state") != "running" and time.monotonic() < deadline:
            assert goes_on(sweep), sweep.communicate()
        left = bench.processes()
        sweep.kill()
        sweep.communicate()
        wait_gone(left, GONE_AFTER_KILL_S)
        while server.runs()["run"]["state"] == "running" and time.monotonic() < deadline:
            pass
        assert server.runs()["run"]["state"] == "crashed"
