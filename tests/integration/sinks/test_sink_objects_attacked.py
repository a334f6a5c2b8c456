"""Objects as a sink, beside what people do with any output: hostile values, commands, histories."""

import io
import random
import re
import unicodedata
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import ids, quiet, run
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import hours_pass, proven, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.objects.outlet import Prefix
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.postgres.server import lose
from semel.archive.marker import markers_of
from semel.collect import collect
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.reader import dataset, windows
from semel.repair.adopt import adopt
from semel.reports import completeness
from semel.reports.window_rows import read_windows

HOSTILE = [
    "", " ", "a b", "%", "%2F", "%2f", "a/b", "/", "..", ".", "...", "_x", ".x", "_semel", "a\nb",
    "a=b", "#", "a#b", "?", "+", "A", "a", "~", '"', "'", "\\", "*", "\t", "null", "\x7f", "\x1f",
    "__HIVE_DEFAULT_PARTITION__", unicodedata.normalize("NFC", "\u00e9"),
    unicodedata.normalize("NFD", "\u00e9"), "\u2028", "\U0001f600", "a:b", "{}", "^`|<>[]", "a//b",
    "x" * 180, "b ", " b", "b.", None,
]  # fmt: skip


@pytest.fixture
def prefix(bench: Workbench, s3: S3) -> Prefix:
    return Prefix(bench, s3)


def test_values_of_folders_come_back(prefix: Prefix, ledger: Ledger) -> None:
    """Whatever a value of a folder is: the keys in the store are those of the marker, the reader
    gives the values back (an empty text as null), the audit is content, and a listing reads each
    file.
    """
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "k": "string"}
    sink = {**prefix.declared, "partition_by": ["k"]}
    spec = prefix.bench.spec(source={"schema": schema}, sink=sink)
    made = [{**e, "k": k} for e, k in zip(events(0, len(HOSTILE)), HOSTILE, strict=True)]
    prefix.bench.write("in/a.jsonl", made)
    run(ledger, spec, "r1")
    [marker] = markers_of(spec)
    listed = {f"{prefix.prefix}/{file.path}" for file in marker.of_kind(Kind.DATA)}
    assert listed == {key for key in prefix.keys(own=True) if "/_semel/" not in key}
    found = dataset(prefix.declared["url"], connection=CONNECTION).to_table().to_pylist()
    told = {row["id"]: row["k"] for row in found}
    assert told == {row["id"]: row["k"] or None for row in made}
    held = [pq.read_table(io.BytesIO(prefix.get(key))).num_rows for key in listed]
    assert sum(held) == len(HOSTILE)
    proven(spec)


def test_windows_are_read_from_the_store(
    prefix: Prefix, ledger: Ledger, shell: Shell
) -> None:
    """The page of windows has the merged rows of all batches. Who asks for a statement is told of
    the call that reads them, and it does."""
    declared = {
        "record_time": "at", "window": {"size": "1 hour"},
        "aggregate": {"by": ["n"], "columns": {"events": "count()"}},
    }  # fmt: skip
    spec = prefix.bench.spec(sink=prefix.declared, **declared)
    for number in range(2):
        prefix.bench.write(f"in/{number}.jsonl", [*events(0, 5), *events(9, 9 + number)])
        run(ledger, spec, f"r{number}")
    now = datetime(2026, 1, 2, tzinfo=UTC)
    known = completeness.windows(ledger, spec, now=now)
    counted = read_windows(ledger, spec, known, level=0, now=now)
    [window] = [one for one in counted.windows if one.rows]
    assert window.rows == tuple(((n,), (1,)) for n in [*range(5), 9])
    shell.runs("semel windows events --query", 1)
    call = re.search(r"semel\.reader\.(windows\(.*\))", shell.err)[1]
    assert eval(call, {"windows": windows}).num_rows == len(window.rows)  # noqa: S307
    proven(spec)


# Attacks OB8, OB12, OB13, RP5.
@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(12))
def test_random_histories(prefix: Prefix, ledger: Ledger, seed: int) -> None:
    """Runs, replays, collects, deaths before a put and after it, a ledger that is lost and adopted
    from the archive: each record is there once, for readers by copies, for one who lists when
    nothing is replaced any more, and for the audit."""
    draw = random.Random(seed)
    spec, upto, number = prefix.bench.spec(sink=prefix.declared), 0, 0
    roots: list[int] = []

    def comes() -> None:
        nonlocal upto, number
        more = draw.randint(1, 8)
        prefix.bench.write(f"in/{number}.jsonl", events(max(0, upto - 3), upto + more))
        upto, number = upto + more, number + 1
        if draw.random() < 0.3:
            point = draw.choice(["sink.before_put", "sink.after_put", "sink.before_copy"])
            with dies_at(point):
                run(ledger, spec, f"r{number}")
        roots.append(run(ledger, spec, f"r{number}").plan.batch.batch_id)

    def again() -> None:
        replayed(ledger, spec, draw.choice(roots), f"again{draw.random()}")

    def collects() -> None:
        hours_pass(ledger)
        assert collect(ledger, spec, log=quiet).damaged == ()

    def adopts() -> None:
        lose(ledger)
        adopt(ledger, spec, log=quiet)

    comes()
    for step in draw.choices([comes, again, collects, adopts], [4, 3, 2, 1], k=10):
        step()
        found = dataset(prefix.declared["url"], connection=CONNECTION)
        assert sorted(found.to_table()["id"].to_pylist()) == ids(0, upto)
    collects()
    assert [row_id for _, row_id in sorted(prefix.rows(), key=lambda row: row[1])] == ids(0, upto)
    proven(spec)
