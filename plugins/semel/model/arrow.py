"""Parse Arrow types from the texts that pyarrow writes for them."""

import re

import pyarrow as pa

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (\d+)\)")
_NESTED = re.compile(r"(large_list|list|struct|map)<(.*)>", re.DOTALL)


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type that pyarrow writes as `text`. ValueError: unknown here."""
    text = text.removesuffix(" not null")
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if found[1] == "128" else pa.decimal256
        return make(int(found[2]), int(found[3]))
    if found := _NESTED.fullmatch(text):
        parts = _parts(found[2])
        if found[1] == "map":
            return pa.map_(*(arrow_type(part) for part in parts))
        named = [part.split(": ", 1) for part in parts]
        fields = [pa.field(name, arrow_type(kind)) for name, kind in named]
        if found[1] == "struct":
            return pa.struct(fields)
        return (pa.list_ if found[1] == "list" else pa.large_list)(fields[0])
    return pa.type_for_alias(text)


def _parts(text: str) -> list[str]:
    """Split at the commas outside all brackets."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    return [*found, text[start:].strip()] if text.strip() else []
