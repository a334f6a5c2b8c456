"""Two sinks in one place, of whatever kinds: over all pairs, those that overlap are refused and those
that do not are taken. Places are compared by a table that a person wrote."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.workbench import Workbench
from semel import pipeline, settings
from semel.pipeline.spec import Spec

BROKERS = "b1:9092,b2:9092"


def files(path: str) -> dict[str, Any]:
    return {"type": "files", "path": path, "format": "parquet"}


def delta(table: str, **more: str) -> dict[str, Any]:
    return {"type": "delta", "table": table, **more}


def objects(url: str, **more: str) -> dict[str, Any]:
    return {"type": "objects", "url": url, "format": "parquet", **more}


def topic(name: str, **more: str) -> dict[str, Any]:
    return {"type": "kafka", "topic": name, **(more or {"bootstrap_servers": BROKERS})}


def table(connection: str, name: str, **more: str) -> dict[str, Any]:
    return {"type": "postgres", "connection": connection, "table": name, **more}


def big(name: str, project: str = "pro", **more: str) -> dict[str, Any]:
    return {"type": "bigquery", "project": project, "location": "EU", "table": name, **more}


SINKS: dict[str, tuple[dict[str, Any], str]] = {
    "files": (files("out/a"), "disk/out/a"),
    "files, written otherwise": (files("out//a/"), "disk/out/a"),
    "files below": (files("out/a/b"), "disk/out/a/b"),
    "files beside": (files("out/ab"), "disk/out/ab"),
    "files by a link": (files("link/b"), "disk/out/a/b"),
    "a table in a folder": (delta("out/a"), "disk/out/a"),
    "a table in a folder below": (delta("out/a/d"), "disk/out/a/d"),
    "a table in a folder above": (delta("out"), "disk/out"),
    "a table in a folder beside": (delta("outer"), "disk/outer"),
    "objects": (objects("s3://lake/a"), "s3/lake/a"),
    "objects below, by a connection": (objects("s3://lake/a/out", connection="c"), "s3/lake/a/out"),
    "objects beside": (objects("s3://lake/ab"), "s3/lake/ab"),
    "objects of another service": (objects("gs://lake/a"), "gs/lake/a"),
    "objects of another bucket": (objects("s3://sea/a"), "s3/sea/a"),
    "a table in a store": (delta("s3://lake/a"), "s3/lake/a"),
    "a table in a store below": (delta("s3://lake/a/d/"), "s3/lake/a/d"),
    "a table of the bucket": (delta("s3://lake", connection="c"), "s3/lake"),
    "a table in a store beside": (delta("s3://lake/abc"), "s3/lake/abc"),
    "topic": (topic("t"), "kafka/t"),
    "topic, other order": (topic("t", bootstrap_servers="b2:9092,B1:9092"), "kafka/t"),
    "topic, by a connection": (topic("t", connection="events"), "kafka/t"),
    "topic beside": (topic("t.d"), "kafka/t.d"),
    "topic elsewhere": (topic("t", bootstrap_servers="c1:9092"), "kafka elsewhere/t"),
    "topic, not known here": (topic("t", connection="other"), "kafka unknown/t"),
    "table": (table("warehouse", "t"), "postgres/db/public/t"),
    "table, with its schema": (table("warehouse", "public.t"), "postgres/db/public/t"),
    "table, in quotes": (table("warehouse", 'public."t"'), "postgres/db/public/t"),
    "table, by another connection": (table("house", "t"), "postgres/db/public/t"),
    "table of another schema": (table("warehouse", "d.t"), "postgres/db/d/t"),
    "table in quotes with a dot": (table("warehouse", '"d.t"'), "postgres/db/public/d.t"),
    "table of another database": (table("elsewhere", "t"), "postgres/other/public/t"),
    "table, not known here": (table("pro", "d.t"), "postgres unknown/d/t"),
    "table of BigQuery": (big("d.t"), "bigquery/pro/d/t"),
    "table of BigQuery, by a connection": (big("d.t", connection="c"), "bigquery/pro/d/t"),
    "table of BigQuery of another project": (big("d.t", "other"), "bigquery/other/d/t"),
}
"""One sink of each kind, and others in its place, in it and beside it; each with its place in the
world, as a path."""


def overlap(one: str, other: str) -> bool:
    """By the names of their parts."""
    parts = sorted((one.split("/"), other.split("/")), key=len)
    return parts[1][: len(parts[0])] == parts[0]


@pytest.fixture
def connected(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process knows of connections; and a link."""
    known = {
        "events": {"conn_type": "kafka", "host": "b2", "port": 9092},
        "warehouse": {"conn_type": "postgres", "host": "localhost", "schema": "db", "login": "u"},
        "house": {"conn_type": "postgres", "host": "127.0.0.1", "port": 5432, "schema": "db"},
        "elsewhere": {"conn_type": "postgres", "host": "127.0.0.1", "schema": "other"},
    }
    for name, connection in known.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    (bench.data / "out" / "a").mkdir(parents=True)
    (bench.data / "link").symlink_to(bench.data / "out" / "a")


