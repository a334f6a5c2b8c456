"""Find rows that BigQuery rejects, in a task, without Google's client."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.formats.jsonlsink import beyond_json
from semel.sinks import RefusedRows


@dataclass(frozen=True, kw_only=True)
class BigQueryRowCheck:
    """Finds dates and times outside the years 1 to 9999, which BigQuery rejects."""

    notes: tuple[str, ...] = ()

    # Keeps BQ5.
    def __call__(self, table: pa.Table) -> list[RefusedRows]:
        refusals = []
        for name in table.column_names:
            bad = beyond_json(table.column(name).combine_chunks(), "range")
            if bad.any():
                why = f"column {name!r} has a time outside the years 1 to 9999"
                refusals.append(RefusedRows(np.flatnonzero(bad), "range", why))
        return refusals
