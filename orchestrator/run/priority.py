"""How nice a worker may be made that stands by while another one measures.

Whether the way back is open is asked first: without CAP_SYS_NICE or RLIMIT_NICE a process that was made nice
stays nice, and what it measured then would not compare.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

BACKGROUND_NICE = 19
CAP_SYS_NICE = 23


def background_nice(status: Path = Path("/proc/self/status")) -> int:
    """Our own value where a higher one could not be taken back."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    return BACKGROUND_NICE if _can_return_to(ours, status) else ours


def _can_return_to(nice: int, status: Path) -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return soft == resource.RLIM_INFINITY or soft >= 20 - nice or _has_capability(CAP_SYS_NICE, status)


def _has_capability(number: int, status: Path) -> bool:
    masks = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("CapEff:")]
    return any(int(mask, 16) >> number & 1 for mask in masks)
