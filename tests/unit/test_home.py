"""Where environments are kept, and by what the processes of a run are known."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
from pathlib import Path

import pytest

from orchestrator import crash
from orchestrator.cli import run
from orchestrator.errors import InputError, JournalError
from orchestrator.exits import EXIT_INPUT
from orchestrator.record.lock import RunLock
from orchestrator.stores.filelock import FileLock
from orchestrator.stores.home import airlock_home, run_tag_of
from orchestrator.stores.modelfiles import hub_folder


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user id that no one has made: neither HOME nor an entry in /etc/passwd."""

    def unknown(_uid: int) -> pwd.struct_passwd:
        raise KeyError("uid not found")

    for name in ("HOME", "AIRLOCK_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.parametrize("named", ["", "~/airlock", "~no-such-user/airlock"])
@pytest.mark.usefixtures("nobody")
def test_without_a_home_directory_it_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    monkeypatch.setenv("AIRLOCK_HOME", named)
    with pytest.raises(InputError, match="no home directory"):
        airlock_home()
    assert run(["env", "list"]) == EXIT_INPUT
    assert "AIRLOCK_HOME: there is no home directory" in capsys.readouterr().err
    assert crash.tell(KeyError("something else")).startswith("unforeseen: KeyError")


@pytest.mark.parametrize(
    ("variable", "value", "found"),
    [
        *(("HF_HUB_CACHE", "/c", "/c"), ("HF_HOME", "/h", "/h/hub"), ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub")),
        *(("HOME", "/u", "/u/.cache/huggingface/hub"), ("UNHEEDED", "", "~/.cache/huggingface/hub")),
    ],
)
@pytest.mark.usefixtures("nobody")
def test_the_hubs_cache_is_where_the_hub_has_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, found: str
) -> None:
    """Who has no home has named AIRLOCK_HOME, and need not name this."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert hub_folder("owner/name") == Path(found, "models--owner--name")


@pytest.mark.parametrize("variable", ["AIRLOCK_HOME", "XDG_DATA_HOME"])
@pytest.mark.usefixtures("nobody")
def test_it_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    """A worker has another folder for its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "here")
    assert airlock_home() == tmp_path / ("here" if variable == "AIRLOCK_HOME" else "here/airlock")


def test_a_run_is_known_by_its_directory_itself(tmp_path: Path) -> None:
    run_dir, link, other = tmp_path / "run", tmp_path / "link", tmp_path / "other"
    run_dir.mkdir()
    link.symlink_to(run_dir)
    before = run_tag_of(run_dir)
    (run_dir / "journal.jsonl").touch()
    assert run_tag_of(link) == run_tag_of(run_dir / ".." / "run") == before
    run_dir.rename(other)
    run_dir.mkdir()
    assert run_tag_of(run_dir) != before
    os.rmdir(run_dir)
    other.rename(run_dir)
    assert run_tag_of(run_dir) == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As Lustre is where nobody mounted it with them: neither two makers nor two coordinators could be kept apart."""

    def flock(_fd: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FileLock(tmp_path / "envs" / ".hf.lock")
    with pytest.raises(InputError) as home:
        lock.try_exclusive()
    lock.close()
    assert f"AIRLOCK_HOME: {tmp_path}/envs takes no locks: {os.strerror(number)}" in str(home.value)
    with pytest.raises(JournalError) as run_dir:
        RunLock(tmp_path)
    assert str(run_dir.value).startswith(f"{tmp_path}: takes no locks: {os.strerror(number)}; choose a --run-dir")
