"""Delta tables under attack: values and names of any kind, tables that somebody else has made, and
deaths between the steps of a commit."""

import json
import os
import random
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from fixtures.batches.account import committed, ids, quiet
from fixtures.batches.faults import dies_at
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sinks import won_of
from fixtures.delta.outlet import EVENTS, OWN, Delta
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.spark.local import LocalEngine
from semel import failpoints, pipeline
from semel.archive.marker import markers_of
from semel.errors import CorruptionError, SpecError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.sinks import MiscountError
from semel.sinks.delta import landing
from semel.sinks.delta.statistics import Statistics
from semel.sinks.delta.table import DeltaTarget, with_semel_columns
from test_sink_delta import folder, found, proven, run  # noqa: F401 - a fixture among them

BEYOND, NAN, INF = "\U0010ffff", float("nan"), float("inf")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text beyond the first plane": (pa.string(), ["𠮷野家", "a", "￿"]),
    "long text": (pa.string(), [BEYOND * 40, "é" * 40, "z" * 32]),
    "decimals of 18 digits": (pa.decimal128(18, 9), ["590416189.832341555", "1", "-0.1"]),
    "decimals of 38 digits": (pa.decimal128(38, 37), ["-8.9553237793901329559045077453896459327"]),
    "whole decimals": (pa.decimal128(17, 0), ["77315298651424806", "-77315298651424807"]),
    "zeros": (pa.float64(), [-0.0, 0.0]),
    "no number": (pa.float64(), [1.5, NAN]),
    "infinite": (pa.float64(), [1.5, INF, -INF]),
    "short floats": (pa.float32(), [0.1, -0.1, 16777217.0]),
    "bytes": (pa.binary(), [b"a", b"\xff\x00"]),
    "nothing": (pa.int64(), [None, 7]),
    "late times": (pa.timestamp("us", "UTC"), [253402300799_999999, 0, -62135596800_000000]),
}  # fmt: skip


def counted(place: Delta, wanted: Any, name: str = "v") -> int:
    """How many rows a dataset finds with a value."""
    data = place.table.to_pyarrow_dataset()
    return data.to_table(filter=pc.equal(pc.field(name), wanted)).num_rows


# Attacks DL6.
@pytest.mark.parametrize("what", VALUES)
def test_each_value_is_found_by_a_filter(folder: Delta, what: str) -> None:
    """As often as it is there: no reader passes over a file that has it."""
    kind, values = VALUES[what]
    told = [Decimal(v) if isinstance(v, str) and pa.types.is_decimal(kind) else v for v in values]
    rows = pa.table({"id": ids(0, len(told)), "v": pa.array(told, kind)})
    folder.finalize(won_of(folder.staged, folder.sink().target, [rows]))
    for value in rows["v"]:
        if value.is_valid:
            there = pc.sum(pc.equal(rows["v"], value)).as_py()
            assert counted(folder, value) == there, value
    assert folder.table.to_pyarrow_dataset().to_table(filter=pc.field("v").is_null()).num_rows == (
        rows["v"].null_count
    )


# Attacks DL6.
def test_what_is_said_of_a_file_takes_no_row_away(folder: Delta) -> None:
    """Random rows, asked for by DataFusion with each operator, of a table whose commit says nothing
    of its files and of one whose commit does."""
    draw = random.Random(34)
    made = {
        "t": (pa.string(), lambda: "".join(draw.choices(f"aé𠮷{BEYOND}", k=draw.randint(0, 40)))),
        "d": (pa.decimal128(38, 9), lambda: Decimal(draw.randint(-(10**30), 10**30)).scaleb(-9)),
        "f": (pa.float64(), lambda: draw.choice([0.0, -0.0, draw.uniform(-1e300, 1e300)])),
        "n": (pa.int64(), lambda: draw.randint(-(2**63), 2**63 - 1)),
    }
    tables = []
    for _ in range(12):
        columns = {name: pa.array([value() for _ in range(5)], kind)
                   for name, (kind, value) in made.items()}  # fmt: skip
        tables.append(pa.table({"id": ids(0, 5), **columns}))
    folder.finalize(won_of(folder.staged, folder.sink().target, tables))
    bare = folder.bench.data / "bare"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Statistics, "text", lambda self: json.dumps({"numRecords": self.rows}))
        spec = folder.bench.spec("bare", sink={"type": "delta", "table": "bare"})
        staged = folder.bench.folder / "bare-staged"
        staged.mkdir()
        landing.land(table_of(spec), won_of(staged, folder.sink().target, tables))
    for _ in range(150):
        name = draw.choice(list(made))
        value = draw.choice(draw.choice(tables)[name]).as_py()
        asked = f"{name} {draw.choice(['=', '<', '<=', '>', '>='])} {literal(value)}"
        assert asked_of(folder.where, asked) == asked_of(str(bare), asked), asked


