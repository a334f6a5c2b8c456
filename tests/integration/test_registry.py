"""The tests' Schema Registry is one to Confluent's own client, and to what it writes to Kafka."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    SchemaRegistryError,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fix_kafka import Kafka, Record

FIRST = {"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "string"}]}
TAIL = {"name": "tail", "type": ["null", "string"], "default": None}
SECOND = FIRST | {"fields": [*FIRST["fields"], TAIL]}


@pytest.fixture
def client(registry: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry}) as made:
        yield made


@pytest.mark.rest
def test_avro_by_way_of_kafka(kafka: Kafka, registry: str, client: SchemaRegistryClient) -> None:
    """What is written under two versions of a schema is read by a client that knows neither."""
    topic = kafka.topic()
    place = SerializationContext(topic, MessageField.VALUE)
    written = [({"id": "a"}, FIRST), ({"id": "b", "tail": "N1"}, SECOND)]
    values = [AvroSerializer(client, json.dumps(schema))(row, place) for row, schema in written]
    kafka.produce(topic, [Record(value=value) for value in values])
    versions = client.get_versions(topic_subject_name_strategy(place, "Flight"))
    assert versions == [1, 2]
    with SchemaRegistryClient({"url": registry}) as other:
        read = AvroDeserializer(other)
        found = [(row.value, read(row.value, place)) for row in kafka.drain(topic)]
    assert [row for _, row in found] == [row for row, _ in written]
    ids = [client.get_version(f"{topic}-value", version).schema_id for version in versions]
    assert [value[:5] for value, _ in found] == [b"\0" + one.to_bytes(4, "big") for one in ids]


def test_a_registry_remembers(kafka: Kafka, client: SchemaRegistryClient) -> None:
    """One schema has one id; what is not there or does not fit has Confluent's codes."""
    subject = f"{kafka.topic()}-value"
    schema = Schema(json.dumps(FIRST), "AVRO")
    known = client.register_schema(subject, schema)
    assert client.register_schema(subject, schema) == known
    assert client.get_schema(known).schema_str == schema.schema_str
    client.set_compatibility(subject, "BACKWARD")
    other = FIRST | {"fields": [{"name": "id", "type": "long"}]}
    refusals = {
        409: lambda: client.register_schema(subject, Schema(json.dumps(other), "AVRO")),
        40401: lambda: client.get_latest_version("nothing"),
        40403: lambda: client.get_schema(999_999),
    }
    for code, asked in refusals.items():
        with pytest.raises(SchemaRegistryError) as refused:
            asked()
        assert refused.value.error_code == code
