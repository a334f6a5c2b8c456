"""B16: a store of objects and Delta tables, beside clients that do as little as is safe.

    python benchmarks/lake.py                        # 4 million records, 1 GiB in 64 files
    python benchmarks/lake.py --parts upload --runs 5

The store is versitygw on this machine's own cores, with objects as files of its disk. `upload`:
publish of a batch of files of 16 MiB, which reads each once, holds it against its checksum, and
puts it where nothing is, beside s5cmd with as many workers. `read`: whole batches of the same file
of JSON Lines in the store, and on the local disk. `append`: publish of a batch to a Delta table in
a folder and in the store, beside `write_deltalake` of the same rows, which reads the staged Parquet
as well. `archive`: whole batches into the store, with the archive in a folder and in the store.
"""

import os
import secrets
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

import harness
from data import SCHEMA, Shape, landed
from fixtures.environment import python_with
from fixtures.objects.s3 import CONNECTION, LOGIN, PASSWORD, Versitygw
from harness import Clock, Place, Side, check, in_turn, quiet, ratio, table
from postgres_sink import staged_batch
from semel.ledger import Ledger
from semel.model.manifest import Kind, ManifestFile
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.sinks import CommittedBatch
from semel.sinks.objects.sink import PUTS_AT_ONCE
from semel.spark.engine import SparkEngine

_FILES = 64
_NAMES = {
    "s5cmd": f"s5cmd cp, {PUTS_AT_ONCE} workers",
    "publish": "publish",
    "local": "a batch of a file on the local disk",
    "store": "a batch of the same file in a store",
    "write": "write_deltalake, in a folder",
    "delta": "publish, in a folder",
    "write_s3": "write_deltalake, in a store",
    "delta_s3": "publish, in a store",
    **{
        f"{kind}_{where}{verb}": f"by {said}, archive in a {where}{', ' * bool(verb)}{verb}"
        for verb in ("", "stage", "finalize")
        for kind, said in (("id", "record id"), ("position", "position"))
        for where in ("folder", "store")
    },
}


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    parser.add_argument("--mib", type=int, default=16, help="of each of the 64 files (default 16)")
    parser.add_argument("--parts", nargs="*", choices=_PARTS, default=list(_PARTS))
    options = harness.parsed(parser, records=4_000, mib=1)
    tables, headline = [], {}
    with harness.open_place() as place, _store(place.folder / "store") as s3:
        for name in options.parts:
            harness.tell(name)
            title, found, ratios = _PARTS[name](place, s3, options)
            tables.append(table(title, found, _NAMES))
            headline |= {key: ratio(found, *sides) for key, sides in ratios.items()}
    report = {"title": "B16: objects and Delta", "headline": headline, "tables": tables}
    part = "" if set(options.parts) == set(_PARTS) else "-".join(options.parts)
    harness.save("lake", options, report, part=part)


@contextmanager
def _store(folder: Path) -> Iterator[Versitygw]:
    folder.mkdir()
    server = Versitygw(folder)
    server.start()
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = server.connection()
    os.environ["SEMEL_ARCHIVES_CONNECTION"] = CONNECTION
    try:
        yield server
    finally:
        server.kill()


_Found = tuple[str, dict[str, list[float]], dict[str, tuple[str, str]]]
"""What a part says: a title, its sides, and which of them a figure is the ratio of."""


