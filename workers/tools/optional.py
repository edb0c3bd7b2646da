"""Tool: which of these optional packages are there, and broken? Found by trying, in a process of its own for each.

Libraries take a package for usable where its files are there, and fail on it minutes later: torchvision
without its operators, flash-attn with undefined symbols. So each is imported, with the parts that engines
take from it, and used where an import alone proves nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from workers.text import message_of

#: Shorter than what a pipe takes in one piece.
REASON_CHARACTERS = 300

#: What an engine imports from a package beside its top.
PARTS: Mapping[str, tuple[str, ...]] = {
    "PIL": ("PIL.Image", "PIL.ImageOps"),
    "accelerate": ("accelerate.hooks",),
    "hqq": ("hqq.core.quantize",),
    "scipy": ("scipy.optimize", "scipy.stats"),
    "sklearn": ("sklearn.metrics",),
    "torchao": ("torchao.quantization",),
    "torchaudio": ("torchaudio.functional",),
    "torchcodec": ("torchcodec.decoders",),
    "torchvision": ("torchvision.io", "torchvision.transforms.v2.functional"),
    "xformers": ("xformers.ops",),
}


class Unusable(Exception):
    """It imports, and can't do what it is for."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"modules": [name, …], "seconds": most for each} → {"broken": {name: sentence}}.
    What is not there is not broken."""
    present = [name for name in request["modules"] if _present(name)]
    if present:
        with suppress(BaseException):  # once for all of them; if it is broken itself, each will tell
            importlib.import_module("torch")
    tried = {name: _tried_apart(name, request["seconds"]) for name in present}
    return {"broken": _culprits({name: error for name, error in tried.items() if error}, request["seconds"])}


def _culprits(broken: dict[str, str], seconds: float) -> dict[str, str]:
    """Without those that only meet another broken one on their way, and are whole where that is not there."""
    left = dict(broken)
    for name in broken:
        others = [other for other in left if other != name]
        if others and not _tried_apart(name, seconds, others):
            del left[name]
    return left


def _present(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # ValueError: something put a module without a spec under this name
        return False


def _tried_apart(name: str, seconds: float, without: Iterable[str] = ()) -> str:
    """Why it can't be used, "" if it can, where the modules `without` are not there.
    In a forked process: a broken package may take its process down."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sys.modules.update(dict.fromkeys(without))  # type: ignore[arg-type]
            os.write(sender, json.dumps(why_not(name)).encode())
        finally:
            os._exit(0)
    os.close(sender)
    try:
        ready, _, _ = select.select([receiver], [], [], seconds)
        answer = os.read(receiver, select.PIPE_BUF) if ready else b""
    finally:
        os.close(receiver)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not ready:
        return f"its import takes longer than {seconds:g} s"
    return str(json.loads(answer)) if answer else f"its import ends the process, {_how(status)}"


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"with exit code {os.waitstatus_to_exitcode(status)}"


def why_not(name: str) -> str:
    """Why it can't be used, "" if it can. Imports it."""
    try:
        for part in (name, *PARTS.get(name, ())):
            importlib.import_module(part)
        USES.get(name, lambda: None)()
    except BaseException as exc:  # what a broken package raises is anyone's guess, SystemExit included
        return f"{type(exc).__name__}: {' '.join(message_of(exc).split())}"[:REASON_CHARACTERS]
    return ""


def _torchvision() -> None:
    """Its operators are registered by a library, without which it may import all the same."""
    torch, ops = importlib.import_module("torch"), importlib.import_module("torchvision.ops")
    if len(ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5)) != 1:
        raise Unusable("its operator nms gives a wrong result")


def _torchao() -> None:
    torch, quantization = importlib.import_module("torch"), importlib.import_module("torchao.quantization")
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    model(torch.zeros(1, 32))


def _bitsandbytes() -> None:
    """Without its library it imports, with a stand-in for it that raises at the first call."""
    library = importlib.import_module("bitsandbytes.cextension").lib
    if "Mock" in type(library).__name__:
        raise Unusable("it has no library for this torch and this machine")


def _flash_attn() -> None:
    module = importlib.import_module("flash_attn")
    if getattr(module, "__file__", None) is None:
        return  # a folder that flash-attn-4 shares, without version 2 in it
    importlib.import_module("flash_attn.bert_padding")
    _has("flash_attn", "flash_attn_varlen_func")


def _has(module: str, name: str) -> None:
    if not hasattr(importlib.import_module(module), name):
        raise Unusable(f"it has no {name}")


USES: Mapping[str, Callable[[], None]] = {
    "bitsandbytes": _bitsandbytes,
    "flash_attn": _flash_attn,
    "flash_attn_interface": lambda: _has("flash_attn_interface", "flash_attn_varlen_func"),
    "kernels": lambda: _has("kernels", "get_kernel"),
    "torchao": _torchao,
    "torchvision": _torchvision,
}
