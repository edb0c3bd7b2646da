"""Policies of a sweep file: what may be said of each class, what stays where nothing is said."""

from __future__ import annotations

from typing import get_args

import pytest

from orchestrator.config import Limits, Policies, parse
from orchestrator.definition.limits import ALLOWED, Policy, with_patience
from orchestrator.errors import InputError, Problem
from orchestrator.outcomes import CauseClass

HEAD = "name: a\nmodel: scripted\nprompts: [x]\nmethods: [scripted]\n"


def policies(text: str) -> Policies:
    return parse(HEAD + text, "s.yaml").policies


def problem(text: str) -> Problem:
    with pytest.raises(InputError) as caught:
        policies(text)
    (found,) = caught.value.problems
    return found


def test_every_class_but_interrupted_has_a_policy_that_it_may_have() -> None:
    assert set(get_args(CauseClass)) - set(ALLOWED) == {"interrupted"}
    for cls, allowed in ALLOWED.items():
        assert Policies().of(cls).do in allowed
    assert Policies().of("interrupted").do == "give_up"


def test_what_is_left_out_stays() -> None:
    got = policies("policies:\n  hang: {times: 5}\n  busy_device: {wait_s: 3600}\n  disk:\n    do: give_up\n")
    assert got.hang == Policy(do="halve", times=5, loads=1)
    assert got.busy_device == Policy(do="wait", wait_s=3600, loads=1)
    assert got.disk.do == "give_up"
    assert got.oom == Policies().oom
    assert policies("policies:\n") == Policies()


def test_a_word_is_enough_and_giving_up_means_no_second_load() -> None:
    got = policies("policies: {engine_crash: give_up, oom: retry}\n")
    assert (got.engine_crash.do, got.engine_crash.loads) == ("give_up", 0)
    assert got.oom.do == "retry"
    assert policies("policies: {config: {loads: 3}}\n").config == Policy(do="give_up", loads=3)


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("policies: 3", "policies", "must be a mapping, not 3"),
        ("policies: {hangs: halve}", "policies.hangs", "there is no such class"),
        ("policies: {interrupted: retry}", "policies.interrupted", "there is no such class"),
        ("policies: {hang: wait}", "policies.hang", 'must be one of give_up, halve, retry, not the text "wait"'),
        ("policies: {disk: {do: retry}}", "policies.disk.do", 'must be one of give_up, wait, not the text "retry"'),
        ("policies: {hang: {do: 5}}", "policies.hang.do", "must be one of give_up, halve, retry, not 5"),
        ("policies: {hang: true}", "policies.hang", "must be one of give_up, halve, retry, not true"),
        ("policies: {hang: {time: 5}}", "policies.hang.time", "policies.hang has no such key"),
        ("policies: {hang: {times: -1}}", "policies.hang.times", "must be a whole number, 0 or more"),
        ("policies: {hang: {wait_s: 3}}", "policies.hang.wait_s", "means nothing where do is halve"),
        ("policies: {oom: {do: give_up, times: 3}}", "policies.oom.times", "means nothing where do is give_up"),
        ("policies: {disk: {wait_s: .inf}}", "policies.disk.wait_s", "must be a finite number"),
        ("limits: {restarts: 3}", "limits.restarts", "limits has no such key"),
    ],
)
def test_what_is_wrong_is_said_once_with_its_line(text: str, key: str, says: str) -> None:
    found = problem(text + "\n")
    assert (found.where, found.key) == ("s.yaml:5", key)
    assert says in found.message


def test_a_wait_for_a_slot_is_on_top_of_what_standby_may_take() -> None:
    limits = Limits(standby_s=5)
    patient = Policies(busy_device=Policy(do="wait", wait_s=7200))
    assert with_patience(limits, patient).standby_s == 7205
    assert with_patience(limits, Policies(busy_device=Policy(do="give_up"))) == limits


def test_the_record_can_show_it() -> None:
    assert str(Policy(do="halve", times=2)) == "halve, 2 times"
    assert str(Policy(do="wait", wait_s=60.0)) == "wait, at most 60 s"
    assert str(Policy(do="record")) == "record"
    assert Policy(do="halve", loads=1).of_loads == "load again, 1 time"
    assert Policy(do="halve", loads=0).of_loads == "give_up"
