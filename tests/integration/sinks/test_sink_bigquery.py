"""Load jobs into BigQuery, on a fake that keeps what its documents say: each row is there once,
whatever is lost, killed, refused or done twice.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fixtures.batches.account import quiet
from fixtures.batches.faults import dies_at
from fixtures.batches.workbench import Workbench, events
from fixtures.bigquery.outlet import CLUSTERED, DECLARED, EVENTS, NAME, OWN, Outlet, found
from fixtures.bigquery.server import TOKEN, LostError, Refusal
from fixtures.contract.sinks import table
from fixtures.spark.local import LocalEngine
from fixtures.wait import wait_for
from semel import sinks
from semel.compare import BatchRange, compare
from semel.errors import (
    CorruptionError,
    RetryableError,
    SpecError,
    TerminalError,
    UnavailableError,
)
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.runs.run import run_batch
from semel.sinks import CommittedBatch, MiscountError, NotesQuery, Presence
from semel.sinks.bigquery import landing, target
from semel.sinks.bigquery.landing import job_id
from semel.sinks.staged import staged
from semel.spark import check
from semel.spark.check import CheckReport

WAIT_SECONDS = 30


def ids(start: int, stop: int) -> list[str]:
    return [event["id"] for event in events(start, stop)]


@pytest.fixture
def outlet(outlet_bq: Outlet, monkeypatch: pytest.MonkeyPatch) -> Outlet:
    """A table for events. What is asked is asked once, and a job is looked at without pauses."""
    monkeypatch.setattr(landing, "UPLOAD_RETRIES", 0)
    monkeypatch.setattr(landing, "_POLL_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(target, "ANSWER_SECONDS", 0.1)
    return outlet_bq.make()


def once(what: str, error: Exception) -> Callable[[str], None]:
    """A hook that raises at the first request that begins so."""
    left = [error]

    def hook(asked: str) -> None:
        if left and asked.startswith(what):
            raise left.pop()

    return hook


@pytest.fixture(params=["multipart", "resumable"])
def upload(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the client uploads: larger files in a session. Returns the request that makes the job."""
    if request.param == "multipart":
        return "POST /upload"
    monkeypatch.setattr("google.cloud.bigquery.client._MAX_MULTIPART_SIZE", 0)
    return "PUT /upload"


# Attacks BQ2.
def test_a_lost_answer_is_settled_by_the_job(outlet: Outlet, upload: str) -> None:
    """The job is there, and its answer did not come: the rows are there once, by one job."""
    won = outlet.won(table(0, 10), table(10, 15))
    outlet.fake.hook = once(upload, LostError(done=True))
    outlet.sink().publish(won, won.files)
    outlet.finalize(won)
    assert outlet.ids == ids(0, 15) and outlet.fake.loads() == [job_id(won, 0)]


# Attacks BQ2.
def test_a_request_that_did_not_arrive_is_made_again(outlet: Outlet, upload: str) -> None:
    """No job is there, so nothing is: the next finalize inserts it."""
    won, sink = outlet.won(table(0, 10), table(10, 15)), outlet.sink()
    outlet.fake.hook = once(upload, LostError(done=False))
    with pytest.raises(UnavailableError, match="does not answer"):
        sink.publish(won, won.files)
    assert outlet.ids == [] and sink.query_presence(won) == [Presence.ABSENT] * 2
    outlet.finalize(won)
    assert outlet.ids == ids(0, 15) and outlet.fake.loads() == [job_id(won, 0)]


