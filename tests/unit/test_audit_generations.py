"""The audit of replayed batches: a right replay passes, and each lie about one is told."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fix_sink import SCHEMA, HonestSink
from semel.audit import Verdict, audit


def broken(verdict: Verdict) -> set[str]:
    """The names of the checks that failed."""
    return {check.name for check in verdict.checks if not check.ok}


def told(verdict: Verdict, name: str) -> str:
    """All that a check says of its offenders."""
    check = next(check for check in verdict.checks if check.name == name)
    return "\n".join(f"{one.what} [{one.file}]" for one in check.offenders)


def filled(folder: Path, **changes: Any) -> HonestSink:
    """Two batches with a duplicate of each kind, and dead letters."""
    made = HonestSink(folder, **changes)
    made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 2}, b"{broken", {"id": "1", "n": 9})
    made.batch()
    made.land("a.jsonl", {"id": "2"}, {"id": "3", "n": 3}, {"n": 4})
    made.batch()
    return made


@pytest.fixture
def sink(tmp_path: Path) -> HonestSink:
    """Two batches, the first of which was replayed: batch 3 made its output."""
    made = filled(tmp_path)
    made.replay(1)
    return made


def as_float(table: pa.Table) -> pa.Table:
    return table.set_column(1, "n", table.column("n").cast(pa.float64()))


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
    assert (verdict.batches, verdict.replayed, verdict.totals.records_read) == (2, 1, 7)
    check = next(check for check in verdict.checks if check.name == "generations")
    assert check.examined == 2


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

    def wrong(table: pa.Table) -> pa.Table:
        return table.set_column(1, "n", pa.array([16777215, None], kinds[given]))

    made.replay(1, wrong, source__schema=schema)
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
    add = lambda table: table.append_column("more", pa.array(["a", None]))  # noqa: E731
    made.replay(1, add, source__schema=schema)
    assert broken(audit(made.spec, made.path)) == set()
    other = lambda table: table.set_column(3, "more", pa.array(["b", None]))  # noqa: E731
    made.replay(1, other, source__schema=schema)
    assert broken(audit(made.spec, made.path)) == {"content"}


def test_a_survivor_that_is_no_record_now(tmp_path: Path) -> None:
    """A replay whose declaration does not take a survivor was never staged by us."""
    made = HonestSink(tmp_path)
    made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 70000})
    made.batch()
    cut = lambda t: t.set_column(1, "n", pa.array([1, 4464], pa.int16()))  # noqa: E731
    made.replay(1, cut, source__schema={**SCHEMA, "n": "smallint"})
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"records", "content"}
    assert "by the declaration of the replay: n is beyond smallint" in told(verdict, "records")


def test_transformed(tmp_path: Path) -> None:
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


def test_a_finalizer_that_died(sink: HonestSink) -> None:
    """A marker that was kept aside and is not replaced yet proves nothing, nor does a crash's."""
    shutil.copy(sink.marker_path(1), sink.aside(1, 2))
    shutil.copy(sink.marker_path(2), sink.aside(2, 1))
    (sink.archive / "replaced" / ".b00000002-g0001.json.left").write_text("{")
    assert broken(audit(sink.spec, sink.path)) == set()
    sink.aside(2, 1).write_text("{")
    assert broken(audit(sink.spec, sink.path)) == set()


def test_rows_of_a_replay(sink: HonestSink) -> None:
    """A row that is missing, changed or doubled in the newest output alone is told."""
    for change, found in (
        (lambda table: table.slice(1), {"output", "sums"}),
        (lambda t: t.set_column(1, "n", pa.array([1, 3], pa.int64())), {"content"}),
        (lambda t: pa.concat_tables([t, t.slice(1)]), {"output", "sums"}),
    ):
        path = sink.path / sink.marker(1)["files"][0]["path"]
        before, marker = path.read_bytes(), sink.marker(1)
        sink.rewrite(1, "data", change)
        assert broken(audit(sink.spec, sink.path)) == found
        path.write_bytes(before)
        sink.rewrite_marker(1, marker)
    assert broken(audit(sink.spec, sink.path)) == set()


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
    assert "says survivors" in told(verdict, "generations")


def test_the_marker_of_then_is_gone(tmp_path: Path) -> None:
    """Without generation 1's marker nothing proves the batch; without another, it is told."""
    made = filled(tmp_path)
    made.replay(1)
    made.replay(1)
    made.aside(1, 2).unlink()
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"generations", "strays"}
    assert "generation 2 was replaced, and its marker is gone" in told(verdict, "generations")
    made.aside(1, 1).unlink()
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"generations", "strays"}
    assert "generation 1 was replaced, and its marker is gone" in told(verdict, "generations")
    made.rewrite(1, "data", lambda table: table.slice(1))
    assert "output" not in broken(audit(made.spec, made.path))


def test_the_marker_of_then_is_damaged(sink: HonestSink) -> None:
    """It is told once, and does not stop the audit."""
    sink.aside(1, 1).write_text("{")
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations", "strays"}
    assert "cannot be read" in told(verdict, "generations")


def test_no_marker_for_what_was_kept(sink: HonestSink) -> None:
    """A marker that was kept aside belongs to a batch that has one."""
    sink.marker_path(1).unlink()
    assert {"generations", "markers", "strays"} <= broken(audit(sink.spec, sink.path))


