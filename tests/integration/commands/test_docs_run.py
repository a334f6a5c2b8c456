"""Each command of the README and of three pages is run as printed, on a pipeline with batches."""

import pytest

from fixtures.batches.account import committed, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.documents import FILLED, ROOT, commands, words_of
from semel.cli import main
from semel.ledger import Ledger
from semel.plan import plan

OF_THE_STACK = {"up", "down", "status", "demo", "check", "new"}
"""They start processes, or read a file of the user's own; other tests run them."""

LINES = sorted(
    {
        line
        for page in ("README.md", "docs/operations.md", "docs/postgres.md", "docs/files.md")
        for line in commands(ROOT / page)
        if len(words_of(line)) > 2 and words_of(line)[1] not in OF_THE_STACK
    }
)

BATCH = int(FILLED["BATCH"])


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_page(
    line: str, bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """It does its work, or says what is in the way and what to do next; it is never a defect."""
    monkeypatch.chdir(bench.data)
    spec = bench.spec("flights")
    for number in range(3):
        bench.write("in/a.jsonl", events(number, number + 1), mode="ab")
        run(ledger, spec, f"r{number}")
    with ledger.transaction() as connection:  # As if there had been more of them.
        numbers = "pg_get_serial_sequence('semel.batch', 'batch_id')"
        connection.exec_driver_sql(f"SELECT setval({numbers}, {BATCH - 2})")
    bench.write("in/b.jsonl", events(100, 110))
    committed(ledger, spec, "r15")
    bench.write("in/c.jsonl", events(110, 120))
    assert plan(ledger, spec, "r16").batch.batch_id == BATCH
    code = main(words_of(line)[1:])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    assert "defect" not in err
    if code and err:
        assert err.splitlines()[-1].startswith("next: "), err
    else:
        assert out