def test_the_client_sends_an_upload_again(
    outlet: Outlet, upload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends again after a lost answer meets its own job, and that is no error."""
    monkeypatch.setattr(landing, "UPLOAD_RETRIES", 1)
    won = outlet.won(table(0, 10))
    outlet.fake.hook = once(upload, LostError(done=True))
    outlet.sink().publish(won, won.files)
    assert sum(asked.startswith(upload) for asked in outlet.fake.requests) == 2
    assert outlet.ids == ids(0, 10) and outlet.fake.loads() == [job_id(won, 0)]


# Attacks BQ1, BQ2.
@pytest.mark.parametrize("point", ["sink.before_load", "sink.after_load"])
def test_a_finalizer_that_died_is_followed_by_its_job(outlet: Outlet, point: str) -> None:
    """The next one finds the job by its id, PENDING, and waits for it."""
    won = outlet.won(table(0, 10))
    with dies_at(point):
        outlet.sink().publish(won, won.files)
    assert outlet.ids == []
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10) and outlet.fake.loads() == [job_id(won, 0)]


# Attacks BQ2.
@pytest.mark.parametrize("early", [True, False])
def test_two_finalizers_at_once_insert_one_job(
    outlet: Outlet, upload: str, early: bool
) -> None:
    """Both upload; the second one finds the id taken, waits for that job, and ends well."""
    won = outlet.won(table(0, 10))
    both = threading.Barrier(2)
    outlet.fake.conflicts_early = early
    outlet.fake.hook = lambda asked: both.wait(WAIT_SECONDS) if asked.startswith(upload) else None
    if early and upload.startswith("PUT"):
        outlet.fake.hook = once("no request", LostError(done=False))
    with ThreadPoolExecutor(2) as pool:
        both_done = [pool.submit(outlet.sink().publish, won, won.files) for _ in range(2)]
        assert [done.result(WAIT_SECONDS) for done in both_done] == [None, None]
    assert outlet.ids == ids(0, 10) and outlet.fake.loads() == [job_id(won, 0)]


# Attacks BQ2.
def test_a_job_that_runs_is_no_success(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds the id taken waits, for a bounded time; nothing is there until the job is done."""
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.fake.held = True
    monkeypatch.setattr(landing, "LOAD_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(RetryableError, match="is still (PENDING|RUNNING) after 0 s"):
            sink.publish(won, won.files)
        assert sink.query_presence(won) == [Presence.ABSENT] and outlet.ids == []
    monkeypatch.setattr(landing, "LOAD_SECONDS", WAIT_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(outlet.sink().publish, won, won.files)
        before = len(outlet.fake.requests)
        wait_for(lambda: len(outlet.fake.requests) > before + 3, "looks", WAIT_SECONDS, 0.01)
        assert not waits.done() and outlet.ids == []
        outlet.fake.held = False
        assert waits.result(WAIT_SECONDS) is None
    assert outlet.ids == ids(0, 10) and len(outlet.fake.loads()) == 1


# Attacks BQ3.
@pytest.mark.parametrize("reason", ["backendError", "quotaExceeded", "stopped"])
def test_a_job_that_failed_by_chance_is_followed_by_the_next(outlet: Outlet, reason: str) -> None:
    """Its id is used up; the next finalize inserts the next one, and only then."""
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.fake.fails = [(reason, "not today"), (reason, "nor now")]
    for n in range(2):
        with pytest.raises(RetryableError, match=rf"-{n} into .*{reason}: no.*inserts another"):
            sink.publish(won, won.files)
        assert sink.query_presence(won) == [Presence.ABSENT] and outlet.ids == []
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)
    assert outlet.fake.loads() == [job_id(won, n) for n in range(3)]


# Attacks BQ3.
def test_rows_that_are_refused_are_not_sent_again(outlet: Outlet) -> None:
    """A fault of rows or table stays one: the same job is told, until the table is changed."""
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.fake.alter(NAME, {**EVENTS, "n": "STRING", **OWN})
    for _ in range(3):
        with pytest.raises(TerminalError, match=r"invalid: Field n.*Change the table") as caught:
            sink.publish(won, won.files)
        assert caught.value.next == "again" and outlet.fake.loads() == [job_id(won, 0)]
    assert sink.query_presence(won) == [Presence.ABSENT]
    outlet.fake.alter(NAME, {**EVENTS, **OWN})
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10) and outlet.fake.loads() == [job_id(won, 0), job_id(won, 1)]


def test_the_number_of_failed_jobs_is_bounded(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch whose jobs all fail is told at some time, and not tried for ever."""
    monkeypatch.setattr(landing, "JOBS_MAX", 2)
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.fake.fails = [("backendError", "no")] * 3
    for _ in range(2):
        with pytest.raises(RetryableError):
            sink.publish(won, won.files)
    with pytest.raises(TerminalError, match="2 load jobs .* have failed.*bq show -j"):
        sink.publish(won, won.files)
    assert len(outlet.fake.loads()) == 2


# Attacks BQ1.
def test_a_job_of_another_place_is_another_one(outlet: Outlet) -> None:
    """Ids are unique within a location: a job of this id in another one says nothing."""
    won = outlet.won(table(0, 10))
    outlet.fake.jobs["proj", "us", job_id(won, 0)] = {
        "status": {"state": "DONE"}, "configuration": {}, "statistics": {},
    }  # fmt: skip
    assert outlet.sink().query_presence(won) == [Presence.ABSENT]
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)


# Attacks BQ2.
def test_a_job_that_loaded_elsewhere_is_told(outlet: Outlet) -> None:
    """A batch that was put into another table under this id is not taken for this table's."""
    won = outlet.won(table(0, 10))
    outlet.fake.make("proj.sales.other", {**EVENTS, **OWN})
    outlet.sink(table="sales.other").publish(won, won.files)
    with pytest.raises(CorruptionError, match="rows into proj.sales.other, and its manifest lists"):
        outlet.sink().publish(won, won.files)
    assert outlet.sink().query_presence(won) == [Presence.WRONG] and outlet.ids == []


# Attacks BQ6.
def test_a_file_that_lacks_rows_loads_nothing(outlet: Outlet) -> None:
    """Fewer rows in the staged files than in the manifest: no job is inserted."""
    won = outlet.won(table(0, 10))
    [file] = won.files
    with pytest.raises(CorruptionError, match="have 10 rows, and its manifest lists 11"):
        outlet.sink().publish(replace(won, files=(replace(file, records=11),)), won.files)
    assert outlet.fake.loads() == [] and outlet.ids == []


# Attacks BQ6.
def test_many_files_are_one_upload(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the manifest, in pieces of a session; nothing is left in the folder."""
    monkeypatch.setattr("google.cloud.bigquery.client._MAX_MULTIPART_SIZE", 0)
    monkeypatch.setattr("google.cloud.bigquery.client._DEFAULT_CHUNKSIZE", 256 << 10)
    wide = pa.table({"id": [f"{n:08}-{n * 2654435761 % 2**32:032b}" for n in range(30_000)]})
    outlet.make({"id": "STRING"})
    won = outlet.won(*(wide.slice(at, 10_000) for at in range(0, 30_000, 10_000)))
    before = sorted(outlet.folder.rglob("*"))
    outlet.finalize(won)
    assert outlet.ids == wide.column("id").to_pylist()
    assert sum(asked.startswith("PUT") for asked in outlet.fake.requests) > 1
    assert sorted(outlet.folder.rglob("*")) == before and len(outlet.fake.loads()) == 1
    assert set(found(outlet.fake, *OWN)) == {(1, 1)}


EVERY = pa.table(
    {
        "b": pa.array([True, None, False]),
        "i8": pa.array([-128, None, 127], pa.int8()),
        "i16": pa.array([-32768, None, 32767], pa.int16()),
        "i32": pa.array([-(2**31), None, 2**31 - 1], pa.int32()),
        "i64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
        "f32": pa.array([0.1, None, float("inf")], pa.float32()),
        "f64": pa.array([0.1, None, 5e-324], pa.float64()),
        "num": pa.array([Decimal("-1.50"), None, Decimal("9999999.99")], pa.decimal128(9, 2)),
        "big": pa.array([Decimal("1E-20"), None, Decimal("-7")], pa.decimal128(38, 20)),
        "s": pa.array(["", None, "ä\U0001f600\n"]),
        "y": pa.array([b"", None, b"\0\xff"]),
        "d": pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
        "t": pa.array(
            [datetime(1, 1, 1, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)],
            pa.timestamp("us", "UTC"),
        ),
    }
)
KINDS = {
    "b": "BOOL", "i8": "INT64", "i16": "INT64", "i32": "INT64", "i64": "INT64", "f32": "FLOAT64",
    "f64": "FLOAT64", "num": "NUMERIC", "big": "BIGNUMERIC", "s": "STRING", "y": "BYTES",
    "d": "DATE", "t": "TIMESTAMP",
}  # fmt: skip


def marker(won: CommittedBatch) -> SimpleNamespace:
    """What the sink asks of a marker."""
    return SimpleNamespace(
        writer_id=won.batch_id, sink_schema=won.schema, of_kind=lambda _: won.files, path="marker"
    )


# Attacks BQ5, BQ7.
@pytest.mark.parametrize("page", [2, 1_000])
def test_each_type_comes_back_as_it_was(outlet: Outlet, page: int) -> None:
    """Each value of each type that is taken, by pages or at once; a column more is null."""
    outlet.make({**KINDS, "more": "STRING"})
    outlet.fake.page_rows = page
    won = outlet.won(EVERY)
    assert "not clustered" not in outlet.sink().describe(EVERY.schema)
    outlet.finalize(won)
    with outlet.sink() as sink:
        read = pa.concat_tables(sink.rows(marker(won)))
    assert read.equals(EVERY)
    assert outlet.fake.tables[NAME].rows.column("more").null_count == 3


# Attacks BQ7.
def test_rows_that_somebody_removed_are_missed(outlet: Outlet) -> None:
    """Behind those that are there."""
    won = outlet.won(table(0, 10))
    outlet.finalize(won)
    outlet.fake.change(NAME, lambda rows: rows.slice(3))
    read = outlet.sink().rows(marker(won))
    assert sum(len(some) for some in [next(read)]) == 7
    with pytest.raises(MiscountError, match="has 7 rows of batch 1, and semel loaded 10"):
        next(read)


def named(*names: str) -> pa.Table:
    """A row of one text and two numbers."""
    return pa.table(dict(zip(names, (["a"], [1], [1]), strict=True)))


NTZ = pa.table({"id": ["a"], "n": pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))})
SHORT = {"schema": {"fields": [
    {"name": name, "type": kind, "mode": "NULLABLE", **({"maxLength": "3"} if name == "id" else {})}
    for name, kind in {**EVENTS, **OWN}.items()
]}}  # fmt: skip
PARTS = {"timePartitioning": {"type": "DAY", "expirationMs": "86400000"}}


# Attacks BQ4, BQ5.
@pytest.mark.parametrize(
    ("columns", "about", "output", "said"),
    [
        ({"id": "STRING"}, {}, table(0, 1), r"lacks columns .* `n` INT64, ADD COLUMN `at` TIM"),
        ({**EVENTS, "n": "FLOAT64"}, {}, table(0, 1), "column 'n' that is not INT64"),
        ({**EVENTS, "n": "NUMERIC"}, {}, table(0, 1), "column 'n' that is not INT64"),
        (EVENTS, SHORT, table(0, 1), "column 'id' that is not STRING without parameters"),
        (EVENTS, {"type": "VIEW"}, table(0, 1), "is a VIEW, to which a load job cannot append"),
        (EVENTS, {"expirationTime": "1893456000000"}, table(0, 1), "lets rows expire"),
        (EVENTS, PARTS, table(0, 1), "lets rows expire"),
        (EVENTS, {"requirePartitionFilter": True}, table(0, 1), "require_partition_filter"),
        (EVENTS, {}, NTZ, r"'n' is timestamp\[us\], which BigQuery cannot load"),
        (EVENTS, {}, named("id", "n", "N"), "differ by case"),
        (EVENTS, {}, named("id", "n", "_SEMEL_seq"), "a name that semel uses itself"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    outlet: Outlet, columns: dict, about: dict, output: pa.Table, said: str
) -> None:
    """Before any work, by what tables.get says, without a job or a query."""
    outlet.make(columns, **about)
    with pytest.raises(TerminalError, match=said):
        outlet.sink().check(output.schema, outlet.folder)
    assert outlet.fake.jobs == {}


# Attacks BQ4.
@pytest.mark.parametrize(
    ("mode", "column"), [("REQUIRED", "n"), ("REQUIRED", "own"), ("REPEATED", "n")]
)
def test_a_column_that_is_not_nullable_is_refused(outlet: Outlet, mode: str, column: str) -> None:
    """Parquet's columns fill NULLABLE ones, and one that the output lacks must take a null."""
    outlet.make({**EVENTS, "own": "STRING"})
    outlet.fake.tables[NAME].modes = {column: mode}
    with pytest.raises(TerminalError, match=f"has the column '{column}' {mode}"):
        outlet.sink().check(table(0, 1).schema, outlet.folder)
    outlet.fake.tables[NAME].modes = {"own": "REPEATED"}
    outlet.sink().check(table(0, 1).schema, outlet.folder)


# Attacks BQ1, BQ4.
def test_another_location_is_refused(outlet: Outlet) -> None:
    """Ids of jobs are unique within a location, so it must be the table's; upper case is none."""
    outlet.sink(location="eu").check(table(0, 1).schema, outlet.folder)
    with pytest.raises(TerminalError, match="is in EU, and sink.location is US; correct it"):
        outlet.sink(location="US").check(table(0, 1).schema, outlet.folder)


@pytest.mark.parametrize(
    ("refusal", "kind", "said"),
    [
        (Refusal(503, "backendError", "later"), UnavailableError, "does not answer"),
        (Refusal(403, "rateLimitExceeded", "slow"), RetryableError, "quota is used up|not answer"),
        (Refusal(403, "quotaExceeded", "much"), RetryableError, "a BigQuery quota is used up"),
        (Refusal(403, "accessDenied", "no"), TerminalError, "default credentials lacks? a right"),
        (Refusal(404, "notFound", "gone"), TerminalError, "does not exist .*Create it"),
        (Refusal(400, "invalid", "what"), TerminalError, "rejects the request .*what"),
    ],
)
@pytest.mark.parametrize("asked", ["GET /bigquery", "POST /upload"])
def test_errors_of_the_service_say_what_to_do(
    outlet: Outlet, asked: str, refusal: Refusal, kind: type[Exception], said: str
) -> None:
    """Whichever call meets them; and afterwards the batch lands once."""
    won = outlet.won(table(0, 10))

    def hook(request: str) -> None:
        if request.startswith(asked) and "/jobs/semel-" not in request:
            raise refusal

    outlet.fake.hook = hook
    with pytest.raises(kind, match=said) as caught:
        if asked.startswith("GET"):
            outlet.sink().check(won.schema, outlet.folder)
        else:
            outlet.sink().publish(won, won.files)
    assert isinstance(caught.value, RetryableError) == issubclass(kind, RetryableError)
    assert outlet.ids == []
    outlet.fake.hook = lambda _: None
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)


# Attacks BQ2.
def test_a_job_that_does_not_show_yet_is_asked_for_later(outlet: Outlet) -> None:
    """Its id is taken, and it is not to be had for a while: that is neither success nor failure."""
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    with dies_at("sink.after_load"):
        sink.publish(won, won.files)

    def hook(asked: str) -> None:
        if "/jobs/semel-" in asked:
            raise Refusal(404, "notFound")

    outlet.fake.hook = hook
    outlet.fake.held = True  # So that no rows tell of it.
    with pytest.raises(RetryableError, match="is not visible yet; run finalize again"):
        sink.publish(won, won.files)
    outlet.fake.hook, outlet.fake.held = lambda _: None, False
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10) and outlet.fake.loads() == [job_id(won, 0)]


# Attacks BQ2.
def test_rows_without_their_job_are_not_doubled(outlet: Outlet) -> None:
    """BigQuery forgets jobs after six months: rows of the batch's number are found all the same."""
    won = outlet.won(table(0, 10))
    outlet.finalize(won)
    outlet.fake.jobs.clear()
    sink = outlet.sink()
    assert sink.query_presence(won) == [Presence.WRONG]
    sink.publish(won, won.files)
    assert outlet.ids == ids(0, 10) and outlet.fake.loads() == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("project", "My project"), ("table", "events"), ("table", "a.b.c"), ("table", "a.`b`"),
     ("location", ""), ("connection", "no-name")],
)  # fmt: skip
def test_what_is_no_declaration(bench: Workbench, key: str, value: str) -> None:
    """The key is named."""
    with pytest.raises(SpecError, match=rf"sink\.{key}"):
        bench.spec(sink={**DECLARED, key: value})


