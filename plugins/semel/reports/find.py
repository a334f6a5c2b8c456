"""find: locate a record id, or explain why it is nowhere. Reads only finalized files.

A merge of the catalog discards which batch an id came from. The markers, the output and the
decisions still record it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from semel.archive.marker import Marker, markers, markers_of
from semel.declare.ddl import ColumnType
from semel.declare.wording import batch_list
from semel.errors import CorruptionError, TerminalError
from semel.formats.decimals import is_no_decimal
from semel.formats.output import BOUNDED, columns_in_files, dataset_of, fragment_of
from semel.formats.pieces import read_pieces
from semel.model.manifest import Kind, StagedFile
from semel.pipeline.opening import open_sinks
from semel.pipeline.spec import Spec
from semel.sinks import OutputLostError, Sink

FIND_PLACES_MAX = 1_000
"""Places of one id that `semel find` lists: a broken producer may repeat one id without end."""

_HELP = "semel find --help"


@dataclass(frozen=True, kw_only=True)
class IdOccurrence:
    """One place of an id. `what`: output, dead_letter, or the reason of a decision.

    `source` and `offset` (in the source's unit): the record's position, which output has only with
    sink.position_columns. `made_by`: the replay that wrote this output; None if no replay did.
    """

    what: str
    batch_id: int
    file: str
    source: str | None = None
    offset: int | None = None
    detail: str = ""
    made_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """The places of an id, and the batches that `find` could not search entirely."""

    pipeline: str
    id: dict[str, str]
    places: tuple[IdOccurrence, ...]
    batches: int
    gone: tuple[int, ...]
    """Batches whose rows the sink deleted by its own retention rules."""
    damaged: dict[int, str]
    """Batches with unreadable rows or files, and why."""
    in_output: bool
    """True if all output has the id columns."""

    @property
    def caveats(self) -> Iterator[str]:
        """Sentences about the places that `find` could not search."""
        if self.gone:
            yield f"the sink has deleted rows of {batch_list(self.gone)}, by its own rules"
        for batch, why in self.damaged.items():
            yield f"semel could not search all of batch {batch}: {why}"
        if not self.in_output:
            yield "the output does not have the id columns, so semel could not search it"


def find(spec: Spec, values: list[str], sink_path: Path | None = None) -> Search:
    """Find the record whose id columns have these values: in declared order, or as one JSON text.

    Raises TerminalError if the pipeline lacks a record id, or the values do not fit it.
    """
    wanted = _values(spec, values)
    finalized = markers(sink_path) if sink_path else markers_of(spec)
    lost: list[int] = []
    damaged: dict[int, str] = {}
    with open_sinks(spec) as sink_of:
        places = (
            *(p for m in finalized for p in _in_output(m, wanted, sink_of, lost, damaged)),
            *(p for m in finalized for p in _in_decisions(m, wanted, damaged)),
            *(p for m in finalized
              for p in _in_letters(m, wanted, damaged, samples=spec.limits.log_samples)),
        )
    return Search(
        pipeline=spec.name,
        id={name: str(value) for name, value in wanted.items()},
        places=places[:FIND_PLACES_MAX],
        batches=len(finalized),
        gone=tuple(lost),
        damaged=damaged,
        in_output=all(_has_ids(m, wanted) for m in finalized),
    )


def _has_ids(marker: Marker, wanted: Iterable[str]) -> bool:
    """True if each output row is one record, with its id."""
    return marker.spec.aggregate is None and set(wanted) <= set(marker.sink_schema.names)


def _values(spec: Spec, values: list[str]) -> dict[str, object]:
    names = spec.record_id
    if not names:
        raise TerminalError(
            f"pipeline {spec.name} has no record_id: semel identifies its records by their "
            "position only, so there is no id to search for",
            next=f"semel batches {spec.name}",
        )
    if len(values) == 1 and values[0].lstrip()[:1] in ("[", "{"):
        try:
            plain = json.loads(values[0], parse_float=str)
        except (ValueError, RecursionError) as error:
            excerpt = values[0][:200]
            raise TerminalError(f"the id {excerpt!r} is not JSON: {error}", next=_HELP) from error
        if isinstance(plain, dict):
            plain = [plain.get(name) for name in names]
        values = ["" if value is None else str(value) for value in plain]
    if len(values) != len(names):
        raise TerminalError(
            f"an id of {spec.name} has {len(names)} values ({', '.join(names)}), and the command "
            f"has {len(values)}. Write one argument for each, or one JSON object",
            next=_HELP,
        )
    kinds = spec.column_types()
    return {n: _value(n, kinds[n], text) for n, text in zip(names, values, strict=True)}


def _value(name: str, kind: ColumnType, text: str) -> object:
    try:
        text.encode()  # A record cannot have half a surrogate pair.
        match kind.word:
            case "bigint" | "int" | "smallint":
                return int(text)
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "decimal" if is_no_decimal(text, kind.arrow()):
                raise ValueError("not a decimal of this type")
            case "decimal":
                return Decimal(text)
            case "date":
                return date.fromisoformat(text)
            case "timestamp":
                moment = datetime.fromisoformat(text)
                return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            case _:
                return text
    except (ValueError, KeyError) as error:
        why = f"{text!r} is not a valid value of the id column {name} ({kind})"
        raise TerminalError(why, next=_HELP) from error


def _in_output(
    marker: Marker,
    wanted: dict[str, object],
    sink_of: Callable[[Spec], Sink],
    lost: list[int],
    damaged: dict[int, str],
) -> Iterator[IdOccurrence]:
    schema = columns_in_files(marker)
    files = list(marker.of_kind(Kind.DATA))
    if not files or not _has_ids(marker, wanted):
        return
    if marker.sink is None:
        try:
            yield from _in_sink(marker, wanted, sink_of(marker.spec))
        except OutputLostError:
            lost.append(marker.batch_id)
        except CorruptionError as error:
            damaged[marker.batch_id] = str(error)
        return
    position = [name for name in ("_semel_source", "_semel_offset") if name in schema.names]
    condition = _condition({n: (ds.field(n), schema.field(n).type) for n in wanted}, wanted)
    # One file at a time: pyarrow 26 crashes the process if it asks for a JSON file's name.
    for file in files:
        with _note_damage(marker, file, damaged):
            table = dataset_of(marker.sink, marker.spec.sink, [file], schema).to_table(
                columns=position, filter=condition, **BOUNDED
            )
            rows = table.to_pylist() if position else [{}] * table.num_rows
            yield from (_output_place(marker, file.path, row) for row in rows)


@contextmanager
def _note_damage(marker: Marker, file: StagedFile, damaged: dict[int, str]) -> Iterator[None]:
    """Record why a file cannot be read, so that the search goes on with the next file."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        damaged[marker.batch_id] = f"{file.path} cannot be read ({why})"


def _in_sink(marker: Marker, wanted: dict[str, object], sink: Sink) -> Iterator[IdOccurrence]:
    for table in sink.rows(marker):
        fields = {n: (ds.field(n), table.schema.field(n).type) for n in wanted}
        rows = table.filter(_condition(fields, wanted)).to_pylist()
        yield from (_output_place(marker, sink.address, row) for row in rows)


def _output_place(marker: Marker, file: str, row: dict[str, Any]) -> IdOccurrence:
    return IdOccurrence(
        what="output",
        batch_id=marker.batch_id,
        file=file,
        source=_path(marker, row.get("_semel_source")),
        offset=row.get("_semel_offset"),
        made_by=marker.replay.batch_id if marker.replay else None,
    )


def _in_decisions(
    marker: Marker, wanted: dict[str, object], damaged: dict[int, str]
) -> Iterator[IdOccurrence]:
    for file in marker.of_kind(Kind.DECISIONS):
        rows: list[dict[str, Any]] = []
        with _note_damage(marker, file, damaged):
            decisions = fragment_of(marker.path_of(file))
            ids = decisions.physical_schema.field("record_id").type
            fields = {n: (ds.field("record_id", n), ids.field(n).type) for n in wanted}
            rows = decisions.to_table(
                columns=["source_partition_id", "offset", "reason"],
                filter=_condition(fields, wanted),
                **BOUNDED,
            ).to_pylist()
        for row in rows:
            yield IdOccurrence(
                what=row["reason"],
                batch_id=marker.batch_id,
                file=file.path,
                source=_path(marker, row["source_partition_id"]),
                offset=row["offset"],
            )


def _in_letters(
    marker: Marker, wanted: dict[str, object], damaged: dict[int, str], *, samples: bool
) -> Iterator[IdOccurrence]:
    """Dead letters whose bytes contain every value, plain or as JSON or CSV writes texts.

    A dead letter need not be a readable record. `samples`: include the reason's detail, which
    quotes part of the record.
    """
    texts = [str(value).encode() for value in wanted.values()]
    columns = ["source_partition_id", "offset", "reason", "detail", "raw"]
    for file in marker.of_kind(Kind.DEAD_LETTERS):
        with _note_damage(marker, file, damaged):
            for rows in read_pieces(marker.path_of(file), columns):
                for row in rows.to_pylist():
                    if any(all(text in raw for text in texts) for raw in _readings(row["raw"])):
                        detail = f": {row['detail']}" if samples else ""
                        yield IdOccurrence(
                            what="dead_letter",
                            batch_id=marker.batch_id,
                            file=file.path,
                            source=_path(marker, row["source_partition_id"]),
                            offset=row["offset"],
                            detail=row["reason"] + detail,
                        )


_ESCAPE = re.compile(rb'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')


def _readings(raw: bytes) -> Iterator[bytes]:
    """A record's bytes: as they are, and without JSON's escapes or CSV's doubled quotes, if any."""
    yield raw
    if b"\\" in raw:
        yield _ESCAPE.sub(_unescaped, raw)
    if b'""' in raw:
        yield raw.replace(b'""', b'"')


def _unescaped(match: re.Match[bytes]) -> bytes:
    # Keep half a surrogate pair: an id never contains one.
    return json.loads(b'"%b"' % match[0]).encode(errors="surrogatepass")


def _condition(
    fields: dict[str, tuple[ds.Expression, pa.DataType]], wanted: dict[str, object]
) -> ds.Expression:
    condition = ds.scalar(True)
    for name, (field, kind) in fields.items():
        value = wanted[name]
        if isinstance(value, date) and not isinstance(value, datetime) and pa.types.is_string(kind):
            value = value.isoformat()  # JSON Lines stores dates as text.
        try:
            condition = condition & (field == pa.scalar(value, kind))
        except (pa.ArrowException, OverflowError) as error:
            why = f"{value!r} is not a valid value of the id column {name} ({kind})"
            raise TerminalError(why, next=_HELP) from error
    return condition


def _path(marker: Marker, part: int | None) -> str | None:
    return next((c.name for c in marker.ranges if c.source_partition_id == part), None)
