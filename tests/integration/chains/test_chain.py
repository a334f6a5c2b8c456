"""Another pipeline's output as a source: its finalized batches, and nothing else of its folder."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from fixtures.batches.account import advised, committed, ids, quiet, refusals, run, settled
from fixtures.batches.replays import falls_silent, replayed
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Upstream
from fixtures.postgres.server import database, lose
from semel import pipeline
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.errors import SourceError, SpecError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reader import dataset
from semel.repair.adopt import adopt
from semel.sources.pipeline.published import OutputFile


@pytest.fixture
def up(bench: Workbench, postgres: str, template: str) -> Iterator[Upstream]:
    with database(postgres, template) as dsn, Ledger(dsn) as ledger:
        yield Upstream(bench, ledger)


def data_files(spec: Spec) -> list[Path]:
    return [m.path_of(f) for m in markers_of(spec) for f in m.of_kind(Kind.DATA)]


def again(up: Upstream) -> None:
    """A replay of the first batch: the same rows, in other files."""
    replayed(up.ledger, up.declared, 1, "again")


def test_each_row_of_each_batch_once(up: Upstream, ledger: Ledger) -> None:
    """Several batches in one, each in several files: all rows in the order of the markers' files,
    folders' values among them; and the audit proves it from those files.
    """
    for start in (0, 10, 20):
        up.append(start, start + 10)
    spec = up.spec(sink={"position_columns": True})
    done = run(ledger, spec, "r1")
    assert done.plan.names == ("up/b00000001", "up/b00000002", "up/b00000003")
    found = settled(spec)
    assert found.ids == ids(0, 30) and {str(row["at"]) for row in found.rows} == {
        "2026-01-01 00:00:00+00:00"
    }
    up.append(30, 35)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 35)


# Attacks R1, R2, CH1.
def test_only_what_markers_list_is_read(up: Upstream, ledger: Ledger) -> None:
    """Beside a finalized batch lie files of one that is committed, of nobody, and half a marker."""
    up.append(0, 10)
    spec = up.spec()
    up.files.append(10, 20)
    batch = committed(up.ledger, up.declared, "up2")
    shutil.copy(data_files(up.declared)[0], up.declared.sink_path() / "stray.parquet")
    (up.markers / ".b00000002.json.x").write_text("{")
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)
    finalize(up.ledger, up.declared, batch)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 20)


# Attacks CH1.
def test_a_replayed_batch_is_refused_and_told(up: Upstream, ledger: Ledger) -> None:
    """What was read stays, the other batches are taken, and the audit proves what was read from the
    replaced files; accepting it reads the new ones as new rows, as its refusal says.
    """
    up.append(0, 10)
    spec = up.spec()
    run(ledger, spec, "r1")
    again(up)
    up.append(10, 15)
    done = run(ledger, spec, "r2")
    (refused,) = done.plan.refusals
    assert (refused.name, refused.reason) == ("up/b00000001", "replayed")
    assert "`semel replay events --batches 1`" in refused.detail
    assert settled(spec).ids == ids(0, 15)
    advised(ledger, refused.detail)
    run(ledger, spec, "r3")
    assert settled(spec).ids == sorted(ids(0, 10) + ids(0, 15)) and refusals(ledger) == {}


# Attacks CH1.
@pytest.mark.parametrize("by_id", [False, True])
def test_a_pipeline_that_began_anew(up: Upstream, ledger: Ledger, by_id: bool) -> None:
    """What was read under a name is never read in another form, when that comes late, too."""
    up.append(0, 10)
    up.append(10, 20)
    spec = up.spec(record_id=["id"]) if by_id else up.spec()
    run(ledger, spec, "r1")
    up.change()
    told = run(ledger, spec, "r2").plan.refusals
    assert {(r.name, r.reason) for r in told} == {
        ("up/b00000001", "replayed"), ("up/b00000002", "missing")
    }  # fmt: skip
    up.append(950, 960)
    told = run(ledger, spec, "r3").plan.refusals
    assert [r.name for r in told] == ["up/b00000001", "up/b00000002"]
    up.append(960, 970)
    run(ledger, spec, "r4")
    assert settled(spec, audited=False).ids == ids(0, 20) + ids(960, 970)


# Attacks CH1.
def test_a_marker_that_a_listing_lacks_frees_nothing(up: Upstream, ledger: Ledger) -> None:
    """A file system may pass over a name that is being replaced; and a lost ledger does not see it."""
    up.append(0, 10)
    up.append(10, 20)
    spec = up.spec()
    run(ledger, spec, "r1")
    path, away = up.markers / "b00000001.json", up.bench.folder / "away.json"
    path.rename(away)
    assert [r.reason for r in run(ledger, spec, "r2").plan.refusals] == ["missing"]
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert run(ledger, spec, "r3").plan.batch is None
    away.rename(path)
    assert run(ledger, spec, "r4").plan.batch is None
    again(up)
    (refused,) = run(ledger, spec, "r5").plan.refusals
    assert refused.reason == "replayed" and settled(spec).ids == ids(0, 20)


# Attacks CH1, P11.
def test_a_batch_whose_planner_died_is_read_anew(up: Upstream, ledger: Ledger) -> None:
    """Nothing of it was read: the next plan takes the new output, and nobody is asked."""
    up.append(0, 10)
    spec = up.spec()
    plan(ledger, spec, "r1")
    falls_silent(ledger)
    again(up)
    assert run(ledger, spec, "r2").plan.refusals == () and settled(spec).ids == ids(0, 10)


# Attacks CH1, P21.
def test_a_replay_before_the_stage_is_planned_anew(up: Upstream, ledger: Ledger) -> None:
    """A planned batch whose part has another generation now is given up for one that reads that."""
    up.append(0, 10)
    spec = up.spec()
    assert plan(ledger, spec, "r1").created
    again(up)
    done = run(ledger, spec, "r1")
    assert done.plan.anew is not None and settled(spec).ids == ids(0, 10)


# Attacks S29.
@pytest.mark.parametrize("records", [8, 12])
def test_a_marker_that_counts_other_rows(up: Upstream, ledger: Ledger, records: int) -> None:
    """Fewer or more than its file has: an error that names the file, and none of them is read."""
    up.append(0, 10)
    path = up.markers / "b00000001.json"
    held = path.read_text()
    path.write_text(held.replace('"records": 10', f'"records": {records}'))
    spec = up.spec()
    with pytest.raises(SourceError, match="its bytes do not match its marker"):
        run(ledger, spec, "r1")
    path.write_text(held)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


# Attacks S6.
def test_a_file_that_changes_while_it_is_read(
    up: Upstream, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its checksum: the attempt ends, and nothing of it is seen."""
    up.append(0, 10)
    spec = up.spec()
    proven = OutputFile.is_whole

    def then_written(file: OutputFile, opened: BinaryIO) -> bool:
        whole = proven(file, opened)
        os.utime(opened.name)
        return whole

    with monkeypatch.context() as patched:
        patched.setattr(OutputFile, "is_whole", then_written)
        with pytest.raises(SourceError, match="it was written to while it was read"):
            run(ledger, spec, "r1")
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


