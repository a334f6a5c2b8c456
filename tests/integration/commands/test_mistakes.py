"""Mistakes as they are typed: each answer comes within seconds, and the step it names works."""

import gzip
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.files.rights import no_overrides
from semel.cli import main
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.spark import check

SECONDS_MAX = 5
"""CPU seconds until a person knows. Each takes a tenth of it where nothing else is at work."""

BY_DAY = {"path": "in/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
CSV = {"path": "in/*.csv", "format": "csv"}
ROWS = "".join(f"e{n},{n}\n" for n in range(50))


@dataclass
class Mistakes:
    """Each method makes a mistake, and returns the command and what its answer has to name.

    `mend` does what the answer says. `code`: what the step ends with then.
    """

    bench: Workbench
    dsn: str
    setenv: Callable[[str, str], None]
    mend: Callable[[], object] = lambda: None
    code: int = 0

    def wrong_glob(self) -> tuple[str, str]:
        self.bench.spec(source={"path": "in/eventz-*.jsonl", "on_empty": "fail"})
        self.bench.write("in/events-1.jsonl", events(0, 5))
        return "semel run events", "events-1.jsonl"

    def tab_in_yaml(self) -> tuple[str, str]:
        self.bench.spec()
        path = self.bench.pipelines / "events.yaml"
        right = path.read_text()
        path.write_text(right.replace("  path:", "\tpath:"))
        self.mend = lambda: path.write_text(right)
        return "semel run events", "indent with spaces"

    def two_headers(self) -> tuple[str, str]:
        names = []
        for day, header in ((1, "id,n"), (2, "id,n"), (3, "id,m")):
            names.append(self.bench.data / f"in/2026-01-0{day}.csv")
            names[-1].write_text(f"{header}\n{ROWS}")
        return f"semel new orders {' '.join(map(str, names))} --yes", "2026-01-03.csv"

    def missing_column(self) -> tuple[str, str]:
        self.bench.spec(source=CSV | BY_DAY | {"path": "in/*.csv", "interval_from": "%Y-%m-%d.csv"})
        path = self.bench.write("in/2026-01-03.csv", [b"id,at", b"e1,2026-01-01T00:00:00Z"])
        self.mend = lambda: path.write_text("id,n,at\ne1,1,2026-01-01T00:00:00Z\n")
        self.code = 1  # Its records wait for a run.
        return "semel run events --interval 2026-01-03 2026-01-04", "it lacks 'n'"

    def gzip_without_its_ending(self) -> tuple[str, str]:
        path = self.bench.data / "in/orders.csv"
        path.write_bytes(gzip.compress(f"id,n\n{ROWS}".encode()))
        return f"semel new orders {path} --yes", ".gz; rename it"

    def wrong_password(self) -> tuple[str, str]:
        self.bench.spec()
        url = sa.make_url(self.dsn).set(password="wrong").render_as_string(hide_password=False)
        self.setenv("SEMEL_LEDGER_DSN", url)
        self.mend = lambda: self.setenv("SEMEL_LEDGER_DSN", self.dsn)
        self.code = 1  # Spark is away here.
        return "semel batches events", "password authentication failed"

    def postgres_is_down(self) -> tuple[str, str]:
        self.bench.spec()
        self.setenv("SEMEL_LEDGER_DSN", "postgresql://semel@127.0.0.1:1/semel")
        self.mend = lambda: self.setenv("SEMEL_LEDGER_DSN", self.dsn)
        self.code = 1
        return "semel batches events", "Connection refused"

    def from_later_than_to(self) -> tuple[str, str]:
        self.bench.spec(source=BY_DAY)
        return "semel days events --from 2026-01-07 --to 2026-01-01", "2026-01-07 is later than"

    def misspelled_pipeline(self) -> tuple[str, str]:
        self.bench.spec()
        return "semel run evnets", "did you mean events?"

    def misspelled_command(self) -> tuple[str, str]:
        self.bench.spec()
        return "semel btaches events", "Did you mean 'batches'?"

    def interval_of_a_pipeline_that_has_none(self) -> tuple[str, str]:
        self.bench.spec()
        return "semel run events --interval 2026-01-03 2026-01-04", "select: arrival"

    def renamed_file(self) -> tuple[str, str]:
        self.bench.spec()
        path = self.bench.write("in/a.jsonl", events(0, 5))
        assert main(["run", "events"]) == 0
        path.rename(path.with_name("b.jsonl"))
        return f"semel accept events {path}", "nothing to accept"

    def quarantine_limit(self) -> tuple[str, str]:
        self.bench.spec(limits={"quarantine_ratio_max": 0.1})
        self.bench.write("in/a.jsonl", [*events(0, 5), *[b"{bad"] * 5])
        self.mend = lambda: self.bench.spec(limits={"quarantine_ratio_max": 0.6})
        return "semel run events", "limits.quarantine_ratio_max 0.1"

    def sink_that_cannot_be_written(self) -> tuple[str, str]:
        self.bench.spec()
        self.bench.write("in/a.jsonl", events(0, 5))
        self.bench.data.chmod(0o555)
        self.mend = lambda: self.bench.data.chmod(0o755)
        return "semel run events", "Permission denied"

    def sink_below_a_file(self) -> tuple[str, str]:
        self.bench.spec()
        self.bench.write("in/a.jsonl", events(0, 5))
        out = self.bench.data / "out"
        out.write_text("a file has the name of the folder")
        self.mend = out.unlink
        return "semel run events", "Fix the file system"


MISTAKES = [name for name, of in vars(Mistakes).items() if callable(of) and name[0] != "_"]
NO_STEP = {"gzip_without_its_ending"}
"""Here a step would repeat what fails: the file gets another name."""


@pytest.mark.parametrize("name", [name for name in MISTAKES if name != "mend"])
def test_a_mistake_is_answered(
    name: str, bench: Workbench, ledger: Ledger, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes within seconds and names what is wrong, each name once; its next step ends
    the mistake once the message was followed, or there is none.
    """
    monkeypatch.setattr(check, "open_engine", away)
    mistakes = Mistakes(bench, ledger.dsn, monkeypatch.setenv)
    line, named = getattr(mistakes, name)()
    shell.capsys.readouterr()
    began = time.process_time()
    with no_overrides():
        assert main(shlex.split(line)[1:]) in (1, 2)
    seconds = time.process_time() - began
    shown = shell.capsys.readouterr().err
    assert named in " ".join(shown.split()) and seconds < SECONDS_MAX, shown
    assert "Traceback" not in shown and "defect" not in shown
    for path in bench.data.glob("in/*"):
        assert shown.partition("next:")[0].count(f"{path}") <= 1, shown
    step = shown.splitlines()[-1]
    assert step.startswith("next: semel ") == (name not in NO_STEP), shown
    mistakes.mend()
    if name not in NO_STEP:
        shell.runs(step.removeprefix("next: "), mistakes.code)


def away(*_: object) -> None:
    """Spark as check finds it here."""
    raise UnavailableError("Spark does not answer")
