"""A record that ends the process which reads it: it is found and named, and the advice works."""

import os
import signal
from pathlib import Path

import pytest

from fixtures.batches import account
from fixtures.batches.account import settled
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import Shell
from fixtures.kafka.broker import Kafka
from fixtures.kafka.topics import Topic
from semel.formats import jsonfaults, records
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan.abandon import abandon
from semel.stage import fatal

# What dies here is pyarrow, of a number that semel keeps from it; without that it would see it.
UNGUARDED = """
import semel.formats.jsonfaults
semel.formats.jsonfaults.RecordFaults.refused = lambda self, lines: ()
"""


def attempt(ledger: Ledger, spec: Spec, killed: bool) -> None:
    """Run the batch without the guard, or be killed while it reads."""
    jsonfaults.RecordFaults.refused = lambda self, lines: ()
    if killed:
        records._lines = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    account.run(ledger, spec, "r1")


@pytest.fixture
def run(
    ledger: Ledger,  # noqa: ARG001 - it says where the ledger is
    children: Children,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Runs the batch in a process of its own: its exit code, and the error that it ended with."""
    (tmp_path / "sitecustomize.py").write_text(UNGUARDED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def once(*, killed: bool = False) -> tuple[int, str]:
        child = children.start(attempt, "", None, killed)
        code, error = child.ended()
        return code, f"{error}: {child.message}" if error else ""

    return once


@pytest.fixture
def prices(bench: Workbench) -> Spec:
    return bench.spec("events", source={"schema": {"id": "string", "n": "decimal(18,2)"}})


def test_the_search_says_nothing_of_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """Its process writes to the task's log: a warning of Python's there frightens who reads it."""
    assert fatal.search(None, [], 1) == []
    assert capfd.readouterr().err == ""


def test_the_record_is_named_and_the_advice_works(
    bench: Workbench, prices: Spec, shell: Shell, run
) -> None:
    """Two attempts die of a record. The third one names its file, line and signal, before it reads
    anything itself; with the record taken out and the batch given up, the next run is exact.

    Some 5 s, in processes of its own: only an end by a signal shows that nothing else is needed.
    """
    good = [f'{{"id": "{n}", "n": {n}.25}}' for n in range(2_000)]
    lines = [*good[:700], '{"id": "x", "n": 1e-999999999}', *good[700:]]
    file = bench.data / "in" / "a.jsonl"
    file.write_text("\n".join(lines) + "\n")
    assert [run()[0] for _ in range(2)] == [-signal.SIGSEGV] * 2
    step = shell.fails("semel run events --request r1")
    byte = len("\n".join(good[:700])) + 1
    place = f"'{file}' line 701 (byte {byte}) (signal 11, Segmentation fault)"
    assert "batch 1: " in shell.err and place in shell.err
    file.write_text("\n".join(good) + "\n")
    shell.runs(step)
    assert run() == (0, "")
    assert len(settled(prices).rows) == 2_000


def test_a_message_that_nobody_can_edit(
    bench: Workbench, ledger: Ledger, kafka: Kafka, run
) -> None:
    """The same of a topic: with the column declared as the message says, and the batch given up,
    the next run takes each message, the one that was fatal too.
    """
    topic = Topic(bench, kafka)
    topic.put(f'{{"id": "{n}", "n": {n}.25}}'.encode() for n in range(700))
    topic.put([b'{"id": "x", "n": 1e-999999999}'])
    topic.put(f'{{"id": "{n}", "n": {n}.25}}'.encode() for n in range(700, 1_000))

    def declared(kind: str) -> Spec:
        return topic.spec(name="events", source={"schema": {"id": "string", "n": kind}})

    declared("decimal(18,2)")
    assert [run()[0] for _ in range(2)] == [-signal.SIGSEGV] * 2
    code, said = run()
    assert code == 1 and f"'{topic.at()}' offset 700 (signal 11" in said
    assert "or declare its unreadable column as json. Then abandon the batch" in said
    spec = declared("json")
    abandon(ledger, 1, "its record ends who reads it")
    assert run() == (0, "")
    found = settled(spec)
    assert (len(found.rows), found.letters) == (1_001, [])
    assert {r["n"] for r in found.rows if r["id"] in ("7", "x")} == {"7.25", "1e-999999999"}


def test_who_was_killed_leaves_no_record_under_suspicion(
    bench: Workbench, prices: Spec, run
) -> None:
    """Attempts that were killed while they read are no reason to refuse a batch."""
    (bench.data / "in" / "a.jsonl").write_text('{"id": "1", "n": 1.25}\n')
    assert [run(killed=True)[0] for _ in range(2)] == [-signal.SIGKILL] * 2
    assert run() == (0, "")
    assert len(settled(prices).rows) == 1
