"""Objects attacked: keys, times and answers that no well-behaved writer or store has.

The store is in this process, so that it may have any key and any answer, and counts its requests.
"""

import hashlib
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from fixtures.batches.account import advised, ids, lines, run, settled, sql
from fixtures.batches.replays import falls_silent
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Objects
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.objects.wire import HttpWire
from semel.clients.objects import Store
from semel.errors import ChangedError, SemelError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reports.gaps import gaps

DAY = timedelta(days=1)


class Shelf:
    """A bucket in memory, behind the calls of S3 that reading takes."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, str, datetime]] = {}
        self.asked: list[str] = []
        self.page = 1_000
        self.url = ""
        self.puts = 0

    def put(self, key: str, data: bytes, etag: str | None = None) -> None:
        self.puts += 1
        made = etag if etag is not None else hashlib.md5(data).hexdigest()  # noqa: S324
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.puts)
        self.held[key] = data, made, at

    def listing(self, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(
            (k for k in self.held if k.startswith(prefix) and k.encode() > after.encode()),
            key=str.encode,
        )
        shown, more = keys[: self.page], len(keys) > self.page
        items = "".join(
            f"<Contents><Key>{escape(k)}</Key><LastModified>{at:%Y-%m-%dT%H:%M:%S.000Z}"
            f"</LastModified><ETag>\"{etag}\"</ETag><Size>{len(data)}</Size></Contents>"
            for k in shown for data, etag, at in [self.held[k]]
        )  # fmt: skip
        token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}"
            f"</IsTruncated>{token}{items}</ListBucketResult>"
        ).encode()


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """The store, and a connection to it."""
    made = Shelf()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            key = unquote(split.path).removeprefix("/bucket").removeprefix("/")
            query = {k: v[0] for k, v in parse_qs(split.query, keep_blank_values=True).items()}
            if "list-type" in query:
                made.asked.append("LIST")
                return self.answer(200, made.listing(query))
            made.asked.append(f"{self.command} {key}")
            if key not in made.held:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            data, etag, at = made.held[key]
            if self.headers["If-Match"] not in (None, f'"{etag}"'):
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            head = {"ETag": f'"{etag}"', "Last-Modified": format_datetime(at, usegmt=True)}
            if span := self.headers["Range"]:
                low, high = map(int, span.removeprefix("bytes=").split("-"))
                part = data[low : high + 1]
                head["Content-Range"] = f"bytes {low}-{low + len(part) - 1}/{len(data)}"
                return self.answer(206, part, head)
            return self.answer(200, data, head)

        do_HEAD = do_GET

        def answer(self, status: int, body: bytes, head: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in ((head or {}) | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_port}"
        extra = {"endpoint_url": made.url, "region_name": "us-east-1"}
        text = {"conn_type": "aws", "login": "a", "password": "b", "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps(text))
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def declared(bench: Workbench, prefix: str = "/in", **changes: object) -> Spec:
    """A pipeline by position, so that what is read twice shows."""
    source = {
        "type": "objects", "url": f"s3://bucket{prefix}", "connection": CONNECTION,
        "format": "jsonl", "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
    } | changes.pop("source", {})  # fmt: skip
    return bench.spec(record_id=None, source=source, **changes)


def test_a_key_that_is_listed_twice_is_told(
    shelf: Shelf, bench: Workbench, ledger: Ledger
) -> None:
    """The client strips a slash at a key's end, so two objects come under one key: which of them is
    read nobody could say. The plan fails and names the key."""
    shelf.put("in/a.jsonl", lines(0, 10))
    shelf.put("in/a.jsonl/", lines(10, 20))
    spec = declared(bench)
    with pytest.raises(SemelError, match="a.jsonl"):
        run(ledger, spec, "r1")
    with pytest.raises(SemelError, match="a.jsonl.*slash"):
        plan(ledger, spec, "r2")
    del shelf.held["in/a.jsonl/"]
    run(ledger, spec, "r3")
    assert settled(spec).ids == ids(0, 10)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("dt=%Y-%m-%d/", "dt=2026-1-5/a.jsonl"),
        ("dt=%Y-%m-%d/", "DT=2026-01-05/a.jsonl"),
        ("%Y/%b/%d/", "2026/JAN/05/a.jsonl"),
        ("%Y/%m/%d.jsonl", "2026/1/05.jsonl"),
    ],
)
def test_a_folder_that_no_run_lists_is_told(
    shelf: Shelf, bench: Workbench, ledger: Ledger, rule: str, key: str
) -> None:
    """strptime takes 1 for 01, and any case; the folders that are listed are written as strftime
    does. A key that no run's listing could show has no interval, and says so where all is listed.
    """
    shelf.put(f"in/{key}", lines(0, 10))
    spec = declared(bench, source={"select": "interval", "interval_from": rule})
    start = datetime(2026, 1, 5, tzinfo=UTC)
    assert run(ledger, spec, "r1", (start, start + DAY)).plan.batch is None
    found = gaps(ledger, spec)
    assert [(r.name, r.reason) for r in found.refusals] == [(key, "interval")]


@pytest.mark.parametrize(
    "rule",
    ["%Y-W%U/", "%Y-W%W/", "%Y-%m-%dT%H%z/", "%Y-%m-%dT%H:%M:%S.%f/", "%Y-%m-%dT%X/", "%Y %x/"],
)
def test_a_rule_whose_folders_would_be_missed_is_refused(bench: Workbench, rule: str) -> None:
    """Weeks have no day, an offset is not read, and of fractions and a locale's times no listing
    has the folders: before any work."""
    with pytest.raises(SemelError, match="interval_from"):
        declared(bench, source={"select": "interval", "interval_from": rule})


def test_a_plan_with_nothing_to_do_asks_for_lists_alone(
    shelf: Shelf, bench: Workbench, ledger: Ledger
) -> None:
    """Of 2,500 objects: three requests a plan, and one of each object to prove it and one to read
    it."""
    for number in range(250):
        shelf.put(f"in/{number:04d}.jsonl", lines(number, number + 1))
    shelf.page = 100
    spec = declared(bench)
    run(ledger, spec, "r1")
    shelf.asked.clear()
    assert run(ledger, spec, "r2").plan.batch is None
    assert shelf.asked == ["LIST"] * 3


@pytest.mark.parametrize("key", ["-x.jsonl", "$(x) \\.jsonl", "%2F/~'.jsonl"])
def test_advice_for_odd_keys_is_typed_as_it_is(
    shelf: Shelf, bench: Workbench, ledger: Ledger, key: str
) -> None:
    """The command of a refusal settles it, whatever the key is."""
    shelf.put(f"in/{key}", lines(0, 10))
    spec = declared(bench)
    run(ledger, spec, "r1")
    shelf.put(f"in/{key}", lines(20, 30))
    (told,) = plan(ledger, spec, "r2").refusals
    advised(ledger, told.detail)
    run(ledger, spec, "r3")
    assert settled(spec, audited=False).ids == sorted([*ids(0, 10), *ids(20, 30)])


def test_an_object_without_etag_is_not_read(
    shelf: Shelf, bench: Workbench, ledger: Ledger
) -> None:
    """A store that gives no etags cannot say that an object was replaced."""
    shelf.put("in/a.jsonl", lines(0, 10), etag="")
    spec = declared(bench)
    with pytest.raises(SemelError, match="etag"):
        run(ledger, spec, "r1")


def test_a_longer_object_under_one_etag_is_not_mixed(
    shelf: Shelf, bench: Workbench, ledger: Ledger
) -> None:
    """An etag that is no digest may stay: a size that is another is seen."""
    shelf.put("in/a.jsonl", lines(0, 10), etag="const")
    spec = declared(bench)
    run(ledger, spec, "r1")
    shelf.put("in/a.jsonl", lines(0, 12), etag="const")
    assert [r.reason for r in plan(ledger, spec, "r2").refusals] == ["replaced"]


def history(
    shelf: Shelf, ledger: Ledger, specs: list[Spec], seed: int, name: Callable[[int], str],
    windows: list[tuple[datetime, datetime] | None],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Random puts, runs, dead plans and abandoned ones, by several declarations in turn. Returns
    what is wanted in the output, and what happened."""
    chosen, wanted, said, made = random.Random(seed), [], [], 0
    keys: list[str] = []
    for step in range(14):
        does = chosen.choice("pppprrrdaAg")
        said.append(does)
        spec, window = chosen.choice(specs), chosen.choice(windows)
        if does == "p":
            for _ in range(chosen.randint(1, 4)):
                size = chosen.choice([1, 3, 7])
                data = lines(made, made + size)
                if chosen.random() < 0.3:
                    data = data.removesuffix(b"\n")
                wanted += ids(made, made + size)
                made += size
                keys.append(name(len(keys)))
                shelf.put(f"in/{keys[-1]}", data)
                said.append(keys[-1])
        elif does == "r":
            run(ledger, spec, f"r{step}", window)
        elif does in "dA":  # Planned by a run that died; abandoned by a person.
            found = plan(ledger, spec, f"d{step}", window).batch
            if found and does == "A":
                abandon(ledger, found.batch_id, "not now")
            elif found:
                sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 day'")
        elif does == "a" and keys:  # The same content again, by another put.
            key = chosen.choice(keys)
            shelf.put(f"in/{key}", shelf.held[f"in/{key}"][0])
        elif does == "g":
            gaps(ledger, spec)
    sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 day'")
    for _ in range(40):
        took = [
            run(ledger, specs[0], f"end{_}:{n}", window).plan.batch
            for n, window in enumerate(windows)
        ]
        if not any(took):
            break
    return sorted(wanted), said


SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_random_histories_of_an_ordered_listing(
    shelf: Shelf, bench: Workbench, ledger: Ledger, seed: int
) -> None:
    """Small and large limits, with and without the promise of order: each record once."""
    limits = [{"bytes_per_batch_max": 500}, {"bytes_per_batch_max": 100_000}]
    specs = [
        declared(bench, source={"ordered": ordered}, limits=some)
        for some in limits for ordered in (True, False)
    ]  # fmt: skip
    shelf.page = 3
    wanted, said = history(shelf, ledger, specs, seed, lambda n: f"{n:04d}é.jsonl", [None])
    assert settled(specs[0]).ids == wanted, said
    assert plan(ledger, specs[1], "whole").batch is None, said


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_random_histories_of_intervals(
    shelf: Shelf, bench: Workbench, ledger: Ledger, seed: int
) -> None:
    """Runs of days in any order: each record once."""
    source = {"select": "interval", "interval_from": "dt=%Y-%m-%d/", "on_refused": "warn"}
    specs = [
        declared(bench, source=source | {"lookback": back}, limits={"bytes_per_batch_max": 100_000})
        for back in ("0 s", "2 d")
    ]
    days = [datetime(2026, 1, n, tzinfo=UTC) for n in range(1, 5)]
    chosen = random.Random(seed)
    wanted, said = history(
        shelf, ledger, specs, seed, lambda n: f"dt=2026-01-{chosen.randint(1, 4):02d}/{n}.jsonl",
        [(day, day + DAY) for day in days],
    )  # fmt: skip
    assert settled(specs[0]).ids == wanted, said


