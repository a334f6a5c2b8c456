"""The audit against a sink that an honest toy wrote: it passes, and each break of it is told."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_sink import HonestSink
from semel import limits
from semel.audit import Verdict, audit
from semel.audit.exact import Rules, Word, json_judge


def broken(verdict: Verdict) -> set[str]:
    """The names of the checks that failed."""
    assert verdict.ok == all(check.ok for check in verdict.checks)
    return {check.name for check in verdict.checks if not check.ok}


def test_a_marker_is_judged_by_the_rules_of_its_time(tmp_path):
    """What was quarantined by its batch's rules is right for ever, and so is what was taken."""
    line = {"id": "x", "n": 1, "at": "2024-01-01T00:00:00.123456789Z"}
    for rules in (1, 2):
        (tmp_path / str(rules)).mkdir()
        made = HonestSink(tmp_path / str(rules))
        made.rules = rules
        made.land("a.jsonl", {"id": "y", "n": 1, "at": None}, line)
        made.batch()
        verdict = audit(made.spec, made.path)
        assert verdict.ok and verdict.totals.quarantined == 2 - rules
        content = made.marker(1)
        content.pop("parser_rules", None)
        made.rewrite_marker(1, content | ({"parser_rules": 2} if rules == 1 else {}))
        assert broken(audit(made.spec, made.path))


def offender(verdict: Verdict, name: str):
    """The first offender of a check."""
    return next(check.offenders[0] for check in verdict.checks if check.name == name)


@pytest.fixture
def sink(tmp_path: Path) -> HonestSink:
    return filled(tmp_path)


def filled(folder: Path, **changes) -> HonestSink:
    """Two batches with a duplicate of each kind and dead letters of two reasons."""
    made = HonestSink(folder, **changes)
    made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 2}, b"{broken", {"id": "1", "n": 9})
    made.batch()
    made.land("a.jsonl", {"id": "2"}, {"id": "3", "n": 3}, {"n": 4})
    made.land("b.jsonl", {"id": "4", "at": "2024-01-01T00:00:00Z"}, b"", {"id": "3"})
    made.batch()
    return made


@pytest.mark.parametrize(
    ("changes", "proved_by"),
    [
        ({}, "record id"),
        ({"sink__partition_by": ["n"]}, "record id"),
        ({"sink__format": "jsonl"}, "record id"),
        ({"record_id": [], "sink__position_columns": True}, "position"),
        ({"record_id": []}, "the markers' counts and checksums"),
    ],
)
def test_honest_sink_passes(tmp_path, changes, proved_by):
    """An honest sink passes whatever its form, and the verdict says by what it was proved."""
    verdict = audit((made := filled(tmp_path, **changes)).spec, made.path)
    assert broken(verdict) == set()
    assert verdict.proved_by == proved_by
    assert verdict.batches == 2
    assert verdict.totals.records_read == 9
    assert verdict.totals.survivors == (4 if made.spec.record_id else 8)


def test_empty_sink_says_so(tmp_path):
    """Without a marker there is nothing to prove, which is no failure."""
    made = HonestSink(tmp_path)
    verdict = audit(made.spec, made.path)
    assert (verdict.ok, verdict.batches) == (True, 0)
    assert verdict.notes == ("no batch has been finalized here",)


def test_several_id_columns(tmp_path):
    """Ids of several columns meet across JSON, Parquet, decisions and folders of partitions."""
    made = HonestSink(tmp_path, record_id=["id", "n"], sink__partition_by=["id"])
    made.land("a.jsonl", {"id": "x", "n": 1}, {"id": "x", "n": 1}, {"id": "x", "n": 2})
    made.land("a.jsonl", {"id": "a/\u00e9 [", "n": 1}, {"id": "x"})
    made.batch()
    assert broken(audit(made.spec, made.path)) == set()
    made.rewrite(1, "data", lambda t: t.slice(0, t.num_rows - 1), at=1)
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"output", "sums"}
    assert offender(verdict, "output").id == '["x","2"]'


