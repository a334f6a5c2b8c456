"""What the footer of a part of Parquet says: its rows, and why they cannot be read.

A footer is written last, so a part without one is still being written, or was cut off.
"""

from collections.abc import Callable
from typing import Any

import xxhash

from semel.declare.context import Context
from semel.declare.wording import some_of
from semel.errors import first_line
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import Looked, SealedPart

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_TAIL_BYTES = 8
"""The length of the footer, and the magic number: what a file ends with."""

At = Callable[[int, int], bytes]
"""(start, length) -> the bytes there, fewer at the end."""


class UnreadablePartError(Exception):
    """A part can never be read as it is. Arguments: reason and detail of its refusal."""


def looked(context: Context, part: SealedPart, file: Any, at: At) -> Looked | None:
    """What a part is, by its footer. None: it has none yet. Unusable: it never gets one.

    `file`: a binary file, and `at` reads of it. OSError: it cannot be read.
    """
    footer = _footer(at, part.length)
    return None if footer is None else _read(context, part, file, footer)


def _read(context: Context, part: SealedPart, file: Any, footer: bytes) -> Looked:
    """What a footer says. Nobody but its key looks at it as bytes."""
    import pyarrow as pa

    from semel.formats import parquet

    try:
        with parquet.opened(file) as found:
            columns, rows, naming = context.columns, parquet.rows_in(found), context.naming
            signed = len(footer) - _TAIL_BYTES > found.metadata.serialized_size
            misfits, advice = parquet.misfits(
                found, columns, context.record_id, naming, signed=signed
            )
            if not misfits and not signed:
                header = naming.match(columns, found.schema_arrow.names)
                parquet.check_counts(found, header.held.values())
    except (pa.ArrowException, OSError, ValueError) as error:
        if parquet.is_passing(error):
            raise
        why = f"its footer cannot be read ({first_line(error)}); replace the {_noun(context)}"
        raise UnreadablePartError("damaged", why) from error
    refused = None
    if misfits:
        advice = advice or f"Replace the {_noun(context)}, or correct the pipeline's schema"
        refused = refusal(part, "schema", f"{some_of(misfits)}. {advice}")
    key = xxhash.xxh3_128_hexdigest(footer)
    return Looked(part=part, length=part.length, key=key, rows=rows, refused=refused)


def _noun(context: Context) -> str:
    return context.declared.part


def _footer(at: At, size: int) -> bytes | None:
    """The footer of a part, None where it has none yet."""
    head, tail = at(0, len(_MAGIC)), at(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
    if _ENCRYPTED in (head, tail[-len(_ENCRYPTED) :]):
        why = "its footer is encrypted, and semel has no keys; take it out of the source"
        raise UnreadablePartError("encrypted", why)
    if not _MAGIC.startswith(head):
        why = "it does not begin as a Parquet file does; take it out of the source"
        raise UnreadablePartError("damaged", why)
    if size < len(_MAGIC) + _TAIL_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
        return None
    length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    if length > size - len(_MAGIC):
        raise UnreadablePartError("damaged", "its footer is longer than the file; replace the file")
    return at(size - length, length)
