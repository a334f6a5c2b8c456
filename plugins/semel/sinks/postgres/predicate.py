"""Parse CHECK constraints and evaluate them on Arrow columns, without their server.

The input is `pg_get_constraintdef`: all names are resolved and all casts explicit. The parser
accepts only expressions that mean the same in Arrow: comparisons with constants and between
columns, lists, IS NULL, AND, OR, NOT, text lengths, and LIKE. It does not accept the order of texts
(collations decide it), arithmetic or users' functions: then `parse` returns None.
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
"""Maximum nesting of brackets and NOT. Each level uses ten of Python's 1,000 stack frames."""

Judge = Callable[[pa.Table], pa.ChunkedArray]
"""Maps rows to true, false or null."""

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
_DIGITS_MAX = 38  # The output's limit for a number; comparing two scales needs twice as many.


class _UnknownError(Exception):
    """The parser does not accept the expression."""


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A part of an expression: either `constant`, or `from_rows` computes it from rows."""

    kind: str
    from_rows: Judge | None = None
    constant: Any = None


def parse(text: str, columns: dict[str, str]) -> Judge | None:
    """The judge of a CHECK, from its definition. Returns None if the parser does not accept it.

    `columns`: the PostgreSQL type of each column of the output. A CHECK on another column is not
    accepted.
    """
    return _parse_cached(text, tuple(sorted(columns.items())))


@lru_cache(maxsize=256)  # A task parses the same CHECK for each of its Arrow tables.
def _parse_cached(text: str, columns: tuple[tuple[str, str], ...]) -> Judge | None:
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
            token = _TOKEN.match(text, end)
            if not token:
                raise _UnknownError
            self.tokens.append((token.lastgroup, token[token.lastgroup]))
            end = token.end()
        self.tokens.append(("end", ""))

    def check(self) -> Judge:
        self.expect("CHECK")
        judge = _truth(self.disjunction())
        self.expect("")
        return judge

    def advance(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, *words: str) -> bool:
        """Consume these words if they come next. Returns whether it did."""
        end = self.at + len(words)
        matches = [token for _, token in self.tokens[self.at : end]] == [*words]
        self.at = end if matches else self.at
        return matches

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise _UnknownError

    def disjunction(self) -> _Value:
        return self.chain("OR", pc.or_kleene, self.conjunction)

    def conjunction(self) -> _Value:
        return self.chain("AND", pc.and_kleene, self.negation)

    def chain(self, word: str, how: Callable, part: Callable[[], _Value]) -> _Value:
        parts = [part()]
        while self.accept(word):
            parts.append(part())
        return _combine(how, parts)

    def negation(self) -> _Value:
        return _invert(self.descend(self.negation)) if self.accept("NOT") else self.comparison()

    def descend(self, part: Callable[[], _Value]) -> _Value:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _UnknownError
        value = part()
        self.depth -= 1
        return value

    def comparison(self) -> _Value:
        operand = self.value()
        if self.accept("IS", "NULL"):
            return _apply(pc.is_null, operand)
        if self.accept("IS", "NOT", "NULL"):
            return _apply(pc.is_valid, operand)
        if self.accept("~~"):
            return _like(operand, self.value())
        if self.accept("!~~"):
            return _invert(_like(operand, self.value()))
        if self.accept("=", "ANY"):
            return _is_any_of(operand, self.array())
        if self.accept("<>", "ALL"):
            return _invert(_is_any_of(operand, self.array()))
        for sign in _COMPARE:
            if self.accept(sign):
                return _compare(sign, operand, self.value())
        return operand

    def array(self) -> list[_Value]:
        if self.accept("("):
            values = self.descend(self.array)
            self.expect(")")
            if self.type() not in (None, "text", "character varying"):
                raise _UnknownError
            self.accept("[", "]")
            return values
        self.expect("ARRAY", "[")
        values = [self.value()]
        while self.accept(","):
            values.append(self.value())
        self.expect("]")
        return values

    def value(self) -> _Value:
        value = self.primary()
        while name := self.type():
            value = _cast(value, name)
        return value

    def type(self) -> str | None:
        """The type of a cast, if one comes next. Modifiers could change the value: not accepted."""
        return self.advance()[1] if self.tokens[self.at][0] == "type" else None

    def primary(self) -> _Value:
        if self.accept("("):
            inner = self.descend(self.disjunction)
            self.expect(")")
            return inner
        sign = "-" if self.accept("-") else ""
        group, token = self.advance()
        if group == "number":
            return _Value(kind="number", constant=Decimal(sign + token))
        if group == "text" and not sign:
            return _Value(kind="text", constant=token[1:-1].replace("''", "'"))
        if group != "name" or sign:
            raise _UnknownError
        if token in _LENGTHS and self.accept("("):
            inner = self.descend(self.disjunction)
            self.expect(")")
            return _apply(_LENGTHS[token], inner, takes="text", gives="number")
        name = token[1:-1].replace('""', '"') if token[0] == '"' else token
        if name not in self.columns or self.accept("("):
            raise _UnknownError
        kind = _KINDS.get(self.columns[name], "other")
        return _Value(kind=kind, from_rows=lambda rows: rows.column(name))


def _apply(how: Callable, value: _Value, takes: str = "", gives: str = "boolean") -> _Value:
    """Apply a function to a value from rows. `takes`: the kind it must have; empty accepts any."""
    if value.from_rows is None or takes not in ("", value.kind):
        raise _UnknownError
    return _Value(kind=gives, from_rows=lambda rows: how(value.from_rows(rows)))


def _truth(value: _Value) -> Judge:
    return _apply(lambda values: values, value, takes="boolean").from_rows


def _invert(value: _Value) -> _Value:
    return _apply(pc.invert, value, takes="boolean")


def _combine(how: Callable, parts: list[_Value]) -> _Value:
    if len(parts) == 1:
        return parts[0]
    judges = [_truth(part) for part in parts]
    return _Value(kind="boolean", from_rows=lambda rows: reduce(how, (one(rows) for one in judges)))


def _is_any_of(value: _Value, values: list[_Value]) -> _Value:
    return _combine(pc.or_kleene, [_compare("=", value, one) for one in values])


def _like(value: _Value, pattern: _Value) -> _Value:
    if pattern.kind != "text" or pattern.constant is None or "\\" in pattern.constant:
        raise _UnknownError
    return _apply(lambda texts: pc.match_like(texts, pattern.constant), value, takes="text")


def _cast(value: _Value, name: str) -> _Value:
    """Cast to a type that leaves the value unchanged."""
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
        is_integer = name in ("smallint", "integer", "bigint")
        if not number.is_finite() or (is_integer and number != number.to_integral_value()):
            raise _UnknownError
        if kind == "float":
            wide = pa.float32() if name == "real" else pa.float64()
            stored = pa.scalar(float(number), wide).as_py()
            if not np.isfinite(stored):
                raise _UnknownError
            return _Value(kind="float", constant=stored)
        return _Value(kind="number", constant=number)
    if kind == "date" and isinstance(plain, str):
        return _Value(kind="date", constant=date.fromisoformat(plain))
    if kind == "time" and isinstance(plain, str):
        moment = datetime.fromisoformat(plain)
        if (moment.tzinfo is None) == (name == "timestamp with time zone"):
            raise _UnknownError
        return _Value(kind="time", constant=moment)
    raise _UnknownError


def _compare(sign: str, lhs: _Value, rhs: _Value) -> _Value:
    compare = _COMPARE[sign]
    if lhs.kind != rhs.kind or lhs.from_rows is None:
        raise _UnknownError
    if lhs.kind == "text" and sign not in ("=", "<>"):
        raise _UnknownError
    if lhs.kind not in ("number", "float", "text", "date", "time"):
        raise _UnknownError
    if lhs.kind == "float" and rhs.from_rows is not None:
        raise _UnknownError  # NaN equals itself in PostgreSQL.
    if lhs.kind == "number" and rhs.from_rows is None:
        if -rhs.constant.as_tuple().exponent > _DIGITS_MAX:
            raise _UnknownError

    def judge(rows: pa.Table) -> pa.ChunkedArray:
        a = lhs.from_rows(rows)
        b = rhs.from_rows(rows) if rhs.from_rows is not None else rhs.constant
        if lhs.kind == "number":
            return compare(*_with_common_type(a, b))
        if lhs.kind == "float":
            # PostgreSQL sorts NaN above all numbers, and the constant is a number.
            a = pc.if_else(pc.is_nan(a), pa.scalar(np.inf, a.type), a).cast(pa.float64())
        return compare(a, b if rhs.from_rows is not None else _scalar(b, a.type))

    return _Value(kind="boolean", from_rows=judge)


def _scalar(plain: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(plain, datetime) and plain.tzinfo is not None:
        return pa.scalar(plain).cast(kind)
    return pa.scalar(plain, kind)


def _with_common_type(a: pa.ChunkedArray, b: pa.ChunkedArray | Decimal) -> tuple[Any, Any]:
    """Cast numbers to a common type that represents both exactly."""
    if isinstance(b, Decimal):
        is_bigint = b == b.to_integral_value() and abs(b) < 2**63
        if is_bigint and pa.types.is_integer(a.type):
            return a.cast(pa.int64()), pa.scalar(int(b), pa.int64())
        above = Decimal(f"1e{_DIGITS_MAX - _scale(a.type)}")  # Above each number of the column.
        b = max(-above, min(b, above))
        common = pa.decimal256(2 * _DIGITS_MAX, max(_scale(a.type), -b.as_tuple().exponent))
        return _as_decimal(a, common), pa.scalar(b, common)
    common = pa.decimal256(2 * _DIGITS_MAX, max(_scale(a.type), _scale(b.type)))
    return _as_decimal(a, common), _as_decimal(b, common)


def _as_decimal(numbers: pa.ChunkedArray, common: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_integer(numbers.type):
        numbers = numbers.cast(pa.int64()).cast(pa.decimal256(19, 0))
    return numbers.cast(common)


def _scale(kind: pa.DataType) -> int:
    return kind.scale if pa.types.is_decimal(kind) else 0
