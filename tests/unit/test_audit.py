"""The audit against a sink that an honest toy wrote: it passes, and each break of it is told.

Three parts: batches, batches that were replayed, and the texts of their transforms.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.files.honest import SCHEMA, HonestSink
from semel import limits
from semel.archive.marker import markers
from semel.audit import AuditVerdict, Obligation, Offender, audit
from semel.audit.exact import LineKind, Rules, json_judge
from semel.errors import CorruptionError
from semel.model.batch import Counts

Change = Callable[[pa.Table], pa.Table]


def broken(verdict: AuditVerdict) -> set[str]:
    """The names of the checks that failed."""
    assert verdict.ok == all(check.ok for check in verdict.checks)
    return {check.name for check in verdict.checks if not check.ok}


def of(verdict: AuditVerdict, name: str) -> Obligation:
    """What a check found."""
    return next(check for check in verdict.checks if check.name == name)


def offender(verdict: AuditVerdict, name: str) -> Offender:
    """The first offender of a check."""
    return of(verdict, name).offenders[0]


def told(verdict: AuditVerdict, name: str) -> str:
    """All that a check says of its offenders."""
    return "\n".join(f"{one.what} [{one.file}]" for one in of(verdict, name).offenders)


def filled(folder: Path, **changes: Any) -> HonestSink:
    """Two batches with a duplicate of each kind and dead letters of two reasons."""
    made = HonestSink(folder, **changes)
    made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 2}, b"{broken", {"id": "1", "n": 9})
    made.batch()
    made.land("a.jsonl", {"id": "2"}, {"id": "3", "n": 3}, {"n": 4})
    made.land("b.jsonl", {"id": "4", "at": "2024-01-01T00:00:00Z"}, b"", {"id": "3"})
    made.batch()
    return made


@pytest.fixture
def sink(tmp_path: Path) -> HonestSink:
    return filled(tmp_path)


def set_column(at: int, name: str, values: list, kind: pa.DataType | None = None) -> Change:
    return lambda table: table.set_column(at, name, pa.array(values, kind))


def test_a_marker_of_other_rules_is_not_judged(sink: HonestSink) -> None:
    """The audit knows the rules of its own version: a batch of later ones is not proven by them."""
    content = sink.marker(1)
    sink.rewrite_marker(1, content | {"parser_rules": content["parser_rules"] + 1})
    verdict = audit(sink.spec, sink.path)
    blamed = [o.what for check in verdict.checks if check.name == "source" for o in check.offenders]
    assert blamed and all("it used rules 2 of semel's parser" in what for what in blamed)


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
    assert verdict.notes == ("no batch is finalized",)


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


# By what is done to a table: its batch and kind, the change, the checks that fail, the ids named.
CHANGED = {
    "row_removed": (1, "data", lambda t: t.slice(1), {"output", "sums"}, {"1"}),
    "row_twice": (
        1, "data", lambda t: pa.concat_tables([t, t.slice(1)]), {"output", "sums"}, {"2"}
    ),
    "row_of_a_stranger": (2, "data", set_column(0, "id", ["3", "9"]), {"output"}, {"4", "9"}),
    "other_values": (1, "data", set_column(1, "n", [1, 3], pa.int64()), {"content"}, {"2"}),
    "no_dead_letter": (
        1, "dead_letters", lambda t: t.slice(1), {"records", "output", "sums"}, set()
    ),
    "dead_letter_of_other_bytes": (
        1, "dead_letters", set_column(5, "raw", [b"{brokem"]), {"dead letters"}, set()
    ),
    "decision_of_another_id": (
        1, "decisions", set_column(3, "record_id", [{"id": "2"}]), {"decisions"}, {"1"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_a_file_that_was_changed(sink: HonestSink, what: str) -> None:
    """Each row that is missing, doubled, foreign or another is named, and so are dead letters that
    do not keep the record as the source has it; though file, checksum and marker agree.
    """
    number, kind, change, failed, ids = CHANGED[what]
    sink.rewrite(number, kind, change)
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == failed
    assert {o.id for check in verdict.checks for o in check.offenders if o.id} == ids
    if what == "row_removed":
        found = offender(verdict, "output")
        assert (found.batch, found.offset) == (1, 0) and found.file.endswith("a.jsonl")
    if what == "no_dead_letter":
        assert "no record" in offender(verdict, "records").what


def test_removed_row_without_ids(tmp_path):
    """By content, where neither id nor position reach the output, a swapped row is found."""
    made = filled(tmp_path, record_id=[])
    made.rewrite(1, "data", lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]))
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"output"}
    assert offender(verdict, "output").offset == 0


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
        judge = json_judge(made.spec.column_types(), Rules())
        honest = made._parse

        def parsed(raw, position):
            bad = raw.strip() and judge(raw).kind is LineKind.BAD
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


@pytest.fixture
def replayed(sink: HonestSink) -> HonestSink:
    """Two batches, the first of which was replayed: batch 3 made its output."""
    sink.replay(1)
    return sink


def then(sink: HonestSink, change: Callable[[dict], dict] = dict, generation: int = 1) -> dict:
    """The marker of an output of batch 1 that was replaced, once it was changed."""
    content = change(json.loads(sink.aside(1, generation).read_text()))
    sink.aside(1, generation).write_text(json.dumps(content))
    return content


@pytest.mark.parametrize(
    "changes",
    [{}, {"record_id": [], "sink__position_columns": True}, {"record_id": []},
     {"sink__partition_by": ["at"]}],
)  # fmt: skip
def test_a_right_replay(tmp_path: Path, changes: dict[str, Any]) -> None:
    """It passes whatever its form, also of generation 3, and the verdict counts it."""
    made = filled(tmp_path, **changes)
    made.replay(1)
    made.replay(1)
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == set()
    assert (verdict.batches, verdict.replayed, verdict.totals.records_read) == (2, 1, 9)
    assert of(verdict, "generations").examined == 2


@pytest.mark.parametrize("given", ["double", "float", "int"])
def test_another_type(tmp_path: Path, given: str) -> None:
    """What a row must be is by the declaration of now, what became of its record by that of then.

    A dead letter of then may be a good record by now: it stays one.
    """
    made = HonestSink(tmp_path)
    honest = made._parse
    bad = b'{"id": "5", "n": 2.5}'
    made._parse = lambda raw, at: "type_mismatch" if raw == bad else honest(raw, at)
    made.land("a.jsonl", {"id": "1", "n": 16777217}, bad, {"id": "1", "n": 3}, {"id": "2"})
    made.batch()
    kinds = {"double": pa.float64(), "float": pa.float32(), "int": pa.int32()}
    schema = {**SCHEMA, "n": given}

    def right(table: pa.Table) -> pa.Table:
        return table.set_column(1, "n", table.column("n").cast(kinds[given], safe=False))

    made.replay(1, right, source__schema=schema)
    assert broken(audit(made.spec, made.path)) == set()
    made.replay(1, set_column(1, "n", [16777215, None], kinds[given]), source__schema=schema)
    assert broken(audit(made.spec, made.path)) == {"content"}


def test_an_id_of_another_scale(tmp_path: Path) -> None:
    """A row is found by its id as the newest output has it."""
    schema = {**SCHEMA, "n": "decimal(10, 2)"}
    made = filled(tmp_path, record_id=["n"], source__schema=schema)
    assert broken(audit(made.spec, made.path)) == set()

    def wider(table: pa.Table) -> pa.Table:
        return table.set_column(1, "n", table.column("n").cast(pa.decimal128(23, 4)))

    made.replay(1, wider, record_id=["n"], source__schema={**schema, "n": "decimal(12, 4)"})
    assert broken(audit(made.spec, made.path)) == set()


def test_a_column_that_came_later(tmp_path: Path) -> None:
    """Its values come from the source, though no output had them before."""
    made = HonestSink(tmp_path)
    made.land("a.jsonl", {"id": "1", "n": 1, "more": "a"}, {"id": "2"}, {"id": "1"})
    made.batch()
    schema = {**SCHEMA, "more": "string"}
    right = pa.array(["a", None])
    made.replay(1, lambda t: t.append_column("more", right), source__schema=schema)
    assert broken(audit(made.spec, made.path)) == set()
    made.replay(1, set_column(3, "more", ["b", None]), source__schema=schema)
    assert broken(audit(made.spec, made.path)) == {"content"}


def test_a_survivor_that_is_no_record_now(tmp_path: Path) -> None:
    """A replay whose declaration does not take a survivor was never staged by us."""
    made = HonestSink(tmp_path)
    made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 70000})
    made.batch()
    cut = set_column(1, "n", [1, 4464], pa.int16())
    made.replay(1, cut, source__schema={**SCHEMA, "n": "smallint"})
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"records", "content"}
    assert "by the declaration of the replay: n is beyond smallint" in told(verdict, "records")


def test_a_replay_with_a_transform(tmp_path: Path) -> None:
    """A replay with a transform may filter rows; a row twice, or one that was a duplicate, is
    told."""
    made = filled(tmp_path)
    made.replay(1, lambda table: table.slice(1), transforms=["mod:fun"])
    assert broken(audit(made.spec, made.path)) == set()
    made.replay(1, lambda t: pa.concat_tables([t, t]), transforms=["mod:fun"])
    assert broken(audit(made.spec, made.path)) == {"output"}


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_files_that_were_replaced(tmp_path: Path, gone: int) -> None:
    """Collect may have removed any of them, or have been killed while it did."""
    made = filled(tmp_path, sink__partition_by=["n"])
    old = sorted(made.path.glob("n=*/*b00000001-*"))
    assert len(old) == 2
    made.replay(1)
    for path in old[:gone]:
        path.unlink()
    assert broken(audit(made.spec, made.path)) == set()


def test_a_finalizer_that_died(replayed: HonestSink) -> None:
    """A marker that was kept aside and is not replaced yet proves nothing, nor does a crash's."""
    shutil.copy(replayed.marker_path(1), replayed.aside(1, 2))
    shutil.copy(replayed.marker_path(2), replayed.aside(2, 1))
    (replayed.archive / "replaced" / ".b00000002-g0001.json.left").write_text("{")
    assert broken(audit(replayed.spec, replayed.path)) == set()
    replayed.aside(2, 1).write_text("{")
    assert broken(audit(replayed.spec, replayed.path)) == set()


