"""The Postgres sink's publish beside a plain COPY of the same rows.

    python benchmarks/postgres_sink.py
    python benchmarks/postgres_sink.py --smallest

Both sides write the same rows and columns, in one transaction, to a server with its default
settings. The plain side is psycopg's `copy` of a file that was made before its clock starts: of
CSV, and of COPY's binary format. The faster of the two counts. publish begins with the staged
Parquet files. Beside it: a replay of the batch, which replaces its rows; upsert of a tenth of the
rows, into an empty table and over the same keys; what tasks pay to find refused values; and reading
a batch back.
"""

import resource
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as csv

import harness
from data import Shape, _frame
from harness import Clock, Place, in_turn, medians
from semel.model.manifest import Kind, ManifestFile
from semel.sinks import CommittedBatch
from semel.sinks.keys import find_duplicate_key
from semel.sinks.postgres import encode
from semel.sinks.postgres.row_check import find_refused_rows
from semel.sinks.postgres.sink import PostgresSink
from semel.sinks.postgres.target import PostgresTarget
from semel.stage.part_files import write_table

FILES = 8
CHUNK_BYTES = 1 << 20
_COLUMNS = (
    'id text, "user" bigint, ts timestamptz, amount double precision, kind text, country text, '
    "ua text, _semel_batch bigint, _semel_seq bigint"
)


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="rows")
    options = harness.parsed(parser, records=4_000)
    with harness.open_place() as place:
        report = _measure(place, options)
    harness.save("postgres_sink", options, report)


