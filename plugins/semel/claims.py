"""The claims of a batch as a Parquet file beside its marker, so that a marker stays small."""

import io
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from semel.batch import Claim
from semel.errors import CorruptionError

_T = TypeVar("_T")


def pack_claims(claims: list[Claim]) -> bytes:
    """The file's bytes: one row for each claim, one column for each field of `Claim`."""
    kinds = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}
    schema = pa.schema([pa.field(f.name, kinds[f.type], nullable=False) for f in fields(Claim)])
    table = pa.Table.from_pylist([asdict(claim) for claim in claims], schema=schema)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def read_claims(path: Path) -> tuple[Claim, ...]:
    """The claims in a file. CorruptionError: it is not there, or holds something else."""
    try:
        rows = pq.read_table(path, partitioning=None).to_pylist()
        return tuple(typed(Claim, row) for row in rows)
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise CorruptionError(
            f"the claims of a batch, {path}, cannot be read: {error}; restore them from a backup"
        ) from error


def typed(kind: type[_T], plain: dict[str, Any]) -> _T:
    """A dataclass from plain values. ValueError where a number or a text is something else."""
    made = kind(**plain)
    for field in fields(made):  # type: ignore[arg-type]
        value = getattr(made, field.name)
        if type(value) is not field.type:
            raise ValueError(f"{field.name} is {value!r}")
    return made
