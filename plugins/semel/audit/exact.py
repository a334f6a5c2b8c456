"""The exact path: one record, judged by Python alone. It knows nothing of semel's own readers.

It judges what the vectorised path cannot decide, and every dead letter. It gives each value as text
that DuckDB casts to the declared type, so both paths meet before ids and rows are compared.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from semel import limits
from semel.declare.ddl import ColumnType
from semel.declare.parts import REST_COLUMN, Unknown
from semel.sources.reread import split_fields
from semel.sources.spec import CsvOptions

Judge = Callable[[bytes], "JudgedLine"]

_TOO_LONG = f"it is longer than {limits.RECORD_BYTES_MAX} bytes"
_INTEGERS = {"bigint": 64, "int": 32, "smallint": 16}
_DIGITS = re.compile(r"-?\d+(\.\d*[1-9])?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# What semel's reader takes for numbers in keys that nobody declared, outside of any text.
_CONSTANT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(-?(?:NaN|Inf(?:inity)?))', re.DOTALL)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[ T](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)


class LineKind(StrEnum):
    """Whether a line is a record. `unsure`: readers may differ here, so either answer stands."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """By what a batch was read: the columns of its id, and what was to become of keys that the
    schema does not name. `typed`: the text was made of values that have types, and a decimal is the
    text of its digits. `names`: the other keys of columns."""

    id: tuple[str, ...] = ()
    unknown: Unknown = Unknown.IGNORE
    typed: bool = False
    names: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class JudgedLine:
    """A line's verdict, why it is not good, its values as text (None where null or nested)."""

    word: LineKind
    why: str = ""
    values: tuple[str | None, ...] = ()


class _BadError(Exception):
    """The line is not a record of the schema."""


class _Number(str):
    """A JSON number as it is written."""


class _Constant(str):
    """NaN or an infinity, which are no JSON."""


class _Object(dict):
    """A JSON object that remembers which keys it repeats, and all values of these."""

    twice: frozenset[str] = frozenset()
    hidden: tuple[tuple[str, Any], ...] = ()


def json_judge(columns: dict[str, ColumnType], rules: Rules) -> Judge:
    """The judge of JSON Lines."""

    def judge(raw: bytes) -> JudgedLine:
        return _judge(raw, lambda text, doubts: _json_values(text, columns, rules, doubts))

    return judge


def bytes_judge(raw: bytes) -> JudgedLine:
    """The judge of values that are one column as they are."""
    if len(raw) > limits.RECORD_BYTES_MAX:
        return JudgedLine(word=LineKind.BAD, why=_TOO_LONG)
    return JudgedLine(word=LineKind.GOOD, values=(_blob(raw),))


def csv_judge(
    columns: dict[str, ColumnType],
    header: list[str],
    csv: CsvOptions,
    rules: Rules,
) -> Judge:
    """The judge of CSV records. `header` gives the order of the fields."""

    def values(text: str, doubts: list[str]) -> tuple[str | None, ...]:
        try:
            fields = split_fields(text, csv)
        except ValueError as error:
            raise _BadError(str(error)) from error
        if len(fields) != len(header):
            raise _BadError(f"it has {len(fields)} fields, not {len(header)}")
        if not csv.multiline and "\r" in text:
            raise _BadError("a CR without LF")
        found, nothing = dict(zip(header, fields, strict=True)), ("", False)
        return tuple(
            _csv_value(name, kind, *found.get(name, nothing), rules, doubts)
            for name, kind in columns.items()
        )

    def judge(raw: bytes) -> JudgedLine:
        return _judge(raw, values)

    return judge


def _judge(
    raw: bytes, values: Callable[[str, list[str]], tuple[str | None, ...]]
) -> JudgedLine:
    """`values` gives a record's values, or raises _BadError; it adds its doubts to a list."""
    if len(raw) > limits.RECORD_BYTES_MAX:
        return JudgedLine(word=LineKind.BAD, why=_TOO_LONG)
    if b"\0" in raw:
        return JudgedLine(word=LineKind.BAD, why="it holds a NUL byte")
    doubts: list[str] = []
    try:
        found = values(raw.decode(), doubts)
        word = LineKind.UNSURE if doubts else LineKind.GOOD
        return JudgedLine(word=word, why="; ".join(doubts[:1]), values=found)
    except UnicodeDecodeError:
        return JudgedLine(word=LineKind.BAD, why="it is not UTF-8")
    except _BadError as bad:
        return JudgedLine(word=LineKind.BAD, why=str(bad))
    except RecursionError:
        return JudgedLine(word=LineKind.UNSURE, why="it is nested very deeply")


