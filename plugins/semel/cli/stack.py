"""`semel up | down | status`: the local stack."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from semel import console
from semel.stack.states import StackState


def up(
    kafka: Annotated[
        bool | None,
        typer.Option(
            "--kafka/--no-kafka",
            help="With a Kafka broker too, which Maven fetches, or without. Left out: as before.",
        ),
    ] = None,
    nats: Annotated[
        bool | None,
        typer.Option("--nats/--no-nats", help="With a NATS server too, or without, likewise."),
    ] = None,
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store",
            help="With an object store too, which Go builds, or without, likewise.",
        ),
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Start PostgreSQL, Spark and Airflow on this machine, and wait until they are healthy.

    What runs already is left alone. State, logs and passwords are below .semel/. Pipelines find
    the servers by the connections `kafka`, `nats` and `store`.

    Example: semel up
    """
    from semel import stack

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
        known = login if ends.airflow_user else "with the logins that you have set up"
        console.result.print(f"Airflow: {ends.airflow_url}, {known}")

    console.emit(payload, as_json=as_json, render=render)


def down(as_json: console.AsJson = False) -> None:
    """Stop everything that `semel up` started. Data, logs and passwords stay.

    Example: semel down
    """
    from semel import stack

    stack.down(echo=console.progress.print)
    console.emit({"stopped": True}, as_json=as_json, render=lambda: None)


def status(as_json: console.AsJson = False) -> None:
    """Say of each part how it is, where it answers and where its log is. Exit 1 when one is down.

    Example: semel status --json
    """
    from semel import stack

    state = stack.status()
    console.emit(_payload(state), as_json=as_json, render=lambda: _table(state))
    if not state.healthy:
        raise typer.Exit(1)


def _payload(state: StackState) -> dict[str, Any]:
    return {"healthy": state.healthy, "parts": [asdict(part) for part in state.parts]}


def _table(state: StackState) -> None:
    # Plain columns: addresses and logs are for copying, so nothing is cut to the terminal's width.
    for part in state.parts:
        pid = f"pid {part.pid}" if part.pid else ""
        columns = f"{part.name:<18}{part.health:<10}{pid:<12}{part.address:<32}{part.log or ''}"
        print(columns.rstrip())
        if part.trouble:
            print(f"{'':<18}{part.trouble}")
