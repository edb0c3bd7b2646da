"""Who may ask the dashboard what, and where it may listen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.serve.access import TOKEN_VARIABLE, Access, given_token, is_local_name, new_token
from orchestrator.serve.address import address

TOKEN = "0123456789abcdef"
OPEN = Access("")
CLOSED = Access(TOKEN)
LOCAL = {"host": "localhost:8765"}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "localhost.:1", "127.0.0.1:8765", "127.9.9.9", "[::1]:8765", "[::1]"]
)
def test_names_of_this_machine(host: str) -> None:
    assert is_local_name(host)
    assert OPEN.refusal("GET", "/api/runs", {"host": host}) is None


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("10.0.0.1", "0.0.0.0:8765", "2130706433", "0x7f000001", "[::1", "[fe80::1]:1", "@localhost", "local host"),
    ],
)
def test_a_name_that_somebody_has_point_here_is_refused(host: str) -> None:
    refusal = OPEN.refusal("GET", "/", {"host": host})
    assert refusal is not None
    assert refusal.status == 403


def test_with_a_token_the_name_is_whatever_a_proxy_or_a_network_calls_it() -> None:
    assert CLOSED.refusal("GET", "/", {"host": "lab-7.example", "authorization": f"Bearer {TOKEN}"}) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get"])
def test_it_only_reads(method: str) -> None:
    refusal = OPEN.refusal(method, "/api/runs", LOCAL)
    assert refusal is not None
    assert refusal.status == 405


def test_a_token_opens_by_header_or_cookie_and_the_cookie_is_not_the_token() -> None:
    assert CLOSED.refusal("GET", "/", {"authorization": f"bEARER  {TOKEN} "}) is None
    assert CLOSED.refusal("HEAD", "/", {"cookie": f"a=b; airlock={CLOSED.cookie}"}) is None
    assert TOKEN not in CLOSED.cookie
    assert Access("another-token-here").cookie != CLOSED.cookie


@pytest.mark.parametrize(
    "others", ['x={"a": 1}', "a b=c d", "u[1]=3", "lone", "ä=é", "@x=3", "path=/", "=", "", "airlock=old", "a=1,b=2"]
)
def test_cookies_of_other_servers_of_the_same_name_keep_nobody_out(others: str) -> None:
    """A browser sends the cookies of all ports of a machine to each of them."""
    own = f"airlock={CLOSED.cookie}"
    for header in (f"{others}; {own}", f"{own}; {others}", f"{others};{own};{others}"):
        assert CLOSED.refusal("GET", "/", {"cookie": header}) is None
    assert CLOSED.refusal("GET", "/", {"cookie": f"{others}; airlock2={CLOSED.cookie}"}) is not None


def test_a_token_is_asked_for_on_loopback_too_once_it_is_given() -> None:
    assert CLOSED.refusal("GET", "/", LOCAL) is not None


@pytest.mark.parametrize("path", ["/healthz", "/login", "/assets/login.js"])
def test_what_holds_nothing_of_a_run_is_open(path: str) -> None:
    assert CLOSED.refusal("GET", path, {}) is None


@pytest.mark.parametrize("path", ["/", "/runs/x", "/api/runs", "/metrics", "/assets", "/healthz/", "//login"])
def test_all_else_is_not(path: str) -> None:
    refusal = CLOSED.refusal("GET", path, {})
    assert refusal is not None
    assert refusal.status == 401


@given(st.text(), st.text())
def test_nothing_else_opens(authorization: str, cookie: str) -> None:
    if TOKEN not in authorization and CLOSED.cookie not in cookie:
        assert CLOSED.refusal("GET", "/", {"authorization": authorization, "cookie": cookie}) is not None


# --- where tokens come from ---------------------------------------------------------


def test_a_token_of_a_file_goes_before_that_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    environ = {TOKEN_VARIABLE: "another-token-of-16+"}
    assert given_token(str(file), environ) == TOKEN
    assert given_token(None, environ) == "another-token-of-16+"
    assert given_token(None, {}) == given_token(None, {TOKEN_VARIABLE: " "}) == ""


@pytest.mark.parametrize(
    "text", [b"", b"short", b"with a space in the middle", "grüßgrüßgrüßgrüß".encode(), b"\xff" * 20]
)
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(text)
    with pytest.raises(InputError) as caught:
        given_token(str(file), {})
    assert str(file) in str(caught.value)
    assert text.decode(errors="replace") not in str(caught.value) or not text


def test_made_tokens_are_usable_and_differ() -> None:
    one, other = new_token(), new_token()
    assert one != other
    assert given_token(None, {TOKEN_VARIABLE: one}) == one


# --- where it listens ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ip", "port", "local"),
    [
        ("127.0.0.1:8765", "127.0.0.1", 8765, True),
        (":0", "127.0.0.1", 0, True),
        ("localhost:80", "127.0.0.1", 80, True),
        ("[::1]:9", "::1", 9, True),
        ("0.0.0.0:8765", "0.0.0.0", 8765, False),
        ("10.1.2.3:1", "10.1.2.3", 1, False),
        ("[::]:1", "::", 1, False),
    ],
)
def test_addresses(text: str, ip: str, port: int, local: bool) -> None:
    found = address(text)
    assert (str(found.ip), found.port, found.local) == (ip, port, local)


@pytest.mark.parametrize(
    "text",
    ["", "8765", "127.0.0.1", "lab.example:80", "127.0.0.1:99999", "a@127.0.0.1:1", "1.2.3.4:5/x", "::1:5", "[::1"],
)
def test_what_is_no_address_is_refused_with_one(text: str) -> None:
    with pytest.raises(InputError) as caught:
        address(text)
    (problem,) = caught.value.problems
    assert problem.where == "--listen"
    assert problem.suggestion


def test_a_url_to_open() -> None:
    assert address("[::1]:0").url(7) == "http://[::1]:7/"
    assert address(":0").url(7) == "http://127.0.0.1:7/"
    assert "0.0.0.0" not in address("0.0.0.0:0").url(7)
