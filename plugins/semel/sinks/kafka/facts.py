"""What a topic and its control topic are like, and what the user of the connection may do there."""

import time
from collections.abc import Collection
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

from semel.clients.kafka.cluster import ANSWER_SECONDS, answered
from semel.declare.wording import count
from semel.errors import TerminalError, UnavailableError
from semel.sinks.kafka.ends import topic_ends
from semel.sinks.kafka.target import KafkaTarget

_BYTES_MAX = 1_000_000
"""Of a message, as long as its topic is not there."""

_CLIENT_BYTES_MAX = 1_000_000_000
"""Of a message, by librdkafka; a topic's own limit may be 2 GiB."""

_NOTE_BYTES, _SPAN_BYTES = 1_000, 64
"""Of a note in the control topic at most: for itself, and for each partition of the topic."""

_COMPACT = "compact"
_LOOK_SECONDS = 0.05
_NEEDED = (AclOperation.READ, AclOperation.WRITE)
_UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """`bytes_max`: max.message.bytes. `keyed`: compacted, so it takes no message without a key."""

    bytes_max: int
    keyed: bool
    exists: bool = True


def control_exists(target: KafkaTarget) -> bool:
    """Whether the control topic is. Batches may have landed only where it is."""
    with target.cluster.admin() as admin:
        return _described(admin, target.control) is not None


# Keeps KP5.
def examine(target: KafkaTarget) -> TopicFacts:
    """TerminalError: a topic is missing or of another kind than is needed, or a right is."""
    with target.cluster.admin() as admin:
        for topic in _lacking(admin, target):
            _make(admin, topic)
        return _facts(target, *_both(admin, target))


def describe(target: KafkaTarget) -> tuple[TopicFacts, str]:
    """The same without making a topic, and in words. Errors as of `examine`, and more:

    UnavailableError: too few brokers are there for a topic to take messages.
    """
    with target.cluster.admin() as admin:
        lacking = _lacking(admin, target)
        for topic in lacking:  # Whether it may be made.
            [asked] = admin.create_topics([topic], validate_only=True).values()
            answered(admin, asked)
        own, control = _both(admin, target, [topic.topic for topic in lacking])
    facts = _facts(target, own, control)
    for topic in (own, control):
        if topic is not None:
            check_replicas(target, topic.described, int(topic.config["min.insync.replicas"]))
    told = "stage makes it"
    if own is not None:
        partitions = count(len(own.described.partitions), "partition")
        told = f"{partitions}, messages of up to {facts.bytes_max:,} bytes"
        if facts.keyed:
            told += "; compacted, so it keeps of each key the last row"
    beside = "stage makes it" if control is None else "compacted"
    return facts, (
        f"topic {target.topic} of {target.cluster}: {told}; its control topic: {beside}; the user "
        "may write in transactions"
    )


@dataclass(frozen=True, kw_only=True)
class _Topic:
    """A topic that is there, and its configuration."""

    described: TopicDescription
    config: dict[str, Any]


def _both(
    admin: AdminClient, target: KafkaTarget, lacking: Collection[str] = ()
) -> list[_Topic | None]:
    """The topic and its control topic; None: one of `lacking`. TerminalError as of `examine`."""
    return [
        None if name in lacking else _there(admin, target, name)
        for name in (target.topic, target.control)
    ]


def _there(admin: AdminClient, target: KafkaTarget, topic: str) -> _Topic:
    described = _described(admin, topic)
    if described is None:
        raise TerminalError(missing_topic(target, topic))
    for operation in _NEEDED:
        if operation not in (described.authorized_operations or _NEEDED):
            raise TerminalError(
                f"the user of the connection may not {operation.name} the topic {topic} "
                f"of {target.cluster}; give it the rights that docs/kafka.md lists"
            )
    return _Topic(described=described, config=config_of(admin, topic))


def _facts(target: KafkaTarget, own: _Topic | None, control: _Topic | None) -> TopicFacts:
    """TerminalError: a topic is of another kind than is needed."""
    if control is not None and (policy := control.config["cleanup.policy"]) != _COMPACT:
        raise TerminalError(
            f"{target.control} has cleanup.policy={policy}, and would forget which batches have "
            f"landed; {_tool(target, 'kafka-configs.sh')} --alter --topic {target.control} "
            f"--add-config cleanup.policy={_COMPACT}"
        )
    if control is not None and own is not None:
        needed = _NOTE_BYTES + _SPAN_BYTES * len(own.described.partitions)
        if int(control.config["max.message.bytes"]) < needed:
            raise TerminalError(
                f"{target.control} takes no message of {needed:,} bytes, which a note may have; "
                f"{_tool(target, 'kafka-configs.sh')} --alter --topic {target.control} "
                f"--add-config max.message.bytes={needed}"
            )
    config = own.config if own else {}
    keyed = _COMPACT in config.get("cleanup.policy", "").split(",")
    if keyed and target.key is None:
        raise TerminalError(
            f"{target.topic} is compacted, and takes no message without a key; declare sink.key"
        )
    bytes_max = min(int(config.get("max.message.bytes", _BYTES_MAX)), _CLIENT_BYTES_MAX)
    return TopicFacts(bytes_max=bytes_max, keyed=keyed, exists=own is not None)


def check_replicas(target: KafkaTarget, topic: TopicDescription, needed: int) -> None:
    """UnavailableError: a partition takes no messages, as too few brokers that have it are there.

    `needed`: min.insync.replicas.
    """
    for part in topic.partitions:
        there, wanted = len(part.isr), min(needed, len(part.replicas))
        if part.leader is None or there < wanted:
            why = "has no leader" if part.leader is None else (
                f"is in sync on {there} of the {wanted} brokers that it needs "
                f"(min.insync.replicas={needed})"
            )  # fmt: skip
            raise UnavailableError(
                f"{target.cluster}: partition {part.id} of {topic.name} {why}, and takes no "
                f"messages; start its brokers ({', '.join(str(n.id) for n in part.replicas)})"
            )


def _tool(target: KafkaTarget, name: str) -> str:
    return f"{name} --bootstrap-server {target.cluster.address.removeprefix('kafka://')}"


def missing_topic(target: KafkaTarget, topic: str) -> str:
    """What is said of a topic that is not there, or of its control topic."""
    make = f"{_tool(target, 'kafka-topics.sh')} --create --topic {topic}"
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
def _lacking(admin: AdminClient, target: KafkaTarget) -> list[NewTopic]:
    """What is missing and is to be made; never the control topic of one that has messages."""
    if not target.create:
        return []
    there = _described(admin, target.topic) is not None
    lacking = [] if there else [NewTopic(target.topic)]
    if _described(admin, target.control) is None:
        if there and any(end for _, end in topic_ends(admin, target.topic).spans.values()):
            return []
        lacking.insert(0, NewTopic(target.control, 1, config={"cleanup.policy": _COMPACT}))
    return lacking


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
        return answered(admin, asked)
    except KafkaException as error:
        if error.args[0].code() == _UNKNOWN:
            return None
        raise


def config_of(admin: AdminClient, topic: str) -> dict[str, Any]:
    """A topic's configuration, by name."""
    wanted = ConfigResource(ResourceType.TOPIC, topic)
    [asked] = admin.describe_configs([wanted], request_timeout=ANSWER_SECONDS).values()
    return {name: entry.value for name, entry in asked.result().items()}
