"""At least once as a choice: repeats stay, no id is kept; and the way to exactly once."""

import json
import shutil
from collections import Counter
from typing import Any

import pytest

from fixtures.batches.account import committed, ids, quiet, run, settled, sql
from fixtures.batches.compares import compared
from fixtures.batches.replays import admitted, allow, as_float, broken, proven, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import Warehouse
from semel import failpoints
from semel.airflow import describe
from semel.archive import layout
from semel.archive.marker import Marker, markers
from semel.audit import audit
from semel.errors import CorruptionError, RetryableError, SpecError, TerminalError
from semel.formats.output import rows_of
from semel.ledger import Ledger, pipelines
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.repair.exact import ExactSince, exact

NO_ID = {"n": 7, "at": "2026-01-01T00:00:00Z"}
TORN = b'{"id": "e000200", "n": "seven"}'
"""Set aside, so its id is of no record that is there."""

LOOSE = {"guarantee": "at_least_once"}


def two_batches(bench: Workbench, ledger: Ledger, **changes: Any) -> Spec:
    """Repeats within and between two batches, a record without an id, and one set aside."""
    spec = bench.spec(**LOOSE, **changes)
    bench.write("in/a.jsonl", [*events(0, 20), *events(15, 20), NO_ID, TORN])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(10, 30))
    run(ledger, spec, "r2")
    return spec


def there(spec: Spec) -> Counter[str | None]:
    """How often each id is in the output, which is proven."""
    proven(spec)
    files = ((marker, file) for marker in made(spec) for file in marker.of_kind(Kind.DATA))
    tables = (table for each in files for table in rows_of(*each, ["id"]))
    return Counter(value for table in tables for value in table.column("id").to_pylist())


def counted(ledger: Ledger, table: str) -> int:
    return sql(ledger, f"SELECT count(*) FROM semel.{table}")[0]["count"]


def made(spec: Spec) -> list[Marker]:
    return markers(spec.sink_path())


def switched(ledger: Ledger, spec: Spec, **more: Any) -> ExactSince:
    return exact(ledger, spec, log=quiet, **more)


LOOSE_COUNTS = {**{e: 1 for e in ids(0, 30)}, **{e: 2 for e in ids(10, 15)}, None: 1}
LOOSE_COUNTS |= {e: 3 for e in ids(15, 20)}


