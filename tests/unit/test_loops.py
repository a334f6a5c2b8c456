"""What a source of any kind reads of what a sink of any kind writes: loops are refused."""

from pathlib import Path
from typing import Any, get_args

import pytest

from fixtures.batches.workbench import Workbench
from semel import pipeline
from semel.airflow import factory
from semel.cli import main
from semel.errors import SpecError
from semel.pipeline.spec import Spec
from semel.sinks import spec as sinks
from semel.sources import spec as sources

SCHEMA = {"id": "string", "mid": "string"}
BROKERS = "b1:9092,b2:9092"


def kafka(**changes: Any) -> dict[str, Any]:
    made = {"type": "kafka", "bootstrap_servers": BROKERS, "topics": ["t"], "value": "json"} | changes
    return {key: value for key, value in made.items() if value is not None}


def objects(url: str, **changes: Any) -> dict[str, Any]:
    return {"type": "objects", "url": url, "format": "parquet"} | changes


QUEUE = {"spool": "spool", "value": "json", "message_id": "mid"}
BACK = {"type": "kafka", "bootstrap_servers": BROKERS, "topic": "back", "archive": "_semel/back"}

SINKS: dict[str, dict[str, Any]] = {
    "files": {"type": "files", "path": "out/a", "format": "parquet"},
    "a table in a folder": {"type": "delta", "table": "out/d"},
    "objects": {"type": "objects", "url": "s3://lake/a/out", "format": "parquet"},
    "private objects": {"type": "objects", "url": "s3://lake/_p/out", "format": "parquet"},
    "a table in a store": {"type": "delta", "table": "s3://lake/d"},
    "topic": {"type": "kafka", "bootstrap_servers": BROKERS, "topic": "t", "archive": "_semel/t"},
    "postgres": {"type": "postgres", "connection": "warehouse", "table": "t"},
    "bigquery": {"type": "bigquery", "project": "p", "location": "EU", "table": "d.t"},
}
"""One of each kind, and of each kind of place that it writes to."""

SOURCES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "files, by its output": ({"path": "out/a/*.parquet", "format": "parquet"}, {"files"}),
    "files, above it": (
        {"path": "out/**/*.parquet", "format": "parquet"}, {"files", "a table in a folder"},
    ),
    "files, in it": ({"path": "out/d/n=1/*.parquet", "format": "parquet"}, {"a table in a folder"}),
    "files, beside it": ({"path": "out/ab/*.parquet", "format": "parquet"}, set()),
    "pipeline": ({"type": "pipeline", "pipeline": "up", "path": "out/a"}, {"files"}),
    "another pipeline": ({"type": "pipeline", "pipeline": "up", "path": "out/b"}, set()),
    "objects": (objects("s3://lake/a/out"), {"objects"}),
    "objects, of the bucket": (objects("s3://lake"), {"objects", "a table in a store"}),
    "objects, private ones": (objects("s3://lake", pattern="_p/*"), {"private objects"}),
    "objects, by any letter": (
        objects("s3://lake", pattern="?p/*"), {"objects", "a table in a store"},
    ),
    "objects, in it": (objects("s3://lake/d/n=1"), {"a table in a store"}),
    "objects, by a pattern": (objects("s3://lake", pattern="a/o*"), {"objects"}),
    "objects, by its beginning": (objects("s3://lake", pattern="a/out/b17*"), {"objects"}),
    "objects, by another pattern": (objects("s3://lake", pattern="a/in/*"), set()),
    "objects, beside it": (objects("s3://lake/a/ou"), set()),
    "objects, elsewhere": (objects("gs://lake"), set()),
    "topic": (kafka(), {"topic"}),
    "topic, other order": (kafka(bootstrap_servers="b2:9092,b1:9092"), {"topic"}),
    "topic, one broker": (kafka(bootstrap_servers="B2:9092,b3:9092"), {"topic"}),
    "topic, by a connection": (kafka(bootstrap_servers=None, connection="events"), {"topic"}),
    "topic, not known here": (kafka(bootstrap_servers=None, connection="other"), set()),
    "topic, by a pattern": (kafka(topics=None, pattern="[s-u]"), {"topic"}),
    "control topic": (kafka(topics=["u", "_semel_t"]), {"topic"}),
    "another topic": (kafka(topics=["u"]), set()),
    "topic elsewhere": (kafka(bootstrap_servers="b1:9093"), set()),
    "nats": (
        {"type": "nats", "servers": "nats://q:4222", "stream": "t", "consumer": "c"} | QUEUE, set(),
    ),
    "sqs": ({"type": "sqs", "queue": "https://sqs.example/1/t"} | QUEUE, set()),
    "pubsub": ({"type": "pubsub", "subscription": "projects/p/subscriptions/t"} | QUEUE, set()),
}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", '{"conn_type": "kafka", "host": "b2", "port": 9092}')


