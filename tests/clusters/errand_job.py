"""Run as a program, as an errand: dials the test at DESK_PORT, says who it is and each SIGTERM, and pings back.

Told "exit N" it does; with the argument "stubborn" it outlives SIGTERM. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time


def main() -> None:
    desk = socket.create_connection(("127.0.0.1", int(os.environ["DESK_PORT"])))

    def say(word: str, **more: object) -> None:
        desk.sendall((json.dumps({"word": word, "at_s": time.monotonic(), **more}) + "\n").encode())

    def on_term(*_: object) -> None:
        say("SIGTERM")
        if "stubborn" not in sys.argv:
            sys.exit(0)

    signal.signal(signal.SIGTERM, on_term)
    sys.stdout.write(f"run of {sys.argv[1:]}\n")
    sys.stdout.flush()
    say("hello", pid=os.getpid(), cwd=os.getcwd(), argv=sys.argv[1:], env=dict(os.environ))
    for line in desk.makefile():
        order, _, code = line.strip().partition(" ")
        if order == "exit":
            sys.exit(int(code))
        say("pong")


main()
