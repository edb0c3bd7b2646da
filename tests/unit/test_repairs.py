"""Which broken packages a sweep lets be blocked: read, part of what a run is, and told where a package is missed."""

from __future__ import annotations

import pytest

from orchestrator import config, plan
from orchestrator.definition.inputs import SCRIPTED, Prompt, PromptSet
from orchestrator.definition.repairs import OPTIONAL, Repairs
from orchestrator.errors import InputError
from orchestrator.stores.envstate import EngineEnv, Fingerprint
from protocol.specs import pack_ids
from workers import compat

BASE = "name: a\nmodel: scripted\nprompts: [x]\nmethods: [scripted]\n"
PROMPTS = PromptSet("d", (Prompt("1", pack_ids([120]), "d1", {}),), False)
BROKEN = {"torchvision": "RuntimeError: no nms", "flash_attn": "ImportError: undefined symbol", "kernels": "old"}
ENV = EngineEnv("mine", "hf", "/p", Fingerprint.of("3.11", {}, ""), "user", ("torchvision", "flash_attn"), {}, BROKEN)


def read(extra: str) -> Repairs:
    return config.parse(BASE + extra, "s.yaml").repairs


def planned(extra: str = "") -> plan.Plan:
    return plan.build(config.parse(BASE + extra, "s.yaml"), SCRIPTED, PROMPTS, "cpu")


@pytest.mark.parametrize("extra", ["", "repairs:\n", "repairs: auto\n", "repairs: {}\n", "repairs: {keep: []}\n"])
def test_all_that_is_broken_is_blocked_unless_the_file_says_otherwise(extra: str) -> None:
    assert read(extra) == Repairs()
    assert planned(extra).digest == planned().digest
    assert ENV.repaired(read(extra)) == ENV


def test_none_or_some_are_left_as_they_are() -> None:
    assert ENV.repaired(read("repairs: off\n")).variables == {}
    kept = ENV.repaired(read("repairs: {keep: [torchvision, PIL]}\n"))
    assert kept.variables == {"AIRLOCK_BLOCK_MODULES": "flash_attn: ImportError: undefined symbol"}
    assert kept.repairs == (
        "torchvision is broken and not blocked: RuntimeError: no nms",
        "flash_attn is broken and blocked: ImportError: undefined symbol",
        "kernels is broken and not blocked: old",
    )


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            "repairs: [torchvision]",
            "s.yaml:5: repairs: can't be a list (auto, off, or {keep: [torchvision]} to leave some as they are)",
        ),
        (
            "repairs: on",
            's.yaml:5: repairs: can\'t be the text "on" (auto, off, or {keep: [torchvision]} to leave some as',
        ),
        ("repairs: {keep: 3}", "s.yaml:5: repairs.keep: must be text or a list, not 3"),
        (
            "repairs: {keep: [flash-attn]}",
            "s.yaml:5: repairs.keep[0]: flash-attn is never blocked (did you mean flash_attn?)",
        ),
        ("repairs: {leave: [torchvision]}", "s.yaml:5: repairs.leave: repairs has no such key"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(extra: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(extra)
    (problem,) = caught.value.problems
    assert str(problem).startswith(said)


def test_a_run_that_was_begun_with_other_repairs_does_not_go_on() -> None:
    before, off, kept = (planned(extra) for extra in ("", "repairs: off\n", "repairs: {keep: [timm, torchvision]}\n"))
    assert len({before.digest, off.digest, kept.digest}) == 3
    assert kept.digest == planned("repairs: {keep: [torchvision, timm]}\n").digest
    assert read("repairs: {keep: timm}\n") == Repairs(keep=("timm",))
    for after in (off, kept):
        assert plan.changes(before, after) == ["which broken packages are blocked changed since this run began"]
    assert plan.changes(kept, planned("repairs: {keep: [torchvision, timm]}\n")) == []


def test_an_environment_is_tried_again_once_anything_in_it_is_another() -> None:
    def mark(python: str, **packages: str) -> str:
        return EngineEnv("mine", "hf", "/p", Fingerprint.of(python, {}, ""), "user", installed=packages).mark

    assert mark("3.11", rich="1", apex="2") == mark("3.11", apex="2", rich="1")
    assert len({mark("3.11"), mark("3.12"), mark("3.11", rich="1"), mark("3.11", rich="2")}) == 4


def test_a_package_that_is_missed_is_named_as_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_blocked", {"torchvision": "CUDA error", "peft": ""})
    remark = " [broken in this environment, and so blocked: torchvision, peft]"
    missing = "\nAutoVideoProcessor requires the Torchvision library.\nPlease install it."
    told = compat.explained(ImportError(missing), missing)
    assert told == f"AutoVideoProcessor requires the Torchvision library.{remark}\nPlease install it."
    with pytest.raises(ValueError, match="no adapter") as caught:
        raise ValueError("no adapter") from ModuleNotFoundError("No module named 'peft'")
    assert compat.explained(caught.value, "no adapter") == f"no adapter{remark}"
    assert compat.explained(ValueError("wrong"), "wrong") == "wrong"
    monkeypatch.setattr(compat, "_blocked", {})
    assert compat.explained(ImportError("x"), "x") == "x"


@pytest.mark.parametrize(
    "said",
    [
        "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        "libcudnn.so.9: cannot open shared object file: No such file or directory",
        "/usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
    ],
)
def test_a_library_that_the_caller_put_in_front_is_suspected(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(compat, "_blocked", {})
    for name in compat.LOADER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    error = RuntimeError("could not be imported")
    error.__cause__ = ImportError(said)
    assert compat.explained(error, "could not be imported") == "could not be imported"
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64")
    remark = "[libraries that LD_LIBRARY_PATH names are taken before the environment's own]"
    assert compat.explained(error, "could not be imported\nat all") == f"could not be imported {remark}\nat all"
    assert compat.explained(OSError(said), said) == f"{said} {remark}"
    assert compat.explained(ImportError("no name X"), "no name X") == "no name X"


def test_the_names_are_modules_each_once() -> None:
    assert len(set(OPTIONAL)) == len(OPTIONAL)
    assert all(name.isidentifier() for name in OPTIONAL)
