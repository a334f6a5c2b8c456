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
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Judge = Callable[[pa.Table], pa.ChunkedArray]
"""From rows to true, false and null."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)"""
    r"""|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<sign><=|>=|<>|::|!~~|~~|[=<>(),\[\]-]))"""
)
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
_SCALE_MAX = 38
_DIGITS_MAX = 76


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
        return _Reader(text, dict(columns)).check()
    except (_UnknownError, IndexError, InvalidOperation, ValueError, OverflowError):
        return None


class _Reader:
    """Recursive descent over the tokens of one definition."""

    def __init__(self, text: str, columns: dict[str, str]) -> None:
        self.columns = columns
        self.tokens: list[tuple[str, str]] = []
        at = 0
        text = text.removesuffix(" NOT VALID").removesuffix(" NO INHERIT")
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found:
                raise _UnknownError
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()

    def check(self) -> Judge:
        self.expect("CHECK")
        judge = self.truth(self.either())
        if self.tokens:
            raise _UnknownError
        return judge

    def next(self) -> tuple[str, str]:
        return self.tokens.pop(0)

    def meets(self, *words: str) -> bool:
        """Whether these come next; then they are taken."""
        if [token for _, token in self.tokens[: len(words)]] != [*words]:
            return False
        del self.tokens[: len(words)]
        return True

    def expect(self, *words: str) -> None:
        if not self.meets(*words):
            raise _UnknownError

    def truth(self, value: _Value) -> Judge:
        if value.kind != "boolean" or value.of is None:
            raise _UnknownError
        return value.of

    def either(self) -> _Value:
        left = self.both()
        while self.meets("OR"):
            left = self._joined(pc.or_kleene, left, self.both())
        return left

    def both(self) -> _Value:
        left = self.negated()
        while self.meets("AND"):
            left = self._joined(pc.and_kleene, left, self.negated())
        return left

    def _joined(self, how: Callable, left: _Value, right: _Value) -> _Value:
        a, b = self.truth(left), self.truth(right)
        return _Value(kind="boolean", of=lambda rows: how(a(rows), b(rows)))

    def negated(self) -> _Value:
        if self.meets("NOT"):
            inner = self.truth(self.negated())
            return _Value(kind="boolean", of=lambda rows: pc.invert(inner(rows)))
        return self.comparison()

    def comparison(self) -> _Value:
        left = self.value()
        if self.meets("IS", "NULL"):
            return self._null(left, pc.is_null)
        if self.meets("IS", "NOT", "NULL"):
            return self._null(left, pc.is_valid)
        if self.meets("~~"):
            return self._like(left, self.value())
        if self.meets("!~~"):
            like = self._like(left, self.value())
            return _Value(kind="boolean", of=lambda rows: pc.invert(like.of(rows)))
        for sign, many, inverted in (("=", "ANY", False), ("<>", "ALL", True)):
            if self.meets(sign, many):
                return self._listed(left, inverted=inverted)
        for sign, compare in _COMPARE.items():
            if self.meets(sign):
                return _compared(sign, compare, left, self.value())
        return left

    def _null(self, value: _Value, how: Callable) -> _Value:
        if value.of is None:
            raise _UnknownError
        return _Value(kind="boolean", of=lambda rows: how(value.of(rows)))

    def _like(self, value: _Value, pattern: _Value) -> _Value:
        kinds = (value.kind, pattern.kind)
        if kinds != ("text", "text") or value.of is None or not isinstance(pattern.constant, str):
            raise _UnknownError
        if "\\" in pattern.constant:
            raise _UnknownError
        return _Value(
            kind="boolean", of=lambda rows: pc.match_like(value.of(rows), pattern.constant)
        )

    def _listed(self, value: _Value, *, inverted: bool) -> _Value:
        self.expect("(")
        brackets = 0
        while self.meets("("):
            brackets += 1
        self.expect("ARRAY", "[")
        found = [_compared("=", pc.equal, value, self.value())]
        while self.meets(","):
            found.append(_compared("=", pc.equal, value, self.value()))
        self.expect("]")
        for _ in range(brackets):
            self.expect(")")
            if self.meets("::") and (self.type() not in ("text", "character varying")):
                raise _UnknownError
            self.meets("[", "]")
        self.expect(")")
        whole = found[0]
        for one in found[1:]:
            whole = self._joined(pc.or_kleene, whole, one)
        if inverted:
            return _Value(kind="boolean", of=lambda rows: pc.invert(whole.of(rows)))
        return whole

    def value(self) -> _Value:
        found = self.primary()
        while self.meets("::"):
            found = _cast(found, self.type())
        return found

    def primary(self) -> _Value:
        if self.meets("("):
            inner = self.either()
            self.expect(")")
            return inner
        if self.meets("-"):
            return _Value(kind="number", constant=-_number(self.next()[1]))
        group, token = self.next()
        if group == "number":
            return _Value(kind="number", constant=_number(token))
        if group == "text":
            return _Value(kind="text", constant=token[1:-1].replace("''", "'"))
        if group != "name":
            raise _UnknownError
        if token in _LENGTHS and self.meets("("):
            inner, measure = self.either(), _LENGTHS[token]
            self.expect(")")
            if inner.kind != "text" or inner.of is None:
                raise _UnknownError
            return _Value(kind="number", of=lambda rows: measure(inner.of(rows)))
        name = token[1:-1].replace('""', '"') if token[0] == '"' else token
        if name not in self.columns or (self.tokens and self.tokens[0][1] == "("):
            raise _UnknownError
        kind = _KINDS.get(self.columns[name], "other")
        return _Value(kind=kind, of=lambda rows: rows.column(name))

    def type(self) -> str:
        """The name of a type, without modifiers: these would change the value."""
        words = [self.next()[1]]
        while self.tokens and self.tokens[0] in (
            ("name", "varying"), ("name", "precision"), ("name", "with"), ("name", "without"),
            ("name", "time"), ("name", "zone"),
        ):  # fmt: skip
            words.append(self.next()[1])
        if self.tokens and self.tokens[0][1] == "(":
            raise _UnknownError
        return " ".join(words)


def _number(token: str) -> Decimal:
    return Decimal(token)


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
        number = _number(str(plain).strip())
        whole = name in ("smallint", "integer", "bigint")
        if not number.is_finite() or (whole and number != number.to_integral_value()):
            raise _UnknownError
        if kind == "float":
            as_held = float(number) if name != "real" else float(np.float32(float(number)))
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


def _compared(sign: str, compare: Callable, left: _Value, right: _Value) -> _Value:
    if left.kind != right.kind or left.of is None:
        raise _UnknownError
    if left.kind == "text" and sign not in ("=", "<>"):
        raise _UnknownError
    if left.kind not in ("number", "float", "text", "date", "time"):
        raise _UnknownError
    if left.kind == "float" and right.of is not None:
        raise _UnknownError  # NaN equals itself there.
    if left.kind == "number" and right.of is None and -right.constant.as_tuple().exponent > 38:
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
        scale = max(_scale(a.type), -b.as_tuple().exponent, 0)
        common = pa.decimal256(_DIGITS_MAX, scale)
        return _wide(a, common), pa.scalar(b, common)
    common = pa.decimal256(_DIGITS_MAX, max(_scale(a.type), _scale(b.type)))
    return _wide(a, common), _wide(b, common)


def _wide(numbers: pa.ChunkedArray, common: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_integer(numbers.type):
        numbers = numbers.cast(pa.int64()).cast(pa.decimal256(19, 0))
    return numbers.cast(common)


def _scale(kind: pa.DataType) -> int:
    return kind.scale if pa.types.is_decimal(kind) else 0