def test_rows_of_a_replay(replayed: HonestSink) -> None:
    """A row that is missing, changed or doubled in the newest output alone is told."""
    for what in ("row_removed", "other_values", "row_twice"):
        _, _, change, failed, _ = CHANGED[what]
        path = replayed.path / replayed.marker(1)["files"][0]["path"]
        before, marker = path.read_bytes(), replayed.marker(1)
        replayed.rewrite(1, "data", change)
        assert broken(audit(replayed.spec, replayed.path)) == failed
        path.write_bytes(before)
        replayed.rewrite_marker(1, marker)
    assert broken(audit(replayed.spec, replayed.path)) == set()


@pytest.mark.parametrize("count", [field.name for field in fields(Counts)])
def test_each_count_is_proven(tmp_path: Path, count: str) -> None:
    """A marker that says another number of anything is blamed."""
    made = filled(tmp_path)
    made.rewrite_marker(1, counted(count)(made.marker(1)))
    verdict = audit(made.spec, made.path)
    assert f"the marker has {count} = " in told(verdict, "sums")


@pytest.mark.parametrize("by", ["id", "position"])
def test_what_came_back(tmp_path: Path, by: str) -> None:
    """A duplicate or a dead letter that a replay let through is no survivor, whatever it counts."""
    changes = {"record_id": [], "sink__position_columns": True} if by == "position" else {}
    made = filled(tmp_path, **changes)

    def with_more(table: pa.Table) -> pa.Table:
        more = {"id": "9", "n": 9, "_semel_source": 1, "_semel_offset": 34}
        if by == "id":
            more = {"id": "1", "n": 9}
        row = pa.Table.from_pylist([more], schema=table.schema)
        return pa.concat_tables([table, row])

    made.replay(1, with_more)
    content = made.marker(1)
    content["counts"]["survivors"] += 1
    made.rewrite_marker(1, content)
    verdict = audit(made.spec, made.path)
    assert {"output", "generations"} < broken(verdict)
    assert "its marker has survivors = " in told(verdict, "generations")


