"""The type of a column, from the texts of its values. Pure functions over Arrow.

A type is proposed where two things hold. Semel's own parser takes all values but for a share below
`quarantine_ratio_max`: those are the exceptions. And each value that it takes is kept as it is
meant: `007` is no number, and neither is +49301234. Of several types the one with the fewest
exceptions is taken, then the narrowest. Where there is none: `string` in CSV, `json` in JSON Lines,
which take whatever comes.
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
_DIGITS_OF_DOUBLE = 17  # As many as it takes to write any double down.
_WHOLE_DIGITS_OF_DOUBLE = 15  # Each whole number of so many is a double of its own.
_MOSTLY = 0.5  # A comment says what half of a column's values are, or all but a few texts.
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
        "text here; a transform makes numbers of it, "
        "`CAST(replace(replace(x, '.', ''), ',', '.') AS decimal(18,2))`",
    ),
    (
        r'^"?\s*[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}\s*"?$', "days as dd.mm.yyyy",
        "text here; a transform makes dates of it, `to_date(x, 'd.M.yyyy')`",
    ),
    (
        r'^"?\s*[0-9]{1,2}/[0-9]{1,2}/[0-9]{4}\s*"?$', "days with slashes",
        "text here; a transform makes dates of it, `to_date(x, 'd/M/yyyy')` or 'M/d/yyyy'",
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a column is declared as. Of `records`, `exceptions` have a value that does not fit.

    `examples` are some of these, the most frequent first. `notes` are for a comment. `nulls` counts
    records without a value. `rounded`: values lose digits, so it is no column of a record id.
    `unfit`: each value that does not fit. `foreign`: what is wrong with numbers or dates that became
    text, and how they can be read.
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
        """Whether it may be in a record id, without losing a record: one whose value does not fit
        is set aside.
        """
        exact = not self.nulls and not self.rounded
        return exact and bool(self.records) and ddl.parse(self.type).identifies


@dataclass(frozen=True, kw_only=True)
class _Values:
    """The distinct texts of a column that are not null, and how many records have each."""

    texts: pa.Array
    counts: np.ndarray

    def share(self, mask: np.ndarray) -> int:
        """Records with a marked text."""
        return int(self.counts[mask].sum())

    def most(self, mask: np.ndarray) -> tuple[str, ...]:
        """The marked texts that most records have."""
        places = np.flatnonzero(mask)
        places = places[np.argsort(-self.counts[places], kind="stable")][:EXAMPLES_MAX]
        return tuple(self.texts.take(places).to_pylist())


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A type, and the form of the texts that it keeps as they are meant."""

    type: str
    form: str
    money: bool = False


_WIDEST = {"csv": "string", "jsonl": "json"}
_OF_NOTHING = {
    "csv": "empty in the sample, so its type is unknown",
    "jsonl": "null in the sample, so its type is unknown; json takes any value",
}