def test_repeats_stay(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Each record is there as often as the source has it; what is told says so."""
    spec = two_batches(bench, ledger)
    assert there(spec) == LOOSE_COUNTS
    assert counted(ledger, "id_run") == 0
    assert [m.exact for m in made(spec)] == [False, False]
    assert audit(spec).notes == ("repeats may be there: at_least_once",)
    assert compared(ledger, spec).total == 0
    assert "`id`; at_least_once: semel does not drop repeats" in describe.pipeline_markdown(spec)
    assert "guarantee: at_least_once" in shell.runs("semel show 1")
    assert shell.runs("semel find events e000016").count("output") == 3
    bench.write("in/c.jsonl", events(30, 31))
    assert "repeats may be there: at_least_once" in shell.runs("semel run events")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"record_id": None}, "guarantee: at_least_once needs record_id: without it semel reads"),
        ({"dedup": {"scope": "bucket"}, "record_time": "at"}, "dedup.scope: bucket does not work"),
        ({"dedup": {"keep_ids": True}}, "dedup.keep_ids: does not work with at_least_once"),
        (
            {"sink": {"type": "postgres", "connection": "w", "table": "t", "mode": "upsert",
                      "key": ["id"]}},
            "sink.mode: upsert allows one row for a key",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it(bench: Workbench, changes: dict, why: str) -> None:
    """A declaration that promises what at_least_once cannot keep is refused with its key."""
    with pytest.raises(SpecError, match=why):
        bench.spec(**LOOSE, **changes)


# Attacks P24, D11.
@pytest.mark.parametrize("source", [True, False], ids=["source", "output"])
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_the_way_to_exactly_once(
    bench: Workbench, ledger: Ledger, shell: Shell, form: str, source: bool
) -> None:
    """The plan refuses the edit and names the command; behind it no repeat of the horizon is there.

    What was set aside has no id that is known: corrected, it is a record. The ids come from the
    output, and from the source alone where the output is gone.
    """
    loose = two_batches(bench, ledger, sink={"format": form})
    spec = bench.spec(sink={"format": form})
    bench.write("in/c.jsonl", [*events(5, 40), *events(35, 45), *events(200, 201)])
    assert shell.fails("semel run events") == "semel exact events"
    assert counted(ledger, "batch") == 2
    folder = spec.sink_path()
    if source:
        shutil.move(folder, bench.folder / "away")
        folder.mkdir()
    told = shell.runs("semel exact events")
    if source:
        shutil.rmtree(folder)
        shutil.move(bench.folder / "away", folder)
    assert "exactly once from commit 3 on: the catalog has 30 ids of 2 batches" in told
    assert "nothing to do" in shell.runs("semel exact events")
    assert "repeats may be there before commit 3" in shell.runs("semel run events")

    wanted = {**LOOSE_COUNTS, **{e: 1 for e in (*ids(30, 45), *ids(200, 201))}}
    assert there(spec) == wanted
    assert Counter(why for _, _, why in settled(spec).decisions) == {
        "duplicate_in_catalog": 25, "duplicate_in_batch": 5,
    }  # fmt: skip
    verdict = audit(spec)
    assert verdict.ok and "repeats may be there before commit 3" in verdict.notes
    assert (made(spec)[-1].exact_from, made(spec)[-1].exact) == (3, True)
    assert compared(ledger, spec, 3, 3).total == 0
    with pytest.raises(TerminalError, match="semel wrote batch 1 at least once"):
        compared(ledger, spec)
    assert loose.digest() != spec.digest()


# Attacks D11.
def test_with_the_audit_a_repeat_behind_it_is_seen(bench: Workbench, ledger: Ledger) -> None:
    """The judge blames what the catalog should have dropped, and nothing before the switch."""
    two_batches(bench, ledger)
    spec = bench.spec()
    switched(ledger, spec)
    sql(ledger, "UPDATE semel.id_run SET retired_at = clock_timestamp() RETURNING 1")
    bench.write("in/c.jsonl", events(0, 1))
    run(ledger, spec, "r3")
    [check] = [check for check in audit(spec).checks if not check.ok]
    assert (check.name, check.broken) == ("ids", 1)
    assert check.offenders[0].what == "the id survived in batch 1 already"


# Attacks C8.
def test_with_the_audit_each_earlier_copy_counts(bench: Workbench, ledger: Ledger) -> None:
    """Also where the horizon of the newest one is over, and that of one before is not.

    It takes 3 s, of which one is a horizon that ends.
    """
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, bench.spec(**LOOSE), "r1")
    bench.write("in/b.jsonl", events(0, 10))
    run(ledger, bench.spec(**LOOSE, dedup={"horizon": "1 s"}), "r2")
    sql(ledger, "SELECT pg_sleep(1.1)")
    spec = bench.spec()
    switched(ledger, spec)
    sql(ledger, "UPDATE semel.id_run SET retired_at = clock_timestamp() RETURNING 1")
    bench.write("in/c.jsonl", events(0, 1))
    run(ledger, spec, "r3")
    [check] = [check for check in audit(spec).checks if not check.ok]
    assert (check.name, check.broken) == ("ids", 1)
    assert check.offenders[0].what == "the id survived in batch 1 already"


# Attacks P24.
def test_there_is_no_way_back(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Readers count on what is exactly once: it stays so, once a batch has committed."""
    spec = bench.spec(**LOOSE)
    bench.write("in/a.jsonl", events(0, 10))
    first = plan(ledger, spec, "r1")
    plan(ledger, bench.spec(), "r0")
    assert plan(ledger, bench.spec(**LOOSE), "r0").pipeline.exact_from is None
    run(ledger, bench.spec(), "r1")
    assert first.batch is not None
    assert there(bench.spec()) == dict.fromkeys(ids(0, 10), 1)
    bench.spec(**LOOSE)
    bench.write("in/b.jsonl", events(0, 20))
    shell.fails("semel run events")
    assert "exactly_once from commit 1 on, and cannot become at_least_once" in shell.err
    assert "guarantee" in shell.runs("semel exact events", 1) + shell.err
    run(ledger, bench.spec(), "r2")
    assert there(bench.spec()) == dict.fromkeys(ids(0, 20), 1)


# Attacks D8, D11.
def test_a_lost_ledger_knows_where_it_begins(bench: Workbench, ledger: Ledger) -> None:
    """Before the switch adopt takes no ids; after it those that were taught too."""
    loose = two_batches(bench, ledger)
    lose(ledger)
    adopted = adopt(ledger, loose, log=quiet)
    assert (adopted.batches, adopted.ids) == (2, 0)
    spec = bench.spec()
    with pytest.raises(TerminalError, match="semel exact events"):
        plan(ledger, spec, "r3")
    assert switched(ledger, spec).exact_from == 3
    lose(ledger)  # Nothing has committed behind it: it is to be done again.
    assert adopt(ledger, spec, log=quiet).ids == 0
    assert switched(ledger, spec).ids == 30
    bench.write("in/c.jsonl", events(25, 40))
    run(ledger, spec, "r3")
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 40
    with ledger.transaction() as connection:
        assert pipelines.find(connection, "events").repeats.endswith("before commit 3")
    bench.write("in/d.jsonl", events(0, 50))
    run(ledger, spec, "r4")
    assert there(spec) == {**LOOSE_COUNTS, **dict.fromkeys(ids(30, 50), 1)}


# Attacks D7, D11.
def test_ids_that_nobody_has(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Without output and source it is refused, and says until when they are missed. Its output is
    looked for where the pipeline has it, also when the same edit declares another sink.
    """
    two_batches(bench, ledger)
    spec = bench.spec()
    shutil.move(bench.data / "in" / "a.jsonl", bench.folder / "away")
    [file] = spec.sink_path().glob("*b00000001*")
    kept = file.rename(bench.folder / "kept")
    shell.fails("semel exact events")
    assert "events: semel cannot recover the ids of batch 1" in shell.err
    assert "Or run it at_least_once until " in shell.err
    assert not any(word in shell.err for word in ("bucket", "forget", "abandon"))
    kept.rename(file)
    assert switched(ledger, bench.spec(sink={"path": "out/other"})).ids == 30
    assert not layout.ids_list(layout.archive_folder(spec), 1).exists()  # Its output has them.


# Attacks D7, D8, D11.
def test_taught_ids_outlast_output_and_source(bench: Workbench, ledger: Ledger) -> None:
    """They are kept in ids files where those of any batch are, so that a lost ledger needs neither;
    what adopt was told to forget it finds again when it is back.
    """
    two_batches(bench, ledger)
    spec = bench.spec(dedup={"keep_ids": True})
    switched(ledger, spec)
    bench.write("in/c.jsonl", events(30, 40))
    run(ledger, spec, "r3")
    assert there(spec) == {**LOOSE_COUNTS, **dict.fromkeys(ids(30, 40), 1)}
    shutil.move(bench.data / "in" / "a.jsonl", bench.folder / "a.jsonl")
    [output] = spec.sink_path().glob("*b00000001*")
    output.rename(bench.folder / "output")
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 40
    listed = layout.ids_list(layout.archive_folder(spec), 1)
    listed.with_name(".b00000001.json.7.0a").touch()  # Left from a crash.
    assert broken(spec) == {"files", "source"}
    text = listed.read_bytes()
    listed.write_bytes(text[:-9])
    assert broken(spec) == {"files", "source", "strays"}
    lose(ledger)
    forgetting = adopt(ledger, spec, forget_ids=True, log=quiet)
    assert (forgetting.ids, forgetting.batches_forgotten) == (30, (1,))
    listed.write_bytes(text)
    (bench.folder / "output").rename(output)
    shutil.move(bench.folder / "a.jsonl", bench.data / "in" / "a.jsonl")
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 40
    bench.write("in/d.jsonl", events(0, 50))
    run(ledger, spec, "r4")
    assert there(spec) == {**LOOSE_COUNTS, **dict.fromkeys(ids(30, 50), 1)}


# Attacks D11.
@pytest.mark.parametrize("damage", ["fewer", "twice", "others", "deep", "outside"])
def test_a_list_that_is_damaged(bench: Workbench, ledger: Ledger, damage: str) -> None:
    """It lists none, and no other file is taken for the batch's. Exact, done again after the ledger
    was lost, takes the ids from output or source, and says which file is not as it was.
    """
    loose, spec = two_batches(bench, ledger), bench.spec(dedup={"keep_ids": True})
    switched(ledger, spec)
    listed = layout.ids_list(layout.archive_folder(spec), 1)
    plain = json.loads(text := listed.read_text())
    files = plain["files"]
    listed.write_text({
        "fewer": json.dumps({**plain, "files": files[1:]}),
        "twice": json.dumps({"files": files * 2, "ids": plain["ids"] * 2}),
        "others": layout.ids_list(layout.archive_folder(spec), 2).read_text(),
        "deep": "[" * 100_000,
        "outside": json.dumps({**plain, "files": [{**files[0], "path": "../x"}, *files[1:]]}),
    }[damage])  # fmt: skip
    assert broken(loose) == {"strays"}
    lose(ledger)
    spec = bench.spec(dedup={"keep_ids": True})
    assert adopt(ledger, spec, log=quiet).strays == ()
    told = "b00000001.json: this file differs from the ids that exact writes there.*Move it out"
    with pytest.raises(CorruptionError, match=told):
        switched(ledger, spec)
    listed.unlink()
    layout.batch_file(layout.archive_folder(spec), Kind.IDS, 2, 1).unlink()
    assert switched(ledger, spec).ids == 30
    assert listed.read_text() == text
    proven(spec)


class KilledError(Exception):
    """In place of a kill: whatever was there stays."""


# Attacks D11.
def test_ids_files_without_their_list(bench: Workbench, ledger: Ledger) -> None:
    """Exact was killed between the two: nobody has to do it again, and they are of no lost batch."""
    loose = two_batches(bench, ledger)

    def killed() -> None:
        raise KilledError

    with failpoints.armed("storage.after_publish", killed), pytest.raises(KilledError):
        switched(ledger, bench.spec(dedup={"keep_ids": True}))
    assert len(list((layout.archive_folder(loose) / Kind.IDS).iterdir())) == 1
    loose = bench.spec(**LOOSE)
    proven(loose)
    lose(ledger)
    assert adopt(ledger, loose, log=quiet).strays == ()
    assert switched(ledger, bench.spec()).ids == 30
    proven(bench.spec())


# Attacks D7, D11.
def test_a_batch_without_an_id_is_kept_too(bench: Workbench, ledger: Ledger) -> None:
    """It is known to have none, also when its output and its source are gone."""
    bench.write("in/a.jsonl", [NO_ID, NO_ID])
    run(ledger, bench.spec(**LOOSE), "r1")
    spec = bench.spec(dedup={"keep_ids": True})
    assert switched(ledger, spec).ids == 0
    bench.write("in/b.jsonl", events(0, 10))
    run(ledger, spec, "r2")
    proven(spec)
    (bench.data / "in" / "a.jsonl").unlink()
    for output in spec.sink_path().glob("*b00000001*"):
        output.unlink()
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 10


# Attacks D7, D8, D11.
def test_a_table(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ids come from the source, and are kept by default: a lost ledger needs it no more."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    sink = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}
    two_batches(bench, ledger, sink=sink)
    spec = bench.spec(sink=sink)
    assert switched(ledger, spec).ids == 30
    bench.write("in/c.jsonl", events(25, 40))
    run(ledger, spec, "r3")
    proven(spec)
    shutil.move(bench.data / "in" / "a.jsonl", bench.folder / "away")
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 40
    shutil.move(bench.folder / "away", bench.data / "in" / "a.jsonl")
    bench.write("in/d.jsonl", events(0, 50))
    run(ledger, spec, "r4")
    proven(spec)
    counted = "SELECT count(*), count(DISTINCT id) FROM events"
    assert warehouse.run(counted) == [(sum(LOOSE_COUNTS.values()) + 20, 50)]


# Attacks D8, D11.
def test_a_horizon_that_changes_behind_it(bench: Workbench, ledger: Ledger) -> None:
    """The ids of a batch keep the time that its own declaration gave them, as those of any batch:
    for the command, for a lost ledger and for the judge.

    It takes 3 s, two of which are horizons that end: no clock but the ledger's decides that.
    """
    spec = bench.spec(**LOOSE, dedup={"horizon": "1 s"})
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    spec = bench.spec(**LOOSE)
    bench.write("in/b.jsonl", events(10, 20))
    run(ledger, spec, "r2")
    sql(ledger, "SELECT pg_sleep(1.1)")
    short = bench.spec(dedup={"horizon": "1 s"})
    done = switched(ledger, short)
    assert (done.batches, done.batches_expired, done.ids) == (1, 1, 10)
    bench.write("in/c.jsonl", events(20, 21))
    run(ledger, short, "r3")
    sql(ledger, "SELECT pg_sleep(1.1)")
    lose(ledger)
    shutil.move(spec.sink_path(), bench.folder / "output")
    spec.sink_path().mkdir()
    adopted = adopt(ledger, short, log=quiet)
    assert (adopted.ids, adopted.batches_expired) == (10, 2)
    lose(ledger)
    spec = bench.spec()
    assert adopt(ledger, spec, log=quiet).batches_expired == 2
    spec.sink_path().rmdir()
    shutil.move(bench.folder / "output", spec.sink_path())
    bench.write("in/d.jsonl", events(0, 20))
    run(ledger, spec, "r4")
    assert there(spec) == {**dict.fromkeys(ids(0, 10), 2), **dict.fromkeys(ids(10, 21), 1)}
    sql(ledger, "UPDATE semel.id_run SET retired_at = clock_timestamp() RETURNING 1")
    bench.write("in/e.jsonl", events(10, 11))
    run(ledger, bench.spec(dedup={"horizon": "1 s"}), "r5")
    assert broken(spec) == {"ids"}


def test_a_disk_that_is_full(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was changed, and the same command goes on."""
    two_batches(bench, ledger)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(RetryableError, match="No space left"):
        patch.setattr("numpy.save", full)
        switched(ledger, bench.spec())
    assert switched(ledger, bench.spec()).ids == 30


# Attacks D11.
def test_a_batch_on_its_way_is_finished_first(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """A committed batch has no marker that its ids could be read from, and no run finishes it by
    the new declaration: the command does. One that lost its marker is told.
    """
    marker = layout.marker(layout.archive_folder(two_batches(bench, ledger)), 2)
    marker.rename(marker.with_name(".aside"))
    with pytest.raises(
        RetryableError, match="events: batch 2 has committed, but exact did not find its marker"
    ):
        switched(ledger, bench.spec())
    assert counted(ledger, "id_run") == 0
    marker.with_name(".aside").rename(marker)
    bench.write("in/c.jsonl", events(50, 60))
    committed(ledger, bench.spec(**LOOSE), "r3")
    bench.spec()
    assert "40 ids of 3 batches" in shell.runs("semel exact events")


def test_another_file_under_the_name_of_an_ids_file(bench: Workbench, ledger: Ledger) -> None:
    """It is not touched, and not taken for the ids."""
    spec = two_batches(bench, ledger)
    other = layout.batch_file(layout.archive_folder(spec), Kind.IDS, 2, 1)
    other.parent.mkdir()
    other.write_bytes(b"mine")
    spec = bench.spec(dedup={"keep_ids": True})
    with pytest.raises(CorruptionError, match="00002-00001.parquet: this file differs .* Move it"):
        switched(ledger, spec)
    other.rename(bench.folder / "aside")
    assert switched(ledger, spec).ids == 30


def test_what_is_told_without_a_commit(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """No ids are counted where there were none to learn."""
    bench.write("in/a.jsonl", events(0, 10))
    plan(ledger, bench.spec(**LOOSE), "r1")
    bench.spec()
    told = shell.runs("semel exact events")
    assert told == "events is exactly once from commit 1 on\nnext: semel run events\n"


def test_a_replay_from_before(bench: Workbench, ledger: Ledger) -> None:
    """What survived is not decided again: the repeats of a batch stay in its replay, and a lost
    ledger still knows what it was. Its dead letters are judged as of now.
    """
    two_batches(bench, ledger)
    bench.spec()
    with pytest.raises(TerminalError, match="semel exact events"):
        replayed(ledger, bench.spec(), 1, "again")
    spec = as_float(bench)
    switched(ledger, spec)
    allow(ledger, spec)
    assert replayed(ledger, spec, 1, "again").finalized.counts.survivors == 26
    replayed(ledger, spec, 2, "again")
    assert there(spec) == LOOSE_COUNTS
    assert [m.exact for m in made(spec)] == [False, False]
    assert not admitted(ledger, spec).finalized.counts.survivors
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 30
    bench.write("in/c.jsonl", events(0, 40))
    run(ledger, spec, "r3")
    assert there(spec) == {**LOOSE_COUNTS, **dict.fromkeys(ids(30, 40), 1)}


# Attacks D11.
@pytest.mark.parametrize("of", ["another ledger", "another pipeline", "a ledger of meanwhile"])
def test_a_marker_of_no_batch_here(bench: Workbench, ledger: Ledger, of: str) -> None:
    """Its ids are not learned: what the ledger does not have is read again, and is no repeat."""
    loose = two_batches(bench, ledger)
    marker, [output] = (
        layout.marker(layout.archive_folder(loose), 2),
        loose.sink_path().glob("*b00000002*"),
    )

    def forget() -> None:
        text = marker.read_bytes()
        marker.unlink()
        output.rename(bench.folder / "output")
        lose(ledger)
        assert adopt(ledger, loose, log=quiet).batches == 1
        if of == "another pipeline":
            text = text.replace(b'"pipeline": "events"', b'"pipeline": "others"')
        marker.write_bytes(text)
        (bench.folder / "output").rename(output)

    spec = bench.spec(dedup={"keep_ids": True})
    point = "exact.before_lock"
    if of != "a ledger of meanwhile":
        forget()
        point = "exact.after_exact"
    with pytest.raises(
        TerminalError, match="batch 2 are not of 'events' in this ledger.* out of the archive"
    ):
        with failpoints.armed(point, forget):
            switched(ledger, spec)
    kept = layout.archive_folder(spec) / Kind.IDS
    assert counted(ledger, "id_run") == 0 and kept.exists() == (point == "exact.before_lock")
    for path in (marker, output, *kept.glob("b00000002*")):
        path.unlink()
    assert switched(ledger, spec).ids == 20
    run(ledger, spec, "r2")
    assert there(spec) == {**dict.fromkeys(ids(0, 30), 1), **dict.fromkeys(ids(15, 20), 2), None: 1}
