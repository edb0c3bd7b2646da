"""How this program was called, for messages that say what to type next. Nothing else spells it out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

SCRIPT: Final = "airlock"
MODULE: Final = "python -m orchestrator"


def command(argv: Sequence[str]) -> str:
    return SCRIPT if PurePath(*argv[:1]).name == SCRIPT else MODULE


#: Found once, as lm_eval's command line takes the place of ours later.
COMMAND: Final = command(sys.argv)