IN_FOLDERS = {
    "decimal": ("decimal(5,2)", ["1.50", "-3.00", None]),
    "text of nothing": ("string", ["__HIVE_DEFAULT_PARTITION__", None, "a/b=c%41"]),
    "day": ("date", ["2026-01-31", None, "0001-01-01"]),
    "yes and no": ("boolean", [True, False, None]),
}


@pytest.mark.parametrize("case", IN_FOLDERS)
def test_values_that_are_folders(up: Upstream, ledger: Ledger, case: str) -> None:
    """Each is read back as it is, by this pipeline and by `semel.reader`; both audits pass."""
    kind, values = IN_FOLDERS[case]
    columns = {"id": "string", "k": kind}
    declared = up.files.spec(
        name="up", source={"schema": columns}, sink={"partition_by": ["k"]}
    )
    rows = [{"id": f"e{at}", "k": value} for at, value in enumerate(values)]
    up.bench.write("in/a.jsonl", rows)
    run(up.ledger, declared, "up1")
    spec = up.spec(source={"schema": columns})
    run(ledger, spec, "r1")
    settled(declared)
    there = dataset(declared.sink_path()).to_table().to_pylist()
    read = {row["id"]: row["k"] for row in settled(spec).rows}
    assert read == {row["id"]: row["k"] for row in there}
    texts = [read[f"e{at}"] for at in range(3)]
    assert list(map(str, texts)) == list(map(str, values))


