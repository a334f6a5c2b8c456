"""Input for the benchmarks: JSON Lines records of about 160 bytes, made by columns, seed fixed."""

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
_AGENTS = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0)",
    "curl/8.9.1",
    "okhttp/4.12.0 (Android 15; arm64)",
]
_CHUNK = 500_000


def write_records(
    path: Path, records: int, *, repeats: float, seed: int = 1, first: int = 0
) -> int:
    """Write `records` lines, of which the share `repeats` repeat an earlier one. Returns new ids.

    `first` shifts the ids, so that two files of one seed share none.
    """
    random = np.random.default_rng(seed + first)
    new = records - int(records * repeats)
    number = np.concatenate([np.arange(new), random.integers(0, new, records - new)])
    random.shuffle(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, records, _CHUNK):
            _frame(number[start : start + _CHUNK] + first).write_ndjson(file)
    return new


def _frame(number: np.ndarray) -> pl.DataFrame:
    # A record is a function of its number, so that a repeat is the same record.
    mixed = (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    micros = 1_767_225_600_000_000 + (mixed >> np.uint64(8)).astype(np.int64) % 86_400_000_000
    return pl.DataFrame(
        {
            "id": mixed,
            "user": (mixed >> np.uint64(20)) % np.uint64(1_000_000),
            "ts": pl.Series(micros).cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"),
            "amount": ((mixed >> np.uint64(12)) % np.uint64(100_000)).astype(float) / 100,
            "kind": _pick(["view", "click", "order", "refund"], mixed >> np.uint64(4)),
            "country": _pick(["DE", "FR", "IT", "ES", "PL"], mixed >> np.uint64(6)),
            "ua": _pick(_AGENTS, mixed >> np.uint64(9)),
        }
    ).with_columns(pl.col("id").cast(pl.String).str.zfill(20))


def _pick(values: list[str], at: np.ndarray) -> pl.Series:
    return pl.Series(values).gather(at % np.uint64(len(values)))
