"""What the weeks of flights must have become, and what became of them: numbers by name.

The truth is computed from the flights alone. What is found is read by the markers and from the
output itself: Parquet files, or a topic that a consumer reads as any other would.
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
from semel_local.demo import flights

if TYPE_CHECKING:
    from semel_local.demo.topics import DemoTopics

Numbers = dict[str, int]
"""What is compared. `quarantined:REASON` is a part of quarantined."""


def of_week(truth: flights.Truth) -> Numbers:
    """What the batch of a week must hold."""
    return _of_batch(truth.counts, truth.quarantined, truth.counts.survivors)


def of_batch(marker: Marker) -> Numbers:
    """What a batch holds by its success marker and its dead letters."""
    rows = sum(file.records for file in marker.of_kind(Kind.DATA))
    return _of_batch(marker.counts, _reasons([marker]), rows)


def _of_batch(counts: Counts, reasons: Mapping[str, int], rows: int) -> Numbers:
    return {
        "records_read": counts.records_read,
        "new": counts.survivors,
        "duplicates_within_the_batch": counts.duplicates_batch,
        "duplicates_against_the_catalog": counts.duplicates_catalog,
        **_set_aside(counts, reasons),
        "rows_finalized": rows,
    }


def of_weeks(week: int) -> Numbers:
    """What must have become of all messages of the weeks 1 to `week`."""
    weeks = [flights.truth_of(number) for number in range(1, week + 1)]
    counts = sum((one.counts for one in weeks), Counts())
    reasons = sum((one.quarantined for one in weeks), Counter())
    return _of_topic(counts, reasons, counts.survivors, 0)


def of_pipeline(spec: Spec, rows: pa.Table, true: pa.Table) -> Numbers:
    """What became of them in a pipeline, whose output has these rows."""
    markers = markers_of(spec)
    counts = sum((marker.counts for marker in markers), Counts())
    return _of_topic(counts, _reasons(markers), rows.num_rows, wrong(rows, true))


def _of_topic(counts: Counts, reasons: Mapping[str, int], rows: int, wrong_rows: int) -> Numbers:
    """Repeats may be of the same batch, or of an earlier one: which, depends on when the schedule
    cut. Wrong rows should not be there as they are, or are missing.
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
    """The dead letters of some batches by the reason that they show."""
    found: Counter[str] = Counter()
    for marker in markers:
        for file in marker.of_kind(Kind.DEAD_LETTERS):
            found.update(pq.read_table(marker.path_of(file)).column("reason").to_pylist())
    return found


def table(title: str, found: Mapping[str, Numbers], true: Numbers) -> Table:
    """What is found beside the truth, with a word where it is something else."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column(title)
    for name in (*found, "truth"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    columns = [*found.values(), true]
    for name in dict.fromkeys(chain(true, *columns)):
        values = [column.get(name, 0) for column in columns]
        _, part, reason = name.partition(":")
        told = f"  {reason}" if part else name.replace("_", " ")
        shown.add_row(told, *(f"{n:,}" for n in values), "DIFFERENT" if len({*values}) > 1 else "")
    return shown


def weeks_told(week: int) -> str:
    """The weeks 1 to `week`, as a title."""
    return f"weeks 1 to {week}" if week > 1 else "week 1"


def true_rows(week: int) -> pa.Table:
    """The flights of the weeks 1 to `week`, each once, with the types of the output."""
    table = flights.come(week)
    at = table.column_names.index("time_hour")
    times = pc.cast(table["time_hour"], pa.timestamp("us", "UTC"))
    return table.set_column(at, "time_hour", times)


def rows_of_files(spec: Spec) -> pa.Table:
    """The output of a pipeline whose sink is a folder."""
    return reader.dataset(spec.sink_path(), layout.archive_folder(spec)).to_table()


def rows_of_topic(spec: Spec, topics: "DemoTopics") -> pa.Table:
    """The output of a pipeline whose sink is a topic, as a consumer sees it."""
    values = [message.value() for message in topics.drain(spec.sink.topic)]
    options = pa.json.ParseOptions(
        explicit_schema=spec.arrow_schema(), unexpected_field_behavior="ignore"
    )
    return pa.json.read_json(io.BytesIO(b"\n".join(values)), parse_options=options)


def wrong(rows: pa.Table, true: pa.Table) -> int:
    """How many rows are in one of two tables and not in the other; each counts as often as it is
    there. Values count, types do not.
    """
    names = true.column_names
    values = ([table[name].to_pylist() for name in names] for table in (rows, true))
    ours, theirs = (Counter(zip(*columns, strict=True)) for columns in values)
    return ((ours - theirs) + (theirs - ours)).total()
