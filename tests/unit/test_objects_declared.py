"""The declaration of objects as a source, and the times and folders of keys."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection

from fixtures.batches.workbench import Workbench
from semel.airflow import surroundings
from semel.clients.objects import Object
from semel.clients.objects.access import StoreLocation, open_store
from semel.errors import SpecError, TerminalError
from semel.sources.objects import listing
from semel.sources.objects.listing import KeyScope
from semel.sources.objects.times import FOLDERS_MAX, ObjectTimes

SOURCE = {
    "type": "objects", "url": "s3://bucket/in", "format": "jsonl", "schema": {"id": "string"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"url": "bucket/in"}, "is not a URL such as s3://bucket/prefix"),
        ({"url": "s3://AKIA:geheim@bucket/in"}, "Put a login into a connection"),
        ({"url": "https://bucket.s3.amazonaws.com/in?X-Amz-Signature=geheim"}, "is not a URL such"),
        ({"url": "s3://bucket/in/../out"}, "has //, /./ or /../ in its prefix"),
        ({"url": "s3://bucket//in"}, "has //, /./ or /../ in its prefix"),
        ({"url": "s3://bucket/in put"}, "is not a URL such as"),
        ({"connection": "no name"}, "connection"),
        ({"format": "avro"}, "format"),
        ({"select": "interval"}, "interval_from: is missing"),
        ({"interval_from": "mtime"}, "does not apply with select: arrival"),
        ({"select": "interval", "interval_from": "dt=%d/"}, "is not a strptime pattern of a key"),
        ({"select": "interval", "interval_from": "/%Y-%m-%d/"}, "is not a strptime pattern"),
        ({"select": "interval", "interval_from": "%Y/%H/"}, "each unit down to its smallest one"),
        ({"select": "interval", "interval_from": "%Y-%d/"}, "each unit down to its smallest one"),
        ({"select": "interval", "interval_from": "%Y-%m-%dT%I/"}, "each unit down to its smallest"),
        ({"select": "interval", "interval_from": "%Y%Y/"}, "is not a strptime pattern"),
        ({"select": "interval", "interval_from": "mtime", "ordered": True}, "ordered: does not apply"),
        ({"ordered": "yes"}, "ordered"),
        ({"format": "parquet", "unknown": "keep"}, "unknown: keep does not apply"),
        ({"csv": {"delimiter": ";"}}, "csv: does not apply to format: jsonl"),
        ({"path": "in/*.jsonl"}, "path"),
    ],
)
def test_what_is_wrong_is_told(bench: Workbench, changes: dict[str, object], why: str) -> None:
    """Before any work, with the key; a login that was put into a URL is not in the message."""
    with pytest.raises(SpecError, match=why) as told:
        bench.spec(source=SOURCE | changes, record_id=["id"])
    assert "geheim" not in str(told.value)


@pytest.mark.parametrize("url", ["s3://b-1.c/in/", "gs://bucket", "az://container/a/b"])
def test_what_is_right_is_taken(bench: Workbench, url: str) -> None:
    """Of all three services; nobody is asked for that."""
    assert bench.spec(source=SOURCE | {"url": url}, record_id=["id"]).source.url == url


def day(number: int, hour: int = 0) -> datetime:
    return datetime(2026, 1, number, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "key", "when"),
    [
        ("dt=%Y-%m-%d/", "dt=2026-01-02/a/b.jsonl", day(2)),
        ("dt=%Y-%m-%d/", "dt=2026-01-02", None),
        ("dt=%Y-%m-%d/", "dt=2026-01-02x/a", None),
        ("dt=%Y-%m-%d/", "other/dt=2026-01-02/a", None),
        ("%Y/%m/%d/%H/", "2026/01/02/03/x", day(2, 3)),
        ("%Y/%m/%d.jsonl", "2026/01/02.jsonl", day(2)),
        ("%Y/%m/%d.jsonl", "2026/01/02.jsonl.gz", None),
        ("mtime", "x", day(9)),
        (None, "x", None),
    ],
)
def test_the_time_of_a_key(rule: str | None, key: str, when: datetime | None) -> None:
    """As its beginning says, or the whole of it; it has none where it does not follow the rule."""
    assert ObjectTimes(rule=rule).time_of(key, day(9)) == when


@pytest.mark.parametrize(
    ("rule", "start", "end", "folders"),
    [
        ("dt=%Y-%m-%d/", day(1), day(3), ("dt=2026-01-01", "dt=2026-01-02")),
        ("%Y/%m/%d.jsonl", day(1), day(3), ("2026/01",)),
        ("%m.%Y/%d/%H/", day(1, 23), day(2, 1), ("01.2026/01/23", "01.2026/02/00")),
        ("dt=%Y-%m-%d/%H.jsonl", day(1, 22), day(2, 1), ("dt=2026-01-01", "dt=2026-01-02")),
        ("logs/%Y-%m-%d.jsonl", day(1), day(2), ("logs",)),
        ("%Y-%m-%d.jsonl", day(1), day(2), None),
        ("mtime", day(1), day(2), None),
        ("%Y/%j/%H-%M-%S/", day(1), day(2), None),
    ],
)
def test_the_folders_of_a_window(
    rule: str, start: datetime, end: datetime, folders: tuple[str, ...] | None
) -> None:
    """All that a key with a time in the window may lie in, and no others; None, so that all is
    listed, where no folder tells or there are more than FOLDERS_MAX."""
    found = ObjectTimes(rule=rule).folders(start, end)
    assert found == folders and len(found or ()) <= FOLDERS_MAX


def test_what_a_listing_is_of() -> None:
    """Keys behind another one are greater by their bytes; a folder's name ends at a slash."""
    assert "z" in KeyScope() and "a/x" in KeyScope(folders=("a",)) and "ab/x" not in KeyScope(folders=("a",))
    after = KeyScope(start_after="a.jsonl")
    assert "b" in after and "a.jsonl" not in after and "A" not in after
    assert "\uffff" not in KeyScope(start_after="\U00010000") and "\U00010001" in KeyScope(start_after="\U00010000")


