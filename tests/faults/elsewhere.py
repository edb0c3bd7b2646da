"""Through what a coordinator is started to be process 1 of a PID namespace, or a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.matrix import REPOSITORY

#: Opens a closed folder on the way to one of its children, in a mount namespace of its own: nothing else
#: of it stays to be seen. For an interpreter in root's home, which no other user may enter.
_OPEN = """
set -e
folder=$1 child=$2; shift 2
aside=$(mktemp -d)
mount --rbind "$folder/$child" "$aside"
mount -t tmpfs -o mode=755 tmpfs "$folder"
mkdir "$folder/$child"
mount --move "$aside" "$folder/$child"
rmdir "$aside"
exec "$@"
"""


class Refused(Exception):
    """This host does not allow it, and why."""


def as_pid1() -> list[str]:
    unprivileged = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    return ["unshare", *unprivileged, "--fork", "--pid", "--mount-proc", "--kill-child"]


def as_user(user: str) -> list[str]:
    """`user`: a name, or the number of a user that need not exist."""
    if os.geteuid() != 0:
        raise Refused(f"only root can become another user, and this is user {os.geteuid()} already")
    uid, gid = _numbers(user)
    if closed := _closed_to_others(REPOSITORY):
        raise Refused(f"{user} may not enter {closed}, in which this checkout lies")
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
    return [*_opened(Path(sys.executable).resolve()), *become]


def usable(prefix: Sequence[str]) -> list[str]:
    """`prefix`, if this host lets a process and a child of it be started through it. Raises Refused."""
    for tool in {"unshare", "setpriv"}.intersection(prefix):
        if shutil.which(tool) is None:
            raise Refused(f"there is no {tool} on this host; it is part of util-linux")
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import tests.faults.running']))"
    command = [*prefix, sys.executable, "-c", code]
    tried = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Refused(f"this host refuses it: {tried.stderr.strip() or f'status {tried.returncode}'}")
    return list(prefix)


def _numbers(user: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        if user.isdigit():
            return int(user), int(user)
        raise Refused(f"there is no user {user} on this host") from None
    return entry.pw_uid, entry.pw_gid


def _opened(path: Path) -> list[str]:
    folder = _closed_to_others(path)
    if folder is None:
        return []
    return ["unshare", "--mount", "sh", "-c", _OPEN, "sh", str(folder), path.relative_to(folder).parts[0]]


def _closed_to_others(path: Path) -> Path | None:
    """The first folder on the way that only its owner or a group may enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)
