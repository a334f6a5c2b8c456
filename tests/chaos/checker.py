"""Is the output exact? Read from the source and the sink alone: the ledger has no say here.

It needs `sink.position_columns: true`, so that each row of the output says where it came from. A
table, or a topic, is read through the connection that the environment names.
"""

import json
import os
import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from deltalake import DeltaTable
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from psycopg.rows import dict_row

from semel.archive import layout
from semel.pipeline.spec import Spec

Position = tuple[str, int]

_TOPIC_SECONDS = 30


@dataclass
class Found:
    """What the markers of a sink list, by position in the source."""

    survivors: list[tuple[Position, str, int]] = field(default_factory=list)
    decisions: list[tuple[Position, str, str]] = field(default_factory=list)
    letters: list[Position] = field(default_factory=list)
    claims: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    order: dict[str, list[tuple[int, int, tuple[int, int]]]] = field(default_factory=dict)
    """By path: start and end of a claim, and the place of its records in the order of commits."""
    files: set[Path] = field(default_factory=set)
    generations: dict[int, int] = field(default_factory=dict)
    """By batch: which output of it the marker lists."""
    left: dict[int, list[Position]] = field(default_factory=dict)
    """By batch: its dead letters, without those that an admission has judged again."""
    admitted: dict[Position, int] = field(default_factory=dict)
    """The place in the order of commits of what an admission took."""


def assert_exact(spec: Spec, sources: list[Path]) -> Found:
    """Every record of the sources once, or accounted for once; nothing else in the sink."""
    found = _read(spec)
    lines = {(str(p), at): text for p in sources for at, text in _lines(p)}
    good = {at: text for at, text in lines.items() if isinstance(text, dict) and text.get("id")}

    for path in sources:
        spans = sorted(found.claims.get(str(path), []))
        borders = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == borders[:-1], f"{path}: gap or overlap in {spans}"
        assert borders[-1] == path.stat().st_size, f"{path}: read up to {borders[-1]} only"

    assert Counter(found.letters) == Counter(lines.keys() - good.keys())
    accounted = Counter(p for p, *_ in found.survivors) + Counter(p for p, *_ in found.decisions)
    assert accounted == Counter(good.keys()), "a record is missing, or there twice"
    for position, record_id, n in found.survivors:
        assert (record_id, n) == (good[position]["id"], good[position]["n"])
    winners = {record_id: position for position, record_id, _ in found.survivors}
    assert len(winners) == len(found.survivors), "an id is in the output twice"
    for position, record_id, reason in found.decisions:
        assert good[position]["id"] == record_id
        first, second = _place(found, winners[record_id]), _place(found, position)
        assert first < second, f"{record_id}: the later copy won"
        same = first[0] == second[0]
        assert reason == ("duplicate_in_batch" if same else "duplicate_in_catalog")
    _assert_nothing_else(spec, found)
    return found


def _lines(path: Path) -> list[tuple[int, Any]]:
    at, found = 0, []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            found.append((at, json.loads(line)))
        except ValueError:
            found.append((at, None))
        at += len(line)
    return found


def _read(spec: Spec) -> Found:
    found = Found()
    places, names = [], {}
    roots = {"sink": spec.sink_path(), "archive": layout.of(spec)}
    kinds = {"postgres": _Table, "kafka": _Topic, "bigquery": _Loaded, "objects": _Objects,
             "delta": _Committed}  # fmt: skip
    table = None if roots["sink"] else kinds[spec.sink.type](spec)
    for path in sorted((roots["archive"] / "markers").glob("b*.json")):
        marker = json.loads(path.read_text())
        places.append(marker["commit_seq"])
        found.generations[marker["batch_id"]] = marker.get("generation", 1)
        claims = _claims(roots["archive"], marker)
        names |= {claim["source_partition_id"]: claim["name"] for claim in claims}
        for claim in claims:
            span = claim["start"], claim["end"]
            found.claims.setdefault(claim["name"], []).append(span)
            place = marker["commit_seq"], claim["ordinal"]
            found.order.setdefault(claim["name"], []).append((*span, place))
        counts = Counter()
        taken = len(found.survivors), len(found.decisions), len(found.letters)
        for file in marker["files"]:
            if file["kind"] == "claims":
                found.files.add(roots[file["root"]] / file["path"])
                continue
            counts[file["kind"]] += file["records"]
            if table is None or file["root"] == "archive":
                _take(found, roots[file["root"]] / file["path"], file, names)
        if table:
            _take_rows(found, table.landed(marker, counts), names)
        assert counts.pop("ids", marker["counts"]["survivors"]) == marker["counts"]["survivors"]
        counts.pop("refused", 0)  # They are counted as output.
        assert_sum(marker["counts"], counts)
        _admit(found, marker, *taken)
    if table:
        for path in sorted((roots["archive"] / "replaced").glob("b*.json")):
            table.was_noted(json.loads(path.read_text()))
        assert not table.rows, f"rows of batches that no marker names: {table.rows}"
        assert not table.notes, f"batches noted that no marker names: {table.notes}"
    assert sorted(places) == list(range(1, len(places) + 1)), f"places of commits: {places}"
    return found