def test_removed_row(sink):
    """A row removed from the output is named, also when file, checksum and rows agree."""
    sink.rewrite(1, "data", lambda table: table.slice(1))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output", "sums"}
    found = offender(verdict, "output")
    assert (found.id, found.batch, found.offset) == ("1", 1, 0)
    assert found.file.endswith("a.jsonl")


def test_row_twice(sink):
    """A record that is in the output twice is named."""
    sink.rewrite(1, "data", lambda table: pa.concat_tables([table, table.slice(1)]))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output", "sums"}
    assert offender(verdict, "output").id == "2"


def test_removed_row_without_ids(tmp_path):
    """By content, where neither id nor position reach the output, a swapped row is found."""
    made = filled(tmp_path, record_id=[])
    made.rewrite(1, "data", lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]))
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"output"}
    assert offender(verdict, "output").offset == 0


def test_row_of_a_stranger(sink):
    """A row whose id no record has is named, with its file."""
    sink.rewrite(2, "data", lambda t: t.set_column(0, "id", pa.array(["3", "9"])))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output"}
    assert {o.id for c in verdict.checks for o in c.offenders} == {"4", "9"}


def test_other_values(sink):
    """A row that has its id but not its record's values is named."""
    sink.rewrite(1, "data", lambda t: t.set_column(1, "n", pa.array([1, 3], pa.int64())))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"content"}
    assert offender(verdict, "content").id == "2"


def test_doubled_file(sink):
    """A copy of a listed file under another name is a stray."""
    (data,) = sink.path.glob("*b00000001-*")
    shutil.copy(data, data.with_name("clicks-b00000009-00000.parquet"))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"strays"}
    assert offender(verdict, "strays").file == str(sink.path / "clicks-b00000009-00000.parquet")


def test_edited_file(sink):
    """One changed byte, with the same size, is found by the checksum."""
    (data,) = sink.path.glob("*b00000001-*")
    content = bytearray(data.read_bytes())
    content[6] ^= 1
    data.write_bytes(content)
    assert "files" in broken(audit(sink.spec, sink.path))


@pytest.mark.parametrize("kind", ["data", "decisions", "dead_letters"])
def test_missing_file(sink, kind):
    """A listed file that is gone is named, and so are the records that it held."""
    entry = next(file for file in sink.marker(1)["files"] if file["kind"] == kind)
    (sink.root_of(entry["kind"]) / entry["path"]).unlink()
    verdict = audit(sink.spec, sink.path)
    assert {"files", "sums"} < broken(verdict)
    assert offender(verdict, "files").file == str(sink.root_of(entry["kind"]) / entry["path"])


def test_missing_dead_letter(sink):
    """A bad line that is in no dead letter counts as a survivor, and is told."""
    sink.rewrite(1, "dead_letters", lambda table: table.slice(1))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"records", "output", "sums"}
    assert "no record" in offender(verdict, "records").what


def test_valid_record_as_dead_letter(tmp_path):
    """A valid record may not be put away as malformed, nor as one without id."""
    for reason in ("malformed", "id_missing", "late", "invented"):
        (tmp_path / reason).mkdir()
        made = HonestSink(tmp_path / reason)
        good = {"id": "1", "n": 1, "at": None}
        made._parse = lambda raw, at, why=reason, good=good: why if b"2" in raw else good
        made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 1})
        made.batch()
        verdict = audit(made.spec, made.path)
        assert broken(verdict) == {"dead letters"} | ({"sums"} if reason == "late" else set())
        assert offender(verdict, "dead letters").id == "2"


def test_dead_letter_with_other_bytes(sink):
    """A dead letter keeps the record as the source has it."""
    other = pa.array([b"{brokem"])
    sink.rewrite(1, "dead_letters", lambda t: t.set_column(5, "raw", other))
    assert broken(audit(sink.spec, sink.path)) == {"dead letters"}


@pytest.mark.parametrize("number", [1, 2])
def test_decision_without_survivor(sink, number):
    """A duplicate whose first record does not survive is told, for both reasons."""
    other = "duplicate_in_catalog" if number == 1 else "duplicate_in_batch"
    sink.rewrite(
        number,
        "decisions",
        lambda t: t.set_column(2, "reason", pa.array([other] * t.num_rows)),
    )
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"decisions", "sums"}
    assert other in offender(verdict, "decisions").what


