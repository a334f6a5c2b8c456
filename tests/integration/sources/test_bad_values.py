"""Values at the edges of their types, through all verbs; the audit reads them alike."""

import json

import pytest

from fixtures.batches.account import run, settled
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.audit import audit
from semel.errors import LimitError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.reports import summary
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine
from semel.stage import stage


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


NO_DECIMALS = (
    "1e-41", "1e-61", "1e-77", "1e-999999999", "7e36", "3402823669209384634633746074317682115",
    "1e-99999999999999999999", "1e400",
)  # fmt: skip


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_decimals_that_pyarrow_reads_wrongly(bench: Workbench, ledger: Ledger, form: str) -> None:
    """A number with more digits than its column is a dead letter, whatever exponent it is written
    with. pyarrow's own reader makes zeros of some, other numbers of others, or ends the process.
    """
    texts = [*NO_DECIMALS, "1e2", "1.50e-1", "0e-50", "0e30", "12345678901234.50"]
    source = {"format": form, "path": f"in/*.{form}", "schema": {"id": "int", "n": "decimal(18,2)"}}
    spec = bench.spec(source=source)
    pattern = '{"id": %d, "n": %s}\n' if form == "jsonl" else "%d,%s\n"
    text = "".join(pattern % one for one in enumerate(texts))
    (bench.data / "in" / f"a.{form}").write_text(("id,n\n" if form == "csv" else "") + text)
    run(ledger, spec, "r1")
    found = settled(spec)
    there = {row["id"]: str(row["n"]) for row in found.rows}
    assert not there.keys() & set(range(len(NO_DECIMALS))), there
    good = [there.get(len(NO_DECIMALS) + n) for n in (0, 1, 4)]
    assert good == ["100.00", "0.15", "12345678901234.50"]


SECRET = "jane@example.org"
TOLD = [
    b'{"id": "%b", "n": "%b"}',
    b'{"id": "%b", "at": "%b"}',
    b'{"id": "%b", "%b": 1',
    b'{"id": "%b", "n": 5, "n": 6, "%b": 1}',
]


@pytest.mark.parametrize("line", TOLD)
def test_no_text_of_records_is_told(bench: Workbench, ledger: Ledger, line: bytes) -> None:
    """With log_samples: false neither logs, errors, answers nor the ledger show what records hold.

    They name place and reason; the dead letter keeps the record.
    """
    secret = SECRET.encode()
    bench.write("in/a.jsonl", [line.replace(b"%b", secret)])
    spec = bench.spec(limits={"quarantine_ratio_max": 0.1, "log_samples": False})
    said: list[str] = []
    with pytest.raises(LimitError, match=r"\n\w+ 1: '.*a\.jsonl' line 1 \(byte 0\)\n\w") as caught:
        run_batch(ledger, spec, "r1", LocalEngine(), log=said.append)
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0, "log_samples": False})
    batch = plan(ledger, spec, "r1").batch.batch_id
    staged = stage(ledger, spec, batch, LocalEngine(), said.append)
    said += [str(caught.value), summary.stage(staged)]
    run(ledger, spec, "r1")
    with ledger.engine.connect() as connection:
        for table in ("attempt", "batch", "refusal"):
            rows = connection.exec_driver_sql(f"SELECT to_json(t)::text FROM semel.{table} t")
            said += [row[0] for row in rows]
    assert "byte 0" in str(said) and SECRET not in str(said)
    assert secret in settled(spec).letters[0][3]


def test_no_header_and_no_finding_is_told(bench: Workbench, ledger: Ledger) -> None:
    """A CSV without its header begins with a record; an audit finds records: both stay unshown."""
    source = {"path": "in/*", "format": "csv"}
    spec = bench.spec(source=source, limits={"log_samples": False})
    (bench.data / "in" / "a.csv").write_text(f"{SECRET},1,\n")
    (refused,) = plan(ledger, spec, "r1").refusals
    assert refused.reason == "header" and "3 columns" in refused.detail
    assert SECRET not in refused.detail
    (bench.data / "in" / "a.csv").write_text(f"id,n,at\n{SECRET},1,\n{SECRET},1,\n")
    run(ledger, spec, "r1")
    (path,) = (layout.archive_folder(spec) / "decisions").glob("*.parquet")
    path.unlink()
    verdict = audit(spec)
    assert not verdict.ok and SECRET not in json.dumps(verdict.to_json(), default=str)


