"""Rows as messages of a Kafka topic: keys, values, what a topic refuses, and rows read back."""

import json
import secrets
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from fix_account import quiet
from fix_engine import LocalEngine
from fix_kafka import Kafka, Record
from fix_pipelines import Workbench, events
from fix_sink_kafka import Outlet, dies, ids, marker
from fix_sinks import table
from semel import faults
from semel.audit import audit
from semel.errors import TerminalError
from semel.kafka.cluster import Cluster
from semel.ledger import Ledger
from semel.run import run_batch
from semel.sinks import Presence, archive
from semel.stack.kafka import Listener


# Attacks KP6.
def test_each_message_that_passes_the_check_is_taken(outlet: Outlet) -> None:
    """Around the limit, byte by byte: the broker takes what the check passes, and most of what the
    check sets aside is too large indeed.
    """
    outlet.make(max_message_bytes="4000")
    sink = outlet.sink()
    refuses = sink.check(table(0, 1).schema, outlet.folder)
    texts = ["x" * size for size in range(3700, 4000, 7)] + ['"\n\x01é' * 500]
    rows = pa.table({"id": [f"e{n:06d}" for n in range(len(texts))], "text": texts})
    [large] = refuses(rows)
    assert large.reason == "large" and "4000" in large.detail
    passed = [n for n in range(len(texts)) if n not in large.rows]
    assert 0 < len(passed) < len(texts)
    won = outlet.won(rows.take(pa.array(passed)))
    outlet.finalize(won, sink)
    assert len(outlet.read()) == len(passed)


# Attacks KP6, S27.
def test_what_the_topic_will_refuse_is_a_dead_letter(
    bench: Workbench, ledger: Ledger, outlet: Outlet
) -> None:
    """A message that is too large is set aside before its id is known; the other rows land."""
    outlet.make(max_message_bytes="2000")
    long = {"id": "e000003" + "x" * 5000, "n": 3, "at": None}
    bench.write("in/a.jsonl", [*events(0, 3), long, *events(4, 10)])
    servers = outlet.kafka.broker.bootstrap
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    spec = bench.spec(sink=sink)
    done = run_batch(ledger, spec, "r1", LocalEngine(), log=quiet)
    assert outlet.ids == sorted({*ids(0, 10)} - {"e000003"})
    assert (done.finalized.counts.quarantined, audit(spec).ok) == (1, True)
    [letters] = archive.of(spec).glob("dead_letters/*.parquet")
    [letter] = pq.read_table(letters).to_pylist()
    assert letter["reason"] == "sink_refuses" and letter["detail"].startswith("large: ")
    [row] = bench.data.joinpath("in/a.jsonl").read_bytes().splitlines()[3:4]
    assert letter["raw"] == row


# Attacks KP6.
def test_values_that_json_does_not_have_are_found(outlet: Outlet) -> None:
    """NaN, infinities and years without four digits, also within nested values."""
    refuses = outlet.make().sink(key=None).check(None, outlet.folder)
    times = pa.array([0, 10**18, 0, 0], pa.timestamp("us", "UTC"))
    rows = pa.table({
        "x": [1.0, 2.0, float("nan"), 3.0], "at": times,
        "in": pa.array([None, None, None, [{"y": float("inf")}]]),
    })  # fmt: skip
    found = {(one.reason, *one.rows.tolist()) for one in refuses(rows)}
    assert found == {("number", 2), ("number", 3), ("range", 1)}


_RIGHTS = [
    ("topic", "READ"), ("topic", "WRITE"), ("topic", "DESCRIBE_CONFIGS"), ("control", "READ"),
    ("control", "WRITE"), ("control", "DESCRIBE_CONFIGS"), ("id", "WRITE"),
]  # fmt: skip


# Attacks KP5.
@pytest.mark.parametrize("lacking", [None, *_RIGHTS])
def test_a_right_that_is_lacking_is_told_before_any_work(
    outlet: Outlet, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, str] | None
) -> None:
    """With those of docs/kafka.md a batch lands and is read back; without one of them stage says
    so, and quotes no password.
    """
    outlet.make()
    user, password = f"writer-{secrets.token_hex(4)}", "s3cret-word"
    kafka.user(user, password)
    for place, operation in _RIGHTS:
        if (place, operation) != lacking:
            _allow(kafka, outlet, user, place, operation)
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": user, "sasl_password": password}
    extra = kafka.client(Listener.SCRAM, **login)
    monkeypatch.setenv("AIRFLOW_CONN_OWN", json.dumps({"conn_type": "kafka", "extra": extra}))
    sink, won = outlet.sink(cluster=Cluster(connection="own")), outlet.won(table(0, 10))
    if lacking is None:
        sink.check(won.schema, outlet.folder)
        outlet.finalize(won, sink)
        assert sum(len(rows) for rows in sink.rows(marker(won))) == 10
        return
    began = time.monotonic()
    with pytest.raises(TerminalError, match="give it the rights that docs/kafka.md lists") as error:
        sink.check(won.schema, outlet.folder)
    assert password not in str(error.value) and time.monotonic() - began < 10


