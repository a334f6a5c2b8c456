"""Checks a topic, its control topic, and the rights of the connection's user on them."""

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

from semel.clients.kafka.cluster import ANSWER_SECONDS, await_answer
from semel.declare.wording import count
from semel.errors import TerminalError, UnavailableError
from semel.sinks.kafka.ends import topic_ends
from semel.sinks.kafka.target import KafkaTarget

_BYTES_MAX = 1_000_000
"""The assumed max.message.bytes of a topic that does not exist yet."""

_CLIENT_BYTES_MAX = 1_000_000_000
"""librdkafka's limit for a message; a topic may allow 2 GiB."""

_NOTE_BYTES, _SPAN_BYTES = 1_000, 64
"""The largest size of a note: a fixed part, and a part for each partition of the topic."""

_COMPACT = "compact"
_LOOK_SECONDS = 0.05
_NEEDED = (AclOperation.READ, AclOperation.WRITE)
_UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """`bytes_max`: max.message.bytes. `keyed`: compacted, so each message needs a key."""

    bytes_max: int
    keyed: bool
    exists: bool = True


def control_exists(target: KafkaTarget) -> bool:
    """Whether the control topic exists. Without it no batch can have landed."""
    with target.cluster.admin() as admin:
        return _description(admin, target.control) is not None


# Keeps KP5.
def examine(target: KafkaTarget) -> TopicFacts:
    """Raises TerminalError if a topic or a right is missing, or a topic's settings do not fit."""
    with target.cluster.admin() as admin:
        for topic in _missing_topics(admin, target):
            _create(admin, topic)
        return _facts(target, *_both(admin, target))


def describe(target: KafkaTarget) -> tuple[TopicFacts, str]:
    """`examine` without creating a topic, with a description for the operator.

    Also raises UnavailableError if too few brokers run for a topic to accept messages.
    """
    with target.cluster.admin() as admin:
        missing = _missing_topics(admin, target)
        for topic in missing:  # Checks the right to create it.
            [answer] = admin.create_topics([topic], validate_only=True).values()
            await_answer(admin, answer)
        data, control = _both(admin, target, [topic.topic for topic in missing])
    facts = _facts(target, data, control)
    for topic in (data, control):
        if topic is not None:
            check_replicas(target, topic.described, int(topic.config["min.insync.replicas"]))
    state = "stage creates it"
    if data is not None:
        partitions = count(len(data.described.partitions), "partition")
        state = f"{partitions}, messages of up to {facts.bytes_max:,} bytes"
        if facts.keyed:
            state += "; compacted, so it keeps the last row of each key"
    control_state = "stage creates it" if control is None else "compacted"
    return facts, (
        f"topic {target.topic} of {target.cluster}: {state}; its control topic: {control_state}; "
        "the user may write in transactions"
    )


@dataclass(frozen=True, kw_only=True)
class _Topic:
    """An existing topic and its configuration."""

    described: TopicDescription
    config: dict[str, Any]


def _both(
    admin: AdminClient, target: KafkaTarget, missing: Collection[str] = ()
) -> list[_Topic | None]:
    """The topic and its control topic, None for one of `missing`. Raises as `examine` does."""
    return [
        None if name in missing else _existing(admin, target, name)
        for name in (target.topic, target.control)
    ]


def _existing(admin: AdminClient, target: KafkaTarget, topic: str) -> _Topic:
    described = _description(admin, topic)
    if described is None:
        raise TerminalError(missing_topic(target, topic))
    for operation in _NEEDED:
        if operation not in (described.authorized_operations or _NEEDED):
            raise TerminalError(
                f"the user of the connection may not {operation.name} the topic {topic} "
                f"of {target.cluster}. Give it the rights that docs/kafka.md lists"
            )
    return _Topic(described=described, config=config_of(admin, topic))


