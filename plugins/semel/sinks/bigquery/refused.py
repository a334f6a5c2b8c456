"""Rows that no table of BigQuery takes, found in a task that needs no client of Google's."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.formats.jsonlsink import beyond_json
from semel.sinks import RefusedRows


@dataclass(frozen=True, kw_only=True)
class BigQueryRowCheck:
    """Finds them: BigQuery's dates and times are of the years 1 to 9999."""

    notes: tuple[str, ...] = ()

    # Keeps BQ5.
    def __call__(self, table: pa.Table) -> list[RefusedRows]:
        found = []
        for name in table.column_names:
            bad = beyond_json(table.column(name).combine_chunks(), "range")
            if bad.any():
                why = f"column {name!r} is not of the years 1 to 9999"
                found.append(RefusedRows(np.flatnonzero(bad), "range", why))
        return found
