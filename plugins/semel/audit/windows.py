"""Partial rows, held against the records that they stand for: counted again, in DuckDB.

Of the batches without transforms. Shared with the writer is what a slice of time is.
"""

from collections.abc import Iterable

import pyarrow as pa

from semel.clients.duck import Engine, duck_type
from semel.clients.sql import column
from semel.declare.aggregate import RECORDS, START, Function
from semel.declare.ddl import ColumnType
from semel.model.windows import UTC_TIME
from semel.pipeline.spec import Spec

NOTHING = {"time": "CAST(NULL AS TIMESTAMP)", "cells": "CAST(NULL AS VARCHAR[])"}
"""What a record has that no window counts."""


def of_records(spec: Spec, typed: dict[str, str]) -> dict[str, str]:
    """What is kept of a record: its time, and what it is counted by, as texts. `typed`: the
    expression of each column.
    """
    if spec.aggregate is None or spec.transforms:
        return NOTHING
    time = f"CAST({typed[spec.record_time]} AS TIMESTAMP)"
    return {"time": time, "cells": _texts(typed[name] for name in spec.aggregate.read)}


def of_rows(spec: Spec) -> dict[str, str]:
    """What is kept of a partial row: the same, of its own columns."""
    names = (*spec.aggregate.keys, *spec.aggregate.columns)
    cells = _texts(column(name) for name in names)
    return {"start": column(START), "records": column(RECORDS), "cells": cells}


def slices(engine: Engine, spec: Spec) -> None:
    """Fill the table `slice`: of each time that records have, where its slice begins."""
    times = pa.array(engine.run("times").fetchnumpy()["time"]).cast(UTC_TIME)
    found = pa.table({"time": times, "start": spec.window.windows.slices.starts(times)})
    engine.run("insert", found, {"table": "slice"})


# Keeps AG6.
def proof(spec: Spec) -> dict[str, str]:
    """What the statement `windows` is filled with, for this declaration."""
    declared, kinds = spec.aggregate, spec.column_types()
    read = {name: at for at, name in enumerate(declared.read, start=1)}
    shown = {n: at for at, n in enumerate((*declared.keys, *declared.columns), start=1)}
    apart = [(name, f) for name, f in declared.columns.items() if f.word == "distinct"]
    counted = [(name, f) for name, f in declared.columns.items() if f.word != "distinct"]
    key_of_record = [_cell(read[key], kinds[key]) for key in declared.keys]
    key_of_record += [_cell(read[f.column], kinds[f.column]) for _, f in apart]
    key_of_row = [_cell(shown[key], kinds[key]) for key in declared.keys]
    key_of_row += [_cell(shown[name], kinds[f.column]) for name, f in apart]
    return {
        "read_key": _json(key_of_record),
        "read": _json(_of_records(f, read, kinds) for _, f in counted),
        "row_key": _json(key_of_row),
        "wrote": _json(_of_rows(f, shown[name], kinds) for name, f in counted),
    }


def _of_records(function: Function, places: dict[str, int], kinds: dict[str, ColumnType]) -> str:
    if function.column is None:
        return "count(*)"
    cell = f"cells[{places[function.column]}]"
    if function.word == "count":
        return f"count({cell})"
    kind = kinds[function.column]
    if function.word == "sum":
        return f"sum(CAST({cell} AS {_sum(kind)}))"
    return f"{function.word}(CAST({cell} AS {duck_type(kind)}))"


def _of_rows(function: Function, place: int, kinds: dict[str, ColumnType]) -> str:
    cell = f"cells[{place}]"
    if function.word == "count":
        return f"CAST(sum(CAST({cell} AS BIGINT)) AS BIGINT)"
    return _of_records(function, {function.column: place}, kinds)


def _sum(kind: ColumnType) -> str:
    return f"DECIMAL(38, {kind.scale})"


def _cell(place: int, kind: ColumnType) -> str:
    """A value of the key, written in one way."""
    return f"CAST(cells[{place}] AS {duck_type(kind)})"


def _texts(values: Iterable[str]) -> str:
    return f"CAST([{', '.join(f'CAST({value} AS VARCHAR)' for value in values)}] AS VARCHAR[])"


def _json(values: Iterable[str]) -> str:
    return f"CAST(to_json({_texts(values)}) AS VARCHAR)"