def test_no_text_of_a_failed_transform_is_told(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """Spark's words of a value that it cannot cast hold the value: the error's name stays."""
    code = "def cast(frame):\n    return frame.selectExpr(\"CAST(id AS bigint) AS id\")\n"
    (bench.transforms / "casts.py").write_text(code)
    bench.write("in/a.jsonl", [{"id": SECRET}])
    spec = bench.spec(transforms=["casts:cast"], limits={"log_samples": False})
    with pytest.raises(TerminalError, match="CAST_INVALID_INPUT") as caught:
        run(ledger, spec, "r1", engine=spark_engine)
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None


DEEP = b"[" * 500 + b"]" * 500
KINDS: dict[str, tuple[dict[bytes, object], dict[bytes, str]]] = {
    "json": (
        {value: None if value == b"null" else value.decode() for value in (
            b"1", b"1.50", b'"a\\u00e9"', b'{ "x" : [1, null ] ,"x":2}', b"[]", b"true", b"null",
            b'"null"', b'"\xc3\xa9"', b"12345678901234567890.123", DEEP,
        )} | {b'1,"z":NaN': "1"},
        {
            b"NaN": "type_mismatch", b'[{"a":-Infinity}]': "type_mismatch",
            b'1,"v":1': "duplicate_key", b'1,"\\u0076":1': "duplicate_key",
            b'{"v":1},"v":2': "duplicate_key", b"{]}": "malformed",
        },
    ),
    "binary": (
        {b'"QQ=="': b"A", b'"AAECAw=="': b"\0\1\2\3", b'"/+8="': b"\xff\xef", b'""': b""},
        dict.fromkeys(
            (b'"QQ"', b'"QR=="', b'"_-8="', b'"Q Q="', b"65", b"[65]"), "type_mismatch"
        ),
    ),
    "map<string, bigint>": (
        {b'{"a":1,"b":null}': [("a", 1), ("b", None)], b"{}": [], b"null": None},
        {
            b'{"a":1,"a":1}': "duplicate_key", b'{"a":1,"\\u0061":2}': "duplicate_key",
            b'{},"v":{}': "duplicate_key", b'{"a":"1"}': "type_mismatch",
            b'{"a":NaN}': "type_mismatch", b"[1]": "type_mismatch",
        },
    ),
}  # fmt: skip
"""By type: values and what Parquet holds of each; and those that cost their record, by reason."""


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_type(bench: Workbench, ledger: Ledger, kind: str, form: str) -> None:
    """A json value's bytes are in the output as they came; bytes are bytes, and base64 in JSON
    Lines; a map's keys are data, and no unnamed ones. Others are dead letters, as they came.
    """
    good, bad = KINDS[kind]
    unknown = "quarantine" if kind.startswith("map") else "ignore"
    source = {"schema": {"id": "string", "v": kind}, "unknown": unknown}
    spec = bench.spec(source=source, sink={"format": form})
    lines = [b'{"id":"%d","v":%b}' % pair for pair in enumerate(good)]
    rejected = [b'{"id":"x","v":%b}' % value for value in bad]
    bench.write("in/a.jsonl", [*lines, *rejected])
    run(ledger, spec, "r1")
    found = settled(spec)
    told = [(raw, why) for *_, why, raw in found.letters]
    assert told == list(zip(rejected, bad.values(), strict=True))
    rows = {row["id"]: row["v"] for row in found.rows}
    assert len(rows) == len(good)
    for n, (value, expected) in enumerate(good.items()):
        if form == "jsonl" and kind == "binary":
            expected = json.loads(value)
        if form == "parquet" or not kind.startswith("map"):
            assert rows[str(n)] == expected, value


def test_a_json_column_that_is_null(bench: Workbench, ledger: Ledger) -> None:
    """Null is null, also in a block in which nothing is odd."""
    spec = bench.spec(source={"schema": {"id": "string", "p": "json"}})
    bench.write("in/a.jsonl", [b'{"id":"a","p":null}', b'{"id":"b"}', b'{"id":"c","p": "null"}'])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["p"] for row in found.rows] == [None, None, '"null"']
