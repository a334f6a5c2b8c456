"""Rows as messages of a topic: keys, headers, what JSON has not; made while others are sent."""

from collections.abc import Iterator
from contextlib import closing
from threading import Event, active_count
from typing import Any

import pyarrow as pa
import pytest

from semel.clients.kafka.cluster import Cluster
from semel.errors import TerminalError
from semel.sinks import CommittedBatch
from semel.sinks.kafka import encode
from semel.sinks.kafka.encode import EncodedMessages
from semel.sinks.kafka.landing import _Block, _prefetch
from semel.sinks.kafka.row_check import KafkaRowCheck
from semel.sinks.kafka.sink import KafkaSink
from semel.sinks.kafka.target import KafkaTarget


def target(**declared: Any) -> KafkaTarget:
    """A topic of a cluster that is away."""
    return KafkaTarget(cluster=Cluster(servers="127.0.0.1:1"), topic="rows", **declared)


ROWS = pa.table({
    "id": ["a", None, "ü"], "n": [1, 2, 3],
    "day": pa.array([0, 1, None], pa.date32()), "raw": [b"\x00\xff", b"", None],
})  # fmt: skip


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        (None, [None] * 3),
        ("id", [b"a", None, "ü".encode()]),
        ("n", [b"1", b"2", b"3"]),
        ("day", [b"1970-01-01", b"1970-01-02", None]),
        ("raw", [b"\x00\xff", b"", None]),
        (
            ("n", "day"),
            [
                b'{"n":1,"day":"1970-01-01"}', b'{"n":2,"day":"1970-01-02"}',
                b'{"n":3,"day":null}',
            ],
        ),
    ],
)  # fmt: skip
def test_keys_and_headers(key: Any, keys: list[bytes | None]) -> None:
    """A key of one column is its text, of several an object; null is no key; headers likewise."""
    place = {"pipeline": "events", "batch_id": 7, "fence": 1, "commit_seq": 9}
    won = CommittedBatch(**place, files=(), schema=ROWS.schema, digest="", ledger="")
    declared = target(key=key, headers=(("the-id", "id"), ("day", "day")))
    [batch] = ROWS.to_batches()
    made = encode.encode_messages(declared, won, batch)
    assert made.keys == keys
    assert made.headers == [[b"a", None, "ü".encode()], [b"1970-01-01", b"1970-01-02", None]]
    assert made.values[0] == (
        b'{"id":"a","n":1,"day":"1970-01-01","raw":"AP8=","_semel_batch":7,"_semel_seq":9}'
    )


@pytest.mark.parametrize(
    ("declared", "column", "said"),
    [
        ({"key": "x"}, "raw", "sink.key names 'x', which is not a column"),
        ({"key": ("id", "x")}, "raw", "sink.key names 'x'"),
        ({"headers": (("h", "x"),)}, "raw", "sink.headers names 'x'"),
        ({}, "_semel_batch", "semel writes a field of that name"),
    ],
)
# Attacks KP5.
def test_columns_that_make_no_messages(
    declared: dict[str, Any], column: str, said: str, tmp_path: Any
) -> None:
    """They are told before any work where the columns are known, else before the batch is staged.
    """
    schema = pa.schema([("id", pa.string()), (column, pa.binary())])
    sink = KafkaSink(target(**declared), "events")
    for call in (lambda: sink.check(schema, tmp_path), lambda: sink.check_staged(schema, ())):
        with pytest.raises(TerminalError, match=said):
            call()


# Attacks KP6.
def test_values_that_json_does_not_have_are_found() -> None:
    """NaN, infinities and years without four digits, also within nested values."""
    refuses = KafkaRowCheck(target=target(key=None), bytes_max=1 << 20, keyed=False)
    times = pa.array([0, 10**18, 0, 0], pa.timestamp("us", "UTC"))
    rows = pa.table({
        "x": [1.0, 2.0, float("nan"), 3.0], "at": times,
        "in": pa.array([None, None, None, [{"y": float("inf")}]]),
    })  # fmt: skip
    found = {(one.reason, *one.rows.tolist()) for one in refuses(rows)}
    assert found == {("number", 2), ("number", 3), ("range", 1)}


_NONE = EncodedMessages(values=[], keys=[], headers=[], size=0)


def test_the_next_is_made_meanwhile() -> None:
    """While one block is handed on, the next one is made, and no further one."""
    made = [Event() for _ in range(4)]

    def blocks() -> Iterator[_Block]:
        for end, event in enumerate(made):
            event.set()
            yield end, _NONE

    threads = active_count()
    with closing(_prefetch(blocks())) as ahead:
        assert next(ahead) == (0, _NONE)
        assert made[1].wait(10)
        assert not made[2].is_set()
        assert [end for end, _ in ahead] == [1, 2, 3]
    assert active_count() == threads


def test_its_errors_are_those_of_the_publish() -> None:
    """A staged file that cannot be read ends the publish, behind what could be read."""

    def blocks() -> Iterator[_Block]:
        yield 1, _NONE
        raise pa.ArrowInvalid("no Parquet")

    with closing(_prefetch(blocks())) as ahead:
        assert next(ahead) == (1, _NONE)
        with pytest.raises(pa.ArrowInvalid):
            next(ahead)


def test_who_fails_leaves_no_thread() -> None:
    """A publish that fails in the middle ends the thread."""
    threads = active_count()
    with pytest.raises(LookupError), closing(_prefetch(iter([(1, _NONE), (2, _NONE)]))) as ahead:
        next(ahead)
        raise LookupError
    assert active_count() == threads
