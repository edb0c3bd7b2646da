"""The section `notify`: what it takes, what is wrong with it, and that no secret is told."""

from __future__ import annotations

import json
from http.client import HTTPConnection, NotConnected
from typing import Any
from urllib.request import Request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import config
from orchestrator.definition.notifyuse import NotifyUse, Webhook, filled, lines
from orchestrator.definition.webaddress import unfit_value, unpostable
from orchestrator.errors import InputError

HEAD = "name: x\nmodel: scripted\nprompts: [a]\nmethods: [scripted]\nnotify:\n"


def read(text: str, *overrides: str) -> NotifyUse:
    return config.parse(HEAD + text, "s.yaml", overrides).notify


def wrong(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("text", ["", "  # command: [x]\n"])
def test_nothing_given_tells_nobody(text: str) -> None:
    assert read(text) == NotifyUse()
    assert not NotifyUse().tells
    assert list(lines(NotifyUse())) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('  command: [./tell-me, "{event}"]\n', NotifyUse(commands=(("./tell-me", "{event}"),))),
        ("  command: [[a], [b, c]]\n", NotifyUse(commands=(("a",), ("b", "c")))),
        ("  webhook: https://ntfy.sh/t\n", NotifyUse(webhooks=(Webhook(url="https://ntfy.sh/t"),))),
        (
            "  webhook: [env:HOOK, {url: env:S, format: slack, headers: {X-A: b, Authorization: Bearer env:T}}]\n",
            NotifyUse(
                webhooks=(
                    Webhook(url="env:HOOK"),
                    Webhook(url="env:S", format="slack", headers={"X-A": "b", "Authorization": "Bearer env:T"}),
                )
            ),
        ),
        ("  command: [a]\n  on: [start, end, start]\n", NotifyUse(commands=(("a",),), on=("start", "end"))),
    ],
)
def test_what_it_takes(text: str, found: NotifyUse) -> None:
    assert read(text) == found


def test_occasions_can_be_overridden() -> None:
    assert read("  command: [a]\n", "notify.on=end,start").on == ("end", "start")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  {}\n", ["notify: tells nobody (give it a command or a webhook)"]),
        ("  on: [end]\n", ["notify: tells nobody (give it a command or a webhook)"]),
        ("  commands: [a]\n", ["notify.commands: notify has no such key (did you mean command?)", "tells nobody"]),
        ("  command: ./tell-me --now\n", ["must be a list of words", "write [./tell-me, --now]"]),
        ("  command: []\n", ["must be a list of words, not an empty list"]),
        ("  command: [a, 1]\n", ["notify.command[1]: must be text", "write it in quotes"]),
        ("  command: [[a], b c]\n", ["notify.command[1]: must be a list of words", "write [b, c]"]),
        ('  command: ["", x]\n', ["notify.command[0]: is empty"]),
        ('  command: [a, "{evnt}"]\n', ["nothing is called {evnt}", "did you mean event?"]),
        ('  command: [a, "{text}"]\n', ["nothing is called {text}"]),
        ('  command: [a, "{}"]\n', ["nothing is called {}"]),
        ('  command: [a, "{"]\n', ["a brace too many"]),
        (
            "  command: [curl, https://hooks.slack.com/services/T/B/X]\n",
            ["notify.command[1]: holds a secret", "itself take"],
        ),
        ("  command: [sh, -c, curl https://me:pw@x.org/y]\n", ["notify.command[2]: holds a secret"]),
        ("  webhook: https://api.telegram.org/bot1:abc/sendMessage\n", ["holds a secret"]),
        ('  command: [a, "\\0"]\n', ["NUL"]),
        ("  webhook: ntfy.sh/t\n", ["is no address of the web", "write https://ntfy.sh/t"]),
        ("  webhook: ftp://x/y\n", ["is no address of the web"]),
        ("  webhook: []\n", ["is an empty list"]),
        ("  webhook: {format: slack}\n", ["lacks url"]),
        ("  webhook: {url: env:A, format: slak}\n", ["notify.webhook.format", "did you mean slack?"]),
        ("  webhook: {url: env:A, header: {}}\n", ["did you mean headers?"]),
        ("  webhook: env:9\n", ["names no variable"]),
        ("  webhook: https://hooks.slack.com/services/T/B/X\n", ["holds a secret", "write env:NAME here"]),
        ("  webhook: https://discord.com/api/webhooks/1/x\n", ["holds a secret"]),
        ("  webhook: {url: https://mattermost.lab/hooks/x, format: slack}\n", ["holds a secret"]),
        ("  webhook: https://me:pw@x.org/\n", ["holds a secret"]),
        ("  webhook: https://x.org/?token=1\n", ["holds a secret"]),
        ("  webhook: {url: env:A, headers: {Authorization: Bearer abc}}\n", ["headers.Authorization: holds a secret"]),
        ("  webhook: {url: env:A, headers: {X-Api-Key: abc}}\n", ["holds a secret"]),
        ("  webhook: {url: env:A, headers: {X-A: x env:B c}}\n", ["write env:NAME, or Bearer env:NAME"]),
        ('  webhook: {url: env:A, headers: {"a b": c}}\n', ["is no name of a header"]),
        ('  webhook: {url: env:A, headers: {a: "b\\nc: d"}}\n', ["must be one line"]),
        ("  command: [a]\n  on: end\n", ["notify.on: must be a list", "write [end]"]),
        ("  command: [a]\n  on: []\n", ["leave notify out"]),
        ("  command: [a]\n  on: [finish, low-disk]\n", ["notify.on[0]", "notify.on[1]", "did you mean low_disk?"]),
        ("  - a\n", ["notify: must be a mapping"]),
        (f"  command: [{', '.join(['[a]'] * 17)}]\n", ["has 17 of them, and at most 16 can be told"]),
        (f"  webhook: [{', '.join(['env:A'] * 17)}]\n", ["has 17 of them"]),
    ],
)
def test_what_is_wrong_with_it(text: str, said: list[str]) -> None:
    found = "\n".join(wrong(text))
    for part in said:
        assert part in found
    assert "s.yaml:" in found
    assert "abc" not in found
    assert "hooks/x" not in found


