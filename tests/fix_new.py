"""`semel new` on files of a test's own."""

import json
from pathlib import Path

import pytest
import yaml

from fix_pipelines import Workbench
from semel import cli
from semel.spec import pipeline

ROWS = 200


def table(header: str, row: str, count: int = ROWS, sep: str = "\n") -> bytes:
    """A CSV of so many rows; `{i}` is a row's number."""
    return sep.join([header, *(row.format(i=i) for i in range(count)), ""]).encode()


class Drafted:
    """What `semel new NAME --yes --json` answered, and the file that it wrote."""

    def __init__(self, answer: dict) -> None:
        self.answer = answer
        self.text = Path(answer["file"]).read_text(encoding="utf-8")
        self.data = yaml.safe_load(self.text)
        self.schema = self.data["source"]["schema"]
        self.spec = pipeline.load(Path(answer["file"]))

    def line(self, key: str) -> str:
        """The file's line of a column."""
        return next(line for line in self.text.splitlines() if line.strip().startswith(f"{key}:"))


@pytest.fixture
def new(bench: Workbench, capsys: pytest.CaptureFixture):
    """Runs `semel new` on files with these contents, by their names below in/."""

    def run(files: dict[str, bytes] | bytes, name: str = "events") -> Drafted:
        if isinstance(files, bytes):
            files = {"events.csv": files}
        paths = []
        for file, content in files.items():
            path = bench.data / "in" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            paths.append(str(path))
        assert cli.main(["new", name, *paths, "--yes", "--json"]) == 0, capsys.readouterr()
        return Drafted(json.loads(capsys.readouterr().out))

    return run


@pytest.fixture
def refused(bench: Workbench, capsys: pytest.CaptureFixture):
    """The message with which `semel new` refuses a file of this content."""

    def run(content: bytes, file: str = "events.csv") -> str:
        path = bench.data / "in" / file
        path.write_bytes(content)
        assert cli.main(["new", "events", str(path), "--yes"]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("semel: ") and "Traceback" not in err
        assert err.isascii() and not list(bench.pipelines.iterdir())
        return err

    return run