def _json_values(
    text: str, columns: dict[str, ColumnType], rules: Rules, doubts: list[str]
) -> tuple[str | None, ...]:
    def number(token: str) -> _Number:
        if math.isinf(float(token)):
            doubts.append(f"the number {token[:40]} is beyond a double")
        return _Number(token)

    try:
        found = json.loads(
            _CONSTANT.sub(lambda match: "NaN" if match[1] else match[0], text),
            object_pairs_hook=_object,
            parse_int=number,
            parse_float=number,
            parse_constant=_Constant,
        )
    except json.JSONDecodeError as error:
        raise _BadError(f"it is not JSON ({error.msg})") from error
    if not isinstance(found, _Object):
        raise _BadError("it is not a JSON object")
    kept = rules.unknown is Unknown.KEEP
    declared = tuple(item for item in columns.items() if not (kept and item[0] == REST_COLUMN))
    others = dict(rules.names)
    keys = [(key, kind) for name, kind in declared for key in (name, *others.get(name, ()))]
    read = dict(zip(dict(keys), _members(found, tuple(keys), rules, doubts), strict=True))
    for name, more in rules.names:
        given = [key for key in (name, *more) if found.get(key) is not None]
        if len(given) > 1:
            raise _BadError(f"the keys {' and '.join(map(repr, given))} are of one column")
        read[name] = read[given[0]] if given else None
    values = tuple(read[name] for name, _ in declared)
    if not kept:
        return values
    named = read.keys()
    for key, value in (*found.items(), *found.hidden):
        if key not in named and _holds_constant(value):
            raise _BadError(f"{key} holds what is no JSON")
    return (*values, None)


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    # Seen here, because a repeated key hides its first value.
    if any(_has_surrogate(part) for pair in pairs for part in pair):
        raise _BadError("it holds half of a surrogate pair")
    made = _Object(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        made.twice = frozenset(key for key, _ in pairs if key in seen or seen.add(key))
        made.hidden = tuple(pair for pair in pairs if pair[0] in made.twice)
    return made


def _has_surrogate(value: object) -> bool:
    """Objects within `value` were looked at when they were made."""
    if isinstance(value, str):
        return not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)
    return isinstance(value, list) and any(map(_has_surrogate, value))


def _holds_constant(value: object) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, _Constant):
            return True
        if isinstance(one, _Object):
            left += one.values()
            left += (value for _, value in one.hidden)
        elif isinstance(one, list):
            left += one
    return False


def _members(
    found: _Object, columns: tuple[tuple[str, ColumnType], ...], rules: Rules, doubts: list[str]
) -> tuple[str | None, ...]:
    for name, _ in columns:
        if name in found.twice:
            raise _BadError(f"the key {name!r} is there twice")
    if rules.unknown is Unknown.QUARANTINE and (other := found.keys() - dict(columns).keys()):
        raise _BadError(f"the schema does not name {sorted(other)}")
    return tuple(
        _json_value(name, kind, found.get(name), rules, doubts) for name, kind in columns
    )


def _json_value(
    name: str, kind: ColumnType, value: object, rules: Rules, doubts: list[str]
) -> str | None:
    if value is None:
        return None
    if kind.word == "struct":
        if not isinstance(value, _Object):
            raise _BadError(f"{name} is not an object")
        _members(value, kind.fields, replace(rules, id=()), doubts)
        return None
    if kind.word in ("map", "array"):
        is_map = kind.word == "map"
        if not isinstance(value, _Object if is_map else list):
            raise _BadError(f"{name} is not an {'object' if is_map else 'array'}")
        if is_map and value.twice:
            raise _BadError(f"{name} has a key twice")
        for one in value.values() if is_map else value:
            _json_value(name, kind.element, one, replace(rules, id=()), doubts)
        return None
    if kind.word == "json":
        if _holds_constant(value):
            raise _BadError(f"{name} holds what is no JSON")
        return None
    if kind.word == "boolean":
        if not isinstance(value, bool):
            raise _BadError(f"{name} is not a boolean")
        return "true" if value else "false"
    if isinstance(value, _Constant):
        raise _BadError(f"{name} is not a finite number")
    if kind.word == "decimal" and isinstance(value, str) and not isinstance(value, _Number):
        if rules.typed and _DIGITS.fullmatch(value):
            return _decimal(name, kind, value)
        doubts.append(f"{name} is a decimal written as text")
        return value
    textual = kind.word in ("string", "timestamp", "date", "binary")
    if not isinstance(value, str) or isinstance(value, _Number) == textual:
        raise _BadError(f"{name} is not a {kind.word}")
    if kind.word in _INTEGERS and not re.fullmatch(r"-?\d+", value):
        raise _BadError(f"{name} is not an integer")
    return _number(name, kind, value, rules, doubts)


