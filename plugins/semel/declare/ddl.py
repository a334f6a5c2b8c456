"""Column types in the syntax of Spark's DDL, and the equal Arrow types.

semel parses them itself, because plan, audit and the readers run without Spark.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCALARS = (
    "string", "bigint", "int", "smallint", "double", "float", "boolean", "timestamp", "date",
    "binary",
)  # fmt: skip
PARSER_RULES = 1
"""Version of the rules that turn a record's text into values of each type. Stored plans and markers
have it, and the audit accepts this version only. Raise it when the rules change."""

TYPE_EXAMPLES = (*SCALARS, "json", "decimal(p,s)", "array<type>", "map<string, type>",
         "struct<name: type, ...>")  # fmt: skip

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*|[0-9]+)|([<>(),:]))")
_DEPTH_MAX = 16


@dataclass(frozen=True, kw_only=True)
class ColumnType:
    """A parsed type. `word` is lower case; the other fields belong to decimal, array, map, struct.

    `element` is the type of the values in an array or a map.
    """

    word: str
    precision: int = 0
    scale: int = 0
    element: "ColumnType | None" = None
    fields: tuple[tuple[str, "ColumnType"], ...] = ()

    def __str__(self) -> str:
        """The canonical text of this type, so that equal types have equal digests."""
        if self.word == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.word == "array":
            return f"array<{self.element}>"
        if self.word == "map":
            return f"map<string, {self.element}>"
        if self.word == "struct":
            return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.fields)}>"
        return self.word

    @property
    def nested(self) -> bool:
        """True if a value has parts (array, map, struct)."""
        return self.word in ("array", "map", "struct")

    @property
    def identifies(self) -> bool:
        """True if a value can be part of a record id: a single value with exact equality."""
        # Bytes would work, but pyarrow 26 sometimes crashes when `find` searches for them.
        return not self.nested and self.word not in ("float", "double", "json", "binary")

    def arrow(self) -> "pa.DataType":
        """The Arrow type; timestamps are microseconds in UTC."""
        import pyarrow as pa

        if self.word == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if self.word == "array":
            return pa.list_(self.element.arrow())
        if self.word == "map":
            return pa.map_(pa.string(), self.element.arrow())
        if self.word == "struct":
            return pa.struct([pa.field(name, kind.arrow()) for name, kind in self.fields])
        return {
            "string": pa.string(),
            "bigint": pa.int64(),
            "int": pa.int32(),
            "smallint": pa.int16(),
            "double": pa.float64(),
            "float": pa.float32(),
            "boolean": pa.bool_(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "date": pa.date32(),
            "binary": pa.binary(),
            "json": pa.string(),
        }[self.word]


@lru_cache(maxsize=1_024)  # A task parses the types again for each of its splits.
def parse(text: str) -> ColumnType:
    """The type that `text` names. Raises ValueError, with a message, if it is not a type."""
    reader = _TypeParser(text)
    column_type = reader.type(depth=0)
    if reader.tokens:
        raise ValueError(f"{text!r} has text after its type: {''.join(reader.tokens)!r}")
    return column_type


class _TypeParser:
    """Recursive descent over the tokens of one type."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if not match:
                raise self.error(f"{text[at:].strip()[0]!r} does not belong in a type")
            self.tokens.append(match[1] or match[2])
            at = match.end()

    def error(self, why: str) -> ValueError:
        types = ", ".join(TYPE_EXAMPLES)
        return ValueError(f"{self.text!r} is not a column type: {why}; the types are {types}")

    def next(self) -> str:
        if not self.tokens:
            raise self.error("it ends too early")
        return self.tokens.pop(0)

    def expect(self, token: str) -> None:
        if (got := self.next()) != token:
            raise self.error(f"expected {token!r}, found {got!r}")

    def type(self, *, depth: int) -> ColumnType:
        if depth > _DEPTH_MAX:
            raise ValueError(f"a column type nests deeper than {_DEPTH_MAX}")
        word = self.next().lower()
        if word in SCALARS:
            return ColumnType(word=word)
        if word in ("json", "map") and depth:
            raise self.error(f"{word} must be the type of a column, not a part of a type")
        if word == "json":
            return ColumnType(word=word)
        if word == "decimal":
            return self.decimal()
        if word == "array":
            self.expect("<")
            element = self.type(depth=depth + 1)
            self.expect(">")
            return ColumnType(word=word, element=element)
        if word == "map":
            self.expect("<")
            if (key := self.next()).lower() != "string":
                raise self.error(f"a map's keys are string, not {key!r}")
            self.expect(",")
            element = self.type(depth=depth + 1)
            self.expect(">")
            return ColumnType(word=word, element=element)
        if word == "struct":
            return ColumnType(word=word, fields=self.struct_fields(depth))
        raise self.error(f"{word!r} is unknown")

    def decimal(self) -> ColumnType:
        self.expect("(")
        precision = self.number()
        self.expect(",")
        scale = self.number()
        self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self.error(
                "a decimal has 1 to 38 digits, and not more than these after the point"
            )
        return ColumnType(word="decimal", precision=precision, scale=scale)

    def number(self) -> int:
        token = self.next()
        if not token.isdigit() or len(token) > 2:
            raise self.error(f"expected a number, found {token!r}")
        return int(token)

    def struct_fields(self, depth: int) -> tuple[tuple[str, ColumnType], ...]:
        self.expect("<")
        fields: list[tuple[str, ColumnType]] = []
        while True:
            name = self.next()
            if not (name[0].isalpha() or name[0] == "_"):
                raise self.error(f"expected a field name, found {name!r}")
            if name.lower() in (earlier.lower() for earlier, _ in fields):
                raise self.error(f"it has the field {name!r} twice")
            self.expect(":")
            fields.append((name, self.type(depth=depth + 1)))
            if (token := self.next()) == ">":
                return tuple(fields)
            if token != ",":
                raise self.error(f"expected ',' or '>', found {token!r}")