def _admit(
    found: Found, marker: dict[str, Any], survivors: int, decisions: int, letters: int
) -> None:
    """What a marker's batch left as dead letters; an admission has taken all that were left
    before it. The numbers say where what it took begins."""
    took = [p for p, *_ in (*found.survivors[survivors:], *found.decisions[decisions:])]
    left = found.letters[letters:]
    root = marker["batch_id"]
    if "admits" in marker:
        root = marker["admits"]["batch_id"]
        before = found.left[root]
        assert Counter(before) == Counter([*took, *left]), f"not the dead letters of batch {root}"
        found.letters = list((Counter(found.letters) - Counter(before)).elements())
        found.admitted |= dict.fromkeys(took, marker["commit_seq"])
    found.left[root] = left


def _claims(kept: Path, marker: dict[str, Any]) -> list[dict[str, Any]]:
    """A marker's claims; those of a batch with many are in a file beside it."""
    found = list(marker.get("claims", ()))
    for file in marker["files"]:
        if file["kind"] == "claims":
            found += rows_of(kept / file["path"], file)
    return found


def rows_of(path: Path, file: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file that a marker lists, which is as it says."""
    data = path.read_bytes()
    assert len(data) == file["bytes"], path
    assert xxhash.xxh3_128_hexdigest(data) == file["checksum"], path
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in data.splitlines()]
    else:
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    assert len(rows) == file["records"], path
    return rows


def _take(found: Found, path: Path, file: dict[str, Any], names: dict[int, str]) -> None:
    assert path not in found.files, f"{path} is listed twice"
    found.files.add(path)
    rows = rows_of(path, file)
    if file["kind"] in ("data", "refused"):
        _take_rows(found, rows, names)
        return
    if file["kind"] == "ids":
        return
    for row in rows:
        position = names[row["source_partition_id"]], row["offset"]
        if file["kind"] == "decisions":
            found.decisions.append((position, row["record_id"]["id"], row["reason"]))
        else:
            found.letters.append(position)


def _take_rows(found: Found, rows: list[dict[str, Any]], names: dict[int, str]) -> None:
    for row in rows:
        position = names[row["_semel_source"]], row["_semel_offset"]
        found.survivors.append((position, row["id"], row["n"]))


class _Table:
    """A table's rows, and what `semel_batch` notes beside it, by batch; what was held is gone."""

    def __init__(self, spec: Spec) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        dsn = os.environ[f"AIRFLOW_CONN_{spec.sink.connection.upper()}"]
        with psycopg.connect(dsn, row_factory=dict_row) as connection:
            order = "_semel_source, _semel_offset"
            for row in connection.execute(f"SELECT * FROM {spec.sink.table} ORDER BY {order}"):
                self.rows.setdefault(row["_semel_batch"], []).append(row)
            notes = "SELECT batch_id, fence, commit_seq, rows, refused FROM semel_batch"
            self.notes = {row.pop("batch_id"): row for row in connection.execute(notes)}

    def landed(self, marker: dict[str, Any], counts: Counter[str]) -> list[dict[str, Any]]:
        """The rows of a marker's batch: as many as it says, all of its commit, and noted so."""
        by, seq, refused = marker.get("replay", marker), marker["commit_seq"], counts["refused"]
        batch = by["batch_id"]
        rows = self.rows.pop(batch, [])
        assert len(rows) == counts["data"] - refused, f"batch {batch}: {len(rows)} rows, {counts}"
        assert {row["_semel_seq"] for row in rows} <= {seq}
        note = {"fence": by["fence"], "commit_seq": seq, "rows": len(rows), "refused": refused}
        assert self.notes.pop(batch, None) == (note if counts["data"] else None)
        return rows

    def was_noted(self, marker: dict[str, Any]) -> None:
        """Of a batch whose marker was replaced no row is left, and its note stays."""
        by = marker.get("replay", marker)
        assert by["batch_id"] not in self.rows, f"rows of {by}, which was replaced"
        if any(file["kind"] == "data" for file in marker["files"]):
            assert self.notes.pop(by["batch_id"])["fence"] == by["fence"]


class _Loaded(_Table):
    """The same of a table of BigQuery, whose rows are their own notes."""

    def __init__(self, spec: Spec) -> None:
        self.rows, self.notes = {}, {}
        name = f"{spec.sink.project}.{spec.sink.table}"
        with closing(bigquery.Client(spec.sink.project, AnonymousCredentials())) as client:
            config = bigquery.QueryJobConfig(use_query_cache=False)
            found = client.query_and_wait(
                f"SELECT * FROM `{name}`", location=spec.sink.location, job_config=config
            )
            for row in sorted(map(dict, found), key=lambda row: row["_semel_offset"]):
                self.rows.setdefault(row["_semel_batch"], []).append(row)

    def landed(self, marker: dict[str, Any], counts: Counter[str]) -> list[dict[str, Any]]:
        batch = marker["batch_id"]
        rows = self.rows.pop(batch, [])
        assert len(rows) == counts["data"], f"batch {batch}: {len(rows)} rows, {counts}"
        assert {row["_semel_seq"] for row in rows} <= {marker["commit_seq"]}
        return rows


class _Committed(_Loaded):
    """The same of a Delta table in a folder."""

    def __init__(self, spec: Spec) -> None:
        self.rows, self.notes = {}, {}
        files = DeltaTable(spec.sink.address).file_uris()
        rows = [row for uri in files for row in pq.read_table(uri.removeprefix("file://")).to_pylist()]
        for row in sorted(rows, key=lambda row: row["_semel_offset"]):
            self.rows.setdefault(row["_semel_batch"], []).append(row)


class _Objects(_Table):
    """The same of the objects below a prefix; those of an output that was replaced may stay."""

    def __init__(self, spec: Spec) -> None:
        plain = json.loads(os.environ[f"AIRFLOW_CONN_{spec.sink.connection.upper()}"])
        client = boto3.client(
            "s3", aws_access_key_id=plain["login"], aws_secret_access_key=plain["password"],
            **plain["extra"],
        )  # fmt: skip
        bucket, _, prefix = spec.sink.url.removeprefix("s3://").partition("/")
        listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")
        assert not listed["IsTruncated"]
        self.rows, self.notes, self.copies = {}, {}, {}
        for key in (one["Key"] for one in listed.get("Contents", ())):
            data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
            if "/_semel/batches/" in key:
                note = json.loads(data)
                self.notes[note["batch_id"]] = {
                    **{name: note[name] for name in ("fence", "commit_seq", "rows")}, "refused": 0
                }
            elif "/_semel/markers/" in key:
                marker = json.loads(data)
                self.copies[marker["batch_id"]] = marker
            else:
                batch = int(re.search(r"-b(\d+)-\d+\.parquet$", key)[1])
                rows = pq.read_table(pa.BufferReader(data)).to_pylist()
                self.rows.setdefault(batch, []).extend(rows)
        for batch, rows in self.rows.items():
            rows.sort(key=lambda row: (row["_semel_source"], row["_semel_offset"]))
            for row in rows:
                row |= {"_semel_batch": batch}

    def landed(self, marker: dict[str, Any], counts: Counter[str]) -> list[dict[str, Any]]:
        batch = marker.get("replay", marker)["batch_id"]
        for row in self.rows.get(batch, ()):
            row["_semel_seq"] = marker["commit_seq"]
        assert self.copies.pop(marker["batch_id"]) == marker
        return super().landed(marker, counts)

    def was_noted(self, marker: dict[str, Any]) -> None:
        self.rows.pop(marker.get("replay", marker)["batch_id"], None)
        super().was_noted(marker)


class _Topic(_Table):
    """The same of a topic's messages, and of the notes in its control topic, as a consumer sees
    them that reads committed messages.
    """

    def __init__(self, spec: Spec) -> None:
        self.rows, self.notes = {}, {}
        for _, value in _messages(spec, spec.sink.topic):
            row = json.loads(value)
            self.rows.setdefault(row["_semel_batch"], []).append(row)
        for rows in self.rows.values():
            rows.sort(key=lambda row: (row["_semel_source"], row["_semel_offset"]))
        for key, value in _messages(spec, f"_semel_{spec.sink.topic}"):
            note = json.loads(value)
            refused = len(note["refused"])
            self.notes[json.loads(key)[1]] = {
                "fence": note["fence"], "commit_seq": note["commit_seq"],
                "rows": note["rows"] - refused, "refused": refused,
            }  # fmt: skip


def _messages(spec: Spec, topic: str) -> list[tuple[bytes, bytes]]:
    """Keys and values of all messages, those of one partition in their order. What a dead producer
    left open is waited for: it must be aborted by the time that all is finished.
    """
    plain = json.loads(os.environ[f"AIRFLOW_CONN_{spec.sink.connection.upper()}"])
    settings = {
        **json.loads(plain["extra"]), "group.id": "checker", "enable.partition.eof": True,
        "enable.auto.commit": False, "fetch.wait.max.ms": 10,
    }  # fmt: skip
    found, starts, ends = [], [], {}
    whole = Consumer({**settings, "isolation.level": "read_uncommitted"})
    for number in whole.list_topics(topic, timeout=_TOPIC_SECONDS).topics[topic].partitions:
        part = TopicPartition(topic, number)
        part.offset, ends[number] = whole.get_watermark_offsets(part, _TOPIC_SECONDS, cached=False)
        starts.append(part)
    whole.close()
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign(starts)
    deadline = time.monotonic() + _TOPIC_SECONDS
    while ends:
        assert time.monotonic() < deadline, f"{topic}: a transaction is open behind {ends}"
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is None:
            found.append((message.key(), message.value()))
        elif message.error().code() != KafkaError._PARTITION_EOF:
            raise KafkaException(message.error())
        elif message.offset() >= ends.get(message.partition(), 0):
            ends.pop(message.partition(), None)
    consumer.close()
    return found


def assert_sum(counts: dict[str, int], files: Counter[str]) -> None:
    """What a marker counts is what its files hold."""
    duplicates = counts["duplicates_batch"] + counts["duplicates_catalog"]
    assert counts["survivors"] == counts["rows_written"] == files["data"]
    assert duplicates == files["decisions"]
    assert counts["quarantined"] + counts["late"] == files["dead_letters"]
    assert counts["records_read"] == sum(files.values())


def _place(found: Found, position: Position) -> tuple[int, int, int]:
    path, at = position
    [(seq, claim)] = [place for start, end, place in found.order[path] if start <= at < end]
    return found.admitted.get(position, seq), claim, at


def _assert_nothing_else(spec: Spec, found: Found) -> None:
    own = layout.of(spec)
    there = {
        path
        for root in filter(None, (spec.sink_path(), own))
        for path in root.rglob("*")
        if path.is_file()
        and not path.is_relative_to(own / "staging")
        and path.parent != own / "markers"
        and not (path.is_relative_to(own) and path.name.startswith("."))
    }
    markers = {
        own / "replaced" / f"b{batch:08d}-g{generation:04d}.json": (batch, generation)
        for batch, newest in found.generations.items()
        for generation in range(1, newest)
    }
    there -= _replaced(spec, markers, there)
    lists = set((own / "ids").glob("b*.json"))
    taught = {own / file["path"] for path in lists for file in json.loads(path.read_text())["files"]}
    listed = {*found.files, *markers, *lists, *taught}
    assert there == listed, "a file that no marker lists, or a listed one that is not there"


def _replaced(spec: Spec, markers: dict[Path, tuple[int, int]], there: set[Path]) -> set[Path]:
    """The output files that are there of replaced generations: of each one all, or none."""
    old: set[Path] = set()
    for path, of in markers.items():
        marker = json.loads(path.read_text())
        assert (marker["batch_id"], marker.get("generation", 1)) == of, path
        if spec.sink_path():
            data = (file["path"] for file in marker["files"] if file["kind"] == "data")
            files = {spec.sink_path() / name for name in data}
            assert files & there in (files, set()), f"files of {path} are there by half"
            old |= files & there
    return old
