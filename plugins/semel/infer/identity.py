"""Which columns identify a record, and which one has its time: proposed from names and values.

A wrong record id loses records: those that share it are dropped as repeats. So a column is proposed
only if the sample bears it out and its name says that it is an id; others are named in a comment.
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
    """`record_id`: the proposed columns, none by position. `others`: what is unique as well.

    `repeats`: records of the sample that are exactly like an earlier one. `counts_from_one`: the
    id's values are 1, 2, 3 and so on, as they are when each file counts by itself.
    """

    record_id: tuple[str, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    repeats: int = 0
    counts_from_one: bool = False


def words(name: str) -> set[str]:
    """The words of a column's name: `orderId`, `order-id` and `ORDER_ID` are order and id."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    found = {word for word in re.split(r"[^a-z0-9]+", parts.lower()) if word}
    return found | {"id"} if any(map(_JOINED.fullmatch, found)) else found


def identity(texts: pa.Table, guesses: Mapping[str, Guess]) -> ProposedId:
    """What identifies the records, whose values are texts: columns that have a guess.

    Records that repeat another one exactly are what a record id is for: they are left out.
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
    found = (named[0],) if named else next(_pairs(distinct, parts), ())
    others = [(name,) for name in [*named, *(n for n in alone if n not in named)]]
    if not alone and not found:
        others = _pairs(distinct, [*parts, *(name for name in able if name not in parts)])
    return ProposedId(
        record_id=found,
        others=tuple(itertools.islice((one for one in others if one != found), _OTHERS_MAX)),
        repeats=repeats,
        counts_from_one=len(found) == 1 and _counts(texts.column(found[0]), guesses[found[0]]),
    )


def record_time(guesses: Mapping[str, Guess]) -> str | None:
    """The column of a record's own time: never null, and named like what a repeat brings again."""
    able = [
        (ddl.parse(guess.type).word != "timestamp", name)
        for name, guess in guesses.items()
        if guess.type in ("timestamp", "date") and not guess.nulls and not guess.exceptions
        if words(name) & _TIME and not words(name) & _CHANGES
    ]
    return min(able, key=lambda one: one[0])[1] if able else None


def _pairs(frame: pl.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Two of the first columns that are unique together, one of them named like an id."""
    for one in itertools.combinations(names[:_PAIRED_MAX], 2):
        if (words(one[0]) | words(one[1])) & _ID and _unique(frame, list(one)):
            yield one


def _unique(frame: pl.DataFrame, names: list[str]) -> bool:
    return frame.height > 1 and frame.select(names).n_unique() == frame.height


def _counts(column: pa.ChunkedArray, guess: Guess) -> bool:
    """Whether whole numbers are 1, 2, 3 and so on, or begin with 0, in any order."""
    if guess.type != "bigint":
        return False
    numbers = pc.utf8_trim_whitespace(column).cast(pa.int64())
    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low in (0, 1) and high - low + 1 == pc.count_distinct(numbers).as_py()
