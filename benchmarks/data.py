"""Input for the benchmarks: JSON Lines records of 160 bytes (or 2 kB), made by columns.

A record is a function of its number, so a repeat is the same record. Files are made once and kept
in a folder of this user below the system's temporary folder (SEMEL_BENCH_DATA names another).
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

SCHEMA = {
    "id": "string",
    "user": "bigint",
    "ts": "timestamp",
    "amount": "double",
    "kind": "string",
    "country": "string",
    "ua": "string",
}
DDL = ", ".join(f"`{name}` {kind}" for name, kind in SCHEMA.items())

ROW_GROUP = 250_000
"""Rows of a row group: some 20 MB, so that all cores have one."""

_VERSION = 1  # Files of another version of this module are not used.
_AGENTS = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0)",
    "curl/8.9.1",
    "okhttp/4.12.0 (Android 15; arm64)",
]
_START_US = 1_767_225_600_000_000  # 2026-01-01
_STEP_US = 21_600  # 4 million records a day
_PIECES, _PIECE_CHARS, _PIECES_EACH = 4_096, 460, 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a file holds. New records are numbered from `first`; `repeats` is the share of others.

    Repeats are of earlier records of the same file, or of the numbers in `known`. `bursts`: they
    are all in one twentieth of the file, in its middle. `ordered`: ids that begin with the time, as
    ULIDs do, in place of random ones. `wide`: 2 kB in place of 160 B. `users`: how many there are.
    """

    records: int
    repeats: float = 0.02
    bursts: bool = False
    ordered: bool = False
    wide: bool = False
    first: int = 0
    known: tuple[int, int] | None = None
    users: int = 1_000_000

    @property
    def new(self) -> int:
        """How many records are no repeats."""
        return self.records - int(self.records * self.repeats)

    @property
    def name(self) -> str:
        """The name of its file."""
        known = f"-of-{self.known[0]}-{self.known[1]}" if self.known else ""
        kind = ("ordered" if self.ordered else "random") + ("-wide" if self.wide else "")
        users = "" if self.users == 1_000_000 else f"-users-{self.users}"
        repeats = f"{self.repeats}" + ("-in-bursts" if self.bursts else "")
        return f"{self.records}-{kind}-from-{self.first}-repeats-{repeats}{known}{users}.jsonl"


def made(shape: Shape) -> Path:
    """The file of a shape, made now if it is not there yet."""
    path = _cache() / shape.name
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        numbers = _numbers(shape)
        step = 50_000 if shape.wide else 500_000
        with part.open("wb") as file:
            for start in range(0, shape.records, step):
                _frame(numbers[start : start + step], shape).write_ndjson(file)
        part.rename(path)
    return path


def landed(shape: Shape, path: Path) -> Path:
    """The file of a shape under another name, where a pipeline or a peer reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(made(shape), path)
    return path


def landed_parquet(shape: Shape, path: Path) -> Path:
    """The records of a shape as a file of Parquet, in row groups of ROW_GROUP rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"ts": pl.Datetime("us", "UTC")}
    frame = pl.read_ndjson(made(shape), schema_overrides={"ts": pl.String})
    frame = frame.with_columns(pl.col("ts").str.to_datetime(time_unit="us", time_zone="UTC"))
    frame.select(list(SCHEMA)).cast(kinds).write_parquet(
        path, compression="snappy", row_group_size=ROW_GROUP, use_pyarrow=True
    )
    return path


def landed_csv(shape: Shape, path: Path) -> Path:
    """The records of a shape as CSV with a header, each text in quotes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pl.read_ndjson(made(shape), schema_overrides={"ts": pl.String})
    frame.select(list(SCHEMA)).write_csv(path, quote_style="non_numeric")
    return path


def ids_of(numbers: np.ndarray, *, ordered: bool = False) -> pl.Series:
    """The ids of some records: 20 characters each."""
    mixed = _mixed(numbers)
    if ordered:
        text = pl.Series(_micros(numbers)).cast(pl.String)
        return text + pl.Series(mixed % np.uint64(10_000)).cast(pl.String).str.zfill(4)
    return pl.Series(mixed).cast(pl.String).str.zfill(20)


def seconds_of(numbers: np.ndarray) -> np.ndarray:
    """The `ts` of some records, in whole seconds since 1970."""
    return _micros(numbers) // 1_000_000


def _cache() -> Path:
    named = os.environ.get("SEMEL_BENCH_DATA")
    folder = Path(named or Path(tempfile.gettempdir()) / f"semel-bench-data-{os.getuid()}")
    folder = folder / f"v{_VERSION}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.parent.stat().st_uid != os.getuid():
        raise SystemExit(f"{folder.parent} belongs to another user; name one in SEMEL_BENCH_DATA")
    return folder


def _numbers(shape: Shape) -> np.ndarray:
    random = np.random.default_rng([shape.first, shape.records])
    repeated = np.zeros(shape.records, dtype=bool)
    where = slice(1, None)
    if shape.bursts:
        where = slice(shape.records // 2, shape.records // 2 + shape.records // 20)
    repeated[where][: shape.records - shape.new] = True
    random.shuffle(repeated[where])
    before = np.cumsum(~repeated)
    numbers = shape.first + before - 1
    count = shape.records - shape.new
    if shape.known is None:
        numbers[repeated] = shape.first + (random.random(count) * before[repeated]).astype(np.int64)
    else:
        numbers[repeated] = random.integers(*shape.known, count)
    return numbers


def _mixed(numbers: np.ndarray) -> np.ndarray:
    # Times an odd constant: no two numbers give the same.
    return (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def _micros(numbers: np.ndarray) -> np.ndarray:
    return _START_US + numbers.astype(np.int64) * _STEP_US


def _frame(numbers: np.ndarray, shape: Shape) -> pl.DataFrame:
    mixed = _mixed(numbers)
    time = pl.Series(_micros(numbers)).cast(pl.Datetime("us"))
    agent = _pick(_AGENTS, mixed >> np.uint64(9))
    return pl.DataFrame(
        {
            "id": ids_of(numbers, ordered=shape.ordered),
            "user": (mixed >> np.uint64(20)) % np.uint64(shape.users),
            "ts": time.dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"),
            "amount": ((mixed >> np.uint64(12)) % np.uint64(100_000)).astype(float) / 100,
            "kind": _pick(["view", "click", "order", "refund"], mixed >> np.uint64(4)),
            "country": _pick(["DE", "FR", "IT", "ES", "PL"], mixed >> np.uint64(6)),
            "ua": _widened(agent, mixed) if shape.wide else agent,
        }
    )


def _widened(agent: pl.Series, mixed: np.ndarray) -> pl.Series:
    """Text that neither a dictionary nor a compressor makes small at once: pieces of hex digits."""
    random = np.random.default_rng(1)
    pieces = [random.bytes(_PIECE_CHARS // 2).hex() for _ in range(_PIECES)]
    for at in range(_PIECES_EACH):
        agent = agent + _pick(pieces, mixed >> np.uint64(12 * at + 3))
    return agent


def _pick(values: list[str], at: np.ndarray) -> pl.Series:
    return pl.Series(values).gather(at % np.uint64(len(values)))
