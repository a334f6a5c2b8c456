"""The ids of a batch as files beside its decisions."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from fixtures.batches.account import first_batch, ids, run, settled
from fixtures.batches.workbench import Workbench, events
from semel.archive import layout
from semel.archive.marker import markers
from semel.audit import audit
from semel.catalog.ids import hash_ids
from semel.ledger import Ledger
from semel.model.buckets import Buckets
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.spark.engine import SparkEngine
from semel.stage.ids_file import read_ids
from semel.storage import checksum


def kept(spec: Spec, at: int = 0) -> set[tuple[int, int, int]]:
    """Shard, h1 and h2 of each id in the files of a batch's marker; none is there twice."""
    found = []
    for file in markers(spec.sink_path())[at].of_kind(Kind.IDS):
        of, h1, h2 = read_ids(layout.archive_folder(spec) / file.path)
        assert of.shards == spec.dedup.shards and file.records == len(h1) > 0
        assert list(h1) == sorted(h1)
        found += [(of.shard, int(a), int(b)) for a, b in zip(h1, h2, strict=True)]
    assert len(set(found)) == len(found)
    return set(found)


def hashes(names: list[str], shards: int = 4) -> set[tuple[int, int, int]]:
    found = hash_ids(pa.table({"id": names}), ("id",), shards=shards)
    columns = (found.shard, found.h1, found.h2)
    return {tuple(map(int, each)) for each in zip(*columns, strict=True)}


def test_new_ids_are_kept(bench: Workbench, ledger: Ledger) -> None:
    """Those of the survivors, once; readers of data and the audit are not disturbed."""
    spec = bench.spec(dedup={"keep_ids": True})
    bench.write("in/a.jsonl", [*events(0, 50), *events(0, 9), b"{bad"])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", [*events(40, 60)])
    run(ledger, spec, "r2")
    assert kept(spec) == hashes(ids(0, 50))
    assert kept(spec, 1) == hashes(ids(50, 60))
    assert settled(spec).ids == ids(0, 60)
    assert dataset(spec.sink_path()).count_rows() == 60


def test_buckets_are_kept_with_them(bench: Workbench, ledger: Ledger) -> None:
    """In scope bucket a file says of which buckets its ids are."""
    dedup = {"keep_ids": True, "scope": "bucket", "horizon": "3650 d", "shards": 1}
    spec = first_batch(bench, ledger, events(0, 5), dedup=dedup, record_time="at")
    (marker,) = markers(spec.sink_path())
    (file,) = marker.of_kind(Kind.IDS)
    of, _, _ = read_ids(layout.archive_folder(spec) / file.path)
    bucket = 1_767_225_600 // marker.bucket_seconds  # 2026-01-01
    assert of.buckets == Buckets((bucket, bucket + 1))


def test_transforms_keep_ids_by_default(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A transform may drop the id: then no output has it, and each shard's file is listed once."""
    (bench.transforms / "drop.py").write_text("def run(frame):\n    return frame.select('n')\n")
    spec = bench.spec(transforms=["drop:run"])
    bench.write("in/a.jsonl", [*events(0, 50), *events(0, 9)])
    run(ledger, spec, "r1", engine=spark_engine)
    assert kept(spec) == hashes(ids(0, 50))
    assert audit(spec).ok
    assert not bench.spec(transforms=["drop:run"], dedup={"keep_ids": False}).keeps_ids


def test_only_what_has_ids_keeps_them(bench: Workbench) -> None:
    """Not an output that has them itself, and not identity by position; the digest is the same."""
    plain = bench.spec()
    assert not plain.keeps_ids
    assert not bench.spec(record_id=None, transforms=None).keeps_ids
    keeping = bench.spec(dedup={"keep_ids": True})
    assert keeping.keeps_ids and keeping.digest() == plain.digest()


def test_an_ids_file_that_lies_is_told(bench: Workbench, ledger: Ledger) -> None:
    """The audit finds a file of ids that has fewer than the batch has survivors."""
    spec = first_batch(bench, ledger, events(0, 5), dedup={"keep_ids": True, "shards": 1})
    (marker,) = markers(spec.sink_path())
    (file,) = marker.of_kind(Kind.IDS)
    path = layout.archive_folder(spec) / file.path
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    content = json.loads(marker.path.read_text())
    (entry,) = [each for each in content["files"] if each["kind"] == "ids"]
    entry |= {"records": 4, "bytes": path.stat().st_size, "checksum": checksum(path)}
    marker.path.write_text(json.dumps(content))
    (broken,) = [check for check in audit(spec).checks if not check.ok]
    assert "4 ids for 5 survivors" in broken.offenders[0].what