def test_decision_with_another_id(sink):
    """The id is read from the source, so a decision cannot lie about it."""
    ids = pa.array([{"id": "2"}])
    sink.rewrite(1, "decisions", lambda t: t.set_column(3, "record_id", ids))
    assert broken(audit(sink.spec, sink.path)) == {"decisions"}


def test_position_that_is_no_record(sink):
    """Decisions may only name places where a claimed record begins, and each once."""
    sink.rewrite(1, "decisions", lambda t: t.set_column(1, "offset", pa.array([1])))
    assert "accounted" in broken(audit(sink.spec, sink.path))
    sink.rewrite(2, "decisions", lambda t: pa.concat_tables([t, t.slice(1)]))
    assert "accounted" in broken(audit(sink.spec, sink.path))


@pytest.mark.parametrize("number", [1, 2])
def test_marker_removed(sink, number):
    """Without its marker, a batch's files are strays, and its place among the commits is empty."""
    sink.marker_path(number).unlink()
    verdict = audit(sink.spec, sink.path)
    assert "strays" in broken(verdict)
    assert number == 2 or "markers" in broken(verdict)


def test_marker_damaged(sink):
    """A marker that cannot be read is told, and does not stop the audit."""
    sink.marker_path(2).write_text("{")
    assert {"markers", "strays"} <= broken(audit(sink.spec, sink.path))


def test_file_listed_twice(sink):
    """Two markers that list one file are told."""
    content = sink.marker(2)
    content["files"].append(sink.marker(1)["files"][0])
    sink.rewrite_marker(2, content)
    assert "files" in broken(audit(sink.spec, sink.path))


def test_claims_overlap(sink):
    """A byte that two batches claim is told."""
    content = sink.marker(2)
    content["claims"][0]["start"] -= 1
    sink.rewrite_marker(2, content)
    assert "claims" in broken(audit(sink.spec, sink.path))


def test_source_line_that_is_nowhere(sink):
    """A line within the claimed range that is neither written, decided nor put away is told."""
    path = sink.source / "a.jsonl"
    content = sink.marker(2)
    sink.land("a.jsonl", {"id": "lost"})
    data = path.read_bytes()
    content["claims"][0]["end"] = len(data)
    content["claims"][0]["evidence"]["tail_hash"] = xxhash.xxh3_128_hexdigest(data[-4096:])
    sink.rewrite_marker(2, content)
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output", "sums"}
    assert offender(verdict, "output").id == "lost"


def test_id_survives_twice(tmp_path):
    """An id that two batches wrote is told; beyond the horizon it is a new record."""
    for name, horizon in (("short", "30 minutes"), ("long", "30 days")):
        (tmp_path / name).mkdir()
        made = HonestSink(tmp_path / name, dedup__horizon=horizon)
        for _ in range(2):
            made.land("a.jsonl", {"id": "1"})
            made._ids.clear()
            made.batch()
        assert broken(audit(made.spec, made.path)) == ({"ids"} if name == "long" else set())


def test_source_renamed_and_lost(sink):
    """A rotated file is found by its bytes; one that is gone or edited cannot be proven."""
    path = sink.source / "b.jsonl"
    path.rename(sink.source / "b.jsonl.1")
    (sink.source / "b.jsonl").write_bytes(b'{"id": "new"}\n')
    assert broken(audit(sink.spec, sink.path)) == set()
    shutil.copy(sink.source / "b.jsonl.1", sink.source / "copy")
    os.unlink(sink.source / "b.jsonl.1")
    assert broken(audit(sink.spec, sink.path)) == set()
    os.unlink(sink.source / "copy")
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"source"}
    assert "cannot be proven" in offender(verdict, "source").what