def _candidates(form: str) -> Iterator[_Candidate]:
    """From narrow to wide. `form` is that of `type_of`: in JSON, times and text are quoted."""
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
    """The type of a column. `form`: `csv`, whose fields are texts; or `jsonl`, whose values are
    read as their texts (`"a"`, `1`, `{"b":2}`).
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
    """The guess with the type that takes what its exceptions are."""
    shown = ", ".join(map(_shown, guess.examples))
    note = f"{guess.exceptions:,} of {guess.records:,} are no {guess.type}, such as {shown}"
    return Guess(
        type=_WIDEST[form],
        records=guess.records,
        nulls=guess.nulls,
        notes=(note,),
    )


def _distinct(column: pa.ChunkedArray) -> _Values:
    found = column.drop_null().value_counts()
    return _Values(texts=found.field("values"), counts=found.field("counts").to_numpy())


def _best(
    form: str, name: str, values: _Values, records: int, ratio_max: float
) -> tuple[str, np.ndarray] | None:
    """The type with the fewest exceptions, the first of them; and the texts that are none."""
    best: tuple[int, str, np.ndarray] | None = None
    for one in _candidates(form):
        if one.money and not _is_money(name, values):
            continue
        alike = _alike(values.texts, one.form)
        if values.share(~alike) >= ratio_max * records:
            continue
        if one.type == "double":
            alike &= ~_too_many_digits(values.texts)
        fits = _taken(form, values.texts, one.type)
        count = values.share(~fits)
        if (fits & ~alike).any() or count >= ratio_max * records:
            continue
        if best is None or count < best[0]:
            best = count, one.type, ~fits
        if not count:
            break
    if best is None and form == "jsonl" and (kind := nested_type(values.texts)) is not None:
        bad = ~_taken(form, values.texts, kind)
        return (kind, bad) if values.share(bad) < ratio_max * records else None
    return None if best is None else best[1:]


def _guess(
    best: tuple[str, np.ndarray], values: _Values, records: int, nulls: int
) -> Guess:
    kind, bad = best
    notes, rounded = [], False
    if kind == "timestamp":
        if _alike(values.texts, _ZONELESS).any():
            notes.append("without a zone: UTC")
        rounded = bool(_alike(values.texts, _LOSES_DIGITS).any())
        if rounded:
            notes.append("digits beyond the sixth of a second are cut")
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
    """Whether a column has the name of money, and some value has digits behind a point."""
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).replace("-", "_").replace(" ", "_").lower()
    return bool(_MONEY.search(words)) and bool(_alike(values.texts, r"^-?[0-9]*\.[0-9]").any())


def _too_many_digits(texts: pa.Array) -> np.ndarray:
    """The numbers that are more exact than a double, which would make another number of them."""
    digits = pc.replace_substring_regex(texts, r"[eE].*", "")
    digits = pc.replace_substring_regex(digits, r"[^0-9]", "")
    count = pc.utf8_length(pc.replace_substring_regex(digits, "^0+", ""))
    whole = pc.match_substring_regex(texts, f"^{_B}-?[0-9]+{_B}$")
    most = pc.if_else(whole, _WHOLE_DIGITS_OF_DOUBLE, _DIGITS_OF_DOUBLE)
    return pc.greater(count, most).to_numpy(zero_copy_only=False)


def _foreign(values: _Values, records: int) -> str:
    """What most texts are that semel does not read as numbers or dates, and how Spark does."""
    for form, what, how in _FOREIGN:
        alike = _alike(values.texts, form)
        if _MOSTLY * records < values.share(alike):
            return f"{what}, such as {_shown(values.most(alike)[0])}: {how}"
    return ""


def _why_text(values: _Values, records: int) -> tuple[str, ...]:
    """Why a column is text in which many values are something else, such as numbers and `NA`."""
    zeros = _alike(values.texts, _LEADING_ZERO)
    numbers = _alike(values.texts, r"^\s*[+-]?[0-9]+\s*$")
    if zeros.any() and numbers.all():
        return (f"text, as numbers lose their zeros: {_shown(values.most(zeros)[0])}",)
    for one in _candidates("csv"):
        alike = _alike(values.texts, one.form)
        count = values.share(alike)
        few = np.count_nonzero(~alike) <= EXAMPLES_MAX
        if not one.money and count and not alike.all() and (few or _MOSTLY * records <= count):
            other = ", ".join(map(_shown, values.most(~alike)))
            return (f"{count:,} of {records:,} are {one.type}, others are like {other}",)
    return ()


def _kinds(values: _Values, records: int) -> tuple[str, ...]:
    """The kinds of JSON values in a column that has several."""
    kinds = {"text": '^"', "numbers": "^[-0-9]", "flags": "^[tf]", "objects": r"^\{",
             "arrays": r"^\["}  # fmt: skip
    counts = {kind: values.share(_alike(values.texts, form)) for kind, form in kinds.items()}
    there = [f"{count:,} {kind}" for kind, count in counts.items() if count]
    return (", ".join(there),) if len(there) > 1 else ()


def _alike(texts: pa.Array, form: str) -> np.ndarray:
    return pc.match_substring_regex(texts, form).to_numpy(zero_copy_only=False)


def _shown(text: str) -> str:
    return ascii(text[:40])


def _taken(form: str, texts: pa.Array, kind: str) -> np.ndarray:
    """Which of the texts semel's parser takes as values of the type."""
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
    found = [block.table.column(OFFSET).to_numpy() for block in blocks(data, schema, parser)]
    return np.isin(starts, np.concatenate([np.zeros(0, np.int64), *found]))
