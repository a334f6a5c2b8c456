"""`semel demo`: the command alone, so that `semel --help` need not load what it does."""

from semel.cli import output


def demo(as_json: output.AsJson = False) -> None:
    """Land a week of real flights, run it through Airflow, and compare with the known truth.

    Each call lands the next week; a call that failed is taken up again. Two pipelines read it: one
    writes each flight once, one counts by day into a table. Exit 1 when a number or an audit is
    not right.

    Example: semel demo
    """
    from semel.demo.week import run_week

    run_week(as_json=as_json)