@pytest.mark.parametrize("keep", [lambda row: row["id"] != "2", lambda row: True])
def test_transformed(tmp_path, keep):
    """A transform may filter rows, which the count must show; a row twice is told all the same."""
    made = HonestSink(tmp_path, transforms=["mod:fun"])
    made.land("a.jsonl", {"id": "1"}, {"id": "2"}, {"id": "3"}, {"id": "2"})
    made.batch(keep)
    assert broken(audit(made.spec, made.path)) == set()
    made.rewrite(1, "data", lambda t: pa.concat_tables([t.slice(0, 1), t.slice(0, t.num_rows - 1)]))
    assert broken(audit(made.spec, made.path)) == {"output"}
    made.rewrite(1, "data", lambda t: t.slice(1))
    assert broken(audit(made.spec, made.path)) == {"sums"}


def test_bucket_scope(tmp_path):
    """In scope bucket an id may come back in another bucket of record time, not in the same."""
    made = HonestSink(
        tmp_path, record_time="at", dedup={"scope": "bucket", "horizon": "32 days"}
    )
    made.land("a.jsonl", {"id": "1", "at": "2024-01-01T00:00:00Z"})
    made.batch()
    for at, expected in (("2024-01-02T00:00:00Z", set()), ("2024-01-01T23:00:00Z", {"ids"})):
        made.land("a.jsonl", {"id": "1", "at": at})
        made._ids.clear()
        made.batch()
        assert broken(audit(made.spec, made.path)) == expected


LINES = st.one_of(
    st.sampled_from([b"", b" ", b"{", b"null", b"[]", b'{"id":1}', b'{"id":"a","n":1.5}', b"\xff",
                     b'{"id":"a","n":1}{"id":"b"}', b'{"id":"a",}', b'{"id":"a","id":"b"}']),
    st.builds(
        lambda ident, n: json.dumps({"id": ident, "n": n}).encode(),
        st.one_of(st.none(), st.sampled_from("abcdef"), st.text(max_size=3)),
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    ),
)  # fmt: skip


@pytest.mark.rest
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.lists(LINES, min_size=1, max_size=12), min_size=1, max_size=3),
    lost=st.integers(0, 10),
)
def test_simulated(batches, lost):
    """Any honest history passes; the same history with any one output row removed does not."""
    with tempfile.TemporaryDirectory() as folder:
        made = HonestSink(Path(folder))
        judge = json_judge(made.spec.column_types(), Rules(number=made.rules))
        honest = made._parse

        def parsed(raw, position):
            bad = raw.strip() and judge(raw).word is Word.BAD
            return "malformed" if bad else honest(raw, position)

        made._parse = parsed
        for lines in batches:
            made.land("a.jsonl", *[line for line in lines if b"\xed" not in line])
            made.batch()
        assert broken(audit(made.spec, made.path)) == set()
        number = lost % made.batches + 1
        entries = [file for file in made.marker(number)["files"] if file["kind"] == "data"]
        if entries:
            rows = entries[0]["records"]
            gone = pc.not_equal(pa.array(range(rows)), lost % rows)
            made.rewrite(number, "data", lambda table: table.filter(gone))
            assert "output" in broken(audit(made.spec, made.path))


def test_chunks_do_not_matter(sink, monkeypatch):
    """The verdict does not depend on where the source is cut into chunks."""
    for size in (1, 7, 64):
        monkeypatch.setattr(limits, "AUDIT_CHUNK_BYTES", size)
        assert broken(audit(sink.spec, sink.path)) == set()


def test_only_files_are_read(sink, monkeypatch):
    """Nothing of the ledger or of semel's own readers of records takes part."""
    def forbidden(*args, **kwargs):
        raise AssertionError("the audit must not call this")

    monkeypatch.setattr("semel.ledger.Ledger.__init__", forbidden)
    monkeypatch.setattr("semel.formats.records.read_split", forbidden)
    monkeypatch.setattr("semel.formats.jsonl._JsonParser.parse", forbidden)
    assert broken(audit(sink.spec, sink.path)) == set()


def test_staging_is_promised_to_nobody(sink):
    """What lies in the folder of an attempt is no stray."""
    folder = sink.archive / "staging" / "b00000003" / "f0001" / "data"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "x")
    assert broken(audit(sink.spec, sink.path)) == set()