def clash(one: Spec, other: Spec) -> list[str]:
    return pipeline.clashes({Path("one.yaml"): one, Path("other.yaml"): other})


# Attacks P12.
def test_two_sinks_in_one_place_are_refused(bench: Workbench, connected: None) -> None:
    """Over all pairs of kinds, in either order; and what is apart is taken."""
    specs = {
        name: bench.spec(f"p{at}", sink=sink) for at, (name, (sink, _)) in enumerate(SINKS.items())
    }
    for one, other in combinations(SINKS, 2):
        there = overlap(SINKS[one][1], SINKS[other][1])
        for pair in ((one, other), (other, one)):
            found = clash(*(specs[name] for name in pair))
            assert bool(found) == there, (pair, found)
            assert all("overlaps with" in why for why in found), found


def test_each_kind_of_sink_is_in_the_table() -> None:
    """One that is new is missed."""
    from test_loops import types_of

    from semel.sinks import spec as sinks

    assert {sink["type"] for sink, _ in SINKS.values()} == types_of(sinks.declarations())


# Attacks P12.
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kept", "kept"),
        ("kept", "kept/staging"),
        ("out/a/kept", "other"),
        ("other", "out/a/kept"),
    ],
)
def test_archives_are_kept_apart(bench: Workbench, one: str, other: str) -> None:
    """What lies in the output of another pipeline is read as output; what lies in its archive is
    collected as its own."""
    first = bench.spec("first", sink={**files("out/a"), "archive": "beside"})
    second = bench.spec("second", sink={**table("w", "t"), "archive": one})
    third = bench.spec("third", sink={**table("w", "u"), "archive": other})
    found = [*clash(first, second), *clash(first, third), *clash(third, second)]
    assert len(found) == 1
    assert "overlaps with" in found[0]
    assert ".archive" in found[0]


# Attacks P12.
@pytest.mark.parametrize(
    ("sink", "source"),
    [
        (delta("out/d"), {"path": "out/d/in/*.jsonl"}),
        (delta("s3://lake/d"), {"type": "objects", "url": "s3://lake/d/in", "format": "jsonl"}),
    ],
)
def test_a_vacuum_takes_no_source(
    bench: Workbench, sink: dict[str, Any], source: dict[str, Any]
) -> None:
    """A full vacuum of a Delta table deletes all that its log does not name: the unread input of
    another pipeline too."""
    schema = {"schema": {"id": "string"}}
    one, two = bench.spec("one", sink=sink), bench.spec("two", source={**schema, **source})
    for found in (clash(one, two), clash(two, one)):
        assert len(found) == 1
        assert "a vacuum of" in found[0]


def test_many_pipelines_are_compared_in_seconds(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path is resolved once, and not once for each pair of pipelines: Airflow compares all
    files of a folder each time it looks for DAGs.
    """
    specs = {Path(f"p{n}.yaml"): bench.spec(f"p{n}", source={"path": f"{n}/*"}) for n in range(30)}
    resolved: list[str] = []
    allowed = settings._allowed
    monkeypatch.setattr(
        settings, "_allowed", lambda path, key: resolved.append(path) or allowed(path, key)
    )
    assert pipeline.clashes(specs) == []
    assert len(resolved) == 2 * len(specs)
