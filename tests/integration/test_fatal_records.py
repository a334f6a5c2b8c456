"""A record that ends the process which reads it: it is found and named, and the advice works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fix_account import settled
from fix_pipelines import Workbench
from semel.abandon import abandon
from semel.ledger import Ledger

# What dies here is pyarrow, of a number that semel keeps from it; without that it would see it. In
# processes of their own, and in all that they start.
UNGUARDED = """
import os
import signal
import semel.formats.jsonfaults
semel.formats.jsonfaults.Decimals.refused = lambda self, lines: {}
if "KILLED" in os.environ:
    import semel.formats.records
    semel.formats.records._lines = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
RUN = """
from fix_engine import LocalEngine
from semel.ledger import Ledger
from semel.run import run_batch
from semel.spec import pipeline
import os
with Ledger(os.environ["SEMEL_LEDGER_DSN"]) as ledger:
    run_batch(ledger, pipeline.find("events"), "r1", LocalEngine(), log=print)
"""


@pytest.fixture
def run(bench: Workbench, ledger_dsn: str, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(UNGUARDED)
    paths = [tmp_path, Path(__file__).resolve().parents[1]]
    env = {"PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])}
    env |= {"SEMEL_LEDGER_DSN": ledger_dsn}

    def once() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", RUN], env=os.environ | env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    return once


def test_the_record_is_named_and_the_advice_works(
    bench: Workbench, ledger: Ledger, run
) -> None:
    """Two attempts die of a record. The third one names its file, line and signal, before it reads
    anything itself; with the record taken out and the batch given up, the next run is exact.
    """
    good = [f'{{"id": "{n}", "n": {n}.25}}' for n in range(2_000)]
    lines = [*good[:700], '{"id": "x", "n": 1e-999999999}', *good[700:]]
    file = bench.data / "in" / "a.jsonl"
    file.write_text("\n".join(lines) + "\n")
    spec = bench.spec("events", source={"schema": {"id": "string", "n": "decimal(18,2)"}})
    assert [run().returncode for _ in range(2)] == [-11, -11]
    third = run()
    assert third.returncode == 1
    said = third.stderr.splitlines()[-1]
    byte = len("\n".join(good[:700])) + 1
    place = f"'{file}' line 701 (byte {byte}) (split 0, signal 11, Segmentation fault)"
    assert said.startswith("semel.errors.TerminalError") and place in said, said
    file.write_text("\n".join(good) + "\n")
    abandon(ledger, 1, "its record ends who reads it")
    assert run().returncode == 0
    assert len(settled(spec).rows) == 2_000


def test_who_was_killed_leaves_no_record_under_suspicion(bench: Workbench, run) -> None:
    """Attempts that were killed while they read are no reason to refuse a batch."""
    (bench.data / "in" / "a.jsonl").write_text('{"id": "1", "n": 1.25}\n')
    spec = bench.spec("events", source={"schema": {"id": "string", "n": "decimal(18,2)"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILLED", "1")
        assert [run().returncode for _ in range(2)] == [-9, -9]
    assert run().returncode == 0
    assert len(settled(spec).rows) == 1
