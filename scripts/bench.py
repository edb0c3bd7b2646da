"""Performance figures as ratios against something measured in the same run. See scripts/bench."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts import bench_page, bench_scale, bench_switch, bench_teardown
from scripts.bench_engines import buckets, quickstart, share
from scripts.bench_journal import commit
from scripts.bench_overhead import overhead
from scripts.bench_starts import second_start
from scripts.bench_sweep import four_points
from scripts.bench_wire import coordinator_load, wire
from scripts.figures import REPO, Figure, Maker, median_s


def help_time(_folder: Path) -> Iterator[Figure]:
    """The first answer of the command line, against a bare interpreter."""

    def spawn(*args: str) -> None:
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL, cwd=REPO)

    bare_s = median_s(lambda: spawn("-c", "pass"), 10)
    help_s = median_s(lambda: spawn("-m", "orchestrator", "--help"), 10)
    yield Figure("--help", help_s, "s", "a bare interpreter", bare_s, "target: under 0.2 s")


#: By the name that --only takes; the first line of each one's text is what --list says.
PLAIN: dict[str, Maker] = {
    "help": help_time,
    "wire": wire,
    "coordinator": coordinator_load,
    "journal": commit,
    "teardown": bench_teardown.scripted,
    "switch": bench_switch.scripted,
}
LONG: dict[str, Maker] = {
    "scale": bench_scale.scale,
    "million": bench_scale.million,
    "page": bench_page.page,
}
ENGINES: dict[str, Maker] = {
    "quickstart": quickstart,
    "overhead": overhead,
    "sweep": four_points,
    "switch_engines": bench_switch.real,
    "teardown_engines": bench_teardown.real,
    "buckets": buckets,
    "second_start": second_start,
}
ALL = {**PLAIN, **LONG, **ENGINES}


def chosen(args: argparse.Namespace) -> list[str]:
    names = [*PLAIN, *(LONG if args.long else ()), *(ENGINES if args.engines else ())]
    return list(dict.fromkeys(args.only or names))


def made(names: Iterable[str], failed: list[str]) -> Iterator[Figure]:
    """Those that could not be measured are told, and added to `failed`; the others are measured all the same."""
    with tempfile.TemporaryDirectory(prefix="al-b") as root:
        for name in names:
            folder = Path(root, name)
            folder.mkdir()
            try:
                yield from ALL[name](folder)
            except (SystemExit, subprocess.CalledProcessError) as exc:
                sys.stderr.write(f"{name} could not be measured: {exc}\n")
                failed.append(name)


def listing() -> Iterator[str]:
    kinds = (("", PLAIN), ("with --long", LONG), ("with --engines", ENGINES))
    for when, makers in kinds:
        for name, maker in makers.items():
            yield f"{name:<17} {when:<15} {(maker.__doc__ or '').splitlines()[0]}"


def of_run(run_dir: Path) -> Iterator[Figure]:
    """What any finished run tells."""
    yield from share(run_dir, str(run_dir))
    yield from bench_switch.figures(run_dir)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true", help="the names of the figures, with what they are")
    parser.add_argument("--engines", action="store_true", help="also the figures that take real engines")
    parser.add_argument("--long", action="store_true", help="also those of sweeps with 100,000 points")
    parser.add_argument("--only", action="append", choices=[*ALL], help="may be given several times")
    parser.add_argument(
        "--run", metavar="RUN", help="only what this finished run tells: its measured share, its switches"
    )
    args = parser.parse_args()
    if args.list:
        sys.stdout.writelines(f"{line}\n" for line in listing())
        return 0
    failed: list[str] = []
    figures = of_run(Path(args.run)) if args.run else made(chosen(args), failed)
    if args.json:
        found = {"figures": [figure.as_dict() for figure in figures], "failed": failed}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        for figure in figures:  # as they come
            sys.stdout.write(f"{figure}\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
