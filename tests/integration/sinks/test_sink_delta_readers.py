"""A Delta table of batches as others read it: each value of each row, with filters and without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fixtures.batches.workbench import Workbench
from fixtures.contract.sinks import won_of
from fixtures.delta.outlet import Delta
from fixtures.objects.s3 import LOGIN, PASSWORD
from semel.errors import SemelError
from semel_local.demo.bucket import reader
from semel_local.stack import maven
from test_sink_delta import EVERY, MOMENT

# What Spark needs, Maven fetches; and an own Spark reads it: a minute.
pytestmark = pytest.mark.proof

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "delta"
KEPT = Path(__file__).resolve().parents[3] / ".semel" / "delta"
FILTERS = {
    "yes": "false", "tiny": "-128", "small": "-32768", "int": "-2147483648",
    "long": "9223372036854775807", "double": "-0.5", "number": "-99999999.99",
    "text": f"'{'é' * 40}'", "day": "DATE '9999-12-31'",
    "time": "TIMESTAMP '2026-03-29 00:59:59.999999+00:00'", "_semel_batch": "3",
}  # fmt: skip
"""Of each column, a value at the bounds of a file that holds it."""


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, bench: Workbench) -> Delta:
    """Three batches, in a folder or in a store."""
    s3 = request.getfixturevalue("s3") if request.param == "s3" else None
    return three_batches(Delta(bench, s3))


def three_batches(found: Delta) -> Delta:
    """A table of three batches, two of them compacted."""
    for number in (1, 2, 3):
        found.finalize(won_of(found.staged, found.sink().target, [EVERY], batch_id=number))
        if number == 2:
            found.table.optimize.compact()
    return found


def check(rows: pa.Table) -> None:
    """Each batch's rows are what they were."""
    for number in (1, 2, 3):
        own = rows.filter(pa.compute.equal(rows["_semel_batch"], number))
        told = own.select(EVERY.column_names).cast(EVERY.schema).sort_by("yes")
        assert told.equals(EVERY.sort_by("yes")), number


def test_duckdb(place: Delta) -> None:
    """By its extension, in a folder and in a store."""
    server = place.s3.endpoint.removeprefix("http://") if place.s3 else "127.0.0.1:1"
    with reader(server, LOGIN, PASSWORD) as connection:
        table = {"table": place.where}
        check(connection.execute("FROM delta_scan($table)", table).to_arrow_table())
        for name, value in FILTERS.items():
            text = f'SELECT count(*) FROM delta_scan($table) WHERE "{name}" = {value}'
            assert connection.execute(text, table).fetchone() == (3,), name


def test_polars(place: Delta) -> None:
    """In a folder and in a store."""
    found = pl.scan_delta(place.where, storage_options=place.options)
    check(found.collect().to_arrow())
    # Its SQL has no times with a zone.
    asked = {name: pl.sql_expr(f'"{name}" = {value}') for name, value in FILTERS.items()}
    for name, one in (asked | {"time": pl.col("time") == MOMENT}).items():
        assert found.filter(one).collect().height == 3, name


def test_spark(bench: Workbench, tmp_path: Path) -> None:
    """Spark 4.2 with Delta's own jars."""
    place = three_batches(Delta(bench))
    try:
        jars = maven.fetch(FOLDER / "spark-pom.xml", KEPT, "Delta for Spark")
    except SemelError as error:
        pytest.skip(str(error))
    filters, rows = tmp_path / "filters.json", tmp_path / "rows.arrow"
    filters.write_text(json.dumps([f"`{name}` = {value}" for name, value in FILTERS.items()]))
    env = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    done = subprocess.run(
        [sys.executable, FOLDER / "read_by_spark.py", jars, place.where, filters, rows],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check(pa.ipc.open_file(rows).read_all())
    counted = dict(zip(FILTERS, json.loads(done.stdout), strict=True))
    assert counted == dict.fromkeys(FILTERS, 3)