def _facts(target: KafkaTarget, data: _Topic | None, control: _Topic | None) -> TopicFacts:
    """Raises TerminalError if a topic's settings do not fit."""
    if control is not None and (policy := control.config["cleanup.policy"]) != _COMPACT:
        raise TerminalError(
            f"{target.control} has cleanup.policy={policy} and would lose the notes about landed "
            f"batches. Run {_tool(target, 'kafka-configs.sh')} --alter --topic {target.control} "
            f"--add-config cleanup.policy={_COMPACT}"
        )
    if control is not None and data is not None:
        needed = _NOTE_BYTES + _SPAN_BYTES * len(data.described.partitions)
        if int(control.config["max.message.bytes"]) < needed:
            raise TerminalError(
                f"{target.control} refuses messages of {needed:,} bytes, the size of a large note. "
                f"Run {_tool(target, 'kafka-configs.sh')} --alter --topic {target.control} "
                f"--add-config max.message.bytes={needed}"
            )
    config = data.config if data else {}
    keyed = _COMPACT in config.get("cleanup.policy", "").split(",")
    if keyed and target.key is None:
        raise TerminalError(
            f"{target.topic} is compacted, so each message needs a key. Declare sink.key"
        )
    bytes_max = min(int(config.get("max.message.bytes", _BYTES_MAX)), _CLIENT_BYTES_MAX)
    return TopicFacts(bytes_max=bytes_max, keyed=keyed, exists=data is not None)


def check_replicas(target: KafkaTarget, topic: TopicDescription, needed: int) -> None:
    """Raises UnavailableError if a partition has too few running brokers to accept messages.

    `needed`: min.insync.replicas.
    """
    for part in topic.partitions:
        in_sync, wanted = len(part.isr), min(needed, len(part.replicas))
        if part.leader is None or in_sync < wanted:
            why = "has no leader" if part.leader is None else (
                f"is in sync on {in_sync} of the {wanted} brokers that it needs "
                f"(min.insync.replicas={needed})"
            )  # fmt: skip
            raise UnavailableError(
                f"{target.cluster}: partition {part.id} of {topic.name} {why}, so it accepts no "
                f"messages. Start its brokers ({', '.join(str(n.id) for n in part.replicas)})"
            )


def _tool(target: KafkaTarget, name: str) -> str:
    return f"{name} --bootstrap-server {target.cluster.address.removeprefix('kafka://')}"


def missing_topic(target: KafkaTarget, topic: str) -> str:
    """The error text for a missing topic or control topic."""
    make = f"{_tool(target, 'kafka-topics.sh')} --create --topic {topic}"
    if topic == target.topic:
        return f"{target.cluster} has no topic {topic}. Declare sink.create: true, or run {make}"
    return (
        f"{target.cluster} has no topic {topic}, which lists the batches that have landed in "
        f"{target.topic}. If it existed, restore it; without it, batches may land twice. If no "
        f"batch has landed yet, run {make} --partitions 1 --config cleanup.policy={_COMPACT}"
    )


# Keeps KP7.
def _missing_topics(admin: AdminClient, target: KafkaTarget) -> list[NewTopic]:
    """The missing topics to create. Never the control topic of a topic that has messages."""
    if not target.create:
        return []
    exists = _description(admin, target.topic) is not None
    missing = [] if exists else [NewTopic(target.topic)]
    if _description(admin, target.control) is None:
        if exists and any(end for _, end in topic_ends(admin, target.topic).spans.values()):
            return []
        missing.insert(0, NewTopic(target.control, 1, config={"cleanup.policy": _COMPACT}))
    return missing


def _create(admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic, unless another process does, and wait until its brokers serve it."""
    [answer] = admin.create_topics([topic], request_timeout=ANSWER_SECONDS).values()
    try:
        answer.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    deadline = time.monotonic() + ANSWER_SECONDS
    while not _is_led(_description(admin, topic.topic)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _is_led(topic: TopicDescription | None) -> bool:
    return topic is not None and all(part.leader is not None for part in topic.partitions)


def _description(admin: AdminClient, topic: str) -> TopicDescription | None:
    [answer] = admin.describe_topics(
        TopicCollection([topic]),
        include_authorized_operations=True,
        request_timeout=ANSWER_SECONDS,
    ).values()
    try:
        return await_answer(admin, answer)
    except KafkaException as error:
        if error.args[0].code() == _UNKNOWN:
            return None
        raise


def config_of(admin: AdminClient, topic: str) -> dict[str, Any]:
    """A topic's configuration, by name."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    [answer] = admin.describe_configs([resource], request_timeout=ANSWER_SECONDS).values()
    return {name: entry.value for name, entry in answer.result().items()}