def test_a_table_has_one_name(bench: Workbench) -> None:
    """As OpenLineage names it, and as the address; the connection is no part of either."""
    for more in ({}, {"connection": "big"}):
        spec = bench.spec(sink={**DECLARED, **more})
        sink = open_sink(spec)
        assert sink.address == "bigquery://proj/sales.events"
        assert spec.sink.dataset(sink.address) == ("bigquery", "proj.sales.events")
        assert "`proj.sales.events` of BigQuery in `EU`" in spec.sink.describe()
        assert spec.sink.whereabouts() == bench.spec(sink=DECLARED).sink.whereabouts()


def run(bench: Workbench, ledger: Ledger, key: str, **sink: object) -> None:
    run_batch(ledger, bench.spec(sink={**DECLARED, **sink}), key, LocalEngine(), log=quiet)


# Attacks BQ5, S27.
def test_a_time_that_no_table_takes_is_found_in_stage(outlet: Outlet) -> None:
    """Transforms may make it; it would fail the load of a batch that has committed."""
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    times = pa.array([last, None, last], pa.timestamp("us", "UTC"))
    late = pc.add(times, pa.array([0, 0, 1_000_000], pa.duration("us")))
    rows = table(0, 3).set_column(2, "at", late)
    check = outlet.sink().check(rows.schema, outlet.folder)
    [refused] = check(rows)
    assert refused.rows.tolist() == [2] and "'at' has a time outside the years" in refused.detail
    assert check(rows.slice(0, 2)) == []
    won = outlet.won(rows)
    with pytest.raises(TerminalError, match="invalid: Invalid value of at"):
        outlet.sink().publish(won, won.files)


