"""The type of a column, from the texts of its values. Pure functions over Arrow.

A type must fit in two ways:
- Semel's own parser accepts nearly all values. The share of exceptions is below
  `quarantine_ratio_max`.
- An accepted value keeps its meaning: `007` and +49301234 are not numbers.
The type with the fewest exceptions wins, then the narrowest. If no type fits, it is `string` in CSV
and `json` in JSON Lines, which accept every value.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.declare import ddl
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.formats.lines import Format
from semel.formats.records import OFFSET
from semel.infer.nested import nested_type
from semel.infer.parse import blocks

EXAMPLES_MAX = 3
_DIGITS_OF_DOUBLE = 17  # 17 digits can write any double.
_WHOLE_DIGITS_OF_DOUBLE = 15  # Each whole number of up to 15 digits is a different double.
_MOSTLY = 0.5  # A comment describes a form if at least this share of the values has it.
_B = "[ \\t]*"
_WHOLE = "-?(0|[1-9][0-9]{0,18})"
_NUMBER = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_MONEY_NUMBER = r"-?(0|[1-9][0-9]{0,15})?(\.[0-9]{0,2})?"
_DAY = r"\d{4}-\d{2}-\d{2}"
_MONEY = re.compile(
    r"(^|_)(amount|price|cost|total|subtotal|fee|tax|vat|net|gross|balance|salary|revenue|paid|"
    r"payment|discount|eur|usd|gbp|chf)(_|$)"
)
_ZONELESS = r"^\"?\d{4}-\d{2}-\d{2}[ T][0-9:.]+\"?$"
_LOSES_DIGITS = r"\.\d{6}\d*[1-9]"
_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
_FOREIGN = (
    (
        r'^"?\s*[+-]?[0-9]{1,3}(\.?[0-9]{3})*,([0-9]{1,2}|[0-9]{4,})\s*"?$', "numbers with a comma",
        "text here; convert it in a transform, "
        "`CAST(replace(replace(x, '.', ''), ',', '.') AS decimal(18,2))`",
    ),
    (
        r'^"?\s*[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}\s*"?$', "days as dd.mm.yyyy",
        "text here; convert it in a transform, `to_date(x, 'd.M.yyyy')`",
    ),
    (
        r'^"?\s*[0-9]{1,2}/[0-9]{1,2}/[0-9]{4}\s*"?$', "days with slashes",
        "text here; convert it in a transform, `to_date(x, 'd/M/yyyy')` or 'M/d/yyyy'",
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The guessed type of a column.

    `exceptions`: the number of `records` with a value that does not fit. `unfit`: these values;
    `examples`: the most frequent ones. `nulls`: records without a value. `rounded`: values lose
    digits, so a record id must not use the column. `notes` and `foreign` are for comments;
    `foreign` explains why numbers or dates are text, and how a transform reads them.
    """

    type: str
    records: int
    nulls: int
    exceptions: int = 0
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rounded: bool = False
    unfit: pa.Array = field(default_factory=lambda: pa.array([], pa.string()), repr=False)
    foreign: str = ""

    @property
    def identifies(self) -> bool:
        """True if a record id may use the column. Exceptions do not matter: they are dead letters.
        """
        exact = not self.nulls and not self.rounded
        return exact and bool(self.records) and ddl.parse(self.type).identifies