@pytest.mark.parametrize(
    "key",
    ["records_read", "survivors", "duplicates_batch", "duplicates_catalog", "quarantined", "late",
     "bytes_read"],
)  # fmt: skip
def test_other_counts(sink: HonestSink, key: str) -> None:
    """The account of a batch is one, whichever output it speaks of."""
    content = json.loads(sink.aside(1, 1).read_text())
    content["counts"][key] += 1
    sink.aside(1, 1).write_text(json.dumps(content))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations"}
    assert f"its marker says {key} = " in told(verdict, "generations")


@pytest.mark.parametrize(
    ("key", "other"),
    [("input_digest", "1"), ("commit_seq", 7), ("request_key", "else"), ("fence", 2),
     ("batch_time", "2024-02-02T00:00:00+00:00"), ("bucket_seconds", 3), ("pipeline", "other"),
     ("interval", ["2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00+00:00"])],
)  # fmt: skip
def test_another_batch(sink: HonestSink, key: str, other: object) -> None:
    """What was replaced is of the same batch: nothing that identifies it is another."""
    content = json.loads(sink.aside(1, 1).read_text())
    sink.aside(1, 1).write_text(json.dumps(content | {key: other}))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations"}
    assert f"its {key} is another" in told(verdict, "generations")


def test_other_claims(sink: HonestSink) -> None:
    """A replay reads the ranges of the batch that it replays, and no others."""
    content = json.loads(sink.aside(1, 1).read_text())
    content["claims"][0]["end"] -= 1
    sink.aside(1, 1).write_text(json.dumps(content))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations"}
    assert "its claims is another" not in told(verdict, "generations")
    assert "it claims other ranges" in told(verdict, "generations")


def test_other_verdicts(sink: HonestSink) -> None:
    """The newest marker lists the decisions and dead letters of the batch itself."""
    sink.rewrite(1, "decisions", lambda table: table)
    content = sink.marker(1)
    entry = next(file for file in content["files"] if file["kind"] == "decisions")
    shutil.copy(sink.archive / entry["path"], sink.archive / "decisions/b00000003-00009.parquet")
    entry["path"] = "decisions/b00000003-00009.parquet"
    sink.rewrite_marker(1, content)
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations", "strays"}
    assert "other decisions, dead letters" in told(verdict, "generations")


def test_an_old_file_that_counts(sink: HonestSink) -> None:
    """No marker that counts lists a file that was replaced, its own batch's or another's."""
    old = json.loads(sink.aside(1, 1).read_text())["files"][0]
    for number in (1, 2):
        content = sink.marker(number)
        sink.rewrite_marker(number, content | {"files": [*content["files"], old]})
        verdict = audit(sink.spec, sink.path)
        assert {"generations", "output"} <= broken(verdict)
        assert "a marker that counts lists it" in told(verdict, "generations")
        sink.rewrite_marker(number, content)


def test_an_old_file_that_is_damaged(sink: HonestSink) -> None:
    """While it is there, it is what its marker says: readers may still read it."""
    path = sink.path / json.loads(sink.aside(1, 1).read_text())["files"][0]["path"]
    path.write_bytes(path.read_bytes()[:-1])
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations"}
    assert f"generation 1: it has {path.stat().st_size} bytes" in told(verdict, "generations")


def test_rows_of_an_old_output(sink: HonestSink) -> None:
    """What a replaced output had written is what its files held."""
    content = json.loads(sink.aside(1, 1).read_text())
    content["counts"]["rows_written"] += 1
    sink.aside(1, 1).write_text(json.dumps(content))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"generations"}
    assert "do not hold its 3 rows" in told(verdict, "generations")


def test_who_made_it(tmp_path: Path) -> None:
    """Each output is by a batch of its own, later than the one that it replaced."""
    made = filled(tmp_path)
    made.replay(1)
    made.replay(2)
    content = made.marker(1)
    for other, what in ((4, "batch 4 made it, and generation 2 of batch"), (1, "batch 1 made it")):
        content["replay"]["batch_id"] = other
        made.rewrite_marker(1, content)
        verdict = audit(made.spec, made.path)
        assert broken(verdict) == {"generations"}
        assert what in told(verdict, "generations")


def test_the_order_of_replays(tmp_path: Path) -> None:
    """A replay that replaced another is a later batch."""
    made = filled(tmp_path)
    made.replay(1)
    made.replay(1)
    content = json.loads(made.aside(1, 2).read_text())
    content["replay"]["batch_id"] = 9
    made.aside(1, 2).write_text(json.dumps(content))
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"generations"}
    assert "batch 9 made it, and batch 4 replaced it" in told(verdict, "generations")


@pytest.mark.parametrize("key", ["replay", "replaces", "generation"])
def test_a_marker_that_says_half(sink: HonestSink, key: str) -> None:
    """A marker of a later generation says by what replay it is, and what it replaces."""
    content = sink.marker(1)
    del content[key]
    sink.rewrite_marker(1, content)
    assert "markers" in broken(audit(sink.spec, sink.path))


def test_a_stranger_beside_the_markers(sink: HonestSink) -> None:
    """A file that is no marker of a replaced output is a stray."""
    (sink.archive / "replaced" / "b1-g1.json").write_text("{}")
    assert broken(audit(sink.spec, sink.path)) == {"strays"}


def test_the_text_of_a_transform_that_was_replaced(sink: HonestSink) -> None:
    """What ran then is kept like what runs now: the account of a replaced output is whole."""
    content = json.loads(sink.aside(1, 1).read_text())
    code = {"semel": "0.9", "git_commit": None, "files": {"a.sql": "0" * 64}}
    sink.aside(1, 1).write_text(json.dumps(content | {"code": code, "code_digest": "1"}))
    assert broken(audit(sink.spec, sink.path)) == {"code"}