def _upload(place: Place, s3: Versitygw, options: Namespace) -> _Found:
    folder, size = place.folder / "upload", options.mib << 20
    folder.mkdir()
    files = []
    for number in range(_FILES):
        path, data = folder / f"{number:02d}.parquet", secrets.token_bytes(size)
        path.write_bytes(data)
        files.append(
            ManifestFile(
                kind=Kind.DATA, staged_path=str(path), final_path=f"x#{path.name}", records=1,
                bytes=size, checksum=xxhash.xxh3_128_hexdigest(data),
            )  # fmt: skip
        )
    schema = pa.schema([("id", pa.string())])
    won = CommittedBatch(pipeline="bench", batch_id=1, fence=1, commit_seq=1, files=tuple(files),
              schema=schema, digest="x", ledger="ours")  # fmt: skip
    python = python_with("s5cmd", harness.ROOT / "benchmarks" / "s5cmd.txt")
    [program] = python.parents[1].glob("lib/*/site-packages/s5cmd/bin/s5cmd")
    keys = {"AWS_ACCESS_KEY_ID": LOGIN, "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_REGION": "us-east-1"}  # fmt: skip

    def s5cmd(bucket: str) -> None:
        words = [program, "--endpoint-url", s3.endpoint, "--numworkers", str(PUTS_AT_ONCE), "--log",
                 "error", "cp", "--part-size", "64", f"{folder}/*", f"s3://{bucket}/there/"]
        subprocess.run(list(map(str, words)), check=True, env=os.environ | keys)

    def publish(bucket: str) -> None:
        declared = {"type": "objects", "url": f"s3://{bucket}/there", "connection": CONNECTION,
                    "format": "parquet"}  # fmt: skip
        with open_sink(place.spec("upload", sink=declared)) as sink:
            sink.publish(won, won.files)

    def side(put: Callable[[str], None]) -> Side:
        def run(_: int, clock: Clock) -> None:
            bucket = s3.bucket()
            with clock:
                put(bucket)
            objects = [p for p in (s3.folder / "data" / bucket).rglob("*.parquet") if p.is_file()]
            check("objects", sum(path.stat().st_size for path in objects), _FILES * size)
            shutil.rmtree(s3.folder / "data" / bucket)

        return run

    found = in_turn({"s5cmd": side(s5cmd), "publish": side(publish)}, options.runs, both_ways=True)
    shutil.rmtree(folder)
    title = f"{_FILES} files of {options.mib} MiB into a bucket"
    return title, found, {"ratio_upload": ("publish", "s5cmd")}


def _read(place: Place, s3: Versitygw, options: Namespace) -> _Found:
    shape = Shape(records=options.records)
    source = landed(shape, place.data / "in" / "records.jsonl")
    bucket = s3.bucket()
    s3.client.upload_file(str(source), bucket, "in/records.jsonl")
    objects = {"type": "objects", "url": f"s3://{bucket}/in", "connection": CONNECTION,
               "format": "jsonl", "schema": SCHEMA}  # fmt: skip
    with harness.open_spark(place) as spark, Ledger(place.dsn) as ledger:
        engine = SparkEngine(spark)

        def side(name: str, **declared: Any) -> Side:
            def run(number: int, clock: Clock) -> None:
                spec = place.spec(f"{name}{number}", path="in/records.jsonl", record_id=["id"],
                                  **declared)  # fmt: skip
                with clock:
                    run_batch(ledger, spec, "one", engine, log=quiet)
                _check_rows(spec, shape.new)

            return run

        sides = {"local": side("local"), "store": side("store", source=objects)}
        found = in_turn(sides, options.runs, both_ways=True)
    title = f"Batches of {options.records:,} records, by record id"
    return title, found, {"ratio_read_store": ("store", "local")}