def test_a_listing_is_in_order_and_cut_as_a_list_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns stand for the objects: the oldest first, and of one time by their keys; any slice,
    and a walk over them, gives what a list of them would."""
    monkeypatch.setattr(listing, "_ROWS_AT_ONCE", 3)
    times = [day(2), day(1), day(2), day(3), day(1), day(2), day(2)]
    objects = [Object(key=f"{n}.jsonl", size=n + 1, etag=f"e/{n}", modified=when)
               for n, when in enumerate(times)]  # fmt: skip
    store = SimpleNamespace(list=lambda *_: iter([objects[:2], [], objects[2:]]))
    declared = SimpleNamespace(
        pattern="*", interval_from=None, ordered=False, url="s3://b", format="jsonl"
    )
    shown = listing.list_objects(SimpleNamespace(declared=declared), store, KeyScope())
    parts = [listing.object_part(one) for one in sorted(objects, key=lambda o: (o.modified, o.key))]
    assert list(shown.items) == parts and len(shown.items) == 7
    for cut in (slice(None), slice(2, 5), slice(-2, None), slice(9, None)):
        assert shown.items[cut] == parts[cut]
    assert shown.items[-1] == parts[-1] and parts[0].fingerprint == "2:e|1"
    assert shown.listed_names(["3.jsonl", "9.jsonl"]) == {"3.jsonl"}
    objects.append(objects[4])
    with pytest.raises(TerminalError, match="two objects that semel cannot distinguish, both '4.jsonl'"):
        listing.list_objects(SimpleNamespace(declared=declared), store, KeyScope())


KEY = {"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": True, "client_email": "a@b",
       "private_key": "x+/=&?", "private_key_id": ""}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "fields", "config", "keys"),
    [
        ("s3://bucket/x",
         {"conn_type": "aws", "login": "AKIA", "password": "geheim/+1&?#@:",
          "extra": {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9",
                    "aws_session_token": "t/+="}},
         {"region": "eu-west-1", "endpoint": "http://127.0.0.1:9"},
         {"access_key_id": "AKIA", "secret_access_key": "geheim/+1&?#@:", "token": "t/+="}),
        ("gs://bucket/x",
         {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": KEY}},
         {"service_account_key": json.dumps(KEY)}, None),
        ("az://bucket/x",
         {"conn_type": "wasb", "login": "account", "password": "a2V5+/8=",
          "host": "http://127.0.0.1:9/account/"},
         {"account_name": "account", "endpoint": "http://127.0.0.1:9/account"},
         {"access_key": "a2V5+/8="}),
    ],
)  # fmt: skip
def test_a_connection_of_airflows(
    monkeypatch: pytest.MonkeyPatch, bench: Workbench, url: str, fields: dict[str, Any],
    config: dict[str, str], keys: dict[str, str] | None,
) -> None:  # fmt: skip
    """A task of Airflow's finds the connection that the source declares, whichever service it is
    of, with all that is in it: Airflow writes it as a URI."""
    extra = json.dumps(fields.pop("extra")) if "extra" in fields else None
    known = {"lake": Connection(conn_id="lake", extra=extra, **fields)}
    monkeypatch.setattr(surroundings, "connection_of", known.get)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "")
    spec = bench.spec(source=SOURCE | {"url": url, "connection": "lake"})
    surroundings.find_connections(spec)
    store, who = open_store(StoreLocation.of(url), "lake")
    assert who == "the connection 'lake'"
    assert {key: store.config[key] for key in config} == config
    if keys:
        assert store.credential_provider() == keys | {"expires_at": None}