def test_the_marker_of_then_is_gone(replayed: HonestSink) -> None:
    """Without generation 1's marker nothing proves the batch; without another, it is told."""
    replayed.replay(1)
    for gone in (2, 1):
        replayed.aside(1, gone).unlink()
        verdict = audit(replayed.spec, replayed.path)
        assert broken(verdict) == {"generations", "strays"}
        said = f"a replay replaced generation {gone}, and its marker is missing"
        assert said in told(verdict, "generations")
    replayed.rewrite(1, "data", lambda table: table.slice(1))
    assert "output" not in broken(audit(replayed.spec, replayed.path))


def test_the_marker_of_then_is_damaged(replayed: HonestSink) -> None:
    """It is told once, and does not stop the audit."""
    replayed.aside(1, 1).write_text("{")
    verdict = audit(replayed.spec, replayed.path)
    assert broken(verdict) == {"generations", "strays"}
    assert "cannot read this marker" in told(verdict, "generations")


def test_no_marker_for_what_was_kept(replayed: HonestSink) -> None:
    """A marker that was kept aside belongs to a batch that has one."""
    replayed.marker_path(1).unlink()
    assert {"generations", "markers", "strays"} <= broken(audit(replayed.spec, replayed.path))


def counted(key: str) -> Callable[[dict], dict]:
    return lambda old: old | {"counts": old["counts"] | {key: old["counts"][key] + 1}}


