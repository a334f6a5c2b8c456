"""The commands that the documents tell to type."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])

FILLED = {
    "PIPELINE": "flights", "NAME": "flights", "BATCH": "17", "PATH": "in/a.jsonl", "BYTE": "17",
    "FILE": "in/a.jsonl", "SAMPLE...": "in/a.jsonl", "ID...": "17", "ID": "17", "N": "17",
    "START": "2026-11-21", "END": "2026-11-22", "DAY": "2026-11-21", "ADDRESS": "local[2]",
    "DIGEST": "17", "...": "",
}  # fmt: skip
"""For the words in capitals of a document."""


def commands(page: Path) -> Iterator[str]:
    """What a page tells to type: in backticks, or in a block of a shell."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"```(\w*)\n(.*?)```", text, re.S)
    blocks = [block for kind, block in fenced if kind in ("", "sh", "bash", "console")]
    lines = (line.split("  #")[0].removeprefix("$ ") for b in blocks for line in b.splitlines())
    yield from (line.strip() for line in lines if line.removeprefix("$ ").startswith("semel "))
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    for found in re.findall(r"`(semel\s[^`]+)`", prose):
        yield " ".join(found.split())


def words_of(line: str) -> list[str]:
    """Its words, the optional ones too, with something in place of each word in capitals."""
    plain = re.sub(r"\[(?=-|[A-Z])|\](?=\s|$)", "", line)
    filled = (FILLED.get(word, word) for word in shlex.split(plain))
    return [word for word in filled if word]
