"""Rows that make no message which the topic takes, found in a task that has no connection to it."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as at

from semel.formats.jsonlsink import beyond_json
from semel.sinks import RefusedRows
from semel.sinks.kafka.encode import encode_columns, check_columns, suffix
from semel.sinks.kafka.target import KafkaTarget

_OVERHEAD = 61 + 40
"""Bytes of a batch of one message beside it: 61, and its lengths and times, 36 at most."""

_OF_HEADER = 10
_OWN = len(suffix(2**63 - 1, 2**63 - 1))
_LONGEST = 6
"""Bytes that JSON makes of one: of a control character."""

_PLAIN_BYTES = 64
"""Longest text of a number, a date, a time or a decimal, with its quotes."""

_UNKNOWN = 1 << 40
"""More than any message has: nested values repeat their names, so each row is measured."""

_WHY = {
    "number": "is NaN or an infinity, which JSON does not have",
    "range": "is not of the years 1 to 9999",
}


@dataclass(frozen=True, kw_only=True)
class KafkaRowCheck:
    """Finds rows that the topic would refuse.

    `bytes_max` is the topic's max.message.bytes; `keyed`: it takes no message without a key.
    """

    target: KafkaTarget
    bytes_max: int
    keyed: bool
    notes: tuple[str, ...] = ()

    # Keeps KP6.
    def __call__(self, table: pa.Table) -> list[RefusedRows]:
        """Those of `table`, by their reasons: number, range, null, large."""
        check_columns(self.target, table.schema)
        found: list[RefusedRows] = []
        fine = np.ones(len(table), dtype=bool)
        for name in table.column_names:
            values = table.column(name).combine_chunks()
            for reason, why in _WHY.items():
                bad = beyond_json(values, reason)
                if bad.any():
                    found.append(RefusedRows(np.flatnonzero(bad), reason, f"column {name!r} {why}"))
                    fine &= ~bad
        if self.keyed and isinstance(self.target.key, str):
            empty = table.column(self.target.key).is_null().to_numpy()
            if empty.any():
                why = f"column {self.target.key!r} is the key, and a compacted topic needs one"
                found.append(RefusedRows(np.flatnonzero(empty), "null", why))
        if large := self._large(table, fine):
            found.append(large)
        return found

    def _large(self, table: pa.Table, fine: np.ndarray) -> RefusedRows | None:
        """The rows whose message is too large: most often no look at each of them is needed."""
        if not len(table) or self._bound(table) <= self.bytes_max:
            return None
        rows = np.flatnonzero(fine)
        if not len(rows):
            return None
        parts = [p for p in encode_columns(self.target, table.take(pa.array(rows))) if p is not None]
        sizes = np.full(len(rows), self._beside, dtype=np.int64)
        for part in parts:
            sizes += pc.fill_null(pc.binary_length(part), 0).to_numpy(zero_copy_only=False)
        bad = rows[sizes > self.bytes_max]
        why = f"the message is larger than the topic's max.message.bytes, {self.bytes_max}"
        return RefusedRows(bad, "large", why) if len(bad) else None

    @property
    def _beside(self) -> int:
        """Bytes of a message beside its columns."""
        headers = sum(len(name.encode()) + _OF_HEADER for name, _ in self.target.headers)
        return _OVERHEAD + _OWN + headers

    def _bound(self, table: pa.Table) -> int:
        """What no message of these rows is longer than."""
        bound = self._beside + 2
        own = (self.target.key,) if isinstance(self.target.key, str) else self.target.key or ()
        times = {name: 1 for name in table.column_names}
        for name in (*own, *(column for _, column in self.target.headers)):
            times[name] += 1
        for name, number in times.items():
            values = table.column(name)
            bound += number * (_longest(values) + _LONGEST * len(name.encode()) + 4)
        return bound


def _longest(values: pa.ChunkedArray) -> int:
    """What no value of a column is longer than as JSON."""
    kind = values.type
    if at.is_nested(kind):
        return _UNKNOWN
    if at.is_string(kind) or at.is_large_string(kind) or at.is_binary(kind):
        return _LONGEST * (pc.max(pc.binary_length(values)).as_py() or 0) + 2
    return _PLAIN_BYTES
