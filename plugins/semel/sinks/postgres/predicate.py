"""CHECK constraints that can be judged without their server: read, and asked of Arrow columns.

What is read is `pg_get_constraintdef`, in which all names are resolved and all casts are written
out. Read is only what surely means the same here: comparisons with constants and between columns,
lists, IS NULL, AND, OR, NOT, lengths of texts, and LIKE. Not the order of texts, which collations
decide, no arithmetic, and no function of a user. Whatever else is met, `parse` gives None.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DEPTH_MAX = 40
"""Deepest brackets and NOTs that are read. Each takes ten of Python's 1,000 calls."""

Judge = Callable[[pa.Table], pa.ChunkedArray]
"""From rows to true, false and null."""

_COMPARE = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal,
    ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_KINDS = {
    "smallint": "number", "integer": "number", "bigint": "number", "numeric": "number",
    "real": "float", "double precision": "float", "text": "text", "character varying": "text",
    "date": "date", "timestamp with time zone": "time", "timestamp without time zone": "time",
    "boolean": "boolean",
}  # fmt: skip
_LENGTHS = {
    "length": pc.utf8_length, "char_length": pc.utf8_length, "character_length": pc.utf8_length,
    "octet_length": pc.binary_length,
}  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")+"|[a-z_][a-z0-9_]*)"""
    r"""|(?P<word>[A-Z_]+)|(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"""
    rf"""|::(?P<type>{"|".join(_KINDS)})(?![\w(])|(?P<sign><=|>=|<>|!~~|~~|[=<>(),\[\]-]))"""
)
_DIGITS_MAX = 38  # Of numbers in an output; one of two scales has twice as many.


class _UnknownError(Exception):
    """Something that is not read here."""


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A part of an expression. `constant` is set, or `of` takes it from rows."""

    kind: str
    of: Judge | None = None
    constant: Any = None


def parse(text: str, columns: dict[str, str]) -> Judge | None:
    """What judges rows by a CHECK, as its definition has it. None: it is not understood here.

    `columns`: the type of each column of the output in PostgreSQL. A CHECK of other ones is not
    understood.
    """
    return _parsed(text, tuple(sorted(columns.items())))


@lru_cache(maxsize=256)  # A task asks for each of its tables.
def _parsed(text: str, columns: tuple[tuple[str, str], ...]) -> Judge | None:
    try:
        return _PredicateParser(text, dict(columns)).check()
    except (_UnknownError, IndexError, InvalidOperation, ValueError, OverflowError):
        return None


class _PredicateParser:
    """Recursive descent over the tokens of one definition."""

    def __init__(self, text: str, columns: dict[str, str]) -> None:
        self.columns = columns
        self.tokens: list[tuple[str, str]] = []
        self.at = self.depth = end = 0
        text = text.removesuffix(" NOT VALID").removesuffix(" NO INHERIT")
        while end < len(text):
            found = _TOKEN.match(text, end)
            if not found:
                raise _UnknownError
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            end = found.end()
        self.tokens.append(("end", ""))

    def check(self) -> Judge:
        self.expect("CHECK")
        judge = _truth(self.either())
        self.expect("")
        return judge

    def next(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def meets(self, *words: str) -> bool:
        """Whether these come next; then they are taken."""
        end = self.at + len(words)
        found = [token for _, token in self.tokens[self.at : end]] == [*words]
        self.at = end if found else self.at
        return found

    def expect(self, *words: str) -> None:
        if not self.meets(*words):
            raise _UnknownError

    def either(self) -> _Value:
        return self.chain("OR", pc.or_kleene, self.both)

    def both(self) -> _Value:
        return self.chain("AND", pc.and_kleene, self.negated)

    def chain(self, word: str, how: Callable, part: Callable[[], _Value]) -> _Value:
        parts = [part()]
        while self.meets(word):
            parts.append(part())
        return _joined(how, parts)

    def negated(self) -> _Value:
        return _inverted(self.nested(self.negated)) if self.meets("NOT") else self.comparison()

    def nested(self, part: Callable[[], _Value]) -> _Value:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _UnknownError
        found = part()
        self.depth -= 1
        return found

    def comparison(self) -> _Value:
        left = self.value()
        if self.meets("IS", "NULL"):
            return _mapped(pc.is_null, left)
        if self.meets("IS", "NOT", "NULL"):
            return _mapped(pc.is_valid, left)
        if self.meets("~~"):
            return _like(left, self.value())
        if self.meets("!~~"):
            return _inverted(_like(left, self.value()))
        if self.meets("=", "ANY"):
            return _among(left, self.array())
        if self.meets("<>", "ALL"):
            return _inverted(_among(left, self.array()))
        for sign in _COMPARE:
            if self.meets(sign):
                return _compared(sign, left, self.value())
        return left

    def array(self) -> list[_Value]:
        if self.meets("("):
            found = self.nested(self.array)
            self.expect(")")
            if self.type() not in (None, "text", "character varying"):
                raise _UnknownError
            self.meets("[", "]")
            return found
        self.expect("ARRAY", "[")
        found = [self.value()]
        while self.meets(","):
            found.append(self.value())
        self.expect("]")
        return found

    def value(self) -> _Value:
        found = self.primary()
        while name := self.type():
            found = _cast(found, name)
        return found

    def type(self) -> str | None:
        """The type that a cast names here; it has no modifiers, which would change the value."""
        return self.next()[1] if self.tokens[self.at][0] == "type" else None

    def primary(self) -> _Value:
        if self.meets("("):
            inner = self.nested(self.either)
            self.expect(")")
            return inner
        sign = "-" if self.meets("-") else ""
        group, token = self.next()
        if group == "number":
            return _Value(kind="number", constant=Decimal(sign + token))
        if group == "text" and not sign:
            return _Value(kind="text", constant=token[1:-1].replace("''", "'"))
        if group != "name" or sign:
            raise _UnknownError
        if token in _LENGTHS and self.meets("("):
            inner = self.nested(self.either)
            self.expect(")")
            return _mapped(_LENGTHS[token], inner, takes="text", gives="number")
        name = token[1:-1].replace('""', '"') if token[0] == '"' else token
        if name not in self.columns or self.meets("("):
            raise _UnknownError
        kind = _KINDS.get(self.columns[name], "other")
        return _Value(kind=kind, of=lambda rows: rows.column(name))


def _mapped(how: Callable, value: _Value, takes: str = "", gives: str = "boolean") -> _Value:
    """A function of what is taken from rows, of the kind `takes` (empty: of any)."""
    if value.of is None or takes not in ("", value.kind):
        raise _UnknownError
    return _Value(kind=gives, of=lambda rows: how(value.of(rows)))


def _truth(value: _Value) -> Judge:
    return _mapped(lambda found: found, value, takes="boolean").of


def _inverted(value: _Value) -> _Value:
    return _mapped(pc.invert, value, takes="boolean")


def _joined(how: Callable, parts: list[_Value]) -> _Value:
    if len(parts) == 1:
        return parts[0]
    judges = [_truth(part) for part in parts]
    return _Value(kind="boolean", of=lambda rows: reduce(how, (one(rows) for one in judges)))


def _among(value: _Value, values: list[_Value]) -> _Value:
    return _joined(pc.or_kleene, [_compared("=", value, one) for one in values])


def _like(value: _Value, pattern: _Value) -> _Value:
    if pattern.kind != "text" or pattern.constant is None or "\\" in pattern.constant:
        raise _UnknownError
    return _mapped(lambda texts: pc.match_like(texts, pattern.constant), value, takes="text")


def _cast(value: _Value, name: str) -> _Value:
    """A value as another type, where that changes nothing of it."""
    kind = _KINDS.get(name)
    if value.constant is None:
        if value.kind != kind or kind not in ("number", "text", "float"):
            raise _UnknownError
        if name in ("smallint", "integer", "bigint", "real"):
            raise _UnknownError  # It may round, or fail.
        return value
    plain = value.constant
    if kind == "text" and isinstance(plain, str):
        return value
    if kind in ("number", "float"):
        number = Decimal(str(plain).strip())
        whole = name in ("smallint", "integer", "bigint")
        if not number.is_finite() or (whole and number != number.to_integral_value()):
            raise _UnknownError
        if kind == "float":
            wide = pa.float32() if name == "real" else pa.float64()
            as_held = pa.scalar(float(number), wide).as_py()
            if not np.isfinite(as_held):
                raise _UnknownError
            return _Value(kind="float", constant=as_held)
        return _Value(kind="number", constant=number)
    if kind == "date" and isinstance(plain, str):
        return _Value(kind="date", constant=date.fromisoformat(plain))
    if kind == "time" and isinstance(plain, str):
        moment = datetime.fromisoformat(plain)
        if (moment.tzinfo is None) == (name == "timestamp with time zone"):
            raise _UnknownError
        return _Value(kind="time", constant=moment)
    raise _UnknownError


def _compared(sign: str, left: _Value, right: _Value) -> _Value:
    compare = _COMPARE[sign]
    if left.kind != right.kind or left.of is None:
        raise _UnknownError
    if left.kind == "text" and sign not in ("=", "<>"):
        raise _UnknownError
    if left.kind not in ("number", "float", "text", "date", "time"):
        raise _UnknownError
    if left.kind == "float" and right.of is not None:
        raise _UnknownError  # NaN equals itself there.
    if left.kind == "number" and right.of is None:
        if -right.constant.as_tuple().exponent > _DIGITS_MAX:
            raise _UnknownError

    def judge(rows: pa.Table) -> pa.ChunkedArray:
        a = left.of(rows)
        b = right.of(rows) if right.of is not None else right.constant
        if left.kind == "number":
            return compare(*_alike(a, b))
        if left.kind == "float":
            # There NaN is above all numbers; the constant is one.
            a = pc.if_else(pc.is_nan(a), pa.scalar(np.inf, a.type), a).cast(pa.float64())
        return compare(a, b if right.of is not None else _scalar(b, a.type))

    return _Value(kind="boolean", of=judge)


def _scalar(plain: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(plain, datetime) and plain.tzinfo is not None:
        return pa.scalar(plain).cast(kind)
    return pa.scalar(plain, kind)


def _alike(a: pa.ChunkedArray, b: pa.ChunkedArray | Decimal) -> tuple[Any, Any]:
    """Numbers in one type that holds both exactly."""
    if isinstance(b, Decimal):
        whole = b == b.to_integral_value() and abs(b) < 2**63
        if whole and pa.types.is_integer(a.type):
            return a.cast(pa.int64()), pa.scalar(int(b), pa.int64())
        above = Decimal(f"1e{_DIGITS_MAX - _scale(a.type)}")  # All numbers of the column.
        b = max(-above, min(b, above))
        common = pa.decimal256(2 * _DIGITS_MAX, max(_scale(a.type), -b.as_tuple().exponent))
        return _wide(a, common), pa.scalar(b, common)
    common = pa.decimal256(2 * _DIGITS_MAX, max(_scale(a.type), _scale(b.type)))
    return _wide(a, common), _wide(b, common)


def _wide(numbers: pa.ChunkedArray, common: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_integer(numbers.type):
        numbers = numbers.cast(pa.int64()).cast(pa.decimal256(19, 0))
    return numbers.cast(common)


def _scale(kind: pa.DataType) -> int:
    return kind.scale if pa.types.is_decimal(kind) else 0