def test_all_that_is_wrong_is_told_at_once() -> None:
    found = wrong("  command: x\n  webhook: [nonsense, {url: 3}]\n  on: [endd]\n")
    assert len(found) == 4


def test_the_plan_tells_whom_and_no_secret() -> None:
    use = read(
        "  command: [./tell-me, --x]\n"
        "  webhook: [{url: env:HOOK, format: discord}, https://ntfy.sh/my-topic]\n"
        "  on: [end, low_disk]\n"
    )
    (line,) = lines(use)
    assert line == (
        "on end and low disk it tells `./tell-me`, the webhook at $HOOK (discord) and the webhook at https://ntfy.sh"
    )


def test_the_variables_that_are_needed() -> None:
    hook = Webhook(url="env:A", headers={"Authorization": "Bearer env:B", "X": "y"})
    assert list(hook.variables) == [("url", "A"), ("headers.Authorization", "B")]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("url", "https://x.org/y\n", ""),
        ("url", "x.org/y", "is no address of the web"),
        ("url", "file:///etc/passwd", "is no address of the web"),
        ("url", "https://x.org/y z", "is no address of the web"),
        ("headers.A", "abc\n", ""),
        ("headers.A", "a\nb", "is not one line of ASCII"),
        ("headers.A", "\u20ac", "is not one line of ASCII"),
    ],
)
def test_what_the_environment_has_is_looked_at_before_anything_starts(key: str, value: str, why: str) -> None:
    assert unfit_value(key, value) == why


