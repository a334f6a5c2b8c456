"""The exact path: Python judges one record, without any code of semel's own readers.

It judges every dead letter and each line that the vectorised path does not accept. It returns each
value as text that DuckDB casts to the declared type. So ids and rows of both paths are comparable.
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
# Constants that semel's reader accepts as numbers in undeclared keys, outside of JSON strings.
_CONSTANT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(-?(?:NaN|Inf(?:inity)?))', re.DOTALL)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[ T](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)


class LineKind(StrEnum):
    """Whether a line is a record. `unsure`: readers may differ, so the audit accepts both."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a batch's reader: the columns of its id, and its rule for undeclared keys.
    `typed`: the text is from typed values, so a decimal is a string of digits. `names`: by column,
    its alternative keys."""

    id: tuple[str, ...] = ()
    unknown: Unknown = Unknown.IGNORE
    typed: bool = False
    names: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class JudgedLine:
    """A line's verdict, why it is not good, its values as text (None if null or nested)."""

    kind: LineKind
    why: str = ""
    values: tuple[str | None, ...] = ()


class _BadError(Exception):
    """The line is not a record of the schema."""


class _Number(str):
    """A JSON number as it is written."""


class _Constant(str):
    """NaN or an infinity, which JSON does not have."""


class _Object(dict):
    """A JSON object. `twice`: its repeated keys; `hidden`: all their pairs."""

    twice: frozenset[str] = frozenset()
    hidden: tuple[tuple[str, Any], ...] = ()


def json_judge(columns: dict[str, ColumnType], rules: Rules) -> Judge:
    """A judge of lines of JSON."""

    def judge(raw: bytes) -> JudgedLine:
        return _judge(raw, lambda text, doubts: _json_values(text, columns, rules, doubts))

    return judge


def bytes_judge(raw: bytes) -> JudgedLine:
    """The judge of a format with a single binary column: it accepts any bytes up to the limit."""
    if len(raw) > limits.RECORD_BYTES_MAX:
        return JudgedLine(kind=LineKind.BAD, why=_TOO_LONG)
    return JudgedLine(kind=LineKind.GOOD, values=(_blob(raw),))


def csv_judge(
    columns: dict[str, ColumnType],
    header: list[str],
    csv: CsvOptions,
    rules: Rules,
) -> Judge:
    """A judge of CSV records. `header`: the column of each field, in order."""

    def values(text: str, doubts: list[str]) -> tuple[str | None, ...]:
        try:
            fields = split_fields(text, csv)
        except ValueError as error:
            raise _BadError(str(error)) from error
        if len(fields) != len(header):
            raise _BadError(f"it has {len(fields)} fields, not {len(header)}")
        if not csv.multiline and "\r" in text:
            raise _BadError("a CR without LF")
        by_name, missing = dict(zip(header, fields, strict=True)), ("", False)
        return tuple(
            _csv_value(name, kind, *by_name.get(name, missing), rules, doubts)
            for name, kind in columns.items()
        )

    def judge(raw: bytes) -> JudgedLine:
        return _judge(raw, values)

    return judge


def _judge(
    raw: bytes, values: Callable[[str, list[str]], tuple[str | None, ...]]
) -> JudgedLine:
    """`values` returns a record's values, or raises _BadError; it appends doubts to a list."""
    if len(raw) > limits.RECORD_BYTES_MAX:
        return JudgedLine(kind=LineKind.BAD, why=_TOO_LONG)
    if b"\0" in raw:
        return JudgedLine(kind=LineKind.BAD, why="it has a NUL byte")
    doubts: list[str] = []
    try:
        texts = values(raw.decode(), doubts)
        kind = LineKind.UNSURE if doubts else LineKind.GOOD
        return JudgedLine(kind=kind, why="; ".join(doubts[:1]), values=texts)
    except UnicodeDecodeError:
        return JudgedLine(kind=LineKind.BAD, why="it is not UTF-8")
    except _BadError as bad:
        return JudgedLine(kind=LineKind.BAD, why=str(bad))
    except RecursionError:
        return JudgedLine(kind=LineKind.UNSURE, why="it is nested very deeply")


