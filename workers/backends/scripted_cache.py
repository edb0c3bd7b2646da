"""What the scripted engine compiles: one file in the cache folder that it is told, as torch would keep it there."""

from __future__ import annotations

import json
import os
from pathlib import Path

KERNEL = "kernel.json"


def compiled(salt: str, traps: bool) -> str:
    """ "found" where an earlier worker's was there, else "made". Raises ValueError for one that is not whole.

    traps: beside it stands what a cache should not hold, a link out of the folder, a FIFO and a folder that is a link
    """
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    kernel = folder / KERNEL
    if kernel.exists():
        json.loads(kernel.read_text(encoding="utf-8"))
        return "found"
    kernel.write_text(json.dumps({"salt": salt}), encoding="utf-8")
    if traps:
        (folder / "link").symlink_to("/etc/passwd")
        (folder / "folder").symlink_to("/etc")
        os.mkfifo(folder / "fifo")
    return "made"
