"""Random texts of each type through the parsers, beside Python's own reading of them.

A process of its own, since what it looks for may end it: `python tests/unit/fuzz_values.py --texts
1000000 --seed 1 [TYPE...]`. It names a block's seed before the block is read, so that whoever sees
it die by a signal can repeat that block alone: `--texts 1 --seed THAT`.
"""

import argparse
import base64
import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.files.records import blocks_of
from semel.formats.csv import CsvFormat
from semel.formats.decimals import DIGITS_MAX
from semel.formats.jsonl import JsonLines
from semel.formats.records import OFFSET

BLOCK = 2_000
"""Texts that are read at once; each block has a seed of its own."""

HANG_SECONDS = 1.0
REFUSED = object()
EITHER = object()
"""A reading that the documents leave open: the text may be refused, or be this value."""

_EXACT = Context(prec=DIGITS_MAX)
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CSV_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)

Read = Callable[[str, bool], Any]
"""(text, whether it is a number in JSON or a field of CSV) -> the value, REFUSED, or EITHER."""


def decimal_of(precision: int, scale: int) -> Read:
    def read(text: str, json_text: bool) -> Any:
        found = _CSV_NUMBER.fullmatch(text)
        if not found:
            return REFUSED
        whole, _, part = found[1].partition(".")
        digits = (whole + part).lstrip("0")
        exponent = int((found[2] or "e0")[1:]) - len(part)
        # Zeros that say nothing are taken up to a length (docs/pipelines.md).
        written = len(whole.lstrip("0") + part)
        may_refuse = written + max(exponent, 0) > DIGITS_MAX
        may_refuse |= not -DIGITS_MAX <= exponent + scale <= DIGITS_MAX
        plain = digits.rstrip("0")
        exponent += len(digits) - len(plain)
        if not plain:
            return (EITHER, Decimal(0)) if may_refuse or exponent > 0 else Decimal(0)
        if exponent < -scale or len(plain) + exponent > precision - scale:
            return REFUSED
        number = Decimal(int(plain)).scaleb(exponent, _EXACT)
        number = number.copy_negate() if text[0] == "-" else number
        return (EITHER, number) if may_refuse else number

    return read


def whole_of(bits: int) -> Read:
    def read(text: str, json_text: bool) -> Any:
        if not re.fullmatch("-?(0|[1-9][0-9]*)" if json_text else "-?[0-9]+", text):
            return REFUSED
        if len(text.lstrip("-0")) > DIGITS_MAX:
            return REFUSED
        number = int(text)
        bound = 1 << (bits - 1)
        return number if -bound <= number < bound else REFUSED

    return read


def floating_of(kind: type) -> Read:
    def read(text: str, json_text: bool) -> Any:
        number = _JSON_NUMBER if json_text else _CSV_NUMBER
        if not number.fullmatch(text):
            # What C calls a number, such as nan and inf, ends as none, too.
            return REFUSED
        if float(text) == 0:
            # A parser may say of 0e999 that it is too large.
            return (EITHER, 0.0)
        near = kind(float(text))
        if not np.isfinite(near):
            return REFUSED
        if kind is np.float32 and float(near) != float(text) and abs(float(text)) > 1e-300:
            exact = Fraction(text) if len(text) < 1000 and abs(_power(text)) < 400 else None
            if exact is not None:
                around = (near, np.nextafter(near, kind("inf")), np.nextafter(near, kind("-inf")))
                finite = [one for one in around if np.isfinite(one)]
                near = min(finite, key=lambda one: abs(Fraction(float(one)) - exact))
        return float(near)

    return read


def _power(text: str) -> int:
    return int(text.lower().partition("e")[2][:8] or 0)


def moment(text: str, json_text: bool) -> Any:
    found = _TIME.fullmatch(text)
    if not found:
        return EITHER if text[:4].isdigit() else REFUSED
    *parts, fraction, zone = found.groups()
    try:
        made = datetime(*(int(part or 0) for part in parts), tzinfo=UTC)
        if zone and zone != "Z":
            shift = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:]))
            if shift >= timedelta(hours=24) or int(zone[4:]) > 59:
                return EITHER
            made = made.replace(tzinfo=timezone(shift if zone[0] == "+" else -shift))
        made = made.astimezone(UTC)
    except (ValueError, OverflowError):
        return REFUSED
    return made.replace(microsecond=int((fraction or "0")[:6].ljust(6, "0")))


def day(text: str, json_text: bool) -> Any:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return REFUSED
    try:
        return datetime.fromisoformat(text).date()
    except ValueError:
        return REFUSED


def plain_bytes(text: str, json_text: bool) -> Any:
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        return REFUSED
    # Bits that are left over are to be 0: else two texts would be the same bytes.
    return found if base64.b64encode(found).decode() == text else REFUSED


def some_text(text: str, json_text: bool) -> Any:
    return text


def flag(text: str, json_text: bool) -> Any:
    if json_text:
        return {"true": True, "false": False}.get(text, REFUSED)
    words = {"true": True, "True": True, "TRUE": True, "1": True}
    words |= {"false": False, "False": False, "FALSE": False, "0": False}
    return words.get(text, REFUSED)


