"""What a topic and its control topic are like, and what the user of the connection may do there."""

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from semel.errors import TerminalError
from semel.kafka.cluster import ANSWER_SECONDS
from semel.sinks.kafka.ends import ends_of
from semel.sinks.kafka.target import KafkaTarget

_COMPACT = "compact"
_LOOK_SECONDS = 0.05
_NEEDED = (AclOperation.READ, AclOperation.WRITE)
_UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """`bytes_max`: max.message.bytes. `keyed`: compacted, so it takes no message without a key."""

    bytes_max: int
    keyed: bool


def control_is_there(target: KafkaTarget) -> bool:
    """Whether the control topic is. Batches may have landed only where it is."""
    with target.cluster.admin() as admin:
        return _described(admin, target.control) is not None


# Keeps KP5.
def examine(target: KafkaTarget) -> TopicFacts:
    """TerminalError: a topic is missing or of another kind than is needed, or a right is."""
    with target.cluster.admin() as admin:
        if target.create:
            _create(admin, target)
        for topic in (target.topic, target.control):
            described = _described(admin, topic)
            if described is None:
                raise TerminalError(_missing(target, topic))
            for operation in _NEEDED:
                if operation not in (described.authorized_operations or _NEEDED):
                    raise TerminalError(
                        f"the user of the connection may not {operation.name} the topic {topic} "
                        f"of {target.cluster}; give it the rights that docs/kafka.md lists"
                    )
        own, control = (_config(admin, topic) for topic in (target.topic, target.control))
    if control["cleanup.policy"] != _COMPACT:
        raise TerminalError(
            f"{target.control} has cleanup.policy={control['cleanup.policy']}, and would forget "
            "which batches have landed; kafka-configs.sh --alter --topic "
            f"{target.control} --add-config cleanup.policy={_COMPACT}"
        )
    keyed = _COMPACT in own["cleanup.policy"].split(",")
    if keyed and target.key is None:
        raise TerminalError(
            f"{target.topic} is compacted, and takes no message without a key; declare sink.key"
        )
    return TopicFacts(bytes_max=int(own["max.message.bytes"]), keyed=keyed)


def _missing(target: KafkaTarget, topic: str) -> str:
    make = f"kafka-topics.sh --create --topic {topic}"
    if topic == target.topic:
        return (
            f"{target.cluster} has no topic {topic}; declare sink.create: true, or make it: {make}"
        )
    return (
        f"{target.cluster} has no topic {topic}, in which is written which batches have landed in "
        f"{target.topic}. If it was there, restore it, or batches may land again. If no batch has "
        f"landed yet, make it: {make} --partitions 1 --config cleanup.policy={_COMPACT}"
    )


# Keeps KP7.
def _create(admin: AdminClient, target: KafkaTarget) -> None:
    """Make what is missing; the control topic of one that has messages is never made."""
    there = _described(admin, target.topic) is not None
    if _described(admin, target.control) is None:
        if there and any(end for _, end in ends_of(admin, target.topic).spans.values()):
            return
        _make(admin, NewTopic(target.control, 1, config={"cleanup.policy": _COMPACT}))
    if not there:
        _make(admin, NewTopic(target.topic))


def _make(admin: AdminClient, topic: NewTopic) -> None:
    """Make a topic, and wait until its brokers know of it. Somebody else may make it too."""
    [made] = admin.create_topics([topic], request_timeout=ANSWER_SECONDS).values()
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    deadline = time.monotonic() + ANSWER_SECONDS
    while not _is_led(_described(admin, topic.topic)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _is_led(found: TopicDescription | None) -> bool:
    return found is not None and all(part.leader is not None for part in found.partitions)


def _described(admin: AdminClient, topic: str) -> TopicDescription | None:
    [asked] = admin.describe_topics(
        TopicCollection([topic]),
        include_authorized_operations=True,
        request_timeout=ANSWER_SECONDS,
    ).values()
    try:
        return asked.result()
    except KafkaException as error:
        if error.args[0].code() == _UNKNOWN:
            return None
        raise


def _config(admin: AdminClient, topic: str) -> dict[str, Any]:
    wanted = ConfigResource(ResourceType.TOPIC, topic)
    [asked] = admin.describe_configs([wanted], request_timeout=ANSWER_SECONDS).values()
    return {name: entry.value for name, entry in asked.result().items()}