def _allow(kafka: Kafka, outlet: Outlet, user: str, place: str, operation: str) -> None:
    kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
    name = {"topic": outlet.topic, "control": outlet.control}.get(place)
    if name is None:
        kind, pattern = ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED
        name = f"semel.{outlet.topic}."
    rule = AclBinding(
        kind, name, pattern, f"User:{user}", "*", AclOperation[operation], AclPermissionType.ALLOW
    )
    for done in kafka.admin.create_acls([rule]).values():
        done.result()


# Attacks KP9.
def test_refused_rows_can_be_kept_while_the_others_land(
    outlet: Outlet, kafka: Kafka
) -> None:
    """The topic's limit was lowered since stage: finalize says what to do, the refused row is kept
    before the others are visible, and it is counted.
    """
    outlet.make()
    texts = ["x" * (5000 if n == 7 else 10) for n in range(12)]
    won = outlet.won(pa.table({"id": ids(0, 12), "text": texts}))
    sink = outlet.sink()
    with faults.armed("sink.after_cut", dies, 2), pytest.raises(faults.FaultError):
        outlet.sink(transaction_bytes=200).publish(won, won.files)
    kafka.configure(outlet.topic, "max.message.bytes", "2000")
    with pytest.raises(TerminalError, match=f"semel accept events --refused {won.batch_id}"):
        sink.publish(won, won.files)
    kept: list[tuple[pa.Table, list[str]]] = []
    sink.publish_accepting(won, lambda rows: kept.append((rows, outlet.ids)))
    [(rows, before)] = kept
    assert rows.column("id").to_pylist() == ["e000007"] and "e000011" not in before
    assert "max.message.bytes" in rows.column("_semel_refusal")[0].as_py()
    assert outlet.ids == sorted({*ids(0, 12)} - {"e000007"})
    assert sink.look(won) == [Presence.RIGHT] and sink.refused(won) == 1
    sink.publish_accepting(won, lambda _: pytest.fail("it has landed"))


def test_keys_and_headers(outlet: Outlet, kafka: Kafka) -> None:
    """A key of one column is its text, of several an object; null is no key; headers likewise."""
    rows = pa.table({
        "id": ["a", None, "ü"], "n": [1, 2, 3],
        "day": pa.array([0, 1, None], pa.date32()), "raw": [b"\x00\xff", b"", None],
    })  # fmt: skip
    wanted = {
        "id": [b"a", None, "ü".encode()],
        "n": [b"1", b"2", b"3"],
        "day": [b"1970-01-01", b"1970-01-02", None],
        "raw": [b"\x00\xff", b"", None],
        ("n", "day"): [
            b'{"n":1,"day":"1970-01-01"}', b'{"n":2,"day":"1970-01-02"}', b'{"n":3,"day":null}'
        ],
    }  # fmt: skip
    outlet.make(partitions=1)
    headers = (("the-id", "id"), ("day", "day"))
    for batch_id, key in enumerate([*wanted, None], start=1):
        won = outlet.won(rows, batch_id=batch_id)
        outlet.finalize(won, outlet.sink(key=key, headers=headers))
    read = kafka.drain(outlet.topic)
    keys = [message.key for message in read]
    assert keys == [key for own in wanted.values() for key in own] + [None] * 3
    found = [message.headers for message in read]
    assert found[0] == [("the-id", b"a"), ("day", b"1970-01-01")]
    assert found[1] == [("the-id", None), ("day", b"1970-01-02")]


def test_keys_land_where_java_puts_them(outlet: Outlet, kafka: Kafka) -> None:
    """By murmur2, as Java's producers choose a partition, so that consumers find a key in one."""
    outlet.make(partitions=5)
    won = outlet.won(table(0, 200))
    outlet.finalize(won)
    for read in kafka.drain(outlet.topic):
        assert read.partition == (_murmur2(read.key) & 0x7FFFFFFF) % 5


def _murmur2(data: bytes) -> int:
    """The hash of Kafka's own `Utils.murmur2`."""
    seed, m, mask = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF
    h = (seed ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


# Attacks KP10.
def test_rows_come_back_as_they_were(outlet: Outlet) -> None:
    """Each type, nulls too, among messages of others."""
    rows = pa.table({
        "id": ["a", 'q"\n\\', None], "n": pa.array([2**63 - 1, -(2**63), None]),
        "x": [0.1, 1e300, None], "flag": [True, False, None],
        "price": pa.array([Decimal("1.10"), Decimal("-99999.99"), None], pa.decimal128(7, 2)),
        "day": pa.array([0, 20000, None], pa.date32()),
        "at": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "local": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us")),
        "raw": [b"\x00\xff", b"", None],
        "many": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "part": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    })  # fmt: skip
    outlet.make()
    won = outlet.won(rows)
    outlet.kafka.produce(outlet.topic, [Record(value=b"no json", key=b"x"), Record(value=None)])
    others = [Record(value=b'{"id":"z"}'), Record(value=None)]
    with faults.armed("sink.before_cut", lambda: outlet.kafka.produce(outlet.topic, others)):
        outlet.finalize(won)
    found = pa.concat_tables(outlet.sink().rows(marker(won)))
    assert found.schema == rows.schema
    assert found.take(_order(found)).to_pylist() == rows.take(_order(rows)).to_pylist()


def _order(rows: pa.Table) -> pa.Array:
    texts = [text or "" for text in rows.column("id").to_pylist()]
    return pa.array(sorted(range(len(texts)), key=texts.__getitem__))