# Attacks OB15.
@pytest.mark.parametrize(
    ("format", "again"),
    [
        ("jsonl", "the same run"),
        ("jsonl", "another run"),
        ("parquet", "the same run"),
        pytest.param("csv", "the same run", marks=pytest.mark.rest),
    ],
)
def test_a_key_that_ends_with_a_slash_is_refused_alone(
    deaf: tuple[S3, HttpWire], bench: Workbench, ledger: Ledger, format: str, again: str
) -> None:
    """An object with bytes that a console calls a folder: the client lists it without the slash, and
    reads nothing by that name. The run that finds out fails with what to do, the next one goes on
    without it, and so does each one after it, until it is renamed."""
    place = Objects(bench, deaf[0], format)
    place.append(0, 10)
    spec = place.spec()
    _, _, prefix = spec.source.url.removeprefix("s3://").partition("/")
    key = f"{prefix}/dir".lstrip("/")
    data = place.made(10, 20)
    deaf[0].put(place.bucket, f"{key}/", data)
    if format == "jsonl":
        with pytest.raises(ChangedError, match="'dir' cannot be read: its key ends with a slash"):
            run(ledger, spec, "r1")
        if again == "another run":
            falls_silent(ledger)
    for key_of in ("r1" if again == "the same run" else "r2", "r3", "r4"):
        assert [(r.name, r.reason) for r in run(ledger, spec, key_of).plan.refusals] == [
            ("dir", "slash")
        ]
    assert settled(spec, audited=False).ids == ids(0, 10)
    deaf[0].delete(place.bucket, f"{key}/")
    deaf[0].put(place.bucket, f"{key}x", data)
    run(ledger, spec, "r5")
    assert settled(spec, audited=False).ids == ids(0, 20)
