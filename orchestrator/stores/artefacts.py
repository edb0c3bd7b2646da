"""What engines have compiled, kept between runs: AIRLOCK_HOME/artefacts, one folder for each key.

    KEY/manifest.json   what it is, when it was made, how large it is, from which run
    KEY/files.json      each file's size, checksum and mode
    KEY/cache/…         the files themselves
    KEY/lock            held by whoever copies out of it; its time is the last use

An entry is written beside and renamed into place, so a reader finds all of it
or nothing; of two that come at the same time one stays, whole. Nothing is ever
written into an entry, and what is lent is a copy, checked as it is made. So no
file needs to be forced to the disk: one that a power cut has torn is found out.

Nobody waits for a lock here. Whatever goes wrong costs a cold load and a sentence, never a run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from orchestrator.record.disk import read_regular, trouble
from orchestrator.stores import trees
from orchestrator.stores.openentry import FILES, LOCK, Folder, discard, opened
from orchestrator.stores.trees import Differs, Marks, TooLarge
from orchestrator.view.wording import bytes_text, clean

FORMAT: Final = 1
MANIFEST, CACHE = "manifest.json", "cache"
#: Names that no key has: of entries being made, and of those on their way out.
NEW, OLD = ".new-", ".old-"
OTHERS_MAY_WRITE = 0o022

State = Literal["", "cold", "warm"]


class Manifest(Struct, frozen=True, kw_only=True):
    """made_at: Unix seconds, for display. about: what the key stands for. run, incarnation: who compiled it."""

    format: int = FORMAT
    key: str
    about: dict[str, str]
    made_at: float
    run: str
    incarnation: str
    bytes: int
    files: int


@dataclass(frozen=True)
class Entry:
    manifest: Manifest
    used_at: float


@dataclass(frozen=True)
class Lent:
    """`warm`: the folder holds a whole copy; else nothing. trouble: why not, where there was something.
    dropped: that entry is damaged, and gone."""

    warm: bool
    trouble: str = ""
    dropped: bool = False


@dataclass(frozen=True)
class Kept:
    """`new`: the store has what it had not before. trouble: why it has not. bytes: of what the worker left."""

    new: bool
    trouble: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class Origin:
    """Where artefacts come from. skipped: paths inside the folder that are not taken."""

    folder: Path
    about: Mapping[str, str]
    run: str
    incarnation: str
    skipped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ArtefactStore:
    root: Path

    @classmethod
    def under(cls, home: Path) -> ArtefactStore:
        return cls(home / "artefacts")

    # --- lending ----------------------------------------------------------------

    def lend(self, key: str, target: Path) -> Lent:
        """Copies the entry into `target`, which holds no file and stays so unless all of it arrived."""
        try:
            return self._lend(key, target)
        except Differs as exc:
            _empty(target)
            return Lent(False, f"artefacts {key} are damaged: {exc}", dropped=self.drop(key))
        except OSError as exc:
            _empty(target)
            return Lent(False, f"artefacts {key} could not be used: {trouble(target, exc)}")

    def _lend(self, key: str, target: Path) -> Lent:
        with opened(self.root / key) as folder:
            if folder is None:
                return Lent(False)
            if os.stat(self.root).st_mode & OTHERS_MAY_WRITE:
                return Lent(False, f"others may write into {self.root}, and what lies there would be executed")
            if not folder.share():
                return Lent(False)
            trees.copy_marked(folder.fd, CACHE, folder.marks(), target)
            folder.touch()
            return Lent(True)

    # --- keeping ----------------------------------------------------------------

    def keep(self, key: str, origin: Origin, most_bytes: int) -> Kept:
        """Makes what lies in the origin's folder the entry of `key`, unless it is that already; then
        removes what was not used for longest until all entries together have at most `most_bytes`."""
        try:
            return self._keep(key, origin, most_bytes)
        except TooLarge:
            return Kept(False, f"they are larger than {bytes_text(most_bytes)}, all that may be kept")
        except OSError as exc:
            return Kept(False, trouble(self.root, exc))

    def _keep(self, key: str, origin: Origin, most_bytes: int) -> Kept:
        marks = trees.marks_of(origin.folder, origin.skipped, most_bytes)
        size = sum(mark.size for mark in marks.values())
        if not marks or self._has(key, marks):
            return Kept(False, bytes=size)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_left_overs()
        with self._making() as made:
            copied = trees.copy(origin.folder, made.path / CACHE, origin.skipped, most_bytes)
            manifest = _manifest(key, origin, copied)
            _write_json(made.path / FILES, copied)
            _write_json(made.path / MANIFEST, manifest)
            made.share()  # from here on it may be read
            new = self._put_in_place(made.path, key)
        self.trim(most_bytes, spared=key)
        return Kept(new, bytes=manifest.bytes)

    def _has(self, key: str, marks: Marks) -> bool:
        with suppress(Differs), opened(self.root / key) as folder:
            if folder is not None and folder.marks() == marks:
                folder.touch()
                return True
        return False

    @contextmanager
    def _making(self) -> Iterator[Folder]:
        """A new folder that is known to be in use; gone at the end if it is still there."""
        path = Path(tempfile.mkdtemp(prefix=NEW, dir=self.root))
        try:
            os.close(os.open(path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            (path / CACHE).mkdir()
            with opened(path) as folder:
                assert folder is not None
                folder.own()
                yield folder
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _put_in_place(self, made: Path, key: str) -> bool:
        """False if somebody else was faster."""
        self.drop(key)
        try:
            os.rename(made, self.root / key)
        except OSError:
            if (self.root / key).exists():
                return False
            raise
        return True

    # --- removing ---------------------------------------------------------------

    def drop(self, key: str) -> bool:
        """Nobody is lent it any more; whoever is copying it just now gets his copy. False if it is not there,
        or can't be removed."""
        aside = self.root / f"{OLD}{key}-{os.urandom(4).hex()}"
        try:
            os.rename(self.root / key, aside)
        except OSError:
            return False
        discard(aside)
        return True

    def trim(self, most_bytes: int, spared: str = "") -> list[Entry]:
        """What it removed, and beside that all that can't be read."""
        gone, left = [], sorted(self.entries(), key=lambda entry: entry.used_at)
        for name in {path.name for path in self._folders()} - {entry.manifest.key for entry in left}:
            self.drop(name)
        total = sum(entry.manifest.bytes for entry in left)
        for entry in left:
            if total > most_bytes and entry.manifest.key != spared and self.drop(entry.manifest.key):
                gone.append(entry)
                total -= entry.manifest.bytes
        return gone

    def clear(self) -> list[Entry]:
        """All of it, what could not be read included."""
        gone = self.trim(-1)
        self._remove_left_overs()
        return gone

    def _remove_left_overs(self) -> None:
        """Of coordinators that were killed, or that left because somebody was reading."""
        with suppress(FileNotFoundError):
            for path in self.root.iterdir():
                if path.name.startswith((NEW, OLD)):
                    discard(path)

    # --- looking ----------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Those that can be read, the last used first."""
        found = [entry for path in self._folders() if (entry := _entry(path))]
        return sorted(found, key=lambda entry: entry.used_at, reverse=True)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.root.iterdir() if not path.name.startswith("."))
        except OSError:
            return []


def _empty(folder: Path) -> None:
    """Of files."""
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(path, name))


def _entry(path: Path) -> Entry | None:
    with suppress(OSError, msgspec.MsgspecError):
        manifest = msgspec.json.decode(read_regular(path / MANIFEST), type=Manifest)
        if manifest.key == path.name and manifest.format == FORMAT:
            return Entry(manifest, (path / LOCK).stat().st_mtime)
    return None


def _manifest(key: str, origin: Origin, marks: Marks) -> Manifest:
    return Manifest(
        key=key,
        about={name: clean(text) for name, text in origin.about.items()},
        made_at=time.time(),
        run=clean(origin.run),
        incarnation=origin.incarnation,
        bytes=sum(mark.size for mark in marks.values()),
        files=len(marks),
    )


def _write_json(path: Path, value: object) -> None:
    """In a folder that is not in its place yet; a torn one is found out, as a file is."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