def _measure(place: Place, options: Namespace) -> dict[str, Any]:
    won = staged_batch(place, options.records, "w")
    part = staged_batch(place, options.records // 10, "p")
    append = PostgresSink(PostgresTarget(dsn=place.dsn, table="published", create=True))
    upsert = PostgresSink(
        PostgresTarget(dsn=place.dsn, table="upserted", mode="upsert", key=("id",), create=True)
    )
    facts = append.examine(won.schema)
    plain = {form: _plain(place, won, form) for form in ("csv", "binary")}
    for sink, number in ((append, 10**9), (upsert, 10**9)):
        small = replace(won, batch_id=number, files=won.files[:1], digest="first")
        sink.publish(small, small.files)  # Makes the tables.
    sides = {
        "COPY of a CSV file": plain["csv"],
        "COPY of a binary file": plain["binary"],
        "publish": _publish(place, append, won, "published"),
        "publish of a replay": _replay(place, append, won, "published"),
        "publish, upsert, new keys": _publish(place, upsert, part, "upserted"),
        "publish, upsert, the same keys": _publish(place, upsert, part, None),
        "rows of a batch": _rows(append, won),
        "refused values of a batch": _refused(facts, won),
        "a key twice in a batch": _twice(won),
    }
    times = medians(in_turn(sides, options.runs))
    best = min(times["COPY of a CSV file"], times["COPY of a binary file"])
    headline = {
        "postgres_sink_ratio": round(times["publish"] / best, 3),
        "postgres_sink_rows_per_second": round(options.records / times["publish"]),
        "postgres_sink_memory_mb": round(_memory(append, won, place)),
    }
    per_row = best / options.records
    rows = []
    for name, seconds in times.items():
        count = options.records // 10 if "upsert" in name else options.records
        rows.append([name, round(seconds, 2), round(count / seconds),
                     round(seconds / count / per_row, 2)])  # fmt: skip
    columns = ["side", "median s", "rows/s", "of the best plain COPY, per row"]
    title = f"{options.records:,} rows of 160 bytes in {FILES} files"
    bars = {"title": "Seconds, median", "kind": "bars", "bars": times}
    table = {"title": title, "columns": columns, "rows": rows}
    return {"title": "B9: Postgres sink", "headline": headline, "tables": [table], "plots": [bars]}


def staged_batch(place: Place, records: int, name: str) -> CommittedBatch:
    """A committed batch of this many rows, staged as tasks do it."""
    place.data.mkdir(exist_ok=True)
    files = []
    for at in range(FILES):
        numbers = np.arange(at * records // FILES, (at + 1) * records // FILES)
        frame = _frame(numbers, Shape(records=len(numbers))).to_arrow()
        schema = pa.schema(
            [(f.name, pa.string() if "string" in str(f.type) else f.type) for f in frame.schema]
        )
        schema = schema.set(1, pa.field("user", pa.int64()))
        table = frame.cast(schema)
        moments = pa.array(table.column("ts").to_numpy(), pa.string()).cast(
            pa.timestamp("us", "UTC")
        )
        table = table.set_column(2, "ts", moments)
        made = write_table(place.data / f"{name}{at}", table, Kind.DATA, "", "parquet")
        files.append(
            ManifestFile(
                kind=Kind.DATA, staged_path=made.path, final_path=f"b{at}", records=made.records,
                bytes=made.bytes, checksum=made.checksum,
            )  # fmt: skip
        )
    return CommittedBatch(
        pipeline="bench", batch_id=1, fence=1, commit_seq=1, files=tuple(files),
        schema=table.schema, digest="x", ledger="ours",
    )  # fmt: skip


def _plain(place: Place, won: CommittedBatch, form: str) -> harness.Side:
    path = place.folder / f"plain.{form}"
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE public.plain_{form} ({_COLUMNS})")
    facts = PostgresSink(
        PostgresTarget(dsn=place.dsn, table=f"plain_{form}")
    ).examine(won.schema)
    with path.open("wb") as file:
        if form == "binary":
            for chunk in encode.CopyEncoder(won, facts.columns).chunks(encode.staged(won)):
                file.write(chunk)
        else:
            _write_csv(file, won)

    def side(_: int, clock: Clock) -> None:
        with psycopg.connect(place.dsn) as connection:
            _fresh(connection, f"plain_{form}")
            with clock, connection.cursor() as cursor:
                with (
                    cursor.copy(f"COPY public.plain_{form} FROM STDIN (FORMAT {form})") as copy,
                    path.open("rb") as file,
                ):
                    while chunk := file.read(CHUNK_BYTES):
                        copy.write(chunk)
                connection.commit()
            _right(connection, f"plain_{form}", won)

    return side


def _write_csv(file: Any, won: CommittedBatch) -> None:
    options = csv.WriteOptions(include_header=False)
    for rows in encode.staged(won):
        own = pa.array(np.ones(rows.num_rows, np.int64))
        table = pa.Table.from_batches([rows])
        table = table.append_column("b", own).append_column("s", own)
        csv.write_csv(table, file, options)


def _publish(place: Place, sink: PostgresSink, won: CommittedBatch, table: str | None) -> harness.Side:
    """publish, behind a truncated `table`; or of a later batch over what is there (None)."""

    def side(run: int, clock: Clock) -> None:
        fresh = replace(won, batch_id=run + 1 + (1_000 if table is None else 0))
        if table is None:
            fresh = replace(fresh, commit_seq=fresh.batch_id)
        with psycopg.connect(place.dsn) as connection:
            if table:
                _fresh(connection, table)
            with clock:
                sink.publish(fresh, fresh.files)
            _right(connection, table or "upserted", won)

    return side


def _replay(place: Place, sink: PostgresSink, won: CommittedBatch, table: str) -> harness.Side:
    """publish of a replay, which replaces all rows of the table."""

    def side(run: int, clock: Clock) -> None:
        number = _number_of_replay(run)
        old = replace(won, batch_id=number - 1, commit_seq=number)
        new = replace(old, batch_id=number, replaces=(number - 1,))
        with psycopg.connect(place.dsn) as connection:
            _fresh(connection, table)
            sink.publish(old, old.files)
            _settled(connection)
            with clock:
                sink.publish(new, new.files)
            _right(connection, table, won)

    return side


def _number_of_replay(run: int) -> int:
    return 10_001 + 2 * run


def _rows(sink: PostgresSink, won: CommittedBatch) -> harness.Side:
    def side(run: int, clock: Clock) -> None:
        with clock:
            count = sum(part.num_rows for part in sink.rows_of(_number_of_replay(run), won.schema))
        harness.check("rows of a batch", count, sum(f.records for f in won.files))

    return side


def _refused(facts: Any, won: CommittedBatch) -> harness.Side:
    tables = [pa.Table.from_batches([rows]) for rows in encode.staged(won)]

    def side(_: int, clock: Clock) -> None:
        with clock:
            found = [one for table in tables for one in find_refused_rows(facts, table)]
        harness.check("refused values", found, [])

    return side


def _twice(won: CommittedBatch) -> harness.Side:
    def side(_: int, clock: Clock) -> None:
        with clock:
            found = find_duplicate_key(won.files, ("id",))
        harness.check("keys twice", found, None)

    return side


def _memory(sink: PostgresSink, won: CommittedBatch, place: Place) -> float:
    """Megabytes that this process grows by while it publishes."""
    with psycopg.connect(place.dsn) as connection:
        _fresh(connection, "published")
    pa.default_memory_pool().release_unused()
    before = _resident()
    with _peak() as peak:
        sink.publish(replace(won, batch_id=5_000), won.files)
    return (peak() - before) / 1e6


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@contextmanager
def _peak() -> Any:
    found, end = [0], threading.Event()

    def watch() -> None:
        while not end.wait(0.005):
            found[0] = max(found[0], _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: found[0]
    finally:
        end.set()
        watcher.join()


def _fresh(connection: psycopg.Connection, table: str) -> None:
    """An empty table, and nothing that the server has still to write of the one before."""
    connection.execute(f"TRUNCATE public.{table}")
    _settled(connection)


def _settled(connection: psycopg.Connection) -> None:
    """The server has nothing still to write."""
    connection.commit()
    connection.autocommit = True
    connection.execute("CHECKPOINT")
    connection.autocommit = False
    time.sleep(0.2)


def _right(connection: psycopg.Connection, table: str, won: CommittedBatch) -> None:
    counts: Callable = connection.execute
    found = counts(f"SELECT count(*), count(DISTINCT id) FROM public.{table}").fetchone()
    wanted = sum(file.records for file in won.files)
    harness.check(table, found, (wanted, wanted))


if __name__ == "__main__":
    main()
