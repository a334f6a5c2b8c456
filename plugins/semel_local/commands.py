"""`semel up | down | status | demo`: the commands that this package adds to semel."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from semel import console
from semel.cli.options import resumes
from semel_local.stack.states import StackState


@resumes
def up(
    kafka: Annotated[
        bool | None,
        typer.Option(
            "--kafka/--no-kafka",
            help="Also start a Kafka broker, which Maven fetches. Default: as in the last `up`.",
        ),
    ] = None,
    nats: Annotated[
        bool | None,
        typer.Option(
            "--nats/--no-nats", help="Also start a NATS server. Default: as in the last `up`."
        ),
    ] = None,
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store",
            help="Also start an object store, which Go builds. Default: as in the last `up`.",
        ),
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Start PostgreSQL, Spark and Airflow on this machine, and wait until they are healthy.

    Servers that already run stay as they are. State, logs and passwords are below .semel/.
    Pipelines reach the servers through the connections `kafka`, `nats` and `store`.

    Example: semel up
    """
    from semel_local import stack

    state = stack.up(echo=console.progress.print, kafka=kafka, nats=nats, store=store)
    ends = stack.connection()
    payload = _payload(state) | {
        "airflow_url": ends.airflow_url,
        "airflow_user": ends.airflow_user,
        "airflow_password": ends.airflow_password,
    }

    def render() -> None:
        _table(state)
        login = f"user {ends.airflow_user}, password {ends.airflow_password}"
        access = login if ends.airflow_user else "with the logins that you have set up"
        console.result.print(f"Airflow: {ends.airflow_url}, {access}")

    console.emit(payload, as_json=as_json, render=render)


def down(as_json: console.AsJson = False) -> None:
    """Stop all servers that `semel up` has started. Data, logs and passwords stay.

    Example: semel down
    """
    from semel_local import stack

    stack.down(echo=console.progress.print)
    console.emit({"stopped": True}, as_json=as_json, render=lambda: None)


def status(as_json: console.AsJson = False) -> None:
    """Show the health, address and log of each server. Exits with 1 if a server is down.

    Example: semel status --json
    """
    from semel_local import stack

    state = stack.status()
    console.emit(_payload(state), as_json=as_json, render=lambda: _table(state))
    if not state.healthy:
        raise typer.Exit(1)


@resumes
def demo(
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Use topics of a Kafka broker, not files.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Use a queue of a NATS server, not files.")
    ] = False,
    lake: Annotated[
        bool, typer.Option("--lake", help="Read a bucket of an object store, write a Delta table.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Land a week of real flights, run it through Airflow, and compare with the known truth.

    Each call lands the next week, or resumes a call that failed. Two pipelines read the week: one
    writes each flight once, the other counts flights by day into a table. A third pipeline sums
    delays by airport from the first one's output. With --kafka, one pipeline follows a topic by its
    schedule and publishes to another topic, and one is backfilled by date. With --queue, a pipeline
    receives messages that a queue delivers more than once. With --lake, a pipeline reads objects of
    a bucket and commits to a Delta table, which DuckDB reads. Exits with 1 if a number is wrong or
    an audit fails.

    Example: semel demo
    """
    if kafka + queue + lake > 1:
        raise typer.BadParameter("give one of --kafka, --queue and --lake")
    if lake:
        from semel_local.demo.lake import run_lake

        run_lake(as_json=as_json)
        return
    if queue:
        from semel_local.demo.queue import run_queue

        run_queue(as_json=as_json)
        return
    if kafka:
        from semel_local.demo.stream import run_stream

        run_stream(as_json=as_json)
        return
    from semel_local.demo.week import run_week

    run_week(as_json=as_json)


def _payload(state: StackState) -> dict[str, Any]:
    return {"healthy": state.healthy, "parts": [asdict(part) for part in state.parts]}


def _table(state: StackState) -> None:
    # Plain columns, because a table would cut addresses and logs to the terminal's width.
    width = max(len(part.name) for part in state.parts) + 2
    for part in state.parts:
        pid = f"pid {part.pid}" if part.pid else ""
        columns = f"{part.health:<10}{pid:<12}{part.address:<32}{part.log or ''}"
        print(f"{part.name:<{width}}{columns}".rstrip())
        if part.trouble:
            print(f"{'':<{width}}{part.trouble}")
