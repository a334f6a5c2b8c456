"""The demo's third pipeline: delays by airport, from the output of the first pipeline.

Airflow starts a run for each batch that the first pipeline finalizes. The sums of all batches must
equal the known truth.
"""

import time
from datetime import datetime
from typing import Any

from rich.table import Table

from semel import console
from semel.archive.marker import Marker, markers_of
from semel.clients.sql import query
from semel.errors import TerminalError, UnavailableError
from semel.pipeline.spec import Spec
from semel_local.demo import by_day, flights
from semel_local.demo.airflow_api import POLL_SECONDS, AirflowApi
from semel_local.demo.follow import RUN_SECONDS_MAX

PIPELINE = "delays_by_airport"

COLUMNS = ("airport", "flights", "departed", "dep_delay_minutes")

Sums = list[dict[str, Any]]
"""The values of COLUMNS, by airport."""


def wait_for(api: AirflowApi, spec: Spec, read: Marker, since: datetime) -> str:
    """Wait until this pipeline has finalized a batch that reads the batch of `read`. Returns the
    run's id.

    Raises TerminalError if a run fails, UnavailableError if no run reads the batch.
    """
    name = f"{read.pipeline}/b{read.batch_id:08d}"
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while True:
        for marker in markers_of(spec):
            if name in {claim.name for claim in marker.claims}:
                return marker.request_key.rpartition(f"{PIPELINE}:")[2]
        if failed := api.failed_since(PIPELINE, since):
            raise TerminalError(
                f"run {failed[0].run_id} of {PIPELINE} failed. Clear it at "
                f"{api.run_url(PIPELINE, failed[0].run_id)}, then run this again"
            )
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"no run of {PIPELINE} has read {name} after {RUN_SECONDS_MAX} s. Run the pipeline "
                "by hand, then run this again",
                next=f"semel run {PIPELINE}",
            )
        time.sleep(POLL_SECONDS)


def read_sums(spec: Spec) -> Sums:
    """The sums in the pipeline's table. Raises UnavailableError or TerminalError if the database
    does not answer.
    """
    rows = by_day.rows_of(spec, query("demo", "by_airport").text)
    return [{n: row[n] if n == "airport" else int(row[n] or 0) for n in COLUMNS} for row in rows]


def true_sums(week: int) -> Sums:
    """The sums of all flights that arrive in the weeks 1 to `week`, each counted once."""
    functions = [("carrier", "count"), ("dep_time", "count"), ("dep_delay", "sum")]
    rows = flights.flights_until(week).group_by(["origin"]).aggregate(functions).to_pylist()
    names = ("origin", "carrier_count", "dep_time_count", "dep_delay_sum")
    sums = [dict(zip(COLUMNS, (row[name] for name in names), strict=True)) for row in rows]
    return sorted(sums, key=lambda each: each["airport"])


def show(actual: Sums, true: Sums) -> None:
    """Print the sums, and whether they are right."""
    table = Table(box=None, pad_edge=False)
    table.add_column("delays by airport")
    for name in COLUMNS[1:]:
        table.add_column(name.replace("_", " "), justify="right")
    for each in actual:
        table.add_row(each["airport"], *(f"{each[name]:,}" for name in COLUMNS[1:]))
    console.result.print()
    console.result.print(table)
    console.result.print(
        "these sums of the output of flights are exactly the known truth"
        if actual == true
        else f"THE SUMS ARE NOT THE KNOWN TRUTH ({true}): this is a bug in semel"
    )