def _archive(place: Place, s3: Versitygw, options: Namespace) -> _Found:
    shape = Shape(records=options.records)
    landed(shape, place.data / "in" / "records.jsonl")
    verbs: dict[str, list[float]] = {}
    with harness.open_spark(place) as spark, Ledger(place.dsn) as ledger:
        engine = SparkEngine(spark)

        def side(kind: str, where: str) -> Side:
            def run(number: int, clock: Clock) -> None:
                bucket = s3.bucket()
                sink = {"type": "objects", "url": f"s3://{bucket}/out", "connection": CONNECTION,
                        "format": "parquet"}  # fmt: skip
                sink |= {"archive": f"s3://{bucket}/archive"} if where == "store" else {}
                name = f"{kind}_{where}"
                spec = place.spec(
                    f"{name}{number}", path="in/records.jsonl", sink=sink,
                    **({"record_id": ["id"]} if kind == "id" else {}),
                )  # fmt: skip
                with clock:
                    ran = run_batch(ledger, spec, "one", engine, log=quiet)
                expected = shape.new if kind == "id" else shape.records
                check(name, ran.finalized.counts.survivors, expected)
                for verb in ("stage", "finalize") if number else ():
                    verbs.setdefault(f"{name}{verb}", []).append(ran.seconds[verb])
                shutil.rmtree(s3.folder / "data" / bucket)

            return run

        names = [(kind, where) for kind in ("id", "position") for where in ("folder", "store")]
        sides = {f"{kind}_{where}": side(kind, where) for kind, where in names}
        found = in_turn(sides, options.runs, both_ways=True)
    title = f"Batches of {options.records:,} records into a store"
    return title, found | verbs, {
        "ratio_archive_id": ("id_store", "id_folder"),
        "ratio_archive_id_stage": ("id_storestage", "id_folderstage"),
        "ratio_archive_position_stage": ("position_storestage", "position_folderstage"),
    }  # fmt: skip


def _check_rows(spec: Spec, wanted: int) -> None:
    files = list(spec.sink_path().rglob("*.parquet"))
    own = [path for path in files if "_semel" not in path.parts]
    check(spec.name, sum(pq.ParquetFile(path).metadata.num_rows for path in own), wanted)
    shutil.rmtree(spec.sink_path())


def _append(place: Place, s3: Versitygw, options: Namespace) -> _Found:
    won = staged_batch(place, options.records, "delta")
    won = replace(won, files=tuple(
        replace(file, final_path=f"x#part-{at}") for at, file in enumerate(won.files)
    ))  # fmt: skip
    bucket = s3.bucket()
    keys = {"access_key_id": LOGIN, "secret_access_key": PASSWORD, "region": "us-east-1",
            "endpoint": s3.endpoint, "allow_http": "true"}  # fmt: skip

    def fresh(above: str) -> str:
        return f"{above}/{secrets.token_hex(4)}"

    def written(above: str, options: dict[str, str] | None) -> Side:
        def run(_: int, clock: Clock) -> None:
            where = fresh(above)
            with clock:
                rows = pa.concat_tables(pq.read_table(file.staged_path) for file in won.files)
                deltalake.write_deltalake(where, rows, mode="append", storage_options=options)
            counted(where, options)

        return run

    def published(above: str, options: dict[str, str] | None) -> Side:
        def run(_: int, clock: Clock) -> None:
            where = fresh(above)
            declared = {"type": "delta", "table": where,
                        **({"connection": CONNECTION} if options else {})}  # fmt: skip
            with open_sink(place.spec("delta", sink=declared)) as sink, clock:
                sink.publish(won, won.files)
            counted(where, options)

        return run

    def counted(where: str, options: dict[str, str] | None) -> None:
        told = pa.table(deltalake.DeltaTable(where, storage_options=options).get_add_actions())
        check("rows", pa.compute.sum(told["num_records"]).as_py(), len_of(won))
        shutil.rmtree(where if options is None else s3.folder / "data" / where[5:])

    folder, store = str(place.data / "tables"), f"s3://{bucket}"
    sides = {
        "write": written(folder, None), "delta": published(folder, None),
        "write_s3": written(store, keys), "delta_s3": published(store, keys),
    }  # fmt: skip
    found = in_turn(sides, options.runs, both_ways=True)
    figures = {
        "ratio_delta": ("delta", "write"), "ratio_delta_store": ("delta_s3", "write_s3"),
    }  # fmt: skip
    return f"A batch of {options.records:,} rows to a Delta table", found, figures


def len_of(won: CommittedBatch) -> int:
    """How many rows a batch has."""
    return sum(file.records for file in won.files)


_PARTS = {"upload": _upload, "read": _read, "append": _append, "archive": _archive}


if __name__ == "__main__":
    main()
