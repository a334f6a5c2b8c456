"""The names of windows, and the files of one task: what lies in which folder and shard."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.declare.parts import DAY, WEEK, FolderWindow
from semel.errors import LimitError
from semel.model.arrow import UTC_TIME
from semel.model.windows import Slices
from semel.sinks.files.spec import FilesSinkSpec
from semel.stage import folders
from semel.stage.job import OFFSET_COLUMN, SOURCE_COLUMN
from semel.stage.part_files import PartWriter

HOUR = 3_600
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia")
MOMENTS = st.integers(-4_000_000_000, 2_145_000_000).map(
    lambda s: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s)
)
FORMS = {900: "%Y-%m-%dT%H%M", HOUR: "%Y-%m-%dT%H", 21_600: "%Y-%m-%dT%H", 1: "%Y-%m-%dT%H%M%S"}


def names(seconds: int, zone: str, *times: datetime | date | None) -> list[str | None]:
    """Of moments, or of days."""
    days = type(times[0]) is date
    given = pa.array(times, pa.date32() if days else UTC_TIME)
    return Slices(seconds, zone).names(given).to_pylist()


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from([*FORMS]))
@example(datetime(1892, 12, 1, tzinfo=UTC), "Europe/Berlin", 900)
def test_a_name_is_the_start_by_the_clock(moment: datetime, zone: str, seconds: int) -> None:
    """As Python's own zones tell it; and the slices before and after have other names."""
    slices = Slices(seconds, zone)
    start = slices.start(moment)
    shown = start.astimezone(ZoneInfo(zone))
    ahead = "" if zone == "UTC" else shown.strftime("%z")
    own, before, after = names(
        seconds, zone, moment, slices.previous_start(start), slices.next_start(start)
    )
    assert own == f"{shown:{FORMS[seconds]}}{ahead}".replace(f"{shown:%Y}", f"{shown.year:04}", 1)
    assert len({own, before, after}) == 3


@given(MOMENTS, st.sampled_from(ZONES))
def test_a_day_is_a_date(moment: datetime, zone: str) -> None:
    """Of the clock, and a week its Monday's."""
    day = moment.astimezone(ZoneInfo(zone)).date()
    monday = day - timedelta(days=day.weekday())
    assert names(DAY, zone, moment) == [day.isoformat()]
    assert names(WEEK, zone, moment) == [monday.isoformat()]
    assert names(WEEK, "UTC", day) == [monday.isoformat()]


def test_a_day_whose_midnight_comes_twice_is_one() -> None:
    """In Havana the clock goes back from one o'clock to midnight: 25 hours with one name."""
    start = datetime(2013, 11, 3, 4, tzinfo=UTC)
    hours = [start + timedelta(hours=n) for n in range(-1, 26)]
    found = names(DAY, "America/Havana", *hours)
    assert found == ["2013-11-02", *25 * ["2013-11-03"], "2013-11-04"]
    assert len(set(names(HOUR, "America/Havana", *hours))) == 27


def test_times_far_away_and_none() -> None:
    """Before 1970 a start is the earlier one, too."""
    far = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]
    near = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    found = ["0001-01-01T00", "9999-12-31T23", "1969-12-31T23", None]
    assert names(HOUR, "UTC", *far, near, None) == found
    assert names(HOUR, "America/New_York", far[0]) == ["0000-12-31T19-045602"]
    assert names(HOUR, "Asia/Tokyo", far[1]) == ["10000-01-01T08+0900"]
    assert names(HOUR, "Europe/Berlin", None, None) == [None, None]
    assert Slices(HOUR).names(pa.array([], UTC_TIME)).to_pylist() == []


def window(**changes: str) -> FolderWindow:
    return FolderWindow(**{"window": "1 hour", "of": "at", "name": "hour", **changes})


def rows(*times: datetime | None) -> pa.Table:
    return pa.table({"n": range(len(times)), "at": pa.array(times, UTC_TIME)})


def test_a_year_of_five_digits_is_an_error(tmp_path: Path) -> None:
    """By the clock of the zone: what is in order there is written, what is not names its column."""
    last = datetime(9999, 12, 31, 23, 30, tzinfo=UTC)
    by = (window(),)
    writer = PartWriter(tmp_path, tag="t", partition_by=by)
    writer.write(rows(last, None))
    found = {file.folder for file in writer.close()}
    assert found == {"hour=9999-12-31T23", "hour=__HIVE_DEFAULT_PARTITION__"}
    berlin = window(zone="Europe/Berlin").model_dump() | {"window": "1 hour"}
    sink = FilesSinkSpec(type="files", path="out", format="parquet", partition_by=[berlin])
    [refused] = folders.refused(sink, "p", rows(None, last))
    assert refused.rows.tolist() == [1] and refused.reason == "range"
    assert "'at' holds a time whose year has not four digits" in refused.detail


def test_windows_that_are_too_short_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As columns of too many values are; each shard counts."""
    monkeypatch.setattr("semel.stage.part_files.PARTITION_FILES_PER_SPLIT_MAX", 9)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = rows(*(start + timedelta(seconds=n) for n in range(10)))
    with pytest.raises(LimitError, match=r"\['hour'\] has more than 9 values.*longer windows"):
        PartWriter(tmp_path, tag="t", partition_by=(window(window="1 s"),)).write(times)
    PartWriter(tmp_path, tag="t", partition_by=(window(window="2 s"),)).write(times)
    with pytest.raises(LimitError, match="with 16 shards each,"):
        by = (window(window="10 s"),)
        table = placed(40).append_column("at", pa.repeat(pa.scalar(start, UTC_TIME), 40))
        PartWriter(tmp_path, tag="t", partition_by=by, shards=16).write(table)


def placed(count: int, source: int = 1) -> pa.Table:
    """Rows with their positions."""
    sources = pa.repeat(pa.scalar(source, pa.int64()), count)
    offsets = pa.array(np.arange(count, dtype=np.int64) * 57)
    return pa.table({"n": range(count), SOURCE_COLUMN: sources, OFFSET_COLUMN: offsets})


def shards_of(folder: Path, pieces: list[pa.Table], shards: int) -> dict[int, list[int]]:
    """The values of `n` by shard."""
    folder.mkdir()
    writer = PartWriter(folder, tag="t", shards=shards, positions=False)
    for piece in pieces:
        writer.write(piece)
    found = defaultdict(list)
    for file in writer.close():
        table = pq.read_table(file.path)
        assert table.column_names == ["n"] and file.shard not in found
        found[file.shard] += table.column("n").to_pylist()
    return dict(found)


# Attacks L8.
def test_a_shard_is_by_position(tmp_path: Path) -> None:
    """However the rows come, in which pieces or beside which others; and the shards are alike."""
    table = placed(4_000)
    whole = shards_of(tmp_path / "whole", [table], 8)
    assert sorted(whole) == [*range(8)]
    assert all(400 < len(ns) < 600 and ns == sorted(ns) for ns in whole.values())
    cut = [table.slice(0, 7), table.slice(7, 1), table.slice(8, 991), table.slice(999)]
    assert shards_of(tmp_path / "cut", cut, 8) == whole
    some = shards_of(tmp_path / "some", [table.slice(1_000, 500)], 8)
    assert all(set(ns) <= set(whole[shard]) for shard, ns in some.items())
    assert shards_of(tmp_path / "other", [placed(4_000, source=2)], 8) != whole