# Attacks L9.
def test_keys_of_partial_rows_are_had_back(up: Upstream, ledger: Ledger) -> None:
    """Null's folder has the empty text, too; the files of an upstream that counts tell them apart.
    """
    columns = {"id": "string", "k": "string", "at": "timestamp"}
    declared = up.files.spec(
        name="up", source={"schema": columns}, sink={"partition_by": ["k"]}, record_time="at",
        window={"size": "1 day"}, aggregate={"by": ["k"], "columns": {"n": "count()"}},
    )  # fmt: skip
    keys, at = [None, "", "", "null", "a"], "2024-01-01T00:00:00Z"
    up.bench.write("in/a.jsonl", [{"id": f"e{n}", "k": k, "at": at} for n, k in enumerate(keys)])
    run(up.ledger, declared, "up1")
    spec = up.spec(source={"schema": {"k": "string", "n": "bigint"}})
    run(ledger, spec, "r1")
    assert audit(spec).ok
    rows = dataset(spec.sink_path()).to_table().to_pylist()
    assert {row["k"]: row["n"] for row in rows} == {None: 1, "": 2, "null": 1, "a": 1}


# Attacks R2.
@pytest.mark.parametrize("odd", ["dangling", "loop", "fifo", "folder"])
def test_what_is_no_marker_refuses_its_name_alone(
    up: Upstream, ledger: Ledger, odd: str
) -> None:
    """A link that leads nowhere or to itself, a pipe, a folder: the batches beside it are taken."""
    up.append(0, 10)
    path = up.markers / "b00000009.json"
    if odd == "fifo":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if odd == "loop" else "nowhere")
    spec = up.spec()
    (refused,) = run(ledger, spec, "r1").plan.refusals
    assert (refused.name, refused.reason) == ("up/b00000009", "unreadable")
    assert settled(spec).ids == ids(0, 10)


# Attacks S6.
@pytest.mark.parametrize("done", ["gone", "cut", "changed"])
def test_a_file_that_is_not_its_markers_is_an_error(
    up: Upstream, ledger: Ledger, done: str
) -> None:
    """Before a row of it is written; the audit tells it too, and once it is back all goes on."""
    up.append(0, 10)
    spec = up.spec()
    (path,) = data_files(up.declared)
    held = path.read_bytes()
    path.chmod(0o644)
    if done == "gone":
        path.unlink()
    else:
        path.write_bytes(held[:-9] if done == "cut" else held[:100] + b"?" + held[101:])
    with pytest.raises(SourceError, match="Restore it from a backup"):
        run(ledger, spec, "r1")
    path.write_bytes(held)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)
    path.unlink()
    verdict = audit(spec)
    assert not verdict.ok


def test_replaced_files_that_went_are_no_loss(up: Upstream, ledger: Ledger) -> None:
    """The audit says that what was read is gone, and proves what is left, as of a topic."""
    up.append(0, 10)
    spec = up.spec()
    run(ledger, spec, "r1")
    before = data_files(up.declared)
    again(up)
    for path in before:
        path.unlink()
    verdict = audit(spec)
    assert verdict.ok, {c.name: c.offenders for c in verdict.checks if not c.ok}


REFUSED = {
    "missing": ({"schema": {"other": "string"}}, "schema", "'other' is not in the output"),
    "narrow": ({"schema": {"n": "int"}}, "schema", "column 'n' is int64"),
}


# Attacks P13.
def test_a_pipeline_without_a_batch_is_told(up: Upstream, ledger: Ledger) -> None:
    """Its folder may not be mounted: it is refused, and nothing counts as gone; then all goes on."""
    spec = up.spec()
    (refused,) = run(ledger, spec, "r1").plan.refusals
    assert refused.reason == "missing" and "`semel run up`" in refused.detail
    up.append(0, 10)
    run(ledger, spec, "r2")
    up.markers.rename(up.away)
    assert [r.reason for r in run(ledger, spec, "r3").plan.refusals] == ["missing"]
    up.away.rename(up.markers)
    assert run(ledger, spec, "r4").plan.batch is None
    assert settled(spec).ids == ids(0, 10)


# Attacks P23.
@pytest.mark.parametrize("case", REFUSED)
def test_columns_that_the_output_lacks_refuse_it(
    up: Upstream, ledger: Ledger, case: str
) -> None:
    """By the marker, before a row is read; with the right schema it is taken."""
    source, reason, why = REFUSED[case]
    up.append(0, 10)
    (refused,) = run(ledger, up.spec(source=source), "r1").plan.refusals
    assert refused.reason == reason and why in refused.detail
    spec = up.spec()
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


