"""`python -m orchestrator` and the `airlock` command."""

from __future__ import annotations

import sys


def main() -> int:
    from orchestrator.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
