"""`semel new` on files as they come: other encodings, other numbers and days, ids beside bad rows."""

import gzip
import json
import subprocess

import pytest
import yaml

from fixtures.batches.workbench import Workbench
from semel import cli


def drafted(bench: Workbench, content: bytes, capsys, name: str = "a.csv") -> tuple[dict, str]:
    """The declaration that `semel new` writes, and what it says."""
    path = bench.data / "in" / name
    path.write_bytes(content)
    assert cli.main(["new", "orders", str(path), "--yes"]) == 0
    said = capsys.readouterr().out
    return yaml.safe_load((bench.pipelines / "orders.yaml").read_text()), said


@pytest.mark.parametrize("where", ["header", "rows"])
@pytest.mark.parametrize("packed", [False, True])
def test_another_encoding_is_named_and_converted(
    where: str, packed: bool, bench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the message, typed as it stands, makes a file of it that semel reads."""
    names = "id,städte\n" if where == "header" else "id,town\n"
    text = names + "".join(f"{n},Köln “{n}”\n" for n in range(40))
    path = bench.data / "in" / ("my a.csv" + (".gz" if packed else ""))
    content = text.encode("cp1252")
    path.write_bytes(gzip.compress(content) if packed else content)
    words = ["new", "orders", str(path), "--yes"]
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert "is not UTF-8, but probably WINDOWS-1252. Convert it" in said
    subprocess.run(said.split("`")[1], shell=True, check=True)
    assert cli.main(words) == 0, capsys.readouterr().err


FOREIGN = {
    "12,50": "numbers with a comma",
    "1.234,5": "numbers with a comma",
    "31.03.2026": "days as dd.mm.yyyy",
    "3/31/2026": "days with slashes",
    "1,234": "",
    "x": "",
}


@pytest.mark.parametrize(("value", "hint"), FOREIGN.items())
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_numbers_and_days_that_become_text(
    form: str, value: str, hint: str, bench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are told, on the screen and in the file, with what reads them; plain text is not."""
    rows = [{"id": f"a{n}", "v": value} for n in range(30)]
    lines = [json.dumps(row) for row in rows]
    if form == "csv":
        lines = ["id;v", *(f"{row['id']};{row['v']}" for row in rows)]
    made, said = drafted(bench, "\n".join([*lines, ""]).encode(), capsys, f"a.{form}")
    assert made["source"]["schema"]["v"] == "string"
    assert ("text here; convert it in a transform" in said) is bool(hint) and hint in said
    assert hint in (bench.pipelines / "orders.yaml").read_text()


@pytest.mark.parametrize(
    "bad", [["n/a,1", "n/a,2"], ["107,n/a", "107,x"]], ids=["bad ids", "bad rows"]
)
def test_an_id_beside_rows_that_are_quarantined(
    bad: list[str], bench: Workbench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows whose values do not fit are set aside, so that what repeats in them is no repeated id."""
    rows = [f"{n},{n * 3}" for n in range(100, 300)] + bad
    made, _ = drafted(bench, "\n".join(["id,n", *rows, ""]).encode(), capsys)
    assert made["record_id"] == ["id"]
    assert made["source"]["schema"] == {"id": "bigint", "n": "bigint"}


def test_a_name_that_is_nearly_right(bench: Workbench, capsys: pytest.CaptureFixture[str]) -> None:
    """`order` for `orders`: what was meant, and the same command with it; else no odd advice."""
    bench.spec("orders")
    assert cli.main(["find", "order", "x"]) == 2
    *_, said, step = capsys.readouterr().err.splitlines()
    assert "did you mean orders?" in said and step == "next: semel find orders x"
    assert cli.main(step.split()[2:]) == 0
    capsys.readouterr()
    assert cli.main(["find", "visits", "x"]) == 2
    *_, said, step = capsys.readouterr().err.splitlines()
    assert "there are: orders" in said and step == "next: semel batches"
    (bench.pipelines / "orders.yaml").unlink()
    assert cli.main(["find", "visits", "x"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "next: semel new --help"
