"""Which runs are shown, and that no request and no link leads anywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.serve import logs
from orchestrator.serve.shelf import Shelf, key_of, place


def a_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    return folder


def test_folders_that_are_runs_are_found_and_the_others_named(tmp_path: Path) -> None:
    a_run(tmp_path / "one")
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("x")
    found = place(str(tmp_path)).look()
    assert found.runs == {key_of("one"): tmp_path / "one"}
    assert found.left_out == ("notes: a folder that holds no run",)


def test_a_link_to_a_run_elsewhere_is_not_followed(tmp_path: Path) -> None:
    a_run(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    found = place(str(tmp_path / "runs")).look()
    assert found.runs == {}
    assert found.left_out == ("link: a symbolic link, not followed",)


def test_a_run_itself_may_be_named_also_by_a_link(tmp_path: Path) -> None:
    a_run(tmp_path / "one")
    (tmp_path / "last").symlink_to("one")
    found = place(str(tmp_path / "last"))
    assert found.alone
    assert list(found.look().runs.values()) == [tmp_path / "one"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        place(str(tmp_path / "nothing"))


def test_a_folder_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    named = place(str(tmp_path / "runs"))
    (tmp_path / "runs").rmdir()
    assert named.look().runs == {}
    assert "No such file" in named.look().left_out[0]


def test_keys_are_the_same_after_a_restart_whatever_the_name() -> None:
    assert key_of("one") == "7692c3ad3540"
    assert len({key_of(name) for name in ("a", "A", "a ", os.fsdecode(b"\xff"))}) == 4


def test_of_many_runs_only_the_last_that_were_looked_at_stay_awake() -> None:
    rested: list[str] = []
    shelf = Shelf(lambda key, _folder: key, rested.append, most_awake=2)
    runs = {key: Path(key) for key in "abc"}
    assert shelf.arrange(runs) == {"a": "a", "b": "b", "c": "c"}
    for key in "abac":
        shelf.wake(key)
    assert rested == ["b"]
    assert list(shelf.arrange({"c": Path("c")})) == ["c"]


# --- logs ---------------------------------------------------------------------------


def test_the_end_of_a_log_in_lines_that_are_safe(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run") / "logs"
    folder.mkdir()
    (folder / "w1.log").write_bytes(b"first\n\x1b[31mred\x07\n\0\0\xff<script>\n")
    assert [one["name"] for one in logs.listed(tmp_path / "run")["logs"]] == ["w1.log"]
    found = logs.tail(tmp_path / "run", "w1.log")
    assert found is not None
    assert found["lines"] == ["first", r"\x1b[31mred\x07", "\ufffd<script>"]
    assert found["before_bytes"] == 0


def test_of_a_long_log_whole_lines_of_its_end(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run") / "logs"
    folder.mkdir()
    (folder / "w1.log").write_text("".join(f"line {n}\n" for n in range(100_000)))
    found = logs.tail(tmp_path / "run", "w1.log")
    assert found is not None
    assert found["lines"][-1] == "line 99999"
    assert found["lines"][0].startswith("line ")
    assert 0 < found["bytes"] - found["before_bytes"] <= logs.TAIL_BYTES


@pytest.mark.parametrize("name", ["../plan.json", "/etc/passwd", "", ".", "link.log", "fifo.log", "inner"])
def test_nothing_but_a_log_is_opened(tmp_path: Path, name: str) -> None:
    folder = a_run(tmp_path / "run") / "logs"
    folder.mkdir()
    (folder / "link.log").symlink_to("/etc/passwd")
    (folder / "inner").mkdir()
    os.mkfifo(folder / "fifo.log")
    assert logs.tail(tmp_path / "run", name) is None
    assert logs.listed(tmp_path / "run") == {"logs": [], "not_listed": 0}


def test_a_folder_of_logs_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "w1.log").write_text("secret")
    (run / "logs").symlink_to(tmp_path / "secrets")
    assert logs.listed(run)["logs"] == []
    assert logs.tail(run, "w1.log") is None
