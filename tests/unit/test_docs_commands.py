"""The commands in the documents: the command line's own parser takes each of them."""

from pathlib import Path

import pytest
import typer

from fixtures.commands.documents import PAGES, ROOT, commands, words_of
from semel import cli
from semel.cli import app

_UsageError = typer.BadParameter.__base__


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_each_command_of_a_page_is_one(page: Path) -> None:
    """A command that was renamed, or lost an option, is found here, with its page."""
    wrong = []
    for line in commands(page):
        _, *words = words_of(line)
        if len(words) < 2 and (not words or words[0] in cli.commands() or words[0].startswith("-")):
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
