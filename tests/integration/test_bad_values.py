"""Values at the edges of their types, through all verbs; the audit reads them alike."""

from fix_account import settled
from fix_pipelines import Workbench
from test_bad_records import run

from semel.ledger import Ledger


def test_times_of_nine_digits_are_cut(bench: Workbench, ledger: Ledger) -> None:
    """Java, Go and .NET write them. In any mix they are cut; the audit reads them so too."""
    spec = bench.spec()
    times = ["00.123456789Z", "00.1234567Z", "00.9999999", "00.1234569+00:00", "00.5Z", "00Z"]
    lines = [{"id": f"{n}", "at": f"2026-01-01T00:00:{end}"} for n, end in enumerate(times)]
    bench.write("in/a.jsonl", lines)
    run(ledger, spec, "r1")
    found = settled(spec)
    rows = {row["id"]: row["at"].microsecond for row in found.rows}
    assert [rows[f"{n}"] for n in range(6)] == [123456, 123456, 999999, 123456, 500000, 0]


def test_a_time_that_identifies_loses_no_digits(bench: Workbench, ledger: Ledger) -> None:
    """Two moments less than a microsecond apart would be one id: they are set aside.

    Digits that are zeros are none to lose.
    """
    spec = bench.spec(record_id=["id", "at"])
    ends = ["00.123456789Z", "00.123456000Z", "00.1234560001Z"]
    lines = [{"id": "a", "at": f"2026-01-01T00:00:{end}"} for end in ends]
    bench.write("in/a.jsonl", lines)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.reasons == {"type_mismatch": 2} and len(found.rows) == 1
    source = {"path": "csv/*", "format": "csv"}
    spec = bench.spec("other", source=source, record_id=["id", "at"], sink={"path": "out/other"})
    (bench.data / "csv").mkdir()
    text = "".join(f"a,1,2026-01-01T00:00:{end}\n" for end in ends)
    (bench.data / "csv" / "a.csv").write_text("id,n,at\n" + text)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.reasons == {"type_mismatch": 2} and len(found.rows) == 1
