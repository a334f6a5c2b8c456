"""`semel demo`: the command alone, so that `semel --help` need not load what it does."""

from typing import Annotated

import typer

from semel import console


def demo(
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Through topics of a Kafka broker, not files.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Through a queue of a NATS server, not files.")
    ] = False,
    lake: Annotated[
        bool, typer.Option("--lake", help="From a bucket of an object store to a Delta table.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Land a week of real flights, run it through Airflow, and compare with the known truth.

    Each call lands the next week; a call that failed is taken up again. Two pipelines read it: one
    writes each flight once, one counts by day into a table; a third one sums up delays by airport
    from what the first one wrote. With --kafka one follows a topic by
    its schedule and publishes to another one, and one is backfilled by date. With --queue one
    receives what a queue delivers more than once. With --lake one reads the objects of a bucket and
    commits to a Delta table, which DuckDB reads. Exit 1 when a number or an audit is not right.

    Example: semel demo
    """
    if kafka + queue + lake > 1:
        raise typer.BadParameter("give one of --kafka, --queue and --lake")
    if lake:
        from semel.demo.lake import run_lake

        run_lake(as_json=as_json)
        return
    if queue:
        from semel.demo.queue import run_queue

        run_queue(as_json=as_json)
        return
    if kafka:
        from semel.demo.stream import run_stream

        run_stream(as_json=as_json)
        return
    from semel.demo.week import run_week

    run_week(as_json=as_json)
