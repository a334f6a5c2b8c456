"""The demo's second pipeline: flights and their delays by day, per carrier and in total.

The view merges the partial rows of all batches. Its rows must equal the known truth.
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

COLUMNS = ("flights", "departed", "dep_delay_minutes")


@dataclass(frozen=True, kw_only=True)
class DayComparison:
    """The view's sums and the true ones: first by day, then by day and carrier, ordered by day."""

    sums: list[DaySums]
    truth: list[DaySums]
    final: dict[date, bool]
    """By day, whether it is final."""

    @property
    def ok(self) -> bool:
        return self.sums == self.truth

    def to_json(self) -> dict[str, Any]:
        """The table's part of `semel demo --json`."""
        return {
            "found": self.sums,
            "truth": self.truth,
            "final": list(self.final.values()),
            "query": statement(),
            "psql": psql(),
        }


def statement() -> str:
    """The query of the sums by day, on one line."""
    return " ".join(query("demo", "by_day").text.split())


def psql() -> str | None:
    """A shell command that runs the query. None if the table is not in the stack's database."""
    command = stack.warehouse_psql()
    return f"{command} -c {shlex.quote(statement())}" if command else None


def rows_of(spec: Spec, text: str) -> list[dict[str, Any]]:
    """The result of a query of the pipeline's table. Raises UnavailableError or TerminalError if
    the database does not answer.
    """
    from semel.sinks.postgres.link import open_connection
    from semel.sinks.postgres.target import PostgresTarget, dsn_of

    name = spec.sink.connection
    target = PostgresTarget(dsn=dsn_of(name), table=spec.sink.table, connection=name)
    with open_connection(target) as connection:
        return connection.execute(text).fetchall()


def compare(spec: Spec, week: int) -> DayComparison:
    """Compare the pipeline's view with the truth of the weeks 1 to `week`. Raises UnavailableError
    or TerminalError if the database does not answer.
    """
    days = rows_of(spec, query("demo", "by_day").text)
    rows = [*days, *rows_of(spec, query("demo", "by_carrier").text)]
    sums = [
        DaySums(
            day=row["day"],
            carrier=row.get("carrier"),
            **{name: int(row[name] or 0) for name in COLUMNS},
        )
        for row in rows
    ]
    truth = flights.sums_by_day(week) + flights.sums_by_day(week, carriers=True)
    return DayComparison(sums=sums, truth=truth, final={row["day"]: row["final"] for row in days})


def show(comparison: DayComparison, days: Sequence[date]) -> None:
    """Print the sums of `days` and of the day before, to which their files add a flight; also
    all wrong sums. Then print each carrier's delays on these days.
    """
    days = [days[0] - timedelta(days=1), *days]
    actual, true = (
        {(each.day, each.carrier): each for each in sums}
        for sums in (comparison.sums, comparison.truth)
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("flights by day")
    for name in (*COLUMNS, "final"):
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("")
    for day, carrier in sorted({*actual, *true}, key=lambda each: (each[0], each[1] or "")):
        pair = actual.get((day, carrier)), true.get((day, carrier))
        same = pair[0] == pair[1]
        if same and (carrier or day not in days):
            continue
        cells = [_cell(*pair, name) for name in COLUMNS]
        final = "yes" if comparison.final.get(day) else "not yet"
        label = f"{day} {carrier}" if carrier else str(day)
        table.add_row(label, *cells, final, "" if same else "DIFFERENT")
    console.result.print()
    console.result.print(table)
    console.result.print()
    console.result.print(_delays(comparison.sums, days))
    console.result.print(
        f"the sums of all {len(comparison.final)} days are exactly the known truth"
        if comparison.ok
        else "THE SUMS ARE NOT THE KNOWN TRUTH: this is a bug in semel"
    )


def _delays(rows: list[DaySums], days: Sequence[date]) -> Table:
    """A table with a row for each carrier and a column for each day."""
    sums = {(each.carrier, each.day): each.dep_delay_minutes for each in rows if each.carrier}
    columns = sorted({day for _, day in sums} & {*days})
    table = Table(box=None, pad_edge=False)
    table.add_column("minutes of delay")
    for day in columns:
        table.add_column(f"{day:%b %d}", justify="right")
    for carrier in sorted({carrier for carrier, _ in sums}):
        cells = (sums.get((carrier, day)) for day in columns)
        table.add_row(carrier, *("" if cell is None else f"{cell:,}" for cell in cells))
    return table


def show_query() -> None:
    """Print a shell command for the query, in lines that fit a terminal."""
    text = f"{query('demo', 'by_day').text.strip()};"
    if command := stack.warehouse_psql():
        program, _, options = command.partition(" -h ")
        lines = ["query the view yourself:", f"{program} \\", f"  -h {options} <<'SQL'"]
        lines += [text, "SQL"]
    else:
        lines = [f"query the view yourself, in the database of {PIPELINE}'s connection:", text]
    console.result.print("\n".join(lines), markup=False)


def _cell(actual: DaySums | None, true: DaySums | None, name: str) -> str:
    """A sum, with the true one after it if they differ."""
    values = [format(getattr(each, name), ",") if each else "none" for each in (actual, true)]
    return values[0] if values[0] == values[1] else f"{values[0]} (truth {values[1]})"
