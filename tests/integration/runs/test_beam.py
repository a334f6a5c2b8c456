"""Counts per user and in all, by hour, with late and repeated events: those of Apache Beam."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from fixtures.batches.account import run
from fixtures.batches.replays import proven
from fixtures.batches.workbench import Workbench
from fixtures.beam import installed
from fixtures.postgres.warehouse import TABLE, Warehouse
from semel import reader
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from tiers import SEED

EVENTS, FILES = 3_000, 12
DAYS = 2
USERS = ("u0", "u1", "u2", "u3", "seldom", "", "\u00fc", None)
WEIGHTS = (30, 20, 10, 5, 0.2, 3, 3, 3)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
WINDOWS = {"hourly": {"size": "1 hour"}, "sliding": {"size": "1 hour", "every": "10 minutes"}}

Rows = dict[tuple[datetime, datetime, str | None, bool], tuple[int, int, int, int]]
"""Count, sum, least and most, by begin and end of the window, user, and whether it is in all."""


def drawn(draw: random.Random) -> list[list[dict]]:
    """Files of events in the order in which they arrive: most are near the time that their file is
    of, and some come up to two days late. Many come again, in their file or in a later one, and
    some lie at the very begin of a window.
    """
    files: list[list[dict]] = [[] for _ in range(FILES)]
    span = DAYS * 86_400
    for number in range(EVENTS):
        second = draw.randrange(span)
        if draw.random() < 0.05:
            second -= second % 600
        event = {
            "id": f"e{number:05d}",
            "user": draw.choices(USERS, WEIGHTS)[0],
            "n": draw.choice((draw.randint(-9, 9), draw.randint(-(2**40), 2**40))),
            "at": (BEGIN + timedelta(seconds=second)).isoformat(),
        }
        on_time = second * FILES // span
        at = draw.randrange(on_time, FILES) if draw.random() < 0.2 else on_time
        files[at].append(event)
        if draw.random() < 0.1:
            files[draw.randrange(at, FILES)].append(event)
    for file in files:
        draw.shuffle(file)
    return files


def late_of(files: list[list[dict]]) -> int:
    """How many events come when one of an hour later, or more, has come in a batch before."""
    late, newest = 0, ""
    for file in files:
        behind = datetime.fromisoformat(newest) - timedelta(hours=1) if newest else BEGIN
        late += sum(datetime.fromisoformat(event["at"]) < behind for event in file)
        newest = max([newest, *(event["at"] for event in file)])
    return late


def of_beam(found: list[list]) -> dict[str, Rows]:
    """The rows by the name of the windows; of several panes of a window the last."""
    rows: dict[str, Rows] = {name: {} for name in WINDOWS}
    panes: dict[tuple, int] = {}
    for pane, name, start, end, user, total, *numbers in found:
        key = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC), user, total
        if pane >= panes.get((name, key), -1):
            panes[name, key], rows[name][key] = pane, tuple(numbers)
    return rows


def of_semel(spec: Spec, warehouse: Warehouse) -> Rows:
    """The rows that readers of a pipeline see."""
    if spec.sink.type == "files":
        rows = reader.windows(spec.sink_path()).to_pylist()
    else:
        with psycopg.connect(warehouse.dsn, row_factory=dict_row) as connection:
            rows = connection.execute(f"SELECT * FROM {spec.sink.table}").fetchall()
    found: Rows = {}
    for row in rows:
        times = (_in_utc(row[name]) for name in ("window_start", "window_end"))
        key = *times, row["user"], row["_semel_level"] == 1
        assert key not in found
        found[key] = row["events"], int(row["spent"]), row["least"], row["most"]
    return found


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


# Attacks AG3.
@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_counts_per_user_and_in_all(
    bench: Workbench, ledger: Ledger, table: Warehouse, beam_python: Path, mode: str
) -> None:
    """Example 5-1 of "Streaming Systems": each row is that of Beam's direct runner, of hours and of
    hours that overlap, with events that are late or come again. Beam reads the files as a whole; or
    they come to it one after the other behind a watermark, and the last pane of each window counts.
    It takes half a minute: Beam's direct runner is slow.
    """
    draw = random.Random(SEED)
    files = drawn(draw)
    draw.shuffle(files)
    assert late_of(files) > EVENTS // 4, "too few are late"
    assert sum(map(len, files)) > EVENTS * 1.05, "too few come again"
    columns = {"events": "count()", "spent": "sum(n)", "least": "min(n)", "most": "max(n)"}
    schema = {"id": "string", "user": "string", "n": "bigint", "at": "timestamp"}
    specs = [
        bench.spec(
            f"{windows}_{kind}",
            source={"path": "clicks/*.jsonl", "schema": schema},
            record_time="at",
            window=declared,
            aggregate={"by": [["user"], []], "columns": columns},
            **({"sink": {**TABLE, "table": windows}} if kind == "postgres" else {}),
        )
        for windows, declared in WINDOWS.items()
        for kind in ("files", "postgres")
    ]
    for at, file in enumerate(files):
        bench.write(f"clicks/{at:02d}.jsonl", file)
        for spec in specs:
            run(ledger, spec, f"r{at}")
    panes = installed.counted(beam_python, mode, bench.data / "clicks")
    counted = of_beam(panes)
    assert (len(panes) > sum(map(len, counted.values()))) == (mode == "stream"), "no late panes"
    for spec in specs:
        expected = counted[spec.name.partition("_")[0]]
        found = of_semel(spec, table)
        assert len(expected) > DAYS * 24 * 2
        for key in sorted({*expected, *found}, key=str):
            assert found.get(key) == expected.get(key), (spec.name, key)
        proven(spec)
