"""The declaration of a Kafka topic as a sink: what is refused, each with file, line and key."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from semel import pipeline
from semel.errors import SpecError

SINK = {"type": "kafka", "connection": "events", "topic": "flights"}
FILES = {"type": "files", "path": "in/*.jsonl", "format": "jsonl"}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a pipeline with this sink (None takes a key out) and this source."""
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path))

    def loaded(sink: dict[str, Any], source: dict[str, Any] = FILES) -> pipeline.Spec:
        sink = {key: value for key, value in {**SINK, **sink}.items() if value is not None}
        document = {
            "name": "clicks", "sink": sink,
            "source": {**source, "schema": {"id": "string", "n": "bigint"}},
        }  # fmt: skip
        path = tmp_path / "clicks.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return pipeline.load(path)

    return loaded


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ({"key": "x"}, "sink.key: 'x' is not a column; the schema has id, n"),
        ({"key": ["id", "x"]}, r"sink.key\[1\]: 'x' is not a column"),
        ({"key": ["id", "id"]}, "sink.key: names 'id' twice"),
        ({"key": []}, "sink.key: is empty. Remove it"),
        ({"key": 5}, "sink.key: must be a column, or a list of columns, not 5"),
        ({"headers": {"h": "x"}}, "sink.headers.h: 'x' is not a column"),
        ({"connection": None}, "sink.connection: declare either connection or bootstrap_servers"),
        ({"bootstrap_servers": "h:1"}, "sink.connection: declare either"),
        ({"topic": "_semel_x"}, "sink.topic: '_semel_x' is a name that Kafka or semel reserves"),
        ({"topic": "a b"}, "sink.topic: 'a b' does not match"),
        ({"topic": "x" * 243}, "sink.topic: 'xxx.*' does not match"),
        ({"value": "avro"}, "sink.value: must be 'json', not 'avro'"),
        ({"transaction_bytes": 0}, "sink.transaction_bytes: 0 is not between 1 byte"),
        ({"mode": "append"}, "sink.mode: is an unknown key; the keys are type, connection"),
        ({"archive": "../x"}, "sink.archive: '../x' has '..'"),
    ],
)
def test_a_wrong_declaration_is_named(load, sink: dict, said: str) -> None:
    """With file and line."""
    with pytest.raises(SpecError, match=rf"clicks.yaml:\d+: {said}"):
        load(sink)


@pytest.mark.parametrize("topics", [{"topics": ["flights"]}, {"pattern": "fl.*"}])
def test_a_topic_is_not_read_where_it_is_written(load, topics: dict) -> None:
    """Such a pipeline would read its own output for ever."""
    source = {"type": "kafka", "connection": "events", "value": "json", **topics}
    with pytest.raises(SpecError, match="sink.topic: the source reads the topic flights too"):
        load({}, source)
    load({"topic": "other"}, source)


def test_another_size_of_transactions_is_no_other_batch(load) -> None:
    """A batch that was planned with one size is staged and finalized with another one."""
    small, large = load({"transaction_bytes": "1 MiB"}), load({})
    assert small.digest() == large.digest() != load({"key": "id"}).digest()
    assert pipeline.Spec.from_json(load({"key": ["id", "n"]}).to_json()).sink.key == ("id", "n")
