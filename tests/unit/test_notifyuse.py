"""The section `notify`: what it takes, what is wrong with it, and that no secret is told."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import config
from orchestrator.definition.notifyuse import NotifyUse, Webhook, filled, lines
from orchestrator.definition.webaddress import unfit_value
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


def test_what_stands_in_braces_is_filled_in() -> None:
    values: dict[str, Any] = {"event": "end", "run": "x", "run_dir": "/r", "state": "finished", "exit_code": "0"}
    assert filled(["a", "{event}: {run}", "{{}}"], values) == ["a", "end: x", "{}"]


def test_the_schema_has_it() -> None:
    schema = config.json_schema()
    assert set(schema["properties"]["notify"]["properties"]) == {"command", "webhook", "on"}
    assert schema["$defs"]["Webhook"]["properties"]["format"]["enum"] == ["discord", "json", "ntfy", "slack"]