KINDS: dict[str, tuple[pa.DataType, Read, str]] = {
    "decimal(18,2)": (pa.decimal128(18, 2), decimal_of(18, 2), "number"),
    "decimal(10,0)": (pa.decimal128(10, 0), decimal_of(10, 0), "number"),
    "decimal(38,2)": (pa.decimal128(38, 2), decimal_of(38, 2), "number"),
    "decimal(38,18)": (pa.decimal128(38, 18), decimal_of(38, 18), "number"),
    "decimal(38,38)": (pa.decimal128(38, 38), decimal_of(38, 38), "number"),
    "bigint": (pa.int64(), whole_of(64), "number"),
    "int": (pa.int32(), whole_of(32), "number"),
    "smallint": (pa.int16(), whole_of(16), "number"),
    "double": (pa.float64(), floating_of(np.float64), "number"),
    "float": (pa.float32(), floating_of(np.float32), "number"),
    "boolean": (pa.bool_(), flag, "word"),
    "timestamp": (pa.timestamp("us", tz="UTC"), moment, "text"),
    "date": (pa.date32(), day, "text"),
    "binary": (pa.binary(), plain_bytes, "text"),
    "string": (pa.string(), some_text, "text"),
}

# How a value of JSON may lie: in a column, a list, a struct, a map.
SHAPES: dict[str, tuple[Callable[[pa.DataType], pa.DataType], str, Callable[[Any], Any]]] = {
    "plain": (lambda kind: kind, "%s", lambda value: value),
    "list": (pa.list_, "[%s]", lambda value: value[0]),
    "struct": (lambda kind: pa.struct([("w", kind)]), '{"w": %s}', lambda value: value["w"]),
    "map": (lambda kind: pa.map_(pa.string(), kind), '{"k": %s}', lambda value: value[0][1]),
    "deep": (
        lambda kind: pa.list_(pa.struct([("w", pa.list_(kind))])), '[{"w":[%s]}]',
        lambda value: value[0]["w"][0],
    ),
}  # fmt: skip


def some_number(draw: Random) -> str:
    def digits(most: int) -> str:
        count = draw.choice([0, 1, 1, 2, 3, 9, 10, 17, 18, 19, 20, 30, 36, 37, 38, 39, 40, 77, most])
        return "".join(draw.choices("0123456789" if draw.random() < 0.7 else "09", k=count))

    most = 900 if draw.random() < 0.02 else 41
    text = digits(most)
    if draw.random() < 0.8:
        text = text.lstrip("0") or "0"
    if draw.random() < 0.5:
        part = digits(most)
        if draw.random() < 0.3:
            part = "0" * len(part)
        text += "." + part
    if draw.random() < 0.4:
        powers = [0, 1, 2, 3, 5, 9, 10, 16, 36, 37, 38, 39, 40, 41, 61, 76, 77, 78, 200, 307, 309, 400,
                  5_000, 99_999, 10**7, 12_000_000, 2**31, 999_999_999, 2**63, 10**30]  # fmt: skip
        power = draw.choice(powers) + draw.choice((-1, 0, 0, 1))
        zeros = "0" * draw.choice((0, 0, 0, 1, 30))
        text += draw.choice("eE") + draw.choice(("", "+", "-", "-")) + zeros + str(abs(power))
    return draw.choice(("", "", "-", "-", "+" if draw.random() < 0.2 else "")) + text


def some_word(draw: Random) -> str:
    words = ("true", "false", "True", "TRUE", "tRue", "0", "1", "2", "yes", "null", "t", "")
    return draw.choice(words)


def some_string(draw: Random) -> str:
    pieces = (
        "2026-01-31", "T", " ", "10:00:00", "23:59:60", ".", "123456", "000000001", "Z", "+01:00",
        "-23:59", "+99:99", "+0100", "9999-12-31", "0001-01-01", "0000-00-00", "2026-02-29", "-", ":",
        "YWJj", "YQ==", "=", "a", "\u00e9", "\U0001f600", "\u0661", "\ufeff", "\u2028", "9" * 30,
    )  # fmt: skip
    count = draw.choice((1, 1, 2, 3, 4, 5, 6, 40))
    if draw.random() < 0.4:
        day = f"{draw.choice((1, 1969, 1970, 2026, 9999)):04}-{draw.randint(1, 12):02}-" + (
            f"{draw.randint(1, 31):02}"
        )
        clock = f"{draw.randint(0, 24):02}:{draw.randint(0, 60):02}:{draw.randint(0, 60):02}"
        part = f".{draw.randint(0, 10**9)}"[: draw.randint(0, 10)].rstrip(".")
        zone = draw.choice(("", "Z", "+02:00", "-14:30", "+23:59"))
        return draw.choice((day, f"{day}T{clock}{part}{zone}", f"{day} {clock}"))
    return "".join(draw.choices(pieces, k=count))


SORTS = {"number": some_number, "word": some_word, "text": some_string}
_NOISE = "0159eE+-. xX_,nNiI\u0661\u00a0"


