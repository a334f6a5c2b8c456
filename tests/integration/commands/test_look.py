"""audit, find, gaps, batches and show on what the verbs really wrote."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import first_batch, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from semel.audit import audit
from semel.ledger import Ledger
from semel.plan import plan
from semel.reports.gaps import GapReason, gaps

ODD = [
    b"{not json", b'{"id": "e1", "n": "text"}', b'{"n": 1}', b"", b'{"id": null}', b"\xff\xfe",
    b'{"id": "odd", "n": 1, "x": [1, {"y": NaN}]}\r', b'{"id": "odd", "n": 2}',
    b'{"id": "a", "id": "b"}',
]  # fmt: skip

CASES = {
    "plain": {},
    "jsonl": {"sink": {"format": "jsonl"}},
    "partitioned": {"sink": {"partition_by": ["n"], "position_columns": True}},
    "windows": {
        "sink": {
            "partition_by": [{"window": "1 day", "of": "at", "name": "day", "zone": "Asia/Tokyo"}],
            "shards": 2,
        }
    },
    "position": {"record_id": None, "sink": {"position_columns": True}},
    "counts": {"record_id": None},
    "two columns": {"record_id": ["id", "at"]},
    "bucket": {"record_time": "at", "dedup": {"scope": "bucket"}},
}


# Attacks L6.
@pytest.mark.parametrize("case", CASES)
def test_audit_passes_on_what_semel_wrote(case: str, bench: Workbench, ledger: Ledger) -> None:
    """Two batches with repeats and bad input pass in every form; a row removed fails them."""
    spec = first_batch(bench, ledger, [*events(0, 300), *ODD, *events(0, 10)], **CASES[case])
    bench.write("in/a.jsonl", [*events(250, 400), *ODD], mode="ab")
    bench.write("in/b.jsonl", [*events(390, 420), *ODD])
    run(ledger, spec, "r2")
    verdict = audit(spec)
    assert [c for c in verdict.checks if not c.ok] == []
    assert verdict.totals.records_read == 300 + 10 + 150 + 30 + 3 * (len(ODD) - 1)
    victim = next(spec.sink_path().rglob(f"events-*.{spec.sink.format}"))
    if victim.suffix == ".parquet":
        pq.write_table(pq.read_table(victim, partitioning=None).slice(1), victim)
    else:
        victim.write_bytes(victim.read_bytes().split(b"\n", 1)[1])
    assert not audit(spec).ok


def test_audit_of_csv_and_gzip(bench: Workbench, ledger: Ledger) -> None:
    """CSV with quotes and bad lines, whole lines in gzip: the audit passes on both."""
    spec = bench.spec(
        source={"path": "in/*", "format": "csv", "closed_after": "0 s"},
        sink={"position_columns": True},
    )
    lines = [b"at,id,n", b'2026-01-01T00:00:00+02:00,"a,""b",1', b",x", b",,5", b',"",7', b",c,1.5"]
    bench.write("in/a.csv", [*lines, b",d,2\r", b",d,2", b',"open,3'])
    bench.write("in/b.csv", [b"n,id,at", b"1,a,", b"2,d,", b"3,e,soon"])
    path = bench.write("in/c", lines)
    (bench.data / "in" / "c.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    done = run(ledger, spec, "r1")
    verdict = audit(spec)
    assert [c for c in verdict.checks if not c.ok] == []
    assert (verdict.totals.survivors, done.plan.refusals) == (4, ())


# Attacks P6, P13.
def test_gaps(bench: Workbench, ledger: Ledger) -> None:
    """What is unclaimed, planned, waiting or refused is listed; a finalized source has no gap."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    size = path.stat().st_size
    (gap,) = gaps(ledger, spec).gaps
    assert (gap.start, gap.end, gap.state) == (0, size, GapReason.UNCLAIMED)
    assert gaps(ledger, spec).idle
    batch = plan(ledger, spec, "r1").batch
    (gap,) = gaps(ledger, spec).gaps
    assert (gap.end, gap.state, gap.batch_id) == (size, GapReason.PLANNED, batch.batch_id)
    assert not gap.silent
    assert not gaps(ledger, spec).idle
    run(ledger, spec, "r1")
    assert gaps(ledger, spec).gaps == ()
    with path.open("ab") as file:
        file.write(b'{"id": "half')
    (gap,) = gaps(ledger, spec).gaps
    assert (gap.start, gap.end, gap.state, gap.idle) == (size, size + 12, GapReason.WAITING, False)
    (bench.data / "in" / "out.jsonl").symlink_to("/etc/hostname")
    found = gaps(ledger, spec)
    assert [r.reason for r in found.refusals] == ["symlink"] and found.idle