def written(bench: Workbench, name: str, kind: str) -> Spec:
    return bench.spec(name, sink=SINKS[kind])


def reading(bench: Workbench, name: str, kind: str, sink: dict[str, Any] = BACK) -> Spec:
    source = {"schema": SCHEMA, **SOURCES[kind][0]}
    return bench.spec(name, source=source, record_id=["mid"], sink=sink)


# Attacks P29.
@pytest.mark.parametrize("source", SOURCES)
def test_what_a_source_reads(bench: Workbench, connected: None, source: str) -> None:
    """Each kind answers for a place of each kind, however it is written."""
    found = reading(bench, "down", source).source
    places = {kind: written(bench, "up", kind).sink.whereabouts() for kind in SINKS}
    assert {kind for kind, place in places.items() if found.reads_from(place)} == SOURCES[source][1]


def types_of(declared: tuple) -> set[str]:
    """The types that declarations of sources, or of sinks, are for."""
    return {t for one in declared for t in get_args(one.model_fields["type"].annotation)}


def test_each_kind_is_in_the_table() -> None:
    """One that is new is missed."""
    written = {one.get("type", "files") for one, _ in SOURCES.values()}
    assert written == types_of(sources.declarations())
    assert {one["type"] for one in SINKS.values()} == types_of(sinks.declarations())


PAIRS = [
    (source, sink) for source, (_, found) in SOURCES.items() for sink in sorted(found)
    if source != "pipeline"
]  # fmt: skip


# Attacks P29.
@pytest.mark.parametrize(("sink", "source"), {sink: source for source, sink in PAIRS}.items())
def test_a_loop_of_two_is_refused(
    bench: Workbench, connected: None, source: str, sink: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What one writes the other reads, and back by a topic: no run, no DAG, whichever file is
    checked; and by itself each of them is right.
    """
    loop = {"schema": SCHEMA} | kafka(topics=["back"])
    bench.spec("one", source=loop, record_id=None, sink=SINKS[sink])
    reading(bench, "two", source)
    files = [bench.pipelines / f"{name}.yaml" for name in ("one", "two")]
    for given in ([], files[:1], files[1:]):
        assert main(["validate", *map(str, given)]) == 1
        assert "would copy the same records again and again" in capsys.readouterr().out
    with pytest.raises(SpecError, match="again and again"):
        pipeline.load_all()
    assert len(factory.load_pipelines(bench.pipelines)[0]) < 2


# Attacks P29.
@pytest.mark.parametrize(("source", "sink"), PAIRS)
def test_a_loop_of_one_is_refused(
    bench: Workbench, connected: None, source: str, sink: str
) -> None:
    with pytest.raises(SpecError, match="would read the pipeline's own output|keep them apart"):
        reading(bench, "one", source, sink=SINKS[sink])


# Attacks P29.
@pytest.mark.parametrize("record_id", [["mid"], None])
def test_a_loop_of_three_topics_is_refused(
    bench: Workbench, connected: None, record_id: list[str] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By ids or by position: a topic goes to the next one, and the last one's back."""
    for at, after in ((0, 1), (1, 2), (2, 0)):
        source = {"schema": SCHEMA} | kafka(topics=[f"t{at}"])
        sink = {**BACK, "topic": f"t{after}", "archive": f"_semel/t{after}"}
        bench.spec(f"p{at}", source=source, record_id=record_id, sink=sink)
        assert main(["validate"]) == (after == 0)
    assert "would copy the same records again and again" in capsys.readouterr().out


def test_files_elsewhere_are_not_compared(
    bench: Workbench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is checked with those of its own folder, and what is wrong with these is not told."""
    bench.spec("one")
    (bench.pipelines / "bad.yaml").write_text("name: [")
    made = tmp_path / "two.yaml"
    made.write_bytes((bench.pipelines / "one.yaml").read_bytes())
    for path in (made, bench.pipelines / "one.yaml"):
        assert main(["validate", str(path)]) == 0
        assert "bad" not in capsys.readouterr().out
