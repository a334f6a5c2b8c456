"""The demo's second pipeline: flights and their delays by day, per carrier and in all.

The view merges the partial rows of all batches; its rows must be the known truth.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from rich.table import Table

from semel import console
from semel.clients.sql import query
from semel.pipeline.spec import Spec
from semel_local import stack
from semel_local.demo import flights
from semel_local.demo.flights import DaySums

PIPELINE = "flights_by_day"

SHOWN = ("flights", "departed", "dep_delay_minutes")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The sums that the view has and those that are true: of each day, then of each day and
    carrier, in the order of days.
    """

    found: list[DaySums]
    truth: list[DaySums]
    final: dict[date, bool]
    """Whether a day is final."""

    @property
    def ok(self) -> bool:
        return self.found == self.truth

    def to_json(self) -> dict[str, Any]:
        """What `semel demo --json` says of the table."""
        return {
            "found": self.found,
            "truth": self.truth,
            "final": list(self.final.values()),
            "query": statement(),
            "psql": psql(),
        }


def statement() -> str:
    """The query that is printed, on one line."""
    return " ".join(query("demo", "by_day").text.split())


def psql() -> str | None:
    """A shell command that runs the query; None where the table is in a database of the user's."""
    opened = stack.warehouse_psql()
    return f"{opened} -c {shlex.quote(statement())}" if opened else None


def rows_of(spec: Spec, text: str) -> list[dict[str, Any]]:
    """What a query finds in the pipeline's table. UnavailableError, TerminalError: no answer."""
    from semel.sinks.postgres.link import open_connection
    from semel.sinks.postgres.target import PostgresTarget, dsn_of

    name = spec.sink.connection
    target = PostgresTarget(dsn=dsn_of(name), table=spec.sink.table, connection=name)
    with open_connection(target) as connection:
        return connection.execute(text).fetchall()


def compare(spec: Spec, week: int) -> Compared:
    """Ask the pipeline's view for the weeks 1 to `week`. UnavailableError, TerminalError: it does
    not answer.
    """
    days = rows_of(spec, query("demo", "by_day").text)
    rows = [*days, *rows_of(spec, query("demo", "by_carrier").text)]
    found = [
        DaySums(
            day=row["day"],
            carrier=row.get("carrier"),
            **{name: int(row[name] or 0) for name in SHOWN},
        )
        for row in rows
    ]
    truth = flights.sums_by_day(week) + flights.sums_by_day(week, carriers=True)
    return Compared(found=found, truth=truth, final={row["day"]: row["final"] for row in days})


def show(compared: Compared, days: Sequence[date]) -> None:
    """Print the sums of these days, of the one before, to which their files add a flight, and what
    is not as it should be; then each carrier's delays on them.
    """
    days = [days[0] - timedelta(days=1), *days]
    found, true = (
        {(each.day, each.carrier): each for each in some}
        for some in (compared.found, compared.truth)
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("flights by day")
    for name in (*SHOWN, "final"):
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("")
    for day, carrier in sorted({*found, *true}, key=lambda each: (each[0], each[1] or "")):
        of = found.get((day, carrier)), true.get((day, carrier))
        same = of[0] == of[1]
        if same and (carrier or day not in days):
            continue
        cells = [_shown(*of, name) for name in SHOWN]
        final = "yes" if compared.final.get(day) else "not yet"
        named = f"{day} {carrier}" if carrier else str(day)
        table.add_row(named, *cells, final, "" if same else "DIFFERENT")
    console.result.print()
    console.result.print(table)
    console.result.print()
    console.result.print(_delays(compared.found, days))
    console.result.print(
        f"all of them, of {len(compared.final)} days, are exactly the known truth"
        if compared.ok
        else "THE SUMS ARE NOT THE KNOWN TRUTH: this is a defect of semel"
    )


def _delays(found: list[DaySums], days: Sequence[date]) -> Table:
    """A row a carrier, a column a day."""
    sums = {(each.carrier, each.day): each.dep_delay_minutes for each in found if each.carrier}
    shown = sorted({day for _, day in sums} & {*days})
    table = Table(box=None, pad_edge=False)
    table.add_column("minutes of delay")
    for day in shown:
        table.add_column(f"{day:%b %d}", justify="right")
    for carrier in sorted({carrier for carrier, _ in sums}):
        cells = (sums.get((carrier, day)) for day in shown)
        table.add_row(carrier, *("" if cell is None else f"{cell:,}" for cell in cells))
    return table


def show_query() -> None:
    """Print how to run the query oneself: lines that a terminal shows whole, for a shell."""
    text = f"{query('demo', 'by_day').text.strip()};"
    if opened := stack.warehouse_psql():
        program, _, where = opened.partition(" -h ")
        lines = ["ask the view yourself:", f"{program} \\", f"  -h {where} <<'SQL'", text, "SQL"]
    else:
        lines = [f"ask the view yourself, in the database of {PIPELINE}'s connection:", text]
    console.result.print("\n".join(lines), markup=False)


def _shown(found: DaySums | None, true: DaySums | None, name: str) -> str:
    """A sum; where it is another one than it should be, that one behind it."""
    values = [format(getattr(each, name), ",") if each else "none" for each in (found, true)]
    return values[0] if values[0] == values[1] else f"{values[0]} (truth {values[1]})"
