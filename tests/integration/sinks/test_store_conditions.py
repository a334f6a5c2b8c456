"""Stores that pass over conditions of a put: semel finds out before it writes anything there."""

import pyarrow as pa
import pytest

from fixtures.batches.account import ids, quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.delta.outlet import EVENTS, OWN, Delta
from fixtures.objects.outlet import Prefix
from fixtures.objects.s3 import S3
from fixtures.objects.wire import HttpWire
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.runs.run import run_batch

KINDS = {"objects": Prefix, "delta": Delta}


# Attacks OB11, DL9.
@pytest.mark.parametrize(
    ("kind", "header", "why"),
    [
        ("objects", "If-None-Match", "does not refuse a second put of one key"),
        ("objects", "If-Match", "does not refuse to replace an object that has changed"),
        ("delta", "If-None-Match", "does not refuse a second put of one key"),
    ],
    ids=["objects", "copies", "delta"],
)
def test_a_store_that_passes_over_a_condition_gets_nothing(
    bench: Workbench, ledger: Ledger, deaf: tuple[S3, HttpWire], kind: str, header: str, why: str
) -> None:
    """On each attempt, before any work: no file, no table, no probe; and once it hears, all lands."""
    server, wire = deaf
    place = KINDS[kind](bench, server)
    bench.write("in/a.jsonl", events(0, 10))
    wire.deaf = [header]
    with pytest.raises(TerminalError, match=why):
        run_batch(ledger, place.spec(), "r1", LocalEngine(), log=quiet)
    assert "Contents" not in server.client.list_objects_v2(Bucket=place.bucket)
    wire.deaf = []
    run_batch(ledger, place.spec(), "r1", LocalEngine(), log=quiet)
    assert [record_id for _, record_id in place.rows()] == ids(0, 10)


# Attacks DL9.
def test_a_table_replaces_no_object(
    bench: Workbench, ledger: Ledger, deaf: tuple[S3, HttpWire]
) -> None:
    """It has no copies of markers there, so it does not ask for If-Match."""
    server, wire = deaf
    place = Delta(bench, server)
    bench.write("in/a.jsonl", events(0, 10))
    wire.deaf = ["If-Match"]
    run_batch(ledger, place.spec(), "r1", LocalEngine(), log=quiet)
    assert [record_id for _, record_id in place.rows()] == ids(0, 10)


# Attacks DL9.
@pytest.mark.parametrize(
    "variable", [{"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, {"AWS_CONDITIONAL_PUT": "disabled"}]
)
def test_the_environment_does_not_take_the_condition_away(
    bench: Workbench, ledger: Ledger, s3: S3, monkeypatch: pytest.MonkeyPatch,
    variable: dict[str, str],
) -> None:  # fmt: skip
    """Other users of the library set such variables: somebody's commit meanwhile stays."""
    place = Delta(bench, s3)
    bench.write("in/a.jsonl", events(0, 10))
    run_batch(ledger, place.spec(), "r1", LocalEngine(), log=quiet)
    bench.write("in/b.jsonl", events(10, 20))
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    schema = pa.schema([*EVENTS, *OWN])
    rows = pa.Table.from_pylist([{"id": "theirs"}], schema=schema)

    def theirs() -> None:
        with monkeypatch.context() as patch:
            for name in variable:
                patch.delenv(name)
            place.append(rows)

    with failpoints.armed("sink.before_delta", theirs):
        run_batch(ledger, place.spec(), "r2", LocalEngine(), log=quiet)
    assert sorted(place.read()["id"].to_pylist()) == [*ids(0, 20), "theirs"]
