"""Arrow types: that of times, and those that pyarrow writes as text."""

import re

import pyarrow as pa

UTC_TIME = pa.timestamp("us", tz="UTC")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (\d+)\)")
_NESTED = re.compile(r"(large_list|list|struct|map)<(.*)>", re.DOTALL)


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type that pyarrow writes as `text`. Raises ValueError if the type is unknown."""
    text = text.removesuffix(" not null")
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if match[1] == "128" else pa.decimal256
        return make(int(match[2]), int(match[3]))
    if match := _NESTED.fullmatch(text):
        parts = _parts(match[2])
        if match[1] == "map":
            return pa.map_(*(arrow_type(part) for part in parts))
        named = [part.split(": ", 1) for part in parts]
        fields = [pa.field(name, arrow_type(kind)) for name, kind in named]
        if match[1] == "struct":
            return pa.struct(fields)
        return (pa.list_ if match[1] == "list" else pa.large_list)(fields[0])
    return pa.type_for_alias(text)


def _parts(text: str) -> list[str]:
    """Split at the commas outside all brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text.strip() else []
