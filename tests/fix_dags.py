"""DAG files as Airflow's DAG processor reads them, without a database."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

SPEC = """
name: {name}
schedule: {schedule}
description: Clicks of the shop.
source:
  type: files
  path: {name}/*.jsonl
  format: jsonl
  schema: {{event_id: string, page: string}}
  {select}
record_id: [event_id]
sink: {{type: files, path: out/{name}, format: parquet}}
max_active_runs: 3
"""

OF_TOPICS = """
name: orders
source:
  type: kafka
  connection: shop
  pattern: 'orders\\.(eu|us)'
  value: json
  schema: {order_id: string, at: timestamp}
  timestamp: at
  select: interval
sink: {type: kafka, connection: shop, topic: paid, value: json}
schedule: "0 0 * * *"
"""

BY_INTERVAL = 'select: interval\n  interval_from: "clicks-%Y-%m-%d.jsonl"'

# Airflow reads its configuration once per process, so each parse has a process of its own.
PARSE = """
import json, os, pathlib, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as key
from airflow.serialization.serialized_objects import DagSerialization
if len(sys.argv) > 2:
    os.environ[key] = sys.argv[2]
bag = DagBag(sys.argv[1], bundle_path=pathlib.Path(sys.argv[1]))
from airflow import plugins_manager
plugins = plugins_manager._get_plugins()[0]
heavy = sorted({"pyspark", "pandas", "pyarrow"} & set(sys.modules))
dags = {dag.dag_id: DagSerialization.to_dict(dag)["dag"] for dag in bag.dags.values()}
bare = sorted({"plan", "stage", "ids"} & set(sys.modules))
found = {"dags": dags, "errors": bag.import_errors, "heavy": heavy, "bare": bare,
    "plugins": [p.name for p in plugins]}
print("\\n" + json.dumps(found))
"""


def documented(holds: str, page: str = "deploy.md") -> str:
    """The example of a page of docs/ that holds some words."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [found] = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if holds in block]
    return found


def parsed(folder: Path, *only: str) -> dict[str, Any]:
    """What Airflow finds in dags/ and plugins/ with the pipelines of `folder`."""
    variables = {
        "SEMEL_HOME": str(ROOT),
        "SEMEL_PIPELINES_DIR": str(folder),
        "SEMEL_DATA_ROOTS": str(folder / "data"),
    }
    return parsed_files(folder, ROOT / "dags", variables, *only)


def parsed_files(
    folder: Path, dags: Path, variables: dict[str, str], *only: str
) -> dict[str, Any]:
    """What Airflow finds in a folder of DAG files, with these variables and none of our own.

    `folder`: for Airflow's own files. `only`: the DAG whose task's process it is.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SEMEL_", "AIRFLOW"))}
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(dags), *only],
        env={
            **inherited,
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write(folder: Path, name: str, schedule: str = "null", select: str = "") -> Path:
    """A pipeline's file."""
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, schedule=schedule, select=select))
    return path
