"""The claims of a batch, in its marker or in a file next to it, to keep the marker small."""

import io
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_origin

from semel.errors import CorruptionError
from semel.model.batch import Claim
from semel.model.plain import parse_json
from semel.storage import ArchivePath, readable

_T = TypeVar("_T")


def pack_claims(claims: list[Claim]) -> bytes:
    """Encode claims as a Parquet file: a row per claim, a column per field, `evidence` as JSON."""
    import pyarrow as pa  # Commands that list files start without Arrow.
    import pyarrow.parquet as pq

    kinds = {int: pa.int64(), str: pa.string(), dict[str, Any]: pa.string()}
    schema = pa.schema([pa.field(f.name, kinds[f.type], nullable=False) for f in fields(Claim)])
    rows = [{**vars(claim), "evidence": json.dumps(claim.evidence)} for claim in claims]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd")
    return file.getvalue()


def read_claims(path: ArchivePath) -> tuple[Claim, ...]:
    """Read the claims in a file. Raises CorruptionError if it is missing or has other content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(readable(path), partitioning=None).to_pylist()
        return tuple(map(to_claim, rows))
    except (pa.ArrowException, OSError, TypeError, ValueError, KeyError) as error:
        raise CorruptionError(
            f"{path}: semel cannot read the claims of this batch: {error}. Restore the file from a "
            "backup"
        ) from error


def to_claim(plain: Mapping[str, Any]) -> Claim:
    """Make a claim from plain values. Raises KeyError, TypeError or ValueError if they misfit."""
    plain = dict(plain)
    if isinstance(plain["evidence"], str):  # Read from a Parquet file.
        plain["evidence"] = parse_json(plain["evidence"])
    return typed(Claim, plain)


def typed(kind: type[_T], plain: dict[str, Any]) -> _T:
    """Make a dataclass from plain values. Raises ValueError if a value has the wrong type."""
    value_object = kind(**plain)
    for field in fields(value_object):  # type: ignore[arg-type]
        value = getattr(value_object, field.name)
        if type(value) is not (get_origin(field.type) or field.type):
            raise ValueError(f"{field.name} is {value!r}")
    return value_object