ANOTHER = {
    "input_digest": "1", "commit_seq": 7, "request_key": "else", "fence": 2,
    "batch_time": "2024-02-02T00:00:00+00:00", "bucket_seconds": 3, "pipeline": "other",
    "interval": ["2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00+00:00"],
}  # fmt: skip
COUNTS = ("records_read", "survivors", "duplicates_batch", "duplicates_catalog", "quarantined",
          "late", "bytes_read")  # fmt: skip
LIES = {
    **{key: (counted(key), f"its marker has {key} = ") for key in COUNTS},
    **{
        key: (lambda old, key=key: old | {key: ANOTHER[key]}, f"its {key} differs")
        for key in ANOTHER
    },
    "claims": (lambda old: old | {"claims": [old["claims"][0] | {"end": 1}]}, "other ranges"),
    "rows_written": (counted("rows_written"), "do not have its 3 rows"),
}


@pytest.mark.parametrize("key", LIES)
def test_what_a_replaced_output_says(replayed: HonestSink, key: str) -> None:
    """It is of the same batch: its account, what identifies it and its ranges are those of now; and
    it had written what its files held."""
    change, said = LIES[key]
    then(replayed, change)
    verdict = audit(replayed.spec, replayed.path)
    assert broken(verdict) == {"generations"}
    assert said in told(verdict, "generations")
    assert ("differs" in told(verdict, "generations")) == (key in ANOTHER)


def test_other_verdicts(replayed: HonestSink) -> None:
    """The newest marker lists the decisions and dead letters of the batch itself."""
    replayed.rewrite(1, "decisions", lambda table: table)
    content = replayed.marker(1)
    entry = next(file for file in content["files"] if file["kind"] == "decisions")
    other = "decisions/b00000003-00009.parquet"
    shutil.copy(replayed.archive / entry["path"], replayed.archive / other)
    entry["path"] = other
    replayed.rewrite_marker(1, content)
    verdict = audit(replayed.spec, replayed.path)
    assert broken(verdict) == {"generations", "strays"}
    assert "its decisions, dead letters, ids or claims differ" in told(verdict, "generations")


def test_an_old_file_that_counts(replayed: HonestSink) -> None:
    """No marker that counts lists a file that was replaced, its own batch's or another's."""
    old = then(replayed)["files"][0]
    for number in (1, 2):
        content = replayed.marker(number)
        replayed.rewrite_marker(number, content | {"files": [*content["files"], old]})
        verdict = audit(replayed.spec, replayed.path)
        assert {"generations", "output"} <= broken(verdict)
        assert "a current marker lists it" in told(verdict, "generations")
        replayed.rewrite_marker(number, content)


def test_an_old_file_that_is_damaged(replayed: HonestSink) -> None:
    """While it is there, it is what its marker says: readers may still read it."""
    path = replayed.path / then(replayed)["files"][0]["path"]
    path.write_bytes(path.read_bytes()[:-1])
    verdict = audit(replayed.spec, replayed.path)
    assert broken(verdict) == {"generations"}
    assert f"generation 1: it has {path.stat().st_size} bytes" in told(verdict, "generations")


def made_by(batch: int) -> Callable[[dict], dict]:
    return lambda marker: marker | {"replay": marker["replay"] | {"batch_id": batch}}


def test_who_made_it(replayed: HonestSink) -> None:
    """Each output is by a batch of its own, later than the one that it replaced."""
    replayed.replay(2)
    content = replayed.marker(1)
    also = "wrote this output and also generation"
    for other, what in ((4, f"batch 4 {also} 2 of batch"), (1, f"batch 1 {also}")):
        replayed.rewrite_marker(1, made_by(other)(content))
        verdict = audit(replayed.spec, replayed.path)
        assert broken(verdict) == {"generations"}
        assert what in told(verdict, "generations")


def test_the_order_of_replays(replayed: HonestSink) -> None:
    """A replay that replaced another is a later batch."""
    replayed.replay(1)
    then(replayed, made_by(9), generation=2)
    verdict = audit(replayed.spec, replayed.path)
    assert broken(verdict) == {"generations"}
    said = "batch 9 wrote it, and batch 4 replaced it; a replay must be a later batch"
    assert said in told(verdict, "generations")