LABEL = "a" * 63
UNPOSTABLE = [
    ("https://x:99999/", "port"),
    ("https://x:0/", "port"),
    ("https://x:http/", "port"),
    ("https://x:-1/", "port"),
    ("https://x:80:81/", "port"),
    ("https://::1/", "no host"),
    ("https://:443/", "no host"),
    ("https://[::1", "host that is none"),
    ("https://::1]/", "no host"),
    ("https://[]/", "no host"),
    ("https://[::1]8080/", "host that is none"),
    ("https://x:" + "8" * 5000, "host that is none"),
    ("https://x:8_0/", "port"),
    ("https://[::1]x/", "host that is none"),
    ("https://[::zz]/", "host that is none"),
    ("https://[1.2.3.4]/", "host that is none"),
    ("https://1.2.3.256/", "host that is none"),
    ("https://1.2.3/", "host that is none"),
    ("https://x..org/", "host that is none"),
    ("https://.org/", "host that is none"),
    ("https://-x.org/", "host that is none"),
    ("https://x%20y.org/", "host that is none"),
    ("https://x\\y.org/", "host that is none"),
    ("https://x,y/", "host that is none"),
    (f"https://{LABEL}a.org/", "host that is none"),
    (f"https://{'.'.join([LABEL] * 4)}/", "host that is none"),
    ("https://m\u00fcnchen.example/", "xn--"),
    ("https://x.org/\u00fc", "not ASCII"),
    ("https://x\uff0eorg/", "not ASCII"),
    ("https://x.org/\x7f", "control character"),
    ("https://x.org/\x1b", "control character"),
    ("https:///path", "no address of the web"),
    ("https://", "no address of the web"),
    ("https://?q", "no address of the web"),
    ("https://x org/", "no address of the web"),
    ("https://x.org/a b", "no address of the web"),
    ("https://x.org/a\u00a0b", "no address of the web"),
    ("HTTPS//x.org", "no address of the web"),
    ("https://me:pw@x.org/", "user before its host"),
    ("https://@x.org/", "user before its host"),
]
POSTABLE = [
    *("http://x", "https://x.org", "https://x.org.:443/a?b=[c]#d", "https://x:1/", "https://x:65535/", "https://x:/"),
    *("http://[::1]:8080/", "http://[fe80::1%25eth0]/", "http://127.0.0.1/", "http://my_host/", "http://3com.org/"),
    *("https://xn--mnchen-3ya.example/", f"https://{LABEL}.org/", "https://x.org/%C3%BC", "https://x.org?q"),
]


@pytest.mark.parametrize(("url", "why"), UNPOSTABLE)
def test_what_can_not_be_posted_to_is_refused_in_the_file_and_in_the_environment(url: str, why: str) -> None:
    assert why in unpostable(url)
    assert why in unfit_value("url", f" {url}\n")
    (found,) = wrong(f"  webhook: {json.dumps(url)}\n")
    assert why in found or "holds a secret" in found
    assert found.startswith("s.yaml:6: notify.webhook: ")


@pytest.mark.parametrize("url", POSTABLE)
def test_what_can_be_posted_to_is_taken(url: str) -> None:
    assert unpostable(url) == ""
    assert read(f"  webhook: {json.dumps(url)}\n").webhooks == (Webhook(url=url),)


@given(st.text("abX1.:[]@%/-_ \u00fc", max_size=20))
def test_what_is_taken_the_library_that_posts_takes_as_well(rest: str) -> None:
    url = f"http://{rest}"
    if not unpostable(url):
        request = Request(url, b"x", method="POST")
        connection = HTTPConnection(request.host)
        connection.host.encode("idna")
        assert 0 < connection.port < 2**16
        connection.auto_open = 0
        with pytest.raises(NotConnected):
            connection.request("POST", request.selector, b"x")


def test_a_scheme_that_was_left_out_is_suggested_where_it_helps() -> None:
    assert "write https://x.org:80/y" in wrong("  webhook: x.org:80/y\n")[0]
    assert "for example" in wrong("  webhook: x..org/y\n")[0]


def test_what_stands_in_braces_is_filled_in() -> None:
    values: dict[str, Any] = {"event": "end", "run": "x", "run_dir": "/r", "state": "finished", "exit_code": "0"}
    assert filled(["a", "{event}: {run}", "{{}}"], values) == ["a", "end: x", "{}"]


def test_the_schema_has_it() -> None:
    schema = config.json_schema()
    assert set(schema["properties"]["notify"]["properties"]) == {"command", "webhook", "on"}
    assert schema["$defs"]["Webhook"]["properties"]["format"]["enum"] == ["discord", "json", "ntfy", "slack"]
