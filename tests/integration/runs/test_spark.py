"""The stage job on real Spark."""

from pathlib import Path

import pytest

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.markers import claims_beside, snippet, stored_sink
from semel.ledger import Ledger
from semel.reader import dataset
from semel.sinks.spec import archive_of
from semel.storage import packs
from semel.runs.run import run_batch
from semel.sources.files.source import FilesSource
from semel.spark.engine import SparkEngine
from semel.stage import job


@pytest.mark.parametrize(
    ("split_bytes", "small", "reads"),
    [
        (None, 1 / 8, "3 splits in 1 task"),
        (None, 0, "3 splits in 1 task"),
        (50_000, 1 / 8, "6 splits in 6 tasks"),
    ],
)
def test_spark_gives_what_the_steps_give(
    bench: Workbench,
    ledger: Ledger,
    spark_engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    split_bytes: int | None,
    small: float,
    reads: str,
) -> None:
    """Several splits a task, and several tasks a file, through both shuffles or all in one task:
    each record is once in output or drops.
    """
    monkeypatch.setattr(job, "SMALL_MAX", small)
    if split_bytes:
        monkeypatch.setattr(FilesSource, "split_size", split_bytes)
    spec = bench.spec(sink={"position_columns": True})
    said: list[str] = []
    for part in range(3):
        records = [*events(part * 1000, part * 1000 + 1100), b"[]"]
        bench.write(f"in/{part}.jsonl", records)
    counts = run_batch(ledger, spec, "r1", spark_engine, log=said.append).finalized.counts
    assert any(line.endswith(f"reads {reads}") for line in said), said
    assert (counts.records_read, counts.survivors, counts.quarantined) == (3303, 3100, 3)
    assert settled(spec).ids == ids(0, 3100)
    bench.write("in/9.jsonl", events(3000, 3200))
    again = run(ledger, spec, "r2", engine=spark_engine).finalized.counts
    assert (again.survivors, again.duplicates_catalog) == (100, 100)


def test_transforms_run_on_the_survivors(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A transform sees each survivor once; what it makes is written, what it filters is counted."""
    (bench.transforms / "even_transform.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def even(frame):\n"
        "    return frame.select('id', 'n').where(F.col('n') % 2 == 0)"
        ".withColumn('tag', F.lit('x')).select('id', 'n', 'tag')\n"
    )
    spec = bench.spec(transforms=["even_transform:even"])
    bench.write("in/a.jsonl", [*events(0, 100), *events(0, 5)])
    counts = run(ledger, spec, "r1", engine=spark_engine).finalized.counts
    assert (counts.survivors, counts.rows_written, counts.duplicates_batch) == (100, 50, 5)
    rows = settled(spec).rows
    assert sorted(row["n"] for row in rows) == list(range(0, 100, 2))
    assert {row["tag"] for row in rows} == {"x"}


def test_readme_in_spark(spark: object, tmp_path: Path) -> None:
    """The README's way in Spark reads what the dataset reads."""
    sink = stored_sink(tmp_path)
    claims_beside(sink)
    found = {"spark": spark}
    exec(snippet("Spark:").replace("data/out", str(sink.parent)), found)
    assert found["flights"].count() == dataset(sink).count_rows() == 6


def test_spark_reads_packs(spark: object, tmp_path: Path) -> None:
    """docs/reading.md: the same with the first marker in a pack, once beside its own file."""
    sink = stored_sink(tmp_path)
    archive = archive_of(sink)
    first = archive / "markers" / packs.marker_name(1)
    packs.write(archive, {1: first.read_bytes()})
    text = snippet("Spark:") + snippet("Spark:", nth=2)
    for _ in range(2):
        found = {"spark": spark}
        exec(text.replace("data/out", str(sink.parent)), found)
        assert found["flights"].count() == dataset(sink).count_rows() == 6
        first.unlink(missing_ok=True)
