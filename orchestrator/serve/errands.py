"""What would hold this process's interpreter for seconds, done in a process of its own: whatever draws plots here.

python -m orchestrator.serve.errands WHAT RUN ANSWER
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from orchestrator.errors import AirlockError, JournalError, LaunchFailed
from orchestrator.launcher import Launcher, LaunchSpec
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.stores.scratch import Scratch, scratch
from orchestrator.stores.tools import how_it_ended

TIMEOUT_S: Final = 3600.0
#: At the end of the server, for the one that is under way to be gone.
END_S: Final = 5.0


class Errands:
    """One after another, from any thread."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._busy = threading.Lock()

    def run(self, what: str, run_dir: Path | None = None) -> bytes:
        """Its answer. Raises JournalError with a sentence where there is none."""
        with self._busy, scratch() as own:
            answer, log = own.folder / "answer", own.folder / "log"
            try:
                done = Launcher().run(_spec(what, run_dir, answer, own), TIMEOUT_S, stop=self._stopping.is_set)
                return answer.read_bytes()
            except LaunchFailed as exc:
                raise JournalError(str(exc)) from exc
            except OSError as exc:
                raise JournalError(f"the process that makes it {how_it_ended(done, log, TIMEOUT_S)}") from exc

    def close(self) -> None:
        """Ends the one under way."""
        self._stopping.set()
        self._busy.acquire(timeout=END_S)


def _spec(what: str, run_dir: Path | None, answer: Path, own: Scratch) -> LaunchSpec:
    paths = [os.path.abspath(path) for path in sys.path]
    return LaunchSpec(
        argv=(sys.executable, "-P", "-m", "orchestrator.serve.errands", what, str(run_dir or ""), str(answer)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=os.getcwd(),
        log=str(own.folder / "log"),
        run_tag=tag_of(airlock_home()),
        incarnation=own.incarnation,
    )


# --- in the other process -----------------------------------------------------------


def _page(run_dir: str) -> str:
    from orchestrator.page.html import page
    from orchestrator.view.rows import rows
    from orchestrator.view.runview import RunView

    view = RunView.load(Path(run_dir))
    return page(view, rows(view), dashboard="/")


def _vega(_run_dir: str) -> str:
    from orchestrator.page.assets import bundle

    return bundle()


_ERRANDS: Final[Mapping[str, Callable[[str], str]]] = {"page": _page, "vega": _vega}


def main(what: str, run_dir: str, answer: str) -> None:
    try:
        made = _ERRANDS[what](run_dir)
    except AirlockError as exc:
        sys.exit(f"error: {exc}")
    unfinished = Path(f"{answer}.part")
    unfinished.write_text(made, encoding="utf-8", errors="replace")
    unfinished.rename(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