@dataclass(frozen=True, kw_only=True)
class _Values:
    """The distinct texts of a column, without nulls, each with its number of records."""

    texts: pa.Array
    counts: np.ndarray

    def share(self, mask: np.ndarray) -> int:
        """The number of records with a marked text."""
        return int(self.counts[mask].sum())

    def most(self, mask: np.ndarray) -> tuple[str, ...]:
        """The marked texts that most records have."""
        places = np.flatnonzero(mask)
        places = places[np.argsort(-self.counts[places], kind="stable")][:EXAMPLES_MAX]
        return tuple(self.texts.take(places).to_pylist())


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A type, and the form of the texts that keep their meaning in it."""

    type: str
    form: str
    money: bool = False


_WIDEST = {"csv": "string", "jsonl": "json"}
_OF_NOTHING = {
    "csv": "empty in the sample, so its type is unknown",
    "jsonl": "null in the sample, so its type is unknown; json takes any value",
}


def _candidates(form: str) -> Iterator[_Candidate]:
    """All types from narrow to wide. `form` as in `type_of`: JSON quotes times and text."""
    q = '"' if form == "jsonl" else ""
    yield _Candidate(type="boolean", form="^(true|True|TRUE|false|False|FALSE)$")
    yield _Candidate(type="bigint", form=f"^{_B}{_WHOLE}{_B}$")
    yield _Candidate(type="decimal(18,2)", form=f"^{_B}{_MONEY_NUMBER}{_B}$", money=True)
    yield _Candidate(type="double", form=f"^{_B}{_NUMBER}{_B}$")
    yield _Candidate(type="date", form=f"^{q}{_DAY}{q}$")
    yield _Candidate(type="timestamp", form=f"^{q}{_DAY}([ T].*)?{q}$")
    if q:
        yield _Candidate(type="string", form='^"')


def type_of(form: str, name: str, column: pa.ChunkedArray, ratio_max: float) -> Guess:
    """The type of a column. `form`: `csv`, with the texts of fields; or `jsonl`, with the JSON text
    of each value (`"a"`, `1`, `{"b":2}`).
    """
    records, nulls = len(column), column.null_count
    values = _distinct(column)
    notes, foreign = (_OF_NOTHING[form],), ""
    if len(values.texts):
        best = _best(form, name, values, records, ratio_max)
        if best is not None:
            return _guess(best, values, records, nulls)
        if form == "csv":
            notes, foreign = _why_text(values, records), _foreign(values, records)
        else:
            notes = (*_kinds(values, records), "json keeps each value's text")
    return Guess(type=_WIDEST[form], records=records, nulls=nulls, notes=notes, foreign=foreign)


def widest(guess: Guess, form: str) -> Guess:
    """The guess with the widest type, which fits the exceptions, and a note about them."""
    values = ", ".join(map(_short_text, guess.examples))
    note = f"{guess.exceptions:,} of {guess.records:,} do not fit {guess.type}, such as {values}"
    return Guess(
        type=_WIDEST[form],
        records=guess.records,
        nulls=guess.nulls,
        notes=(note,),
    )


def _distinct(column: pa.ChunkedArray) -> _Values:
    counted = column.drop_null().value_counts()
    return _Values(texts=counted.field("values"), counts=counted.field("counts").to_numpy())


def _best(
    form: str, name: str, values: _Values, records: int, ratio_max: float
) -> tuple[str, np.ndarray] | None:
    """The first type with the fewest exceptions, and a mask of the exceptions. Returns None if no
    type fits.
    """
    best: tuple[int, str, np.ndarray] | None = None
    for candidate in _candidates(form):
        if candidate.money and not _is_money(name, values):
            continue
        alike = _matches(values.texts, candidate.form)
        if values.share(~alike) >= ratio_max * records:
            continue
        if candidate.type == "double":
            alike &= ~_too_many_digits(values.texts)
        fits = _fits_type(form, values.texts, candidate.type)
        count = values.share(~fits)
        if (fits & ~alike).any() or count >= ratio_max * records:
            continue
        if best is None or count < best[0]:
            best = count, candidate.type, ~fits
        if not count:
            break
    if best is None and form == "jsonl" and (kind := nested_type(values.texts)) is not None:
        bad = ~_fits_type(form, values.texts, kind)
        return (kind, bad) if values.share(bad) < ratio_max * records else None
    return None if best is None else best[1:]


def _guess(
    best: tuple[str, np.ndarray], values: _Values, records: int, nulls: int
) -> Guess:
    kind, bad = best
    notes, rounded = [], False
    if kind == "timestamp":
        if _matches(values.texts, _ZONELESS).any():
            notes.append("without a zone: UTC")
        rounded = bool(_matches(values.texts, _LOSES_DIGITS).any())
        if rounded:
            notes.append("semel cuts digits beyond microseconds")
    return Guess(
        type=kind,
        records=records,
        nulls=nulls,
        exceptions=values.share(bad),
        examples=values.most(bad),
        notes=tuple(notes),
        rounded=rounded,
        unfit=values.texts.filter(pa.array(bad)),
        foreign=_foreign(values, records) if kind == "string" else "",
    )


def _is_money(name: str, values: _Values) -> bool:
    """True if a column is named like money, and a value has digits after a point."""
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).replace("-", "_").replace(" ", "_").lower()
    return bool(_MONEY.search(words)) and bool(_matches(values.texts, r"^-?[0-9]*\.[0-9]").any())


def _too_many_digits(texts: pa.Array) -> np.ndarray:
    """A mask of the numbers that a double cannot hold exactly."""
    digits = pc.replace_substring_regex(texts, r"[eE].*", "")
    digits = pc.replace_substring_regex(digits, r"[^0-9]", "")
    count = pc.utf8_length(pc.replace_substring_regex(digits, "^0+", ""))
    is_integer = pc.match_substring_regex(texts, f"^{_B}-?[0-9]+{_B}$")
    digits_max = pc.if_else(is_integer, _WHOLE_DIGITS_OF_DOUBLE, _DIGITS_OF_DOUBLE)
    return pc.greater(count, digits_max).to_numpy(zero_copy_only=False)


def _foreign(values: _Values, records: int) -> str:
    """The form of most texts, if semel does not read it as numbers or dates, with Spark's function
    for it. Empty if there is no such form.
    """
    for form, kind, how in _FOREIGN:
        alike = _matches(values.texts, form)
        if _MOSTLY * records < values.share(alike):
            return f"{kind}, such as {_short_text(values.most(alike)[0])}: {how}"
    return ""


def _why_text(values: _Values, records: int) -> tuple[str, ...]:
    """Why a column is text though many values have another type, such as numbers and `NA`."""
    zeros = _matches(values.texts, _LEADING_ZERO)
    numbers = _matches(values.texts, r"^\s*[+-]?[0-9]+\s*$")
    if zeros.any() and numbers.all():
        zero = _short_text(values.most(zeros)[0])
        return (f"text, because a number would lose its leading zeros: {zero}",)
    for candidate in _candidates("csv"):
        alike = _matches(values.texts, candidate.form)
        count = values.share(alike)
        few = np.count_nonzero(~alike) <= EXAMPLES_MAX
        often = few or _MOSTLY * records <= count
        if not candidate.money and count and not alike.all() and often:
            other = ", ".join(map(_short_text, values.most(~alike)))
            return (f"{count:,} of {records:,} are {candidate.type}, others are like {other}",)
    return ()


def _kinds(values: _Values, records: int) -> tuple[str, ...]:
    """A note with the kinds of JSON values in a column. Empty if there is only one kind."""
    kinds = {"text": '^"', "numbers": "^[-0-9]", "flags": "^[tf]", "objects": r"^\{",
             "arrays": r"^\["}  # fmt: skip
    counts = {kind: values.share(_matches(values.texts, form)) for kind, form in kinds.items()}
    present = [f"{count:,} {kind}" for kind, count in counts.items() if count]
    return (", ".join(present),) if len(present) > 1 else ()


def _matches(texts: pa.Array, form: str) -> np.ndarray:
    return pc.match_substring_regex(texts, form).to_numpy(zero_copy_only=False)


def _short_text(text: str) -> str:
    return ascii(text[:40])


def _fits_type(form: str, texts: pa.Array, kind: str) -> np.ndarray:
    """A mask of the texts that semel's parser accepts as values of the type."""
    if form == "csv":
        quoted = pc.replace_substring(texts, '"', '""')
        lines = pc.binary_join_element_wise('"', quoted, '"\n', "")
        multiline = bool(pc.any(pc.match_substring(texts, "\n")).as_py())
        parser: Format = CsvFormat(header=False, multiline=multiline)
    else:
        lines, parser = pc.binary_join_element_wise('{"v":', texts, "}\n", ""), JsonLines()
    sizes = pc.binary_length(lines).to_numpy(zero_copy_only=False)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    schema = pa.schema([("v", ddl.parse(kind).arrow())])
    data = lines.buffers()[2].slice(0, int(sizes.sum())).to_pybytes()
    offsets = [block.table.column(OFFSET).to_numpy() for block in blocks(data, schema, parser)]
    return np.isin(starts, np.concatenate([np.zeros(0, np.int64), *offsets]))
