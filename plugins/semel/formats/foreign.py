"""Recognise files that are not lines of UTF-8, by their first bytes. For `semel new` and plan."""

import re

import msgspec

LOOKED_AT_BYTES = 256 << 10
_LINES_LOOKED_AT = 100
_UTF16_BYTES = 64
_STARTS = {
    b"\x1f\x8b": "gzip without a name that ends in .gz; rename it",
    b"\x28\xb5\x2f\xfd": "zstd; unpack it: `zstd -d`",
    b"PAR1\x15": "a Parquet file, which has a schema of its own; declare format: parquet",
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or save it as CSV",
}
_UTF16 = b"\xff\xfe", b"\xfe\xff"
_JSON_ARRAY = re.compile(rb"\s*\[\s*([{\[\]]|$)")


def foreign(head: bytes) -> str | None:
    """Why semel does not read a file with these first bytes. None if it may read it."""
    for start, why in _STARTS.items():
        if head.startswith(start):
            return why
    # A line end in UTF-16 has a NUL byte. Without any, these bytes are a bad line.
    if head.startswith(_UTF16) and b"\0" in head:
        return "UTF-16; convert it: `iconv -f UTF-16 -t UTF-8`"
    first = head[:_UTF16_BYTES]
    if len(first) > 1 and any(first):
        for kind, nulls in (("UTF-16LE", first[1::2]), ("UTF-16BE", first[::2])):
            if not any(nulls):
                return f"{kind}; convert it: `iconv -f {kind} -t UTF-8`"
    # A CR in the last byte may be half of a line end.
    if b"\r" in head[:-1] and b"\n" not in head:
        return "its lines end in CR alone; convert them: `tr '\\r' '\\n'`"
    return None


def json_array(text: bytes) -> str | None:
    """Why semel does not read this JSON: it is an array. None if it may be lines of objects."""
    if not _JSON_ARRAY.match(text[:LOOKED_AT_BYTES]) or is_json_lines(text):
        return None
    return "a JSON array; semel reads one object per line. Convert it: `jq -c '.[]'`"


def is_json_lines(text: bytes) -> bool:
    """Whether most of the first lines look like objects, and the first that parses is an object."""
    window = text[: max(LOOKED_AT_BYTES, text.find(b"\n"))]
    lines = [line for line in window.split(b"\n")[:_LINES_LOOKED_AT] if line]
    alike = [line for line in map(bytes.strip, lines) if line[:1] == b"{" and line[-1:] == b"}"]
    if 2 * len(alike) < len(lines) or not alike:
        return False
    for line in alike:
        try:
            return isinstance(msgspec.json.decode(line), dict)
        except (msgspec.MsgspecError, RecursionError):
            continue
    return False
