"""Compares of tests: batches as they came, then the batch path; and harm done to an output."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fix_account import quiet
from fix_engine import LocalEngine
from semel.archive import layout
from semel.compare import Comparison, Range, compare
from semel.ledger import Ledger
from semel.pipeline import Spec
from semel.runs.run import run_batch
from semel.storage import checksum


def batch(ledger: Ledger, spec: Spec, engine: Any = None, key: str = "r") -> int:
    """Finalize what has come as one batch. Returns its number."""
    done = run_batch(ledger, spec, key, engine or LocalEngine(), log=quiet)
    return done.finalized.batch.batch_id


def compared(
    ledger: Ledger, spec: Spec, first: int = 1, last: int = 99, *, engine: Any = None, **more: Any
) -> Comparison:
    """Compare batches by number with the batch path."""
    wanted = more.pop("wanted", Range(first=first, last=last))
    job = nullcontext(engine or LocalEngine())
    more = {"open_job": lambda: job, "shown": 20, "log": quiet, **more}
    return compare(ledger, spec, wanted, **more)


def forge(spec: Spec, batch_id: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a batch's only data file, and its marker, so that it fits them."""
    path = layout.marker(layout.of(spec), batch_id)
    content = json.loads(path.read_text())
    [file] = [f for f in content["files"] if f["kind"] == "data"]
    data = spec.sink_path() / file["path"]
    table = change(pq.read_table(data, partitioning=None))
    pq.write_table(table, data)
    file |= {"records": table.num_rows, "bytes": data.stat().st_size, "checksum": checksum(data)}
    content["counts"]["rows_written"] = table.num_rows
    path.write_text(json.dumps(content))


def databases(ledger: Ledger) -> set[str]:
    """The scratch databases of a ledger that are there."""
    with ledger.engine.connect() as connection:
        names = connection.exec_driver_sql("SELECT datname FROM pg_database").scalars().all()
    own = f"{ledger.engine.url.database}_semel_compare_"
    return {name for name in names if name.startswith(own)}


def folders(spec: Spec) -> list[Path]:
    """The scratch folders that are there."""
    return sorted(layout.staging(layout.of(spec)).glob("compare-*"))