def test_tasks_need_no_client_of_google() -> None:
    """What finds such records is sent to executors, which have semel alone."""
    code = "import sys, semel.sinks.bigquery.refused; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "semel.sinks" in done.stdout and "google.cloud" not in done.stdout


# Attacks H2, BQ7.
@pytest.mark.parametrize("many", [1, 200])
def test_a_table_of_another_time_is_missed(
    bench: Workbench, ledger: Ledger, outlet: Outlet, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next batch: batches that are gone, or are of somebody else. Rows that somebody
    deleted from one are the audit's business.
    """
    monkeypatch.setattr("semel.archive.ownership.NOTES_COMPARED", many)
    for n in range(3):
        bench.write(f"in/{n}.jsonl", events(10 * n, 10 * n + 10))
        run(bench, ledger, f"r{n}")
    outlet.fake.change(NAME, lambda rows: rows.slice(0, 28))
    bench.write("in/3.jsonl", events(30, 40))
    run(bench, ledger, "r3")
    whole = outlet.fake.tables[NAME].rows
    bench.write("in/4.jsonl", events(40, 50))
    for change, said in (
        (lambda rows: rows.slice(0, 28), "has no note of batch 4"),
        (lambda rows: pa.concat_tables([rows, rows.slice(28, 1)]), "disagree about batch 4: both have them, with different rows"),
        (lambda rows: with_batch(rows, 7), r"rows of batch 7, which 'events' has not published.*DELETE FROM `proj"),
    ):  # fmt: skip
        outlet.fake.change(NAME, change)
        with pytest.raises(TerminalError, match=said):
            run(bench, ledger, "r4")
        outlet.fake.change(NAME, lambda _: whole)
    run(bench, ledger, "r4")
    assert outlet.ids == [*ids(0, 28), *ids(30, 50)]


# Attacks H2.
def test_the_newest_notes_are_looked_for_nearby(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long table what is near is asked, and all of it only where that is too little."""
    monkeypatch.setattr(sinks, "_NEAR", 1)
    numbers = pa.array([1, 2, 3, 4, 50, 51, 52], pa.int64())
    some = table(0, 7).append_column("_semel_batch", numbers).append_column("_semel_seq", numbers)
    outlet.fake.change(NAME, lambda rows: some.cast(rows.schema))

    def noted(has: int | None, count: int) -> list[int]:
        found = outlet.sink().notes(NotesQuery("events", count, outlet.folder, has)).batch_notes
        return [note.batch_id for note in found]

    assert noted(52, 3) == [52, 51, 50] and noted(52, 5) == [52, 51, 50, 4, 3]
    assert noted(None, 2) == [52, 51] and len(outlet.sink().notes().batch_notes) == 7
    firsts = [values["first"] for values in outlet.fake.queried]
    assert firsts == [49, 47, 0, 0, 0]


@pytest.mark.parametrize(
    ("about", "ok", "said"),
    [({}, True, "0 rows; it is not clustered by _semel_batch"), (CLUSTERED, True, "0 rows$"),
     (None, False, "does not exist .*Create it as docs/bigquery.md describes")],
)  # fmt: skip
def test_check_says_what_it_is_like(
    bench: Workbench, outlet: Outlet, about: dict | None, ok: bool, said: str
) -> None:
    """By `semel check`, which changes nothing."""
    outlet.fake.tables[NAME].about = about or {}
    if about is None:
        outlet.fake.tables.clear()
    checked = CheckReport()
    check._sinks(checked, [bench.spec(sink=DECLARED)], quiet)
    [one] = checked.checks
    assert re.search(said, one.detail) and one.ok is ok
    assert outlet.fake.loads() == []


def with_batch(rows: pa.Table, number: int) -> pa.Table:
    """With a row more, of a batch that nobody knows."""
    at = rows.schema.get_field_index("_semel_batch")
    more = rows.slice(0, 1).set_column(at, rows.schema[at], pa.array([number], pa.int64()))
    return pa.concat_tables([rows, more])


def test_the_batch_path_is_compared(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """`semel compare` reads the table as it reads other sinks."""
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(n * 5, n * 5 + 8))
        run(bench, ledger, f"r{n}")
    spec, engine = bench.spec(sink=DECLARED), nullcontext(LocalEngine())

    def kinds() -> dict[str, str]:
        found = compare(
            ledger, spec, BatchRange(first=1, last=2),
            open_job=lambda: engine, difference_limit=10, log=quiet,
        )  # fmt: skip
        return {d.id: d.kind for d in found.differences}

    assert kinds() == {}
    outlet.fake.change(NAME, lambda rows: rows.slice(1))
    assert kinds() == {"e000000": "only_other"}


def test_no_secret_leaves_the_client(
    bench: Workbench,
    ledger: Ledger,
    outlet: Outlet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection's key signs what Google's token service is asked, and is in no request, job,
    log or file; nor is the token. A token that is refused is told without either.
    """
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()  # fmt: skip
    info = {
        "type": "service_account", "client_email": "semel@proj.example", "private_key": key,
        "token_uri": f"{os.environ['BIGQUERY_EMULATOR_HOST']}/token",
    }  # fmt: skip
    extra = {"keyfile_dict": json.dumps(info)}
    text = json.dumps({"conn_type": "google_cloud_platform", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_BIG", text)
    bench.write("in/a.jsonl", events(0, 10))
    run(bench, ledger, "r1", connection="big")
    assert outlet.ids == ids(0, 10) and outlet.fake.tokens == {TOKEN}
    bench.write("in/b.jsonl", events(10, 20))
    outlet.fake.hook = once("POST /token", Refusal(401, "authError", TOKEN))
    with pytest.raises(TerminalError, match="rejects the connection 'big' ") as caught:
        run(bench, ledger, "r2", connection="big")
    files = (path.read_bytes() for path in bench.folder.rglob("*") if path.is_file())
    said = [str(caught.value), caplog.text, *outlet.fake.requests, json.dumps([*outlet.fake.jobs])]
    said += [json.dumps(job, default=str) for job in outlet.fake.jobs.values()]
    for secret in (TOKEN, key.splitlines()[1]):
        assert not any(secret in one for one in said)
        assert not any(secret.encode() in data for data in files)


def test_insert_ids_of_sealed_files_are_stable(outlet: Outlet) -> None:
    """Insert ids `batch:part:row` are the same at each attempt, and so is the row of each: what
    insertAll was given a minute ago it drops. It is not built; this is why it could be.
    """
    won = outlet.won(table(0, 10), table(10, 15))
    client = outlet.sink()._target.client()

    def attempt() -> list[str]:
        rows, names = [], []
        for part, file in enumerate(won.files):
            one = replace(won, files=(file,))
            for n, row in enumerate(r for rows in staged(one) for r in rows.to_pylist()):
                names.append(f"{won.batch_id}:{part}:{n}")
                rows.append({"id": row["id"], "n": row["n"]})
        client.insert_rows_json(NAME, rows, row_ids=names)
        return names

    assert attempt() == attempt() and outlet.ids == ids(0, 15)
    client.close()
