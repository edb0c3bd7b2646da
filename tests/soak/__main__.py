"""Hundreds of short sweeps that go wrong in every way, and are killed in every way. See scripts/soak."""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tests.soak.rounds import Report, Round

PR_SET_CHILD_SUBREAPER = 36
TELL_EVERY_S = 30.0


def main(argv: Sequence[str]) -> int:
    args = parse(argv)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what is left behind comes to us and can be reaped
    began = time.monotonic()
    seeds = [f"{args.seed}-{args.round}"] if args.round is not None else None
    total = run_all(args.seed, began + args.minutes * 60, args.jobs, seeds)
    say(summary(total, time.monotonic() - began, args.seed))
    return int(bool(total.trouble))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="no round starts after that")
    parser.add_argument("--seed", type=int, default=0, help="of all choices; when they strike is up to the machine")
    parser.add_argument("--jobs", type=int, default=4, help="rounds at a time")
    parser.add_argument("--round", type=int, help="only this one")
    return parser.parse_args(argv)


def run_all(seed: int, until: float, jobs: int, seeds: list[str] | None) -> Report:
    total, number, told = Report(), 0, time.monotonic()
    running: set[Future[Report]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and (seeds if seeds is not None else time.monotonic() < until):
                running.add(pool.submit(Round(seeds.pop() if seeds else f"{seed}-{number}").run))
                number += 1
            if not running:
                return total
            done, running = wait(running, timeout=TELL_EVERY_S, return_when=FIRST_COMPLETED)
            for future in done:
                total += future.result()
                for line in future.result().trouble:
                    say(line)
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                say(f"{total.rounds} rounds, {total.lives} lives, {len(total.trouble)} lines of trouble")


def summary(total: Report, took_s: float, seed: int) -> str:
    lines = [
        f"seed {seed}: {total.rounds} sweeps in {total.lives} lives, {took_s:.0f} s; {total.records} records kept",
        f"kills and other signals that hit: {sum(total.hits.values())}",
        *(f"  {count:5} {what}" for what, count in sorted(total.hits.items())),
        f"losses: {total.lost}",
        f"duplicates: {total.twice}",
        f"leaks: {total.left}",
        f"other faults: {total.wrong}",
        f"slowest teardown of a worker: {total.slowest_teardown_s:.2f} s",
        f"slowest end of all processes after a coordinator's: {total.slowest_gone_s:.2f} s",
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