@pytest.mark.parametrize("key", ["replay", "replaces", "generation"])
def test_a_marker_that_says_half(replayed: HonestSink, key: str) -> None:
    """A marker of a later generation says by what replay it is, and what it replaces."""
    content = replayed.marker(1)
    del content[key]
    replayed.rewrite_marker(1, content)
    assert "markers" in broken(audit(replayed.spec, replayed.path))


def test_a_stranger_beside_the_markers(replayed: HonestSink) -> None:
    """A file that is no marker of a replaced output is a stray."""
    (replayed.archive / "replaced" / "b1-g1.json").write_text("{}")
    assert broken(audit(replayed.spec, replayed.path)) == {"strays"}


def test_the_text_of_a_transform_that_was_replaced(replayed: HonestSink) -> None:
    """What ran then is kept like what runs now: the account of a replaced output is whole."""
    code = {"semel": "0.9", "git_commit": None, "files": {"a.sql": "0" * 64}}
    then(replayed, lambda old: old | {"code": code, "code_digest": "1"})
    assert broken(audit(replayed.spec, replayed.path)) == {"code"}


TEXTS = {"plus.py": b"def plus(frame):\n    return frame\n", "times.sql": b"SELECT 1"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def named(texts: dict[str, bytes]) -> dict[str, Any]:
    """What a marker says of the code, by the protocol alone."""
    files = {name: sha256(text) for name, text in texts.items()}
    shaping = json.dumps({"files": files, "semel": "0.1.0"}, sort_keys=True, separators=(",", ":"))
    code = {"semel": "0.1.0", "git_commit": None, "files": files}
    return {"code": code, "code_digest": sha256(shaping.encode())}


@pytest.fixture
def coded(tmp_path: Path) -> HonestSink:
    """Two batches of one code; the archive has both files of it, and one that no marker names."""
    made = HonestSink(tmp_path)
    for number in (1, 2):
        made.land("a.jsonl", {"id": str(number), "n": 1})
        made.batch()
        made.rewrite_marker(number, made.marker(number) | named(TEXTS))
    for name, text in (TEXTS | {"of_a_lost_attempt.py": b"..."}).items():
        kept(made, name, text).parent.mkdir(exist_ok=True)
        kept(made, name, text).write_bytes(text)
    return made


def kept(sink: HonestSink, name: str, text: bytes | None = None) -> Path:
    return sink.archive / "code" / f"{sha256(text or TEXTS[name])}{Path(name).suffix}"


def check(sink: HonestSink) -> Obligation:
    """What the audit found of the code; all else is right."""
    verdict = audit(sink.spec, sink.path)
    assert {c.name for c in verdict.checks if not c.ok} <= {"code"}
    return of(verdict, "code")


def test_kept_texts_pass(coded: HonestSink) -> None:
    """Each is examined once, however many batches it made; what no marker names is no harm."""
    assert (check(coded).ok, check(coded).examined) == (True, 2)


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_gone_or_altered(coded: HonestSink, name: str, gone: bool) -> None:
    """It is named, with the first batch that it made; also when one byte was altered."""
    path, short = kept(coded, name), TEXTS[name][:-1]
    path.unlink() if gone else path.write_bytes(short)
    (found,) = check(coded).offenders
    assert (found.batch, found.file) == (1, str(path))
    altered = f"was changed: its SHA-256 now begins with {sha256(short)[:12]}"
    why = "cannot be read (No such file or directory)" if gone else altered
    assert found.what == f"the text of {name!r} {why}"


def test_a_digest_that_is_not_the_codes(coded: HonestSink) -> None:
    """Who compares batches by it would take another code for the same."""
    coded.rewrite_marker(2, coded.marker(2) | {"code_digest": "ab"})
    (found,) = check(coded).offenders
    assert (found.batch, found.what) == (2, "its code_digest does not match its code")


ODD = [
    {"files": {"a.py": "../../../etc/passwd"}}, {"files": {"a.py": "A" * 64}},
    {"files": {"a.py": 1}}, {"files": ["a.py"]}, {"files": None}, {"semel": None},
    {"git_commit": 1}, {"zones": 2025}, {"zones": ["2025b"]},
]  # fmt: skip


@pytest.mark.parametrize("odd", [[], "text", {}, *ODD])
def test_what_is_no_code(coded: HonestSink, odd: Any) -> None:
    """A marker that was tampered with leads nobody out of the archive: it cannot be read."""
    content = coded.marker(2)
    content["code"] = content["code"] | odd if isinstance(odd, dict) and odd else odd
    coded.rewrite_marker(2, content)
    with pytest.raises(CorruptionError, match="b00000002.json"):
        markers(coded.path)
