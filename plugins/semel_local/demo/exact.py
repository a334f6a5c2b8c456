"""The demo's numbers, by name: the true ones, and those of semel's markers and output.

The truth comes from the flights alone. The other numbers come from the markers and from the output
itself: Parquet files, or a topic that an ordinary consumer reads.
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
from rich.table import Table

from semel import reader
from semel.archive import layout
from semel.archive.marker import Marker, markers_of
from semel.model.batch import Counts
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.storage import readable
from semel_local.demo import flights

if TYPE_CHECKING:
    from semel_local.demo.topics import DemoTopics

Numbers = dict[str, int]
"""The numbers to compare. `quarantined:REASON` is a part of `quarantined`."""


def week_truth(truth: flights.Truth) -> Numbers:
    """The true numbers of a week's batch."""
    return _batch_numbers(truth.counts, truth.quarantined, truth.counts.survivors)


def batch_numbers(marker: Marker) -> Numbers:
    """The numbers of a batch, from its success marker and its dead letters."""
    rows = sum(file.records for file in marker.of_kind(Kind.DATA))
    return _batch_numbers(marker.counts, _reasons([marker]), rows)


def _batch_numbers(counts: Counts, reasons: Mapping[str, int], rows: int) -> Numbers:
    return {
        "records_read": counts.records_read,
        "new": counts.survivors,
        "duplicates_within_the_batch": counts.duplicates_batch,
        "duplicates_against_the_catalog": counts.duplicates_catalog,
        **_set_aside(counts, reasons),
        "rows_finalized": rows,
    }


def weeks_truth(week: int) -> Numbers:
    """The true numbers of all messages of the weeks 1 to `week`."""
    weeks = [flights.truth_of(number) for number in range(1, week + 1)]
    counts = sum((one.counts for one in weeks), Counts())
    reasons = sum((one.quarantined for one in weeks), Counter())
    return _topic_numbers(counts, reasons, counts.survivors, 0)


def pipeline_numbers(spec: Spec, rows: pa.Table, true: pa.Table) -> Numbers:
    """A pipeline's numbers, from its markers and its output `rows`."""
    markers = markers_of(spec)
    counts = sum((marker.counts for marker in markers), Counts())
    return _topic_numbers(counts, _reasons(markers), rows.num_rows, count_wrong(rows, true))


def _topic_numbers(
    counts: Counts, reasons: Mapping[str, int], rows: int, wrong_rows: int
) -> Numbers:
    """Adds up repeats within a batch and of earlier batches, because the split depends on the
    schedule. `wrong_rows`: missing rows, and rows that no flight explains.
    """
    return {
        "messages_read": counts.records_read,
        "new": counts.survivors,
        "repeats": counts.duplicates_batch + counts.duplicates_catalog,
        **_set_aside(counts, reasons),
        "rows_finalized": rows,
        "rows_that_are_wrong": wrong_rows,
    }


def _set_aside(counts: Counts, reasons: Mapping[str, int]) -> Numbers:
    parts = {f"quarantined:{reason}": n for reason, n in sorted(reasons.items())}
    return {"quarantined": counts.quarantined, **parts, "late": counts.late}


def _reasons(markers: Iterable[Marker]) -> Counter[str]:
    """The number of dead letters by reason."""
    reasons: Counter[str] = Counter()
    for marker in markers:
        for file in marker.of_kind(Kind.DEAD_LETTERS):
            letters = pq.read_table(readable(marker.path_of(file)), columns=["reason"])
            reasons.update(letters.column("reason").to_pylist())
    return reasons


def table(title: str, actual: Mapping[str, Numbers], true: Numbers) -> Table:
    """A table of actual numbers (by column title) and the truth; it marks different numbers."""
    result = Table(box=None, pad_edge=False)
    result.add_column(title)
    for name in (*actual, "truth"):
        result.add_column(name, justify="right")
    result.add_column("")
    columns = [*actual.values(), true]
    for name in dict.fromkeys(chain(true, *columns)):
        values = [column.get(name, 0) for column in columns]
        _, part, reason = name.partition(":")
        label = f"  {reason}" if part else name.replace("_", " ")
        different = "DIFFERENT" if len({*values}) > 1 else ""
        result.add_row(label, *(f"{n:,}" for n in values), different)
    return result


def weeks_title(week: int) -> str:
    """The weeks 1 to `week`, as a title."""
    return f"weeks 1 to {week}" if week > 1 else "week 1"


def true_rows(week: int) -> pa.Table:
    """The flights of the weeks 1 to `week`, each once, with the output's types."""
    table = flights.flights_until(week)
    at = table.column_names.index("time_hour")
    times = pc.cast(table["time_hour"], pa.timestamp("us", "UTC"))
    return table.set_column(at, "time_hour", times)


def rows_of_files(spec: Spec) -> pa.Table:
    """The output of a pipeline with a folder as sink."""
    return reader.dataset(spec.sink_path(), layout.archive_folder(spec)).to_table()


def rows_of_topic(spec: Spec, topics: "DemoTopics") -> pa.Table:
    """The output of a pipeline with a topic as sink, as a consumer sees it."""
    values = [message.value() for message in topics.drain(spec.sink.topic)]
    options = pa.json.ParseOptions(
        explicit_schema=spec.arrow_schema(), unexpected_field_behavior="ignore"
    )
    return pa.json.read_json(io.BytesIO(b"\n".join(values)), parse_options=options)


def count_wrong(rows: pa.Table, true: pa.Table) -> int:
    """The number of rows that only one of two tables has, counting copies. Compares values, not
    types.
    """
    names = true.column_names
    values = ([table[name].to_pylist() for name in names] for table in (rows, true))
    ours, theirs = (Counter(zip(*columns, strict=True)) for columns in values)
    return ((ours - theirs) + (theirs - ours)).total()
