"""Finds the rows that a topic would refuse, in a task without a connection to it."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as at

from semel.formats.jsonlsink import beyond_json
from semel.sinks import RefusedRows
from semel.sinks.kafka.encode import check_columns, encode_columns, suffix
from semel.sinks.kafka.target import KafkaTarget

_OVERHEAD = 61 + 40
"""Overhead in bytes of a batch of one message: 61, and at most 36 for its lengths and times."""

_OF_HEADER = 10
_SUFFIX_BYTES = len(suffix(2**63 - 1, 2**63 - 1))
_ESCAPE_BYTES = 6
"""Bytes of a control character in JSON, the longest escape."""

_PLAIN_BYTES = 64
"""The longest text of a number, date, time or decimal, with quotes."""

_UNBOUNDED = 1 << 40
"""More than any message has. It forces measuring each row, as nested values repeat their names."""

_WHY = {
    "number": "is NaN or an infinity, which JSON does not have",
    "range": "is outside the years 1 to 9999",
}


@dataclass(frozen=True, kw_only=True)
class KafkaRowCheck:
    """Finds rows that the topic would refuse.

    `bytes_max`: the topic's max.message.bytes. `keyed`: each message needs a key.
    """

    target: KafkaTarget
    bytes_max: int
    keyed: bool
    notes: tuple[str, ...] = ()

    # Keeps KP6.
    def __call__(self, table: pa.Table) -> list[RefusedRows]:
        """The refused rows of `table`, by reason: number, range, null, large."""
        check_columns(self.target, table.schema)
        refused: list[RefusedRows] = []
        fine = np.ones(len(table), dtype=bool)
        for name in table.column_names:
            values = table.column(name).combine_chunks()
            for reason, why in _WHY.items():
                bad = beyond_json(values, reason)
                if bad.any():
                    why = f"column {name!r} {why}"
                    refused.append(RefusedRows(np.flatnonzero(bad), reason, why))
                    fine &= ~bad
        if self.keyed and isinstance(self.target.key, str):
            empty = table.column(self.target.key).is_null().to_numpy()
            if empty.any():
                why = f"column {self.target.key!r} is the key, and a compacted topic needs one"
                refused.append(RefusedRows(np.flatnonzero(empty), "null", why))
        if large := self._large(table, fine):
            refused.append(large)
        return refused

    def _large(self, table: pa.Table, fine: np.ndarray) -> RefusedRows | None:
        """The rows whose message is too large. Usually an upper bound spares measuring each row."""
        if not len(table) or self._bound(table) <= self.bytes_max:
            return None
        rows = np.flatnonzero(fine)
        if not len(rows):
            return None
        columns = encode_columns(self.target, table.take(pa.array(rows)))
        parts = [column for column in columns if column is not None]
        sizes = np.full(len(rows), self._beside, dtype=np.int64)
        for part in parts:
            sizes += pc.fill_null(pc.binary_length(part), 0).to_numpy(zero_copy_only=False)
        bad = rows[sizes > self.bytes_max]
        why = f"the message is larger than the topic's max.message.bytes, {self.bytes_max}"
        return RefusedRows(bad, "large", why) if len(bad) else None

    @property
    def _beside(self) -> int:
        """Bytes of a message without its columns."""
        headers = sum(len(name.encode()) + _OF_HEADER for name, _ in self.target.headers)
        return _OVERHEAD + _SUFFIX_BYTES + headers

    def _bound(self, table: pa.Table) -> int:
        """An upper bound for the size of the rows' messages."""
        bound = self._beside + 2
        keys = (self.target.key,) if isinstance(self.target.key, str) else self.target.key or ()
        times = {name: 1 for name in table.column_names}
        for name in (*keys, *(column for _, column in self.target.headers)):
            times[name] += 1
        for name, number in times.items():
            values = table.column(name)
            bound += number * (_longest_value(values) + _ESCAPE_BYTES * len(name.encode()) + 4)
        return bound


def _longest_value(values: pa.ChunkedArray) -> int:
    """An upper bound for the size of a column's values in JSON."""
    kind = values.type
    if at.is_nested(kind):
        return _UNBOUNDED
    if at.is_string(kind) or at.is_large_string(kind) or at.is_binary(kind):
        return _ESCAPE_BYTES * (pc.max(pc.binary_length(values)).as_py() or 0) + 2
    return _PLAIN_BYTES
