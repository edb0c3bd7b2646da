"""What is wrong with `--model_args` and what else the harness says to a model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from orchestrator.called import COMMAND
from orchestrator.errors import Problem

ON_FAILURE: Final = ("raise", "empty")
#: What the harness says where nobody names one.
_DEVICE: Final = "cuda:0"
_TEXTS: Final = ("method", "model", "sweep", "runs", "dtype")
_FLAGS: Final = ("add_bos_token", "trust_remote_code")
#: Keys of the sweep file that is made of them.
_KEYS: Final = {
    "methods[0]": "method",
    "model": "model",
    "settings.dtype": "dtype",
    "settings.max_model_len": "max_length",
}
_VALID: Final = "method, model, sweep, runs, dtype, max_length, on_failure, add_bos_token, trust_remote_code"


def problems(said: Mapping[str, Any], unknown: Mapping[str, Any]) -> Iterator[Problem]:
    """`said`: every argument of the model; the harness makes numbers and truth values of what looks like them."""
    for name in unknown:
        yield _argument(name, "there is no such argument", f"valid: {_VALID}")
    yield from _kinds(said)
    yield from _names(said)
    yield from _of_the_harness(said)


def _argument(name: str, message: str, hint: str = "") -> Problem:
    return Problem("model_args", name, message, hint)


def _kinds(said: Mapping[str, Any]) -> Iterator[Problem]:
    for name in _TEXTS:
        if not isinstance(value := said[name], str):
            yield _argument(name, f"is {value!r}, not text", f'{name}="{value}" is text')
    for name in _FLAGS:
        if not (said[name] is None or isinstance(said[name], bool)):
            yield _argument(name, f"can't be {said[name]!r}", "valid: True, False")
    most = said["max_length"]
    if most is not None and (type(most) is not int or most < 1):
        yield _argument("max_length", f"can't be {most!r}", "a number of tokens")
    if said["on_failure"] not in ON_FAILURE:
        yield _argument("on_failure", f"can't be {said['on_failure']}", f"valid: {', '.join(ON_FAILURE)}")


def _names(said: Mapping[str, Any]) -> Iterator[Problem]:
    method = str(said["method"])
    if not method:
        yield _argument("method", "is missing", f"method=hf_sdpa, say; `{COMMAND} methods` lists them")
    elif "/" in method or method.startswith("."):
        yield _argument("method", f"{method} is no method's name")
    if not said["model"] and not said["sweep"]:
        yield _argument("model", "is missing", "model=./folder, org/name or demo, or sweep=FILE")


def _of_the_harness(said: Mapping[str, Any]) -> Iterator[Problem]:
    size = str(said["batch_size"])
    if not (size.isascii() and size.isdigit() and int(size)):
        hint = "a method's batch size is part of what is compared: write a number"
        yield Problem("--batch_size", "", f"can't be {size}", hint)
    if said["max_batch_size"] is not None:
        yield Problem("--max_batch_size", "", "is for batch_size=auto, which there is not")
    if said["device"] not in (None, _DEVICE):
        yield Problem("--device", "", f"can't be {said['device']}", "devices stand in the sweep file: sweep=FILE")


def attributed(found: Iterable[Problem], file: str, said: Mapping[str, Any], own: bool) -> Iterator[Problem]:
    """Where the user said what is wrong with the sweep file that was made of it. `own`: the method stands in the sweep
    file that the user gave."""
    for one in found:
        name = next((name for key, name in _KEYS.items() if f"{one.key}.".startswith(f"{key}.")), "")
        if not one.where.startswith(file):
            yield one
        elif said.get(name) and not (own and name == "method"):
            yield replace(one, where="model_args", key=name)
        else:
            key = one.key.replace("methods[0]", f"methods[{said['method']}]")
            yield replace(one, where=str(said["sweep"]) or "model_args", key=key)
