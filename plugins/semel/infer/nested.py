"""The type of JSON arrays and objects."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

NEW_FIELDS_MAX = 64
"""Fields of a struct that it declares. An object with more is data, and its column keeps text."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEPTH_MAX = 8
_BLOCK_BYTES_MAX = (1 << 31) - 1
_SCALARS = (
    (pa.types.is_integer, "bigint"), (pa.types.is_floating, "double"),
    (pa.types.is_boolean, "boolean"), (pa.types.is_string, "string"),
    (pa.types.is_timestamp, "string"),
)  # fmt: skip


def nested_type(texts: pa.Array) -> str | None:
    """The array or struct type, in a schema's notation, that fits all the texts.

    Returns None if the texts are of different kinds, or if no type describes them well: empty
    objects, keys that are data, names that no type allows. Times within them are `string`.
    """
    nested = pc.match_substring_regex(texts, r"^[\[{]")
    texts = texts.filter(nested)
    if not len(texts):
        return None
    data = "\n".join(f'{{"v":{text}}}' for text in texts.to_pylist()).encode()
    try:
        table = pa.json.read_json(
            pa.BufferReader(data),
            read_options=pa.json.ReadOptions(
                use_threads=False, block_size=min(len(data) + 1, _BLOCK_BYTES_MAX)
            ),
        )
    except pa.ArrowInvalid:
        return None
    kind = table.schema.field("v").type
    return _words(kind) if pa.types.is_nested(kind) else None


def _words(kind: pa.DataType, depth: int = 0) -> str | None:
    if depth > _DEPTH_MAX:
        return None
    if pa.types.is_list(kind):
        inner = _words(kind.value_type, depth + 1)
        return None if inner is None else f"array<{inner}>"
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not 0 < len({*map(str.lower, names)}) == len(names) <= NEW_FIELDS_MAX:
            return None
        inner = [_words(field.type, depth + 1) for field in kind]
        if None in inner or not all(map(_NAME.fullmatch, names)):
            return None
        fields = ", ".join(f"{n}: {t}" for n, t in zip(names, inner, strict=True))
        return f"struct<{fields}>"
    return next((word for fits, word in _SCALARS if fits(kind)), None)
