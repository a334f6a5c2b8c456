"""From a CSV that nobody has seen to its rows: `semel new`, and the commands that it prints."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import Shell
from semel.ledger import Ledger
from semel.reader import dataset

DAY = "\r\n".join(
    [
        "\ufeffOrder ID;Customer;Postal code;Amount;Placed at;Day;Gift;Note",
        'A-{n}1;17;01067;12.50;2024-03-0{n}T09:15:00+01:00;2024-03-0{n};true;"Müller; ""first"""',
        "A-{n}2;18;10115;7;2024-03-0{n} 10:00:00;2024-03-0{n};FALSE;",
        "A-{n}2;18;10115;7;2024-03-0{n} 10:00:00;2024-03-0{n};FALSE;",
        "",
    ]
)
BAD = "A-99;n/a;80331;1.00;2024-03-02 11:00:00;2024-03-02;true;\r\n"
MORE = "".join(
    f"B-{i};{i};0{i};{i}.25;2024-03-02 12:00:00;2024-03-02;false;more\r\n"
    for i in range(2000, 2030)
)


def expected(n: int) -> list[dict]:
    """The two orders of a day."""
    return [
        {
            "Order ID": f"A-{n}1", "Customer": 17, "Postal code": "01067",
            "Amount": Decimal("12.50"), "Placed at": datetime(2024, 3, n, 8, 15, tzinfo=UTC),
            "Day": date(2024, 3, n), "Gift": True, "Note": 'Müller; "first"',
        },
        {
            "Order ID": f"A-{n}2", "Customer": 18, "Postal code": "10115",
            "Amount": Decimal("7.00"), "Placed at": datetime(2024, 3, n, 10, tzinfo=UTC),
            "Day": date(2024, 3, n), "Gift": False, "Note": None,
        },
    ]  # fmt: skip


def test_first_data_of_an_unseen_csv(
    bench: Workbench, ledger: Ledger, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value arrives as it is meant, repeats once, and the record that does not fit is a dead
    letter, as `semel new` said. A file that was no sample comes in by the same pattern."""
    for n in (1, 2):
        text = DAY.format(n=n) + (BAD + MORE if n == 2 else "")
        (bench.data / "in" / f"orders_2024030{n}.csv").write_text(text, newline="")
    (bench.data / "in" / "orders_20240303.csv").write_text(DAY.format(n=3), newline="")
    monkeypatch.chdir(bench.folder)
    samples = "data/in/orders_20240301.csv data/in/orders_20240302.csv"
    text = shell.runs(f"semel new orders {samples} --yes")
    said = [line.strip() for line in text.splitlines()]
    assert said[1].startswith("37 records, 1 quarantined (type_mismatch 1), such as:")
    commands = said[said.index("next:") + 1 : said.index("next:") + 3]
    assert commands == [
        "semel validate pipelines/orders.yaml",
        "semel run orders --interval 2024-03-01 2024-03-04",
    ]
    for command in commands:
        shell.runs(command)
    rows = dataset(bench.data / "out" / "orders").to_table().to_pylist()
    first = [row for row in rows if row["Order ID"].startswith("A-")]
    assert sorted(first, key=lambda row: row["Order ID"]) == [
        row for n in (1, 2, 3) for row in expected(n)
    ]
    assert sorted(row["Postal code"] for row in rows if row["Order ID"].startswith("B-")) == [
        f"0{i}" for i in range(2000, 2030)
    ]
    assert len(rows) == 6 + 30