def test_gaps_say_what_takes_a_late_file(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """A file of a day whose run is over is told with the commands that take it; one of today,
    which the schedule takes, is not. The printed interval takes all of it.
    """
    source = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source, schedule="0 0 * * *")
    first = datetime(2026, 1, 1, tzinfo=UTC)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    run(ledger, spec, "r1", interval=(first, first + timedelta(days=1)))
    today = bench.write(f"in/{datetime.now(UTC):%F}.jsonl", events(90, 95))
    assert "next:" not in shell.runs("semel gaps events", code=1)

    bench.write("in/2026-01-01.jsonl", events(10, 20), mode="ab")
    bench.write("in/2026-01-03.jsonl", events(20, 30))
    said = shell.runs("semel gaps events", code=1).splitlines()
    assert said[-4].startswith("past days have records that came after their run")
    assert said[-3] == (
        "next: airflow backfill create --dag-id events --from-date 2026-01-01T00:00:00+00:00 "
        "--to-date 2026-01-03T23:59:59+00:00 --reprocess-behavior completed --dag-run-conf '{}'"
    )
    words = said[-1].removeprefix("next: semel run events --interval ").split()
    ends = tuple(datetime.fromisoformat(word).replace(tzinfo=UTC) for word in words)
    run(ledger, spec, "r2", interval=ends)
    assert [gap.name for gap in gaps(ledger, spec).gaps] == [str(today)]


def test_find_says_how_many_files_hold_what_is_not_finalized(
    bench: Workbench, ledger: Ledger, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of gaps: a file with a new life counts, and one of which a part is lost does
    not. Without its ledger it says so, and what is finalized is found all the same.
    """
    spec = bench.spec()

    def said(identity: str) -> str:
        return shell.runs(f"semel find events {identity}")

    bench.write("in/a.jsonl", events(0, 10))
    bench.write("in/hole.jsonl", [b"\0" * 4096 + json.dumps(events(10, 11)[0]).encode()])
    run(ledger, spec, "r1")
    assert "0 source files have records that are not finalized" in said("nope")
    bench.write("in/a.jsonl", [])
    run(ledger, spec, "r2")
    path = bench.write("in/a.jsonl", events(20, 30))
    assert "1 source file has records that are not finalized" in said("nope")
    plan(ledger, spec, "r3")
    path.with_name("b.jsonl").symlink_to(path)
    assert "2 source files have records that are not finalized" in said("nope")
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert said("e000005").startswith("output: batch 1")
    assert "not in any of 1 finalized batches; the ledger does not answer, so the source" in said(
        "nope"
    )


def test_commands(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Each command answers in words and as one JSON object, with its exit code."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", [*events(0, 10), *events(0, 1)])
    batch = run(ledger, spec, "r[1]").plan.batch.batch_id
    said = {}
    for words in (
        "batches", "batches events", f"show {batch}", "gaps events", "find events e000000",
        "find events nope", "audit events",
    ):  # fmt: skip
        said[words] = shell.runs(f"semel {words}")
        assert isinstance(shell.answers(f"semel {words}"), dict)
    assert "r[1]" in said["batches"] and "finalized" in said["batches events"]
    assert repr(str(path)) in said[f"show {batch}"]
    assert "duplicate_in_batch: batch" in said["find events e000000"]
    assert "not in any of 1 finalized batches" in said["find events nope"]
    assert "passed" in said["audit events"]
    bench.write("in/b.jsonl", events(0, 1))
    shell.runs("semel gaps events", code=1)
    next(spec.sink_path().glob("*.parquet")).unlink()
    assert "FAILED" in shell.runs("semel audit events", code=1)
    shell.runs("semel show 999", code=1)
    shell.runs("semel audit nope", code=2)
