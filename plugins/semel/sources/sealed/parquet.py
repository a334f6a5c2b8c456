"""Inspects Parquet parts by their footer: the number of rows, or why they cannot be read.

Writers write the footer last, so a part without one is still being written, or was cut off.
"""

from collections.abc import Callable
from typing import Any

import xxhash

from semel.declare.context import Context
from semel.declare.wording import some_of
from semel.errors import first_line
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartInspection, SealedPart

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_TAIL_BYTES = 8
"""The end of a file: the length of its footer, then the magic number."""

ReadAt = Callable[[int, int], bytes]
"""(start, length) -> the bytes there, or fewer at the end of the file."""


class UnreadablePartError(Exception):
    """A part is unreadable for ever. Arguments: the reason and detail of its refusal."""


def inspect_footer(
    context: Context, part: SealedPart, file: Any, read_at: ReadAt
) -> PartInspection | None:
    """Inspect a part by its footer. Returns None if the footer is still missing.

    `file`: the part as a binary file; `read_at` reads its ranges. Raises UnreadablePartError if
    the part is damaged, encrypted or not Parquet, OSError if it cannot be read.
    """
    footer = _footer(read_at, part.length)
    return None if footer is None else _read(context, part, file, footer)


def _read(context: Context, part: SealedPart, file: Any, footer: bytes) -> PartInspection:
    """Inspect a part whose footer has these bytes. The part's key is their digest."""
    import pyarrow as pa

    from semel.formats import parquet

    try:
        with parquet.open_parquet(file) as opened:
            columns, rows, naming = context.columns, parquet.rows_in(opened), context.naming
            signed = len(footer) - _TAIL_BYTES > opened.metadata.serialized_size
            misfits, advice = parquet.misfits(
                opened, columns, context.record_id, naming, signed=signed
            )
            if not misfits and not signed:
                header = naming.match(columns, opened.schema_arrow.names)
                parquet.check_counts(opened, header.held.values())
    except (pa.ArrowException, OSError, ValueError) as error:
        if parquet.is_passing(error):
            raise
        why = f"its footer is damaged ({first_line(error)}). Replace the {_noun(context)}"
        raise UnreadablePartError("damaged", why) from error
    refused = None
    if misfits:
        advice = advice or f"Replace the {_noun(context)}, or correct the pipeline's schema"
        refused = refusal(part, "schema", f"{some_of(misfits)}. {advice}")
    key = xxhash.xxh3_128_hexdigest(footer)
    return PartInspection(part=part, length=part.length, key=key, rows=rows, refusal=refused)


def _noun(context: Context) -> str:
    return context.declared.part


def _footer(read_at: ReadAt, size: int) -> bytes | None:
    """The bytes of a footer. Returns None if the footer is still missing."""
    head, tail = read_at(0, len(_MAGIC)), read_at(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
    if _ENCRYPTED in (head, tail[-len(_ENCRYPTED) :]):
        why = "it is encrypted, which semel does not support. Move it out of the source"
        raise UnreadablePartError("encrypted", why)
    if not _MAGIC.startswith(head):
        why = "it is not a Parquet file: it does not begin with PAR1. Move it out of the source"
        raise UnreadablePartError("damaged", why)
    if size < len(_MAGIC) + _TAIL_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
        return None
    length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    if length > size - len(_MAGIC):
        raise UnreadablePartError("damaged", "its footer is longer than the file. Replace the file")
    return read_at(size - length, length)
