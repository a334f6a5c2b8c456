"""The claims of a batch: in its marker, or in a file beside it to keep the marker small."""

import io
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_origin

import pyarrow as pa
import pyarrow.parquet as pq

from semel.errors import CorruptionError
from semel.model.batch import Claim
from semel.model.plain import parse_json

_T = TypeVar("_T")


def pack_claims(claims: list[Claim]) -> bytes:
    """Encode claims as a Parquet file: a row per claim, a column per field, `evidence` as JSON."""
    kinds = {int: pa.int64(), str: pa.string(), dict[str, Any]: pa.string()}
    schema = pa.schema([pa.field(f.name, kinds[f.type], nullable=False) for f in fields(Claim)])
    rows = [{**vars(claim), "evidence": json.dumps(claim.evidence)} for claim in claims]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd")
    return file.getvalue()


def read_claims(path: Path) -> tuple[Claim, ...]:
    """The claims in a file. CorruptionError: it is missing, or holds something else."""
    try:
        rows = pq.read_table(path, partitioning=None).to_pylist()
        return tuple(map(to_claim, rows))
    except (pa.ArrowException, OSError, TypeError, ValueError, KeyError) as error:
        raise CorruptionError(
            f"the claims of a batch, {path}, cannot be read: {error}; restore them from a backup"
        ) from error


def to_claim(plain: Mapping[str, Any]) -> Claim:
    """A claim from plain values. KeyError, TypeError, ValueError: they are not a claim."""
    plain = dict(plain)
    if isinstance(plain["evidence"], str):  # From a file beside a marker.
        plain["evidence"] = parse_json(plain["evidence"])
    return typed(Claim, plain)


def typed(kind: type[_T], plain: dict[str, Any]) -> _T:
    """A dataclass from plain values. ValueError: a field's value has the wrong type."""
    made = kind(**plain)
    for field in fields(made):  # type: ignore[arg-type]
        value = getattr(made, field.name)
        if type(value) is not (get_origin(field.type) or field.type):
            raise ValueError(f"{field.name} is {value!r}")
    return made
