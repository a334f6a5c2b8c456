"""What the weeks of flights must have become, and what became of them in a pipeline over topics.

The truth is computed from the flights alone. What is found is read by the markers and from the
output itself: Parquet files, or a topic that a consumer reads as any other would.
"""

import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from semel import reader
from semel.archive import layout
from semel.archive.marker import marker_paths, markers_of
from semel.demo import flights
from semel.demo.topics import Topics
from semel.model.manifest import Kind
from semel.pipeline import Spec


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of all messages so far. Repeats may be of the same batch, or of an earlier one:
    which, depends on when the schedule cut.
    """

    read: int
    new: int
    repeats: int
    quarantined: dict[str, int]
    """By the reason that the dead letters show."""
    late: int
    rows: int
    """Of the output."""
    wrong_rows: int
    """Rows that are in the output and should not be there as they are, and such as are missing."""

    def lines(self) -> list[tuple[str, int]]:
        """Each number with its name. `quarantined:REASON` is a part of quarantined."""
        parts = [(f"quarantined:{reason}", n) for reason, n in sorted(self.quarantined.items())]
        return [
            ("messages_read", self.read), ("new", self.new), ("repeats", self.repeats),
            ("quarantined", sum(self.quarantined.values())), *parts, ("late", self.late),
            ("rows_finalized", self.rows), ("rows_that_are_wrong", self.wrong_rows),
        ]  # fmt: skip


def truth(week: int) -> Account:
    """Of the weeks 1 to `week`."""
    weeks = [flights.truth_of(number) for number in range(1, week + 1)]
    reasons: Counter[str] = Counter()
    for one in weeks:
        reasons.update(one.quarantined)
    new = sum(one.new for one in weeks)
    return Account(
        read=sum(one.records for one in weeks),
        new=new,
        repeats=sum(one.duplicates_batch + one.duplicates_catalog for one in weeks),
        quarantined=dict(reasons),
        late=0,
        rows=new,
        wrong_rows=0,
    )


def found(spec: Spec, rows: pa.Table, true: pa.Table) -> Account:
    """By the markers and dead letters of a pipeline, whose output has these rows."""
    markers = markers_of(spec)
    reasons: Counter[str] = Counter()
    for marker in markers:
        for file in marker.of_kind(Kind.DEAD_LETTERS):
            reasons.update(pq.read_table(marker.path_of(file)).column("reason").to_pylist())
    counts = [marker.counts for marker in markers]
    return Account(
        read=sum(one.records_read for one in counts),
        new=sum(one.survivors for one in counts),
        repeats=sum(one.duplicates_batch + one.duplicates_catalog for one in counts),
        quarantined=dict(reasons),
        late=sum(one.late for one in counts),
        rows=rows.num_rows,
        wrong_rows=wrong(rows, true),
    )


def true_rows(week: int) -> pa.Table:
    """The flights of the weeks 1 to `week`, each once, with the types of the output."""
    table = flights.come(week)
    at = table.column_names.index("time_hour")
    times = pc.cast(table["time_hour"], pa.timestamp("us", "UTC"))
    return table.set_column(at, "time_hour", times)


def rows_of_files(spec: Spec) -> pa.Table:
    """The output of a pipeline whose sink is a folder."""
    return reader.dataset(spec.sink_path(), layout.of(spec)).to_table()


def rows_of_topic(spec: Spec, topics: Topics) -> pa.Table:
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
    ours, theirs = (Counter(zip(*_values(table, names), strict=True)) for table in (rows, true))
    return ((ours - theirs) + (theirs - ours)).total()


def _values(table: pa.Table, names: Iterable[str]) -> list[list]:
    return [table[name].to_pylist() for name in names]


def read_so_far(spec: Spec, known: dict[str, tuple[str, int]]) -> int:
    """How many messages the finalized batches of a pipeline have read.

    `known`: by marker the run of its batch and its messages; what is new is added.
    """
    for path in marker_paths(layout.of(spec)):
        if path.name not in known:
            plain = json.loads(path.read_bytes())
            known[path.name] = plain["request_key"], plain["counts"]["records_read"]
    return sum(messages for _, messages in known.values())