def table_of(spec: Spec) -> DeltaTarget:
    return open_sink(spec)._table


def literal(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return f"CAST('{value}' AS DECIMAL(38, 9))" if isinstance(value, Decimal) else repr(value)


def asked_of(table: str, condition: str) -> int:
    query = QueryBuilder().register("t", DeltaTable(table))
    found = query.execute(f"SELECT count(*) FROM t WHERE {condition}")
    return sum(pa.record_batch(rows)[0][0].as_py() for rows in found)


# Attacks DL3.
def test_a_file_that_is_gone_is_put_back_by_finalize(folder: Delta, ledger: Ledger) -> None:
    """A vacuum has taken it before the commit, and finalize died after it: nobody can read the
    table. The next finalize puts it there before it asks anything, and the pipeline goes on."""
    run(folder, ledger, "r0", 0, 5)
    folder.bench.write("in/a.jsonl", events(100, 150))
    spec = folder.spec()
    batch = committed(ledger, spec, "r1")
    with dies_at("sink.after_delta"), failpoints.armed("sink.before_delta", folder.vacuum):
        finalize(ledger, spec, batch)
    with pytest.raises(FileNotFoundError):
        folder.table.to_pyarrow_table()
    finalize(ledger, spec, batch)
    run(folder, ledger, "r2", 200, 205)
    assert found(folder) == [*ids(0, 5), *ids(100, 150), *ids(200, 205)]
    proven(spec)


# Attacks DL3.
def test_a_file_is_not_put_back_with_other_bytes(
    folder: Delta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log says how many bytes a file has, and readers go by it: another pyarrow would write
    others. It is told, and the version that wrote it puts it back."""
    won = folder.won((0, 2_000))
    folder.finalize(won)
    [name] = folder.sink()._table.active_files(folder.table, [landing.file_name(won, won.files[0])])
    (Path(folder.where) / name).unlink()
    with monkeypatch.context() as patch:
        real = landing.pq.ParquetWriter
        patch.setattr(
            landing.pq, "ParquetWriter", lambda f, s, **k: real(f, s, **k | {"compression_level": 9})
        )
        with pytest.raises(CorruptionError, match="this version of pyarrow would write"):
            folder.sink().repair_published(won)
    folder.sink().repair_published(won)
    assert found(folder) == ids(0, 2_000)


# Attacks DL4.
def test_a_table_that_was_half_made(folder: Delta) -> None:
    """Who made it was killed before its first commit was there: it is made."""
    (Path(folder.where) / "_delta_log").mkdir(parents=True)
    (Path(folder.where) / "_delta_log" / f"{0:020d}.json#1").write_text("{")
    folder.finalize(folder.won((0, 10)))
    assert found(folder) == ids(0, 10)


# Attacks DL4.
@pytest.mark.parametrize("table", ["a%20b", "a\\b", "s3://bucket/a%20b"])
def test_a_name_that_clients_decode_is_refused(bench: Workbench, table: str) -> None:
    """They would write to another table. Other signs are taken as they are."""
    with pytest.raises(SpecError, match="sink.table.*which clients of Delta decode"):
        bench.spec(sink={"type": "delta", "table": table})


# Attacks DL4.
@pytest.mark.parametrize("name", ["100% a b", "ü#'\"&=+,;x{}~$()"])
def test_any_other_name_is_taken(bench: Workbench, name: str) -> None:
    """A folder of that name is the table, and nothing else is made."""
    place = Delta(bench)
    place.where = str(bench.data / name)
    spec = bench.spec(sink={"type": "delta", "table": name})
    won = place.won((0, 10))
    landing.land(table_of(spec), won)
    assert DeltaTable(place.where).transaction_version(landing.app_id(won)) == 1
    assert {path.name for path in bench.data.iterdir()} <= {name, "in"}


def test_what_a_vacuum_would_take_is_kept_apart(bench: Workbench) -> None:
    """A full vacuum takes all files of its folder that the log does not name: so there is no
    archive, and no other sink."""
    delta = {"type": "delta", "table": "out/table"}
    with pytest.raises(SpecError, match="sink.archive.*lies in the sink"):
        bench.spec(sink={**delta, "archive": "out/table/kept"})
    with pytest.raises(SpecError, match=r"sink.table.*which is reserved for archives"):
        bench.spec(sink={**delta, "table": "_semel/table"})
    one = bench.spec("one", sink=delta)
    inside = {
        "files": {"type": "files", "path": "out/table/files", "format": "parquet"},
        "archive": {"type": "postgres", "connection": "w", "table": "t", "archive": "out/table/x"},
    }
    for kind, sink in inside.items():
        two = bench.spec("two", sink=sink)
        [clash] = pipeline.clashes({Path("one"): one, Path("two"): two})
        assert "overlaps with" in clash, kind
    beside = bench.spec("two", sink={"type": "files", "path": "out/t", "format": "parquet"})
    assert not pipeline.clashes({Path("one"): one, Path("two"): beside})


# Attacks DL8.
def test_what_landed_is_durable(folder: Delta, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's files and the names of them too, once finalize has published: deltalake syncs none.
    """
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    folder.finalize(folder.won((0, 10)))
    log = f"{folder.where}/_delta_log"
    assert {f"{log}/{0:020d}.json", f"{log}/{1:020d}.json", log, folder.where} <= set(synced)
    assert str(Path(folder.where).parent) in synced
    folder.table.create_checkpoint()
    synced.clear()
    folder.finalize(folder.won((10, 20), batch_id=2))
    logged = {Path(path).name for path in synced if path.startswith(f"{log}/")}
    assert {f"{1:020d}.checkpoint.parquet", f"{2:020d}.json"} <= logged
    assert f"{0:020d}.json" not in logged


# Attacks DL2.
@pytest.mark.parametrize("how", ["restored", "overwritten"])
def test_a_commit_whose_rows_are_gone(folder: Delta, ledger: Ledger, how: str) -> None:
    """Somebody has restored the table, or overwritten it, between the commit and the marker: that
    is told, and no marker is written. With the rows the batch is finalized."""
    run(folder, ledger, "r0", 0, 5)
    folder.bench.write("in/a.jsonl", events(100, 150))
    spec = folder.spec()
    batch = committed(ledger, spec, "r1")
    with dies_at("sink.after_delta"):
        finalize(ledger, spec, batch)
    version = folder.table.version()
    if how == "restored":
        folder.table.restore(version - 1)
    else:
        rows = folder.read().filter(pc.equal(pc.field("_semel_batch"), 1))
        write_deltalake(folder.where, rows, mode="overwrite")
    with pytest.raises(CorruptionError, match="has its commit but none of its rows. .*RESTORE"):
        finalize(ledger, spec, batch)
    assert len(markers_of(spec)) == 1
    folder.table.restore(version)
    finalize(ledger, spec, batch)
    proven(spec)


def made(place: Delta, schema: pa.Schema, writer: int) -> dict[str, Any]:
    """A table whose first commit is written by hand. Returns its fields."""
    log = Path(place.where) / "_delta_log"
    log.mkdir(parents=True)
    fields = json.loads(Schema.from_arrow(with_semel_columns(schema)).to_json())
    about = {
        "id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields), "partitionColumns": [], "configuration": {},
        "createdTime": 0,
    }  # fmt: skip
    actions = {"protocol": {"minReaderVersion": 1, "minWriterVersion": writer}}, {"metaData": about}
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return fields


# Attacks DL4.
def test_an_old_writer_version_is_refused(folder: Delta) -> None:
    """The sixth has identity columns, and names no features; the fifth is taken."""
    made(folder, EVENTS, 6)
    with pytest.raises(TerminalError, match="has the feature identityColumns"):
        folder.sink().check(EVENTS, folder.staged)
    (Path(folder.where) / "_delta_log" / f"{0:020d}.json").unlink()
    (Path(folder.where) / "_delta_log").rmdir()
    made(folder, EVENTS, 5)
    folder.finalize(folder.won((0, 10)))
    assert found(folder) == ids(0, 10)


# Attacks DL2.
def test_a_commit_that_is_refused_is_no_conflict(
    folder: Delta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody has committed, it is told what the library says, and not tried fifty times."""
    made(folder, EVENTS, 6)
    monkeypatch.setattr("semel.sinks.delta.table._LEGACY_IDENTITY", 0)
    won = folder.won((0, 10))
    with pytest.raises(TerminalError, match="semel cannot read or write its log .*IdentityColumns"):
        folder.sink().publish(won, won.files)


# Attacks DL4.
@pytest.mark.parametrize("kind", [
    pa.struct([pa.field("a", pa.int64(), nullable=False)]),
    pa.list_(pa.field("item", pa.int64(), nullable=False)),
    pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
], ids=["struct", "list", "map"])  # fmt: skip
def test_a_part_that_may_not_be_null_is_refused(folder: Delta, kind: pa.DataType) -> None:
    """A commit of files would put nulls there, and nobody could read the table."""
    made(folder, pa.schema([*EVENTS, ("part", kind)]), 2)
    with pytest.raises(TerminalError, match="'part', or a part of it, NOT NULL"):
        folder.sink().check(EVENTS, folder.staged)


# Attacks DL4.
def test_a_users_own_table_is_told_which_columns_it_lacks(folder: Delta, ledger: Ledger) -> None:
    """Also by the first plan, which asks for traces of batches; with them the batch lands."""
    DeltaTable.create(folder.where, schema=EVENTS)
    folder.bench.write("in/a.jsonl", events(0, 5))
    with pytest.raises(TerminalError, match="lacks '_semel_batch'.*ADD COLUMNS"):
        run_batch(ledger, folder.spec(), "r", LocalEngine(), log=quiet)
    folder.table.alter.add_columns(Schema.from_arrow(OWN).fields)
    run_batch(ledger, folder.spec(), "r", LocalEngine(), log=quiet)
    assert found(folder) == ids(0, 5)


# Attacks DL4.
def test_a_table_that_is_made_meanwhile_is_looked_at(
    folder: Delta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the creation: nothing lands in one that does not fit."""
    won, create = folder.won((0, 10)), DeltaTable.create

    def rival(*args: object, **more: Any) -> None:
        schema = pa.schema([pa.field("id", pa.string(), nullable=False), *OWN])
        create(folder.where, schema=schema)
        create(*args, **more)

    monkeypatch.setattr(DeltaTable, "create", rival)
    with pytest.raises(TerminalError, match="'id', or a part of it, NOT NULL"):
        folder.sink().publish(won, won.files)
    assert folder.table.version() == 0


def test_a_token_of_the_machine_is_not_sent_with_the_key_of_a_connection(
    bench: Workbench, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake would take it from the environment. With the variable unset the batch lands."""
    place = Delta(bench, s3)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-machine")
    with pytest.raises(TerminalError, match="the environment sets AWS_SESSION_TOKEN, .*Unset it"):
        place.sink()
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    place.finalize(place.won((0, 10)))
    assert found(place) == ids(0, 10)


@pytest.mark.parametrize(("said", "wanted"), [
    ("Generic S3 error: Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied"
     "</Code>", "may not use s3://.*Allow GetObject and PutObject"),
    ("Generic S3 error: Server returned non-2xx status code: 400 Bad Request: <Code>InvalidToken"
     "</Code>", "refuses the connection 'store_tests'"),
], ids=["a right", "a token"])  # fmt: skip
def test_a_right_that_is_missing_is_told(
    bench: Workbench, s3: S3, monkeypatch: pytest.MonkeyPatch, said: str, wanted: str
) -> None:
    """What the service says to deltalake, in the words of the other client; nobody waits for it."""
    place = Delta(bench, s3)
    place.finalize(place.won((0, 10)))

    def refused(*_: object, **__: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    won = place.won((10, 20), batch_id=2)
    with pytest.raises(TerminalError, match=wanted):
        place.sink().publish(won, won.files)
    assert CONNECTION == "store_tests"


def test_a_folder_that_refuses_a_commit_is_told(
    folder: Delta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that is missing is no outage."""
    folder.finalize(folder.won((0, 10)))

    def refused(*_: object, **__: object) -> None:
        raise DeltaError("Generic LocalFileSystem error: Unable to open\nPermission denied (os error 13)")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    won = folder.won((10, 20), batch_id=2)
    with pytest.raises(TerminalError, match="Permission denied .*give semel the right to write"):
        folder.sink().publish(won, won.files)


# Attacks DL7.
def test_rows_that_were_changed_are_put_back_as_the_message_says(
    folder: Delta, ledger: Ledger
) -> None:
    """From a version that had them, those of the batch alone: batches behind it stay."""
    run(folder, ledger, "r1", 0, 10)
    version = folder.table.version()
    folder.harms["removed"]()
    run(folder, ledger, "r2", 20, 30)
    with pytest.raises(MiscountError, match=r"DELETE FROM .*_semel_batch = 1; INSERT.*AS OF n WHERE"):
        list(folder.sink().rows(markers_of(folder.spec())[0]))
    folder.table.delete("_semel_batch = 1")
    old = DeltaTable(folder.where, version=version).to_pyarrow_table()
    folder.append(old.filter(pc.equal(old["_semel_batch"], 1)))
    run(folder, ledger, "r3", 40, 45)
    assert found(folder) == [*ids(0, 10), *ids(20, 30), *ids(40, 45)]
    proven(folder.spec())


def test_a_batch_without_rows_makes_no_table(folder: Delta, ledger: Ledger) -> None:
    """It has nothing to land; the one behind it does."""
    folder.bench.write("in/a.jsonl", b"")
    folder.bench.write("in/b.jsonl", b"no json\n")
    spec = folder.bench.spec(sink=folder.declared, limits={"quarantine_ratio_max": 1.0})
    run_batch(ledger, spec, "r1", LocalEngine(), log=quiet)
    assert len(markers_of(spec)) == 1 and not folder.is_there()
    folder.bench.write("in/c.jsonl", events(0, 5))
    run_batch(ledger, spec, "r2", LocalEngine(), log=quiet)
    assert found(folder) == ids(0, 5)
    proven(spec)


TWICE = pa.struct([("a", pa.int64()), ("A", pa.int64())])
UNFIT = {
    "parts by their case": (pa.schema([("id", pa.string()), ("s", TWICE)]), "Duplicate field name"),
    "parts of parts": (pa.schema([("s", pa.list_(TWICE))]), "Duplicate field name"),
    "times of a day": (pa.schema([("t", pa.time64("us"))]), "Delta has no type for a column"),
    "NUL in a name": (pa.schema([("a\0b", pa.int64())]), "a name that Delta forbids"),
    "by their case": (pa.schema([("id", pa.int64()), ("ID", pa.int64())]), "by their case alone"),
    "a blank": (pa.schema([("a b", pa.int64())]), "a name that Delta forbids"),
}


# Attacks DL4.
@pytest.mark.parametrize("there", [False, True], ids=["made", "there"])
@pytest.mark.parametrize("case", UNFIT)
def test_an_output_that_no_table_holds(folder: Delta, case: str, there: bool) -> None:  # noqa: F811
    """It is refused before any work, whether finalize would make the table or not; none is made."""
    schema, words = UNFIT[case]
    if there:
        folder.finalize(folder.won((0, 10)))
    with pytest.raises(TerminalError, match=words):
        folder.sink().check(schema, folder.bench.data)
    with pytest.raises(TerminalError, match=words):
        folder.sink().check_staged(schema, [])
    assert Path(folder.where).exists() == there


ODD = ("_metadata", "_change_type", "a.b", "a`b", 'a"b', "select", "é", "x" * 300, "a/b", "a%20b",
       "-", "*", "[a]", "a\\b", "a'b", "a:b", "a\rb", "a\u00a0b", "\u2028", "_row_id")  # fmt: skip


# Attacks DL5.
def test_names_that_are_odd(folder: Delta) -> None:  # noqa: F811
    """Whatever is not refused lands, and is read back."""
    table = pa.table({name: [f"{n}", None] for n, name in enumerate(ODD)})
    sink = folder.sink()
    sink.check(table.schema, folder.bench.data)
    (folder.bench.data / "won").mkdir()
    won = won_of(folder.bench.data / "won", lambda *_: "somewhere", [table],
                 pipeline="events", batch_id=1)  # fmt: skip
    sink.publish(won, won.files)
    assert pa.concat_tables(sink._table.rows(1, table.schema)) == table
