"""Propose the record id and the record time from the names and values of columns.

A wrong record id loses records, because semel drops those that share it as repeats. So it proposes
a column only if its name is that of an id and its values are unique. A comment lists the others.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from semel.declare import ddl
from semel.infer.types import Guess

_ID = {"id", "uuid", "guid", "ulid", "key", "pk"}
_PART_OF_ID = {"no", "nr", "num", "number", "code", "seq", "sequence", "line", "item", "version"}
_JOINED = re.compile(
    r"(user|order|event|message|msg|transaction|customer|session|request|trace|item|product|"
    r"account|trip|ride|record|row|invoice|booking|ticket)id"
)
_TIME = {"at", "time", "timestamp", "ts", "datetime", "date", "created", "occurred", "when"}
_CHANGES = {"updated", "modified", "changed", "processed", "ingested", "received", "loaded",
            "delivered", "exported", "synced"}  # fmt: skip
_PAIRED_MAX = 12
_OTHERS_MAX = 5


@dataclass(frozen=True, kw_only=True)
class ProposedId:
    """`record_id`: the proposed columns, empty for positions. `others`: further unique columns.

    `repeats`: records of the sample that equal an earlier one. `counts_from_one`: the id's values
    are 1, 2, 3 and so on, perhaps because each file numbers its own records.
    """

    record_id: tuple[str, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    repeats: int = 0
    counts_from_one: bool = False


def words(name: str) -> set[str]:
    """The words of a column's name: order and id for `orderId`, `order-id` and `ORDER_ID`."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    separate = {word for word in re.split(r"[^a-z0-9]+", parts.lower()) if word}
    return separate | {"id"} if any(map(_JOINED.fullmatch, separate)) else separate


def identity(texts: pa.Table, guesses: Mapping[str, Guess]) -> ProposedId:
    """The proposed id of records with text values, among the columns with a guess.

    It ignores exact repeats of a record, because a record id exists to drop these.
    """
    able = [name for name in texts.column_names if name in guesses and guesses[name].identifies]
    frame = pl.from_arrow(texts.select([*able, *(n for n in texts.column_names if n not in able)]))
    distinct = frame.unique()
    repeats = frame.height - distinct.height
    alone = [name for name in able if _unique(distinct, [name])]
    named = sorted(
        (name for name in alone if words(name) & _ID),
        key=lambda name: (name.lower() not in _ID, texts.column_names.index(name)),
    )
    parts = [name for name in able if words(name) & (_ID | _PART_OF_ID)]
    best = (named[0],) if named else next(_pairs(distinct, parts), ())
    others = [(name,) for name in [*named, *(n for n in alone if n not in named)]]
    if not alone and not best:
        others = _pairs(distinct, [*parts, *(name for name in able if name not in parts)])
    return ProposedId(
        record_id=best,
        others=tuple(itertools.islice((pair for pair in others if pair != best), _OTHERS_MAX)),
        repeats=repeats,
        counts_from_one=len(best) == 1 and _counts_up(texts.column(best[0]), guesses[best[0]]),
    )


def record_time(guesses: Mapping[str, Guess]) -> str | None:
    """The column of a record's own time: never null, and with a name like `created_at`, not
    `updated_at`, because a repeat must have the same time. Returns None without such a column.
    """
    able = [
        (ddl.parse(guess.type).word != "timestamp", name)
        for name, guess in guesses.items()
        if guess.type in ("timestamp", "date") and not guess.nulls and not guess.exceptions
        if words(name) & _TIME and not words(name) & _CHANGES
    ]
    return min(able, key=lambda pair: pair[0])[1] if able else None


def _pairs(frame: pl.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Pairs of the first columns that are unique together, if one column has an id's name."""
    for pair in itertools.combinations(names[:_PAIRED_MAX], 2):
        if (words(pair[0]) | words(pair[1])) & _ID and _unique(frame, list(pair)):
            yield pair


def _unique(frame: pl.DataFrame, names: list[str]) -> bool:
    return frame.height > 1 and frame.select(names).n_unique() == frame.height


def _counts_up(column: pa.ChunkedArray, guess: Guess) -> bool:
    """True if the values are the whole numbers 1, 2, 3 and so on, or from 0, in any order."""
    if guess.type != "bigint":
        return False
    numbers = pc.utf8_trim_whitespace(column).cast(pa.int64())
    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low in (0, 1) and high - low + 1 == pc.count_distinct(numbers).as_py()