def _csv_value(
    name: str, kind: ColumnType, text: str, quoted: bool, rules: Rules, doubts: list[str]
) -> str | None:
    if text == "" and not quoted:
        return None
    if kind.word in ("string", "timestamp", "date", "binary"):
        return _text(name, kind, text, rules)
    plain = {
        "boolean": r"true|false",
        "bigint": r"-?\d{1,40}",
        "int": r"-?\d{1,40}",
        "smallint": r"-?\d{1,40}",
    }.get(kind.word, r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
    if not re.fullmatch(plain, text, re.ASCII):
        hexadecimal = re.match(r"\s*0[xX]", text)
        if not hexadecimal and re.fullmatch(r"\s*([-+.]?\d.*|true|false)\s*", text, re.I | re.S):
            doubts.append(f"the field {text[:40]!r} may be read as {kind.word}")
            return text.strip()
        raise _BadError(f"{name} is not a {kind.word}")
    return _number(name, kind, text, rules, doubts)


def _number(
    name: str, kind: ColumnType, value: str, rules: Rules, doubts: list[str]
) -> str:
    """As `_text`. Whether zeros behind a decimal's last digit count has depended on the reader, and
    how far a zero may have its point moved."""
    found = _text(name, kind, value, rules)
    if kind.word == "decimal":
        if sum(map(str.isdigit, value)) > kind.precision:
            doubts.append(f"{name} is written with more than {kind.precision} digits")
        elif not Decimal(value) and "e" in value.lower():
            doubts.append(f"{name} is a zero with an exponent")
    return found


def _text(name: str, kind: ColumnType, value: str, rules: Rules) -> str:
    """A value's text as DuckDB casts it. _BadError when the type cannot hold it."""
    match kind.word:
        case "bigint" | "int" | "smallint":
            bound = 1 << (_INTEGERS[kind.word] - 1)
            if len(value) > 40 or not -bound <= int(value) < bound:
                raise _BadError(f"{name} is beyond {kind.word}")
            return str(int(value))
        case "double" | "float":
            return _float(name, kind, value)
        case "decimal":
            return _decimal(name, kind, value)
        case "binary":
            return _bytes(name, value)
        case "timestamp":
            return _timestamp(name, value, rules)
        case "date":
            try:
                if _DATE.fullmatch(value):
                    return date.fromisoformat(value).isoformat()
            except ValueError:
                pass  # It has the form of a date and is none; refused like other text.
            raise _BadError(f"{name} is not a date")
    return str(value)


def _bytes(name: str, value: str) -> str:
    """Bytes, as `_blob`. What they are written as must be the one way to do it."""
    try:
        found = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise _BadError(f"{name} is not base64") from error
    if base64.b64encode(found).decode() != value:
        raise _BadError(f"{name} is not base64 as it is written")
    return _blob(found)


def _blob(found: bytes) -> str:
    """Bytes as DuckDB's text of them."""
    return "".join(f"\\x{byte:02X}" for byte in found)


def _float(name: str, kind: ColumnType, value: str) -> str:
    number = float(value)
    try:
        struct.pack("<f" if kind.word == "float" else "<d", number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _BadError(f"{name} is beyond {kind.word}")
    return str(value)


def _decimal(name: str, kind: ColumnType, value: str) -> str:
    try:
        number = Decimal(value)
    except InvalidOperation as error:
        raise _BadError(f"{name} is not a decimal") from error
    _, digits, exponent = number.as_tuple()
    if len(digits) > 76 or not isinstance(exponent, int) or not -76 <= exponent <= 76:
        raise _BadError(f"{name} has more digits than a decimal holds")
    scaled = int("".join(map(str, digits))) * 10 ** (exponent + kind.scale + 76)
    if scaled >= 10 ** (kind.precision + 76):
        raise _BadError(f"{name} has more than {kind.precision} digits")
    if scaled % 10**76:
        raise _BadError(f"{name} has more than {kind.scale} digits after the point")
    return f"{number:f}"


def _timestamp(name: str, value: str, rules: Rules) -> str:
    found = _TIME.fullmatch(value)
    if not found:
        raise _BadError(f"{name} is not a timestamp")
    day, hour, minute, second, fraction, zone = found.groups()
    fraction = fraction or ""
    if name in rules.id and fraction[6:].strip("0"):
        raise _BadError(f"{name} has more than six digits of a second")
    zone = "+00:00" if zone in (None, "Z") else zone
    if re.fullmatch(r"[+-]\d\d", zone):
        zone += ":00"
    if len(zone) == 5:
        zone = f"{zone[:3]}:{zone[3:]}"
    clock = ":".join(part or "00" for part in (hour, minute, second))
    text = f"{day}T{clock}.{fraction[:6].ljust(6, '0')}"
    try:
        moment = datetime.fromisoformat(text + zone)
        shifted = moment.replace(tzinfo=None) - moment.utcoffset()
    except (ValueError, OverflowError) as error:
        raise _BadError(f"{name} is not a timestamp ({error})") from error
    return shifted.isoformat(sep=" ", timespec="microseconds")
