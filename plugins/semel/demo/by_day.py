"""The demo's second pipeline: counts of the flights by day, in parts, and the query that sums them.

Each batch appends the counts of its own flights to a table, so a day whose flights came in several
batches has several rows; the sums must be the known truth.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from rich.table import Table

from semel import console, stack
from semel.clients.sql import query
from semel.demo.flights import DaySums
from semel.pipeline.spec import Spec

PIPELINE = "flights_by_day"

SHOWN = ("flights", "departed", "dep_delay_minutes")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The sums that the query finds and those that are true, each in the order of days."""

    found: list[DaySums]
    truth: list[DaySums]
    batches: dict[date, int]
    """From how many batches each day's rows come."""

    @property
    def ok(self) -> bool:
        return self.found == self.truth

    def to_json(self) -> dict[str, Any]:
        """What `semel demo --json` says of the table."""
        return {
            "found": self.found,
            "truth": self.truth,
            "batches": list(self.batches.values()),
            "query": statement(),
            "psql": psql(),
        }


def statement() -> str:
    """The query, on one line."""
    return " ".join(query("demo", "by_day").text.split())


def psql() -> str | None:
    """A shell command that runs the query; None where the table is in a database of the user's."""
    opened = stack.warehouse_psql()
    return f"{opened} -c {shlex.quote(statement())}" if opened else None


def rows_of(spec: Spec, text: str) -> list[dict[str, Any]]:
    """What a query finds in the pipeline's table. UnavailableError, TerminalError: no answer."""
    from semel.sinks.postgres.link import connected
    from semel.sinks.postgres.target import PostgresTarget, dsn_of

    target = PostgresTarget(dsn=dsn_of(spec.sink.connection), table=spec.sink.table)
    with connected(target) as connection:
        return connection.execute(text).fetchall()


def compare(spec: Spec, truth: list[DaySums]) -> Compared:
    """Ask the pipeline's table. UnavailableError, TerminalError: it does not answer."""
    rows = rows_of(spec, statement())
    found = [
        DaySums(day=row["day"], **{name: int(row[name] or 0) for name in SHOWN}) for row in rows
    ]
    return Compared(
        found=found, truth=truth, batches={row["day"]: row["batches"] for row in rows}
    )


def show(compared: Compared, days: Sequence[date]) -> None:
    """Print the sums of these days, of the one before, to which their files add a flight, and of
    any other that is not as it should be.
    """
    days = [days[0] - timedelta(days=1), *days]
    found, true = ({each.day: each for each in some} for some in (compared.found, compared.truth))
    table = Table(box=None, pad_edge=False)
    table.add_column("flights by day")
    for name in (*SHOWN, "batches"):
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("")
    for day in sorted({*found, *true}):
        same = found.get(day) == true.get(day)
        if same and day not in days:
            continue
        cells = [_shown(found.get(day), true.get(day), name) for name in SHOWN]
        table.add_row(
            str(day), *cells, str(compared.batches.get(day, 0)), "" if same else "DIFFERENT"
        )
    console.result.print()
    console.result.print(table)
    console.result.print(
        f"their sums, of {len(true)} days, are exactly the known truth"
        if compared.ok
        else "THE SUMS ARE NOT THE KNOWN TRUTH: this is a defect of semel"
    )


def show_query() -> None:
    """Print how to run the query oneself."""
    known = psql()
    console.result.print(
        "sum the partial counts yourself:"
        if known
        else f"sum the partial counts yourself, in the database of {PIPELINE}'s connection:"
    )
    console.result.print(known or statement(), markup=False)


def _shown(found: DaySums | None, true: DaySums | None, name: str) -> str:
    """A sum; where it is another one than it should be, that one behind it."""
    values = [format(getattr(each, name), ",") if each else "none" for each in (found, true)]
    return values[0] if values[0] == values[1] else f"{values[0]} (truth {values[1]})"
