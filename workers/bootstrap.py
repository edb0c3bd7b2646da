"""Entry of every process that runs in an engine's interpreter. Started by path:

    <env python> <here>/bootstrap.py worker
    <env python> <here>/bootstrap.py tool NAME REQUEST.json RESPONSE.json

Binds exactly two names, `protocol` and `workers`, by location, and takes this
folder off sys.path: so nothing else of ours can be imported there, and no
file of ours can hide a module of the engine.

Children that an engine makes by multiprocessing's spawn run this file again,
as `__mp_main__`, before they import anything of the engine. What must hold in
them too stands outside the `__main__` guard, and everything else inside.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import NoReturn, TextIO

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NAMES = ("protocol", "workers")
#: Import name → what to install, in every engine's environment.
REQUIRED = {"zmq": "pyzmq", "msgpack": "msgpack", "msgspec": "msgspec", "psutil": "psutil"}
OLDEST_PYTHON = (3, 10)
#: EX_USAGE, EX_SOFTWARE and EX_CONFIG of sysexits.h
EXIT_USAGE, EXIT_SOFTWARE, EXIT_CONFIG = 64, 70, 78


def clean_path() -> None:
    """Takes our folders off sys.path, unless we are installed beside the engine's own packages."""
    ours = {os.path.realpath(HERE)}
    if os.path.basename(ROOT) not in ("site-packages", "dist-packages"):
        ours.add(os.path.realpath(ROOT))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) not in ours]


def bind(name: str) -> None:
    """Makes `name` our package, or refuses where the environment has one of that name."""
    init = os.path.join(ROOT, name, "__init__.py")
    owner = owner_of(name)
    if owner is not None and os.path.realpath(owner) != os.path.realpath(init):
        refuse(f"the module name {name!r} belongs to {owner} in this environment; it must be free for airlock's own")
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[os.path.dirname(init)])
    if spec is None or spec.loader is None:
        refuse(f"{init} can't be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def owner_of(name: str) -> str | None:
    """The file or folder that an import of `name` would find, or None."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module that was put into sys.modules by hand
        return "something that does not say where it comes from"
    if spec is None:
        return None
    return spec.origin or ", ".join(spec.submodule_search_locations or ["nowhere"])


def refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"airlock: {sys.executable}: {sentence}\n")
    sys.stderr.flush()
    os._exit(EXIT_CONFIG)


def check_requirements() -> None:
    problems = {name: error for name in REQUIRED if (error := import_error(name))}
    if not problems:
        return
    packages = " ".join(REQUIRED[name] for name in problems)
    why = "; ".join(problems.values())
    refuse(f"{packages.replace(' ', ', ')} can't be imported ({why}); install with: -m pip install {packages}")


def import_error(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except ImportError as exc:
        return str(exc)
    return None


def worker() -> int:
    check_requirements()
    from workers.lifeline import Priority
    from workers.session import Identity, Misconfigured, Session

    priority = Priority()
    if nice := os.environ.get("AIRLOCK_NICE"):
        priority.lower(int(nice))
    try:
        identity = Identity.of(os.environ)
    except Misconfigured as exc:
        refuse(str(exc))
    return Session(identity, priority).run()


def tool(name: str, request: str, response: str) -> int:
    from workers.tools.runner import run_tool

    return run_tool(name, request, response)


def start(arguments: list[str]) -> int:
    import faulthandler
    import signal

    from workers.lifeline import WardenGone, die_with

    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what an interrupt means
    try:
        if warden := os.environ.get("AIRLOCK_WARDEN_PID"):
            die_with(int(warden))
    except WardenGone as exc:
        refuse(str(exc))
    if arguments == ["worker"]:
        return worker()
    if arguments[:1] == ["tool"] and len(arguments) == 4:
        return tool(*arguments[1:])
    sys.stderr.write("usage: bootstrap.py worker | bootstrap.py tool NAME REQUEST.json RESPONSE.json\n")
    return EXIT_USAGE


def main() -> NoReturn:
    """Never returns: an engine's interpreter takes seconds to take itself down, and may hang or crash in it."""
    status = EXIT_SOFTWARE
    try:
        status = start(sys.argv[1:])
    except BaseException:
        import traceback

        traceback.print_exc(file=sys.stderr)
    flush(sys.stdout)
    flush(sys.stderr)
    os._exit(status)


def flush(stream: TextIO | None) -> None:
    """A full disk or a closed log must not keep the process."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        return


if sys.version_info < OLDEST_PYTHON:
    refuse("Python 3.10 or newer is needed")
clean_path()
for _name in NAMES:
    bind(_name)

from workers import compat, stacks, streams  # noqa: E402 - can be found only now

compat.block_modules(os.environ.get(compat.BLOCK_VARIABLE, ""))
stacks.answer()
streams.lose_rather_than_fail()

if __name__ == "__main__":
    main()