# Attacks R3, R4.
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"format": 4', '"format": 5', "its format is 5, but semel reads only 4"),
        ('"path": "', '"path": "../', "which is not below its root"),
        ('"pipeline": "up"', '"pipeline": "other"', "its marker is from pipeline 'other'"),
        ('"batch_id": 1,', '"batch_id": 2,', "its batch_id is 2"),
        ('"batch_id": 1,', '"batch_id": 1, "replaces": [7],', "unknown to this version of semel"),
        ('"records": 10', '"records": -10', "records is -10"),
        ('"records": 10', '"records": true', "records is True"),
        ('"records": 10', f'"records": {2**62}', "but a batch has 4,294,967,296 at most"),
        ('"bytes": ', '"bytes": 0.', "bytes is 0."),
        ('["n", "int64"]', '["id", "int64"]', "it has a column twice"),
        ('"path": "', '"path": "\\u0000', "which is not below its root"),
        ("{", "[" * 100_000 + "{", "Restore it from a backup"),
        ("{", "", "Restore it from a backup"),
    ],
)
def test_a_marker_that_is_none_refuses_its_batch(
    up: Upstream, ledger: Ledger, old: str, new: str, why: str
) -> None:
    """Of a format that nobody knows, with a path that leads out, of another pipeline, damaged: the
    others are taken.
    """
    up.append(0, 10)
    up.append(10, 20)
    spec = up.spec()
    path = up.markers / "b00000001.json"
    held = path.read_text()
    held = json.dumps(json.loads(held))
    assert old in held
    path.write_text(held.replace(old, new, 1))
    (refused,) = run(ledger, spec, "r1").plan.refusals
    assert why in refused.detail
    path.write_text(held)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 20)


UNREADABLE = {
    "nobody": ("nobody", {}, "no pipeline is named 'nobody'"),
    "jsonl": ("up", {"format": "jsonl"}, "'up' writes jsonl; a source of type pipeline reads only a sink with format: parquet"),
    "table": (
        "up", {"type": "postgres", "connection": "w", "table": "t", "mode": "append"},
        "'up' writes to the table .*t, whose rows have no stable order",
    ),
    "broken": ("up", {"format": "xml"}, "up.yaml declares an invalid sink; correct that file"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_told_by_validate(bench: Workbench, case: str) -> None:
    """With the file, the line and the key, whatever else is wrong with the other file."""
    name, sink, why = UNREADABLE[case]
    source = {"type": "pipeline", "pipeline": name, "schema": {"id": "string"}}
    try:
        bench.spec("up", sink=sink)
    except SpecError:
        assert case == "broken"
    with pytest.raises(SpecError, match=rf"events.yaml:\d+: source.pipeline: .*{why}"):
        bench.spec(source=source, record_id=None)


def test_an_archive_outside_of_the_data_roots(bench: Workbench) -> None:
    """Told by validate, before any run."""
    source = {"type": "pipeline", "pipeline": "up", "path": "out/up", "archive": "/etc"}
    with pytest.raises(SpecError, match=r"source.archive: /etc lies outside|source.archive"):
        bench.spec(source=source | {"schema": {"id": "string"}}, record_id=None)


def test_a_circle_of_pipelines_is_refused(bench: Workbench) -> None:
    """Also through folders: what is written would be read without an end."""
    schema = {"id": "string"}
    bench.spec("c", source={"path": "out/b/*.parquet", "format": "parquet", "schema": schema})
    bench.spec("a", source={"type": "pipeline", "pipeline": "c", "schema": schema}, record_id=None)
    bench.spec("b", source={"type": "pipeline", "pipeline": "a", "schema": schema}, record_id=None)
    with pytest.raises(SpecError, match=r"which reads .*, which reads .*again and again"):
        pipeline.load_all()
    bench.spec("d", source={"path": "out/e/n=1/*.parquet", "format": "parquet", "schema": schema})
    bench.spec("e", source={"type": "pipeline", "pipeline": "d", "schema": schema}, record_id=None)
    with pytest.raises(SpecError) as told:
        pipeline.load_all()
    assert str(told.value).count("again and again") == 2
    with pytest.raises(SpecError, match="keep them apart"):
        bench.spec("a", source={"type": "pipeline", "pipeline": "a", "schema": schema})
