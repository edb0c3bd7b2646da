"""What the documents show: commands, sweep files, links, options. Read from their text alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = (REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md")))
#: Blocks without a language are commands where a line of theirs begins with one of these.
PROGRAMS = ("python", "airlock", "scripts/", "pip", "nohup", "curl", "ssh", "git", "export", "ray", ".")
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(map(re.escape, PROGRAMS))})(?=[ /\w]|$)\S*(?: |$)")
_SHELL = ("sh", "bash")
_COMMENT = re.compile(r"(?:^|\s+)#(?:\s.*)?$")


@dataclass(frozen=True)
class Block:
    """`language`: "" where none is named; indented blocks have none."""

    where: str
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_shell(self) -> bool:
        return self.language in _SHELL or (not self.language and any(map(_COMMAND.match, self.lines)))

    @property
    def commands(self) -> list[str]:
        """Without their comments; lines that end in a backslash are one with the next."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line for raw in joined.splitlines() if (line := _COMMENT.sub("", raw).strip())]


def name_of(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def blocks(path: Path) -> Iterator[Block]:
    """Fenced and indented ones. An indented one follows a blank line and ends where the indent does."""
    lines = [*path.read_text(encoding="utf-8").splitlines(), "", "the end"]
    at, after_blank = 0, True
    while at < len(lines):
        fence = re.match(r"\s*```(\w*)", lines[at])
        begin = at
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
            yield Block(f"{name_of(path)}:{begin + 1}", fence[1], "\n".join(lines[begin + 1 : end]))
            at = end + 1
        elif after_blank and lines[at].startswith("    "):
            at = next(n for n in range(at, len(lines)) if lines[n].strip() and not lines[n].startswith("    "))
            inside = "\n".join(one[4:] for one in lines[begin:at])
            yield Block(f"{name_of(path)}:{begin + 1}", "", inside.rstrip())
        else:
            at += 1
        after_blank = not lines[at - 1].strip()


def all_blocks() -> list[Block]:
    return [block for path in DOCUMENTS for block in blocks(path)]


def commands() -> dict[str, str]:
    """Each command of the documents once, with the place that shows it first."""
    found: dict[str, str] = {}
    for block in all_blocks():
        for command in block.commands if block.is_shell else ():
            found.setdefault(command, block.where)
    return found


def prose(path: Path) -> str:
    """Without its blocks."""
    text = re.sub(r"^\s*```.*?^\s*```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<=\n\n)(?:    .*\n|\n)+", "\n", text)


def spans(path: Path) -> list[str]:
    """What stands between backquotes in running text, on one line each."""
    return [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", prose(path))]


def links(path: Path) -> list[str]:
    """Targets of links that are no addresses of the web."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [one for one in found if not re.match(r"[a-z]+:", one)]


def anchors(path: Path) -> set[str]:
    """As the heads of a page are named where it is rendered: small letters, no signs, hyphens for spaces."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.S | re.M), re.M)
    found: set[str] = set()
    for head in heads:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(slug if not number else f"{slug}-{number}")
    return found
