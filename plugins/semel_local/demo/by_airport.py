"""The demo's third pipeline: delays by airport, from the output of the first one.

Airflow begins its runs, one for each batch that the first one finalizes; the sums of all batches
must be the known truth.
"""

import time
from datetime import datetime
from typing import Any

from rich.table import Table

from semel import console
from semel.archive.marker import Marker, markers_of
from semel.clients.sql import query
from semel_local.demo import by_day, flights
from semel_local.demo.airflow_api import POLL_SECONDS, AirflowApi
from semel_local.demo.follow import RUN_SECONDS_MAX
from semel.errors import TerminalError, UnavailableError
from semel.pipeline.spec import Spec

PIPELINE = "delays_by_airport"

SHOWN = ("airport", "flights", "departed", "dep_delay_minutes")

Sums = list[dict[str, Any]]
"""By airport, as SHOWN names them."""


def wait_for(api: AirflowApi, spec: Spec, read: Marker, since: datetime) -> str:
    """Wait until a batch of the first pipeline is in a finalized one of this. Returns the run's id.

    TerminalError: a run failed. UnavailableError: none took it.
    """
    name = f"{read.pipeline}/b{read.batch_id:08d}"
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while True:
        for marker in markers_of(spec):
            if name in {claim.name for claim in marker.claims}:
                return marker.request_key.rpartition(f"{PIPELINE}:")[2]
        if failed := api.failed_since(PIPELINE, since):
            raise TerminalError(
                f"run {failed[0].run_id} of {PIPELINE} failed, see "
                f"{api.run_url(PIPELINE, failed[0].run_id)}; clear it there, then run this again"
            )
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"no run of {PIPELINE} has taken {name} in {RUN_SECONDS_MAX} s; take it by hand, "
                "then run this again",
                next=f"semel run {PIPELINE}",
            )
        time.sleep(POLL_SECONDS)


def found(spec: Spec) -> Sums:
    """The sums of the pipeline's table. UnavailableError, TerminalError: it does not answer."""
    rows = by_day.rows_of(spec, query("demo", "by_airport").text)
    return [{n: row[n] if n == "airport" else int(row[n] or 0) for n in SHOWN} for row in rows]


def true(week: int) -> Sums:
    """Of all flights that come in the weeks 1 to `week`, each counted once."""
    wanted = [("carrier", "count"), ("dep_time", "count"), ("dep_delay", "sum")]
    rows = flights.come(week).group_by(["origin"]).aggregate(wanted).to_pylist()
    names = ("origin", "carrier_count", "dep_time_count", "dep_delay_sum")
    sums = [dict(zip(SHOWN, (row[name] for name in names), strict=True)) for row in rows]
    return sorted(sums, key=lambda each: each["airport"])


def show(found: Sums, true: Sums) -> None:
    """Print the sums, and whether they are right."""
    table = Table(box=None, pad_edge=False)
    table.add_column("delays by airport")
    for name in SHOWN[1:]:
        table.add_column(name.replace("_", " "), justify="right")
    for each in found:
        table.add_row(each["airport"], *(f"{each[name]:,}" for name in SHOWN[1:]))
    console.result.print()
    console.result.print(table)
    console.result.print(
        "their sums, from what flights finalized, are exactly the known truth"
        if found == true
        else f"THE SUMS ARE NOT THE KNOWN TRUTH ({true}): this is a defect of semel"
    )
