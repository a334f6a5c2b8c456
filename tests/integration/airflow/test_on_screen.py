"""What commands show on a terminal and in a pipe: each number whole, and true."""

import sys

import pytest
from rich.console import Console

from fixtures.batches.account import quiet, run
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from semel import console
from semel.cli import main
from semel.commit import commit
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.reports.code_versions import outputs_by_code
from semel.stage import stage


@pytest.mark.parametrize("width", [None, 80, 40], ids=["pipe", "80", "40"])
def test_no_number_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    """A table has each number whole, however narrow the terminal is; in a pipe a row is a line."""
    narrow = Console(force_terminal=width is not None, width=width or 80, color_system=None)
    monkeypatch.setattr(console, "result", narrow)
    monkeypatch.setattr(narrow, "_file", sys.stdout)
    numbers = [f"{10**n * 3 + 213:,}" for n in range(5, 12)]
    names = [f"column{n}" for n in range(len(numbers))]
    table = console.table("pipeline", *names, "request", numbers=names, folded=["request"])
    request = "scheduled__2026-01-01T00:00:00+00:00 (replaced by 12; judges dead letters of 4)"
    table.add_row("flights", *numbers, request)
    console.show(table)
    shown = capsys.readouterr().out
    assert all(number in shown.split() for number in numbers), shown
    assert "…" not in shown and request.replace(" ", "") in "".join(shown.split()).partition(
        numbers[-1]
    )[2], shown
    if width is None:
        assert len(shown.splitlines()) == 2 and shown.splitlines()[1].split()[0] == "flights"


def test_what_one_code_made_is_named_exactly(
    bench: Workbench, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """`batches --made-by` names every batch in its ranges, in whatever order they committed: who
    replays the ranges leaves none out."""
    spec = bench.spec()
    planned = []
    for n in range(3):
        bench.write(f"in/{n}.jsonl", [{"id": f"{n}", "n": n}])
        planned.append(plan(ledger, spec, f"r{n}").batch.batch_id)
    for batch in (planned[1], planned[0], planned[2]):
        stage(ledger, spec, batch, LocalEngine(), log=quiet)
        commit(ledger, spec, batch, quiet)
        finalize(ledger, spec, batch)
    bench.write("in/x.jsonl", [{"id": "x", "n": 1}])
    run(ledger, spec, "r9")
    (made,) = outputs_by_code(ledger, spec)
    assert made.runs == ((planned[0], planned[2] + 1),)
    assert main(["batches", spec.name, "--made-by"]) == 0
    assert f"4 batches: {planned[0]} to {planned[2] + 1}\n" in capsys.readouterr().out


def test_a_batch_is_a_line_of_a_terminal(
    bench: Workbench, ledger: Ledger, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 80 columns too: the run's long name is cut there, and whole in a pipe; what all batches
    have in common takes no column.
    """
    spec = bench.spec()
    key = f"airflow:{spec.name}:scheduled__2026-01-01T00:00:00+00:00_{'x' * 60}"
    for n in range(3):
        bench.write(f"in/{n}.jsonl", [{"id": f"{n}", "n": n}])
        run(ledger, spec, f"{key}{n}")
    assert main(["batches", spec.name]) == 0
    header, newest, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == "batch state read new repeats set aside run".split()
    assert newest.split()[-1] == f"{key}2".removeprefix(f"airflow:{spec.name}:")
    screen = Console(force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(console, "result", screen)
    monkeypatch.setattr(screen, "_file", sys.stdout)
    assert main(["batches", spec.name]) == main(["batches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and max(map(len, lines)) <= 80 and lines[1].endswith("…"), lines