def _json_values(
    text: str, columns: dict[str, ColumnType], rules: Rules, doubts: list[str]
) -> tuple[str | None, ...]:
    def number(token: str) -> _Number:
        if math.isinf(float(token)):
            doubts.append(f"the number {token[:40]} is beyond a double")
        return _Number(token)

    try:
        record = json.loads(
            _CONSTANT.sub(lambda match: "NaN" if match[1] else match[0], text),
            object_pairs_hook=_object,
            parse_int=number,
            parse_float=number,
            parse_constant=_Constant,
        )
    except json.JSONDecodeError as error:
        raise _BadError(f"it is not JSON ({error.msg})") from error
    if not isinstance(record, _Object):
        raise _BadError("it is not a JSON object")
    keeps_unknown = rules.unknown is Unknown.KEEP
    hidden = REST_COLUMN if keeps_unknown else None
    declared = tuple(item for item in columns.items() if item[0] != hidden)
    others = dict(rules.names)
    keys = [(key, kind) for name, kind in declared for key in (name, *others.get(name, ()))]
    texts = dict(zip(dict(keys), _members(record, tuple(keys), rules, doubts), strict=True))
    for name, more in rules.names:
        present = [key for key in (name, *more) if record.get(key) is not None]
        if len(present) > 1:
            raise _BadError(f"the keys {' and '.join(map(repr, present))} belong to one column")
        texts[name] = texts[present[0]] if present else None
    values = tuple(texts[name] for name, _ in declared)
    if not keeps_unknown:
        return values
    named = texts.keys()
    for key, value in (*record.items(), *record.hidden):
        if key not in named and _holds_constant(value):
            raise _BadError(f"{key} has a value that is not JSON")
    return (*values, None)


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    # Here, because later a repeated key hides its first value.
    if any(_has_surrogate(part) for pair in pairs for part in pair):
        raise _BadError("it has half of a surrogate pair")
    result = _Object(pairs)
    if len(result) < len(pairs):
        keys: set[str] = set()
        result.twice = frozenset(key for key, _ in pairs if key in keys or keys.add(key))
        result.hidden = tuple(pair for pair in pairs if pair[0] in result.twice)
    return result


def _has_surrogate(value: object) -> bool:
    """Ignores objects within `value`, because `_object` has checked each."""
    if isinstance(value, str):
        return not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)
    return isinstance(value, list) and any(map(_has_surrogate, value))


def _holds_constant(value: object) -> bool:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, _Constant):
            return True
        if isinstance(part, _Object):
            pending += part.values()
            pending += (value for _, value in part.hidden)
        elif isinstance(part, list):
            pending += part
    return False


def _members(
    parent: _Object, columns: tuple[tuple[str, ColumnType], ...], rules: Rules, doubts: list[str]
) -> tuple[str | None, ...]:
    for name, _ in columns:
        if name in parent.twice:
            raise _BadError(f"it has the key {name!r} twice")
    if rules.unknown is Unknown.QUARANTINE and (other := parent.keys() - dict(columns).keys()):
        raise _BadError(f"the schema does not name {sorted(other)}")
    return tuple(
        _json_value(name, kind, parent.get(name), rules, doubts) for name, kind in columns
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
        for element in value.values() if is_map else value:
            _json_value(name, kind.element, element, replace(rules, id=()), doubts)
        return None
    if kind.word == "json":
        if _holds_constant(value):
            raise _BadError(f"{name} has a value that is not JSON")
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
        doubts.append(f"{name} is a decimal in quotes")
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
            doubts.append(f"readers may accept the field {text[:40]!r} as {kind.word}")
            return text.strip()
        raise _BadError(f"{name} is not a {kind.word}")
    return _number(name, kind, text, rules, doubts)


def _number(
    name: str, kind: ColumnType, value: str, rules: Rules, doubts: list[str]
) -> str:
    """A number's text, as in `_text`. Readers differ on a decimal's trailing zeros, and on the
    exponent of a zero."""
    result = _text(name, kind, value, rules)
    if kind.word == "decimal":
        if sum(map(str.isdigit, value)) > kind.precision:
            doubts.append(f"{name} has more than {kind.precision} digits, counting zeros")
        elif not Decimal(value) and "e" in value.lower():
            doubts.append(f"{name} is a zero with an exponent")
    return result


def _text(name: str, kind: ColumnType, value: str, rules: Rules) -> str:
    """A value's text, for DuckDB's cast. Raises _BadError if it does not fit the type."""
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
                pass  # A day that no calendar has, such as 2024-02-30.
            raise _BadError(f"{name} is not a date")
    return str(value)


def _bytes(name: str, value: str) -> str:
    """The bytes of base64 in DuckDB's notation. Refuses base64 that is not canonical."""
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise _BadError(f"{name} is not base64") from error
    if base64.b64encode(raw).decode() != value:
        raise _BadError(f"{name} is not canonical base64")
    return _blob(raw)


def _blob(raw: bytes) -> str:
    """Bytes in DuckDB's notation."""
    return "".join(f"\\x{byte:02X}" for byte in raw)


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
        raise _BadError(f"{name} has too many digits for a decimal")
    scaled = int("".join(map(str, digits))) * 10 ** (exponent + kind.scale + 76)
    if scaled >= 10 ** (kind.precision + 76):
        raise _BadError(f"{name} has more than {kind.precision} digits")
    if scaled % 10**76:
        raise _BadError(f"{name} has more than {kind.scale} digits after the point")
    return f"{number:f}"


def _timestamp(name: str, value: str, rules: Rules) -> str:
    match = _TIME.fullmatch(value)
    if not match:
        raise _BadError(f"{name} is not a timestamp")
    day, hour, minute, second, fraction, zone = match.groups()
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
