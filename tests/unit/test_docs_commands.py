"""The commands in the documents: the command line's own parser takes each of them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from semel.cli import COMMANDS, app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])

_UsageError = typer.BadParameter.__base__

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
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
    blocks = [block for language, block in fenced if language in ("", "sh", "bash", "console")]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_each_command_of_a_page_is_one(page: Path) -> None:
    """A command that was renamed, or lost an option, is found here, with its page."""
    wrong = []
    for line in commands(page):
        _, *words = words_of(line)
        if len(words) < 2 and (not words or words[0] in COMMANDS or words[0].startswith("-")):
            continue  # Only its name, in prose.
        command = typer.main.get_command(app).get_command(None, words[0])
        try:
            assert command is not None, "there is no such command"
            if words[1:] != ["--help"]:
                command.make_context(words[0], words[1:])
        except (AssertionError, _UsageError) as error:
            told = getattr(error, "message", None) or str(error)
            wrong.append(f"{page.name}: {line}: {told}")
    assert not wrong, "\n".join(wrong)


def test_the_operations_page_has_commands() -> None:
    """The test above reads them: this page has them in tables, lists and blocks."""
    found = list(commands(ROOT / "docs" / "operations.md"))
    assert len(found) > 40
    assert "semel accept PIPELINE PATH --same" in found
    assert any(line.startswith("semel run flights --request") for line in found)
