"""B7: from trigger to finalized in Airflow, for 10 k records, warm, with each task's share.

    python benchmarks/latency.py
    python benchmarks/latency.py --submit      # stage under spark-submit, in place of Spark Connect
    python benchmarks/latency.py --smallest

A stack of its own is started in folders of its own (`semel up`), a file lands, the DAG is triggered
over Airflow's API, and the clock runs until the task finalize has ended. The first run is thrown
away.

Beside each run stands one of a DAG with four tasks of the same names that do nothing: what Airflow
itself takes.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

import harness
from data import SCHEMA, Shape, landed
from semel_local import stack
from semel_local.demo.airflow_api import FINISHED, AirflowApi

_PIPELINE = "latency"
_NOTHING = "nothing"
_DAG_OF_NOTHING = f'''"""Four tasks in a row, as a pipeline has them, that do nothing."""
from airflow.sdk import DAG, BaseOperator, chain


class Nothing(BaseOperator):
    def execute(self, context):
        return None


with DAG("{_NOTHING}", schedule=None, is_paused_upon_creation=False):
    chain(*[Nothing(task_id=name) for name in ("plan", "stage", "commit", "finalize")])
'''
_TASKS = ("plan", "stage", "commit", "finalize")
_POLL_S = 0.2
_RUN_S_MAX = 600


def main() -> None:
    parser = harness.options_of(__doc__, runs=20, default=10_000, help="of a batch")
    parser.add_argument("--submit", action="store_true", help="spark-submit with local[2]")
    options = harness.parsed(parser, records=100)
    with _open_stack(submit=options.submit) as (data, airflow):
        report = _measure(data, airflow, options)
    harness.save("latency", options, report, part="submit" if options.submit else "")


def _measure(data: Path, airflow: AirflowApi, options: Namespace) -> dict[str, Any]:
    both, found = (_PIPELINE, _NOTHING), []
    for number in range(options.runs + 1):
        shape = Shape(records=options.records, first=number * options.records)
        landed(shape, data / "in" / f"{number:04d}.jsonl")
        # Each of the two goes first in half of the runs.
        seconds = {dag: _run(airflow, dag, number) for dag in both[:: -1 if number % 2 else 1]}
        harness.tell(f"  {seconds}")
        if number:
            found.append(seconds)
    rows = [
        [share, *(round(statistics.median(r[dag][share] for r in found), 2) for dag in both)]
        for share in found[0][_PIPELINE]
    ]
    whole = [(each[_PIPELINE]["whole"], each[_NOTHING]["whole"]) for each in found]
    way = "spark-submit" if options.submit else "Spark Connect"
    name = "trigger_to_finalized" + ("_submit" if options.submit else "")
    title = f"{options.records:,} records, {way}, median of {options.runs}"
    return {
        "title": f"B7: from trigger to finalized in Airflow, by {way}",
        "headline": {
            f"{name}_s": round(statistics.median(ours for ours, _ in whole), 3),
            f"{name}_ratio_to_nothing": round(statistics.median(a / b for a, b in whole), 3),
            f"{name}_s_above_nothing": round(statistics.median(a - b for a, b in whole), 3),
        },
        "tables": [{"title": title, "columns": ["share", "seconds", "of nothing"], "rows": rows}],
        "plots": [
            {
                "kind": "bars",
                "title": f"Seconds of a run, {way}",
                "bars": {share: seconds for share, seconds, _ in rows if share != "whole"},
            }
        ],
    }


def _run(airflow: AirflowApi, dag: str, number: int) -> dict[str, float]:
    """Trigger, wait. Returns the seconds of each task, of the gaps, of all."""
    run_id = f"bench-{number}"
    triggered = datetime.now(UTC)
    airflow.start_run(dag, run_id)
    deadline = time.monotonic() + _RUN_S_MAX
    while airflow.run_state(dag, run_id) not in FINISHED:
        if time.monotonic() > deadline:
            raise SystemExit(f"run {run_id} of {dag} did not end within {_RUN_S_MAX} s")
        time.sleep(_POLL_S)
    harness.check(run_id, airflow.run_state(dag, run_id), "success")
    tasks = airflow.tasks(dag, run_id)
    seconds = {}
    before = triggered
    for name in _TASKS:
        task = tasks[name]
        seconds[f"until {name} starts"] = (task.started - before).total_seconds()
        seconds[name] = (task.ended - task.started).total_seconds()
        before = task.ended
    return {**seconds, "whole": (before - triggered).total_seconds()}


@contextmanager
def _open_stack(*, submit: bool) -> Iterator[tuple[Path, AirflowApi]]:
    folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
    # As root Postgres runs as another user, who must be able to enter.
    folder.chmod(0o755)
    for name in [n for n in os.environ if n.startswith(("SEMEL_", "AIRFLOW"))]:
        del os.environ[name]
    os.environ["SEMEL_STATE_DIR"] = str(folder / "state")
    os.environ["SEMEL_DATA_ROOTS"] = str(folder / "data")
    os.environ["SEMEL_PIPELINES_DIR"] = str(folder / "pipelines")
    if submit:
        connection = {"conn_type": "spark", "host": "local[2]"}
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps(connection)
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(folder / "dags")
    shutil.copytree(harness.ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("*.yaml"))
    (folder / "dags" / f"{_NOTHING}.py").write_text(_DAG_OF_NOTHING)
    (folder / "pipelines").mkdir()
    (folder / "data" / "in").mkdir(parents=True)
    source = {"type": "files", "path": "in/*.jsonl", "format": "jsonl", "schema": SCHEMA}
    declared = {
        "name": _PIPELINE,
        "source": source,
        "record_id": ["id"],
        "sink": {"type": "files", "path": "out", "format": "parquet"},
    }
    (folder / "pipelines" / f"{_PIPELINE}.yaml").write_text(yaml.safe_dump(declared))
    try:
        stack.up(echo=harness.tell)
        found = stack.connection()
        airflow = AirflowApi(found.airflow_url, found.airflow_user, found.airflow_password)
        airflow.wait_for_dag(_PIPELINE)
        airflow.wait_for_dag(_NOTHING)
        yield folder / "data", airflow
    finally:
        stack.down(echo=harness.tell)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
