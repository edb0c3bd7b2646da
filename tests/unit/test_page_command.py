"""`report`: where it goes, and what it never replaces."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.cli import run
from orchestrator.exits import EXIT_INPUT, EXIT_OK, EXIT_OUTPUT
from tests.unit import rundirs


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("command") / "run"
    rundirs.finished_run(found)
    return found


def test_the_page_alone_and_one_line_that_says_where(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--html", str(run_dir)]) == EXIT_OK
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f"{run_dir / 'report.html'}: ")
    assert (run_dir / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_any_report_goes_into_a_file_and_replaces_only_a_report(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    path = tmp_path / "report"
    assert run(["report", str(run_dir), *options, "--output", "-"]) == EXIT_OK
    plain = capsys.readouterr().out
    for _ in range(2):
        assert run(["report", str(run_dir), *options, "--output", str(path)]) == EXIT_OK
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert path.read_text(encoding="utf-8") == plain
    path.write_text("# mine\n")
    assert run(["report", str(run_dir), *options, "--output", str(path)]) == EXIT_INPUT
    assert path.read_text() == "# mine\n"


def test_on_standard_output_alone(run_dir: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["report", str(run_dir), "--html", "--output", "-"]) == EXIT_OK
    said = capsysbinary.readouterr()
    assert said.out.startswith(b"<!doctype html>")
    assert said.out.rstrip().endswith(b"</html>")
    assert said.err == b""


def test_an_earlier_report_is_replaced_as_a_whole(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert run(["report", str(run_dir), "--html", "--output", str(path)]) == EXIT_OK
    before = os.stat(path).st_ino
    assert run(["report", str(run_dir), "--html", "--output", str(path)]) == EXIT_OK
    assert os.stat(path).st_ino != before
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert os.stat(path).st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sweep.yaml", "is there, and is no report of Airlock"),
        ("folder", "is a folder"),
        ("nowhere/page.html", "there is no folder"),
    ],
)
def test_what_is_no_report_is_never_replaced(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "sweep.yaml").write_text("name: mine\n")
    (tmp_path / "folder").mkdir()
    assert run(["report", str(run_dir), "--html", "--output", str(tmp_path / name)]) == EXIT_INPUT
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert (tmp_path / "sweep.yaml").read_text() == "name: mine\n"


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_not_waited_for(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "page.html" if kind == "fifo" else Path(os.devnull)
    if kind == "fifo":
        os.mkfifo(path)
    assert run(["report", str(run_dir), "--html", "--output", str(path)]) == EXIT_INPUT
    assert "is no regular file" in capsys.readouterr().err


def test_what_can_not_be_written_is_one_sentence_about_the_page(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{'x' * 240}.html"  # its temporary one has too long a name
    assert run(["report", str(run_dir), "--html", "--output", str(path)]) == EXIT_OUTPUT
    assert capsys.readouterr().err.startswith(f"airlock: {path}: ")
    assert not list(tmp_path.iterdir())


def test_where_it_went_is_told_on_one_line_of_plain_text(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(run_dir), "--html", "--output", str(tmp_path / "a\n\x1b[31m.html")]) == EXIT_OK
    (told,) = capsys.readouterr().err.splitlines()
    assert "\x1b" not in told


def test_a_link_to_a_page_stays_one(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    assert run(["report", str(run_dir), "--html", "--output", str(tmp_path / "link.html")]) == EXIT_OK
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").is_file()


def test_a_run_without_its_sweep_file_has_a_page(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    (copy / "sweep.yaml").unlink()
    assert run(["report", str(copy), "--html"]) == EXIT_OK
    assert "It can&#39;t be read: No such file or directory" in (copy / "report.html").read_text(encoding="utf-8")


def test_a_page_and_json_are_two_reports(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(run_dir), "--json", "--html"]) == EXIT_INPUT
    assert "--json are two reports" in capsys.readouterr().err
