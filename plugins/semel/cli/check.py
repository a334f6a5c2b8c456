"""`semel check`: do the ledger, Spark, its executors and the folders work as semel needs them?"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from semel import console
from semel.cli import options

if TYPE_CHECKING:
    from semel.spark.check import CheckReport


def check(
    pipeline: Annotated[
        str | None, typer.Argument(help="The pipeline's name; all when left out.")
    ] = None,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Check the ledger, Spark, its executors, folders and topics. Exit 1 when something is wrong.

    Runs a small Spark job that looks at executors: semel, ledger, folders, topics, cache, clock.
    The second table has a line for each executor.

    Example: semel check flights
    """
    from semel import pipeline as pipelines
    from semel.errors import SemelError, SpecError, first_line
    from semel.ledger import Ledger
    from semel.reports.gaps import gaps
    from semel.spark.check import check as look
    from semel.spark.probe import package_versions

    broken = ""
    if pipeline:
        specs = [pipelines.find(pipeline)]
    else:
        specs = pipelines.loadable()
        try:
            pipelines.load_all()
        except SpecError as error:
            broken = first_line(error)

    checkup = look(specs, spark, console.say)
    _airflow(checkup)
    for name, fact, remedy in describe_notify({name for spec in specs for name in spec.notify}):
        checkup.add(f"notify {name}", fact, remedy)
    for spec in (spec for spec in specs if spec.source.upstream):
        with suppress(SemelError), Ledger() as ledger:
            for refusal in gaps(ledger, spec).refusals:
                text = f"{spec.name}: {refusal.name}: {refusal.detail}"
                checkup.add("source", text, f"semel gaps {spec.name}")
    if broken:
        checkup.add("pipelines", broken, "semel validate")

    def render() -> None:
        from rich.text import Text

        table = console.table("", "checked", "found", folded=["found"])
        for check in checkup.checks:
            detail = Text(check.detail + (f"\n-> {check.remedy}" if check.remedy else ""))
            table.add_row("[green]ok[/]" if check.ok else "[red]WRONG[/]", check.name, detail)
        console.show(table)
        show_executors()
        wrong = sum(not check.ok for check in checkup.checks)
        total = len(checkup.checks)
        print(f"{wrong} of {total} checks failed: see the -> lines" if wrong else "all is right")

    def show_executors() -> None:
        driver = package_versions()
        table = console.table(
            "executor", "Spark", "Python", "semel", "ledger", "folders", "clock", "packages",
            folded=["packages"],
        )  # fmt: skip
        for each in checkup.executors:
            ahead = each.ahead_seconds
            others = [
                f"{name} {version or 'missing'}, here {driver[name]}"
                for name, version in each.packages.items()
                if version != driver[name]
            ]
            table.add_row(
                f"{each.host}:{each.process}",
                each.spark,
                each.python,
                each.semel or "missing",
                each.ledger or "-",
                f"{len(each.made)} of {checkup.folders}",
                "-" if ahead is None else f"{ahead:+.2f} s",
                "; ".join(others) or "as here",
            )
        if checkup.executors:
            print()
            console.show(table)

    checks = [{"ok": check.ok, **asdict(check)} for check in checkup.checks]
    payload = {"ok": checkup.ok, "checks": checks, "executors": checkup.executors}
    console.emit(payload, as_json=as_json, render=render)
    if not checkup.ok:
        raise typer.Exit(1)


def _airflow(checkup: "CheckReport") -> None:
    """Check the version of the Airflow in this Python, if it has one."""
    from semel.errors import MissingPackageError, TerminalError

    try:
        from semel.airflow import AIRFLOW_VERSION
    except MissingPackageError:
        return
    except TerminalError as error:
        checkup.add("Airflow", str(error), error.next)
    else:
        checkup.add("Airflow", f"version {AIRFLOW_VERSION}")


def describe_notify(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """For each connection its name, its description as this shell sees it, and the remedy if it is
    faulty.
    """
    from semel.errors import TerminalError

    if not (names := sorted(names)):
        return []
    try:
        from semel.airflow import notify
    except TerminalError as error:  # No Airflow, or an older one than semel needs.
        return [(name, f"not checked: {error}", "") for name in names]
    return [(name, *notify.describe_in_shell(name)) for name in names]