def some_texts(draw: Random, sort: str) -> list[str]:
    found = []
    for _ in range(BLOCK):
        text = SORTS[sort if draw.random() < 0.97 else draw.choice([*SORTS])](draw)
        if draw.random() < 0.05 and text:
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(_NOISE) + text[at + draw.randrange(2) :]
        found.append(text)
    return found


class Wrong(Exception):
    """A value that is not Python's, or a text refused that Python reads, or a hang."""


def check_block(name: str, seed: int) -> int:
    """Read one block of one type in each format and shape. The number of texts."""
    kind, read, sort = KINDS[name]
    draw = Random(f"{name} {seed}")
    texts = some_texts(draw, sort)
    shape = draw.choice(("plain", "plain", *SHAPES))
    around, pattern, inner = SHAPES[shape]
    tokens = [_token(draw, text, sort) for text in texts]
    others = ("" if draw.random() < 0.7 else ', "s": "1e-50, 1\\u0065"') + "}"
    lines = ['{"v": ' + pattern % token + others for token, _ in tokens]
    wanted = [
        _in_json(read, text, sort, bare) for text, (_, bare) in zip(texts, tokens, strict=True)
    ]
    schema = pa.schema([("v", around(kind)), ("s", pa.string())])
    _compare(f"{name} {shape} as JSON, seed {seed}", lines, wanted, JsonLines(), schema, inner)
    fields = [text.strip() for text in texts]
    fields = [text for text in fields if text and not set(text) & set(',"\r\n\ufeff')]
    wanted = [read(text, False) for text in fields]
    lines = [f"{text},x" for text in fields]
    form = CsvFormat(header=False)
    _compare(f"{name} as CSV, seed {seed}", lines, wanted, form, schema_of_csv(kind), lambda v: v)
    return 2 * len(texts)


def schema_of_csv(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("v", kind), ("s", pa.string())])


def _token(draw: Random, text: str, sort: str) -> tuple[str, bool]:
    """A text as it stands in JSON, and whether that is without quotes."""
    if sort == "word" and text in ("true", "false"):
        return text, True
    if _JSON_NUMBER.fullmatch(text) and draw.random() < 0.7:
        return text, True
    if draw.random() < 0.1:  # Escaped, each character.
        return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text) + '"', False
    return json.dumps(text, ensure_ascii=draw.random() < 0.5), False


def _in_json(read: Read, text: str, sort: str, bare: bool) -> Any:
    if bare:
        return REFUSED if sort == "text" else read(text, True)
    if read in (flag,) or (sort == "number" and not read.__qualname__.startswith("decimal_of")):
        return REFUSED
    # A decimal may be written as text: with what is around a number in CSV, that is left open.
    found = read(text, False)
    if sort == "number" and not _JSON_NUMBER.fullmatch(text) and found is not REFUSED:
        return found if isinstance(found, tuple) else (EITHER, found)
    return found


def _compare(
    where: str, lines: list[str], wanted: list[Any], form: Any, schema: pa.Schema, inner: Callable
) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    began = time.process_time()
    columns = schema.names if isinstance(form, CsvFormat) else None
    blocks = list(blocks_of(data, form, schema, columns=columns))
    if time.process_time() - began > HANG_SECONDS:
        _time_each(where, lines, form, schema)
    sizes = np.cumsum([0, *(len(line.encode()) + 1 for line in lines)])
    rows = {row[OFFSET]: row["v"] for block in blocks for row in block.table.to_pylist()}
    for at, line, expected in zip(sizes.tolist(), lines, wanted, strict=False):
        found = inner(rows[at]) if at in rows else REFUSED
        if not _agree(found, expected):
            shown = "refused" if found is REFUSED else repr(found)
            python = "refused" if expected is REFUSED else repr(expected)
            raise Wrong(f"{where}: {line[:200]!r} is {shown}, Python reads {python}")


def _agree(found: Any, expected: Any) -> bool:
    if expected is EITHER:
        return True
    if isinstance(expected, tuple):
        return found is REFUSED or found == expected[1]
    if found is REFUSED or expected is REFUSED:
        return found is expected
    return found == expected


def _time_each(where: str, lines: list[str], form: Any, schema: pa.Schema) -> None:
    """Whether one record alone takes that long, by its size in kB."""
    columns = schema.names if isinstance(form, CsvFormat) else None
    for line in lines:
        data = f"{line}\n".encode()
        began = time.process_time()
        list(blocks_of(data, form, schema, columns=columns))
        if time.process_time() - began > HANG_SECONDS * max(1, len(data) / 1_000):
            raise Wrong(f"{where}: {line[:200]!r} takes {time.process_time() - began:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=100_000, help="of each type, at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first block")
    parser.add_argument("types", nargs="*", metavar="TYPE", help=", ".join(KINDS))
    options = parser.parse_args()
    for name in options.types or KINDS:
        done, seed = 0, options.seed
        while done < options.texts:
            print(f"{name} seed {seed}", file=sys.stderr, flush=True)
            done += check_block(name, seed)
            seed += 1
        print(f"{name}: {done:,} texts, seeds {options.seed} to {seed - 1}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        sys.exit(str(wrong))
