"""Commands as a user types them, in the process of a test."""

import json
import shlex
from contextlib import nullcontext
from typing import Any

import pytest

from fix_engine import LocalEngine
from semel.cli import main


class Shell:
    """Runs commands. `err`: what the last one wrote to standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.err = capsys, ""

    def runs(self, line: str, code: int = 0) -> str:
        """Run a command that ends with this code, and return what it prints."""
        self.capsys.readouterr()
        found = main(shlex.split(line.removeprefix("semel ")))
        out, self.err = self.capsys.readouterr()
        assert found == code, (line, found, out, self.err)
        return out

    def answers(self, line: str, code: int = 0) -> dict[str, Any]:
        """What a command says with --json."""
        return json.loads(self.runs(f"{line} --json", code))

    def fails(self, line: str, code: int = 1) -> str:
        """Run a command that fails. Returns the command that it says is next."""
        self.runs(line, code)
        last = self.err.splitlines()[-1]
        assert last.startswith("next: semel "), last
        return last.removeprefix("next: ")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Commands on the test's ledger; those that need Spark get the local engine."""
    monkeypatch.setenv("SEMEL_SPARK_REMOTE", "local[1]")
    monkeypatch.setattr(
        "semel.spark.session.open_engine", lambda *_: nullcontext(LocalEngine())
    )
    return Shell(capsys)
