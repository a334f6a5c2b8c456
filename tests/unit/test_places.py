"""Two sinks in one place, of whatever kinds: over all pairs, those that overlap are refused and those
that do not are taken. Places are compared by a table that a person wrote."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.workbench import Workbench
from semel import pipeline, settings
from semel.errors import SpecError
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


def table(connection: str, name: str, **more: object) -> dict[str, Any]:
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
    "a container": (objects("az://lake/a", connection="azure"), "az/acc/lake/a"),
    "a container, written otherwise": (delta("az://lake/a/d", connection="blue"), "az/acc/lake/a/d"),
    "a container of another account": (delta("az://lake/a", connection="other_azure"), "az/two/lake/a"),
    "a container by a tenant": (objects("az://sea/a", connection="tenant"), "az/two/sea/a"),
    "a container of that account": (objects("az://sea", connection="other_azure"), "az/two/sea"),
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
        "azure": {"conn_type": "wasb", "login": "acc", "password": "k1"},
        "blue": {"conn_type": "wasb", "login": "Acc", "extra": {"sas_token": "sig"}},
        "other_azure": {"conn_type": "wasb", "login": "two", "password": "k2"},
        "tenant": {
            "conn_type": "wasb", "host": "two.blob.core.windows.net", "login": "client",
            "password": "s", "extra": {"tenant_id": "t"},
        },
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


# Attacks P12.
@pytest.mark.parametrize("connection", [None, "unknown", "warehouse"])
def test_an_account_that_is_not_known_may_be_any(
    bench: Workbench, connected: None, monkeypatch: pytest.MonkeyPatch, connection: str | None
) -> None:
    """The environment of this process is not that of another one; a connection may be wrong here."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "third")
    known = bench.spec("one", sink=objects("az://lake/a", connection="azure"))
    by = {"connection": connection} if connection else {}
    for at, sink in enumerate((delta("az://lake/a", **by), objects("az://lake", **by))):
        other = bench.spec(f"p{at}", sink=sink)
        assert len(clash(known, other)) == len(clash(other, known)) == 1
    source = {"type": "objects", "url": "az://lake", "format": "parquet", "schema": {"id": "string"}}
    reads = bench.spec("two", source={**source, **by}).source
    assert reads.reads_from(known.sink.whereabouts())
    elsewhere = bench.spec("three", source={**source, "connection": "other_azure"}).source
    assert not elsewhere.reads_from(known.sink.whereabouts())


def test_each_kind_of_sink_is_in_the_table() -> None:
    """One that is new is missed."""
    from test_loops import types_of

    from semel.sinks import spec as sinks

    assert {sink["type"] for sink, _ in SINKS.values()} == types_of(sinks.declarations())


COUNTS = {
    "source": {"schema": {"at": "timestamp"}}, "record_id": None, "record_time": "at",
    "window": {"size": "1 day"}, "aggregate": {"columns": {"n": "count()"}},
}  # fmt: skip


# Attacks P12.
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("t", "t_parts", True), ("t", "t_windows", True), ("t", "public.t_parts", True),
        ("d.t", 'd."t_parts"', True), ('"d.t"', 'public."d.t_windows"', True),
        ("t", "d.t_parts", False), ("t", "t_part", False), ("t_parts", "t_windows", False),
        ("a", "b", False),
    ],
)  # fmt: skip
def test_tables_that_semel_makes_are_compared_with_declared_ones(
    bench: Workbench, connected: None, one: str, other: str, refused: bool, counts: bool
) -> None:
    """A view of windows stands on tables whose names semel makes; another pipeline's rows in one of
    them would be read as partial rows. In either order, and by any connection."""
    sink = table("warehouse", one, create=True)
    first = bench.spec("first", sink=sink, **COUNTS if counts else {})
    second = bench.spec("second", sink=table("house", other))
    for pair in ((first, second), (second, first)):
        found = clash(*pair)
        assert len(found) == (refused and counts), found
        assert all("which semel makes for the table" in why for why in found), found


@pytest.mark.parametrize("name", ["semel_batch", "d.semel_complete"])
def test_a_table_of_notes_is_no_target(bench: Workbench, name: str) -> None:
    """semel keeps which batches have landed there, of all pipelines of the schema."""
    with pytest.raises(SpecError, match="semel keeps its notes in the table"):
        bench.spec(sink=table("warehouse", name))


# Attacks P12.
@pytest.mark.parametrize(
    ("sink", "refused"), [(files("second"), True), (files("out/second"), False)]
)
def test_archives_that_nobody_declares_are_kept_apart(
    bench: Workbench, sink: dict[str, Any], refused: bool
) -> None:
    """A table's archive is named after its pipeline, and a folder's after the folder."""
    one, two = bench.spec("second", sink=table("w", "t")), bench.spec("first", sink=sink)
    declared = bench.spec("third", sink={**table("w", "u"), "archive": "_semel/second/kept"})
    assert bool(clash(one, two)) == bool(clash(two, one)) == refused
    assert len(clash(one, declared)) == len(clash(declared, one)) == 1


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
    allowed = settings._resolve_allowed
    monkeypatch.setattr(
        settings, "_resolve_allowed", lambda path, key: resolved.append(path) or allowed(path, key)
    )
    assert pipeline.clashes(specs) == []
    assert len(resolved) == 2 * len(specs)
