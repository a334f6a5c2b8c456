"""The program for spark-submit, as Airflow's connection of type `spark` starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.account import ids, settled
from fixtures.batches.workbench import Workbench, events
from semel.commit import commit
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.spark.settings import settings_for
from semel.spark.submitted import stage_batch
from semel_local.stack import spark_server

SECONDS_MAX = 240


def submitted(
    bench: Workbench, ledger: Ledger, batch_id: int, **environment: str
) -> tuple[int, dict[str, Any], str]:
    """Stage a batch of `events` under spark-submit. Returns its exit code, answer and output."""
    answer = bench.folder / "answer.json"
    settings = settings_for("local[2]") | {"spark.sql.warehouse.dir": str(bench.folder / "wh")}
    done = subprocess.run(
        [
            *spark_server.submit(), "--master", "local[2]",
            *(f"--conf={name}={value}" for name, value in settings.items()),
            str(Path(stage_batch.__file__)), "events", str(batch_id), "--answer", str(answer),
        ],
        env=os.environ | {
            "SEMEL_LEDGER_DSN": ledger.dsn, "SEMEL_TRANSFORMS_DIR": str(bench.transforms),
            "PYSPARK_PYTHON": sys.executable,
        } | environment,
        cwd=bench.folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    told = json.loads(answer.read_text()) if answer.exists() else {}
    return done.returncode, told, done.stdout + done.stderr


def finished(ledger: Ledger, spec: Spec, batch_id: int) -> list[str]:
    """Commit and finalize a staged batch. Returns the ids of the output."""
    commit(ledger, spec, batch_id, lambda: None, print)
    finalize(ledger, spec, batch_id)
    return settled(spec).ids


@pytest.mark.rest
def test_a_batch_under_spark_submit(bench: Workbench, ledger: Ledger) -> None:
    """A batch by id, with a query, in a driver of its own: staged once, and an exact output."""
    (bench.transforms / "more.sql").write_text("SELECT id, n + 1 AS n FROM records")
    spec = bench.spec(transforms=["more.sql"])
    bench.write("in/a.jsonl", [*events(0, 50), *events(0, 5)])
    plan(ledger, spec, "r1")
    code, answer, output = submitted(bench, ledger, 1)
    assert (code, answer.get("error")) == (0, None), output[-4000:]
    assert ledger.dsn not in output
    assert finished(ledger, spec, 1) == ids(0, 50)
    assert sorted(row["n"] for row in settled(spec).rows) == list(range(1, 51))
