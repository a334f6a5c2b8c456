"""The ends of a topic's partitions, now and when stage began.

Publish writes a batch's note after stage, and a leader only appends. So semel starts to read at the
end that the control topic had when stage began, instead of reading all earlier notes.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from semel.clients.kafka.cluster import ANSWER_SECONDS, query_offsets
from semel.model.plain import parse_json
from semel.storage import ArchivePath, write_new

Spans = dict[int, tuple[int, int]]
"""For each partition, its first offset and the one after its last."""

_FILE = "_control.json"
"""The file's name, in the folder of an attempt's data files."""


@dataclass(frozen=True, kw_only=True)
class TopicEnds:
    """Where the partitions of a topic begin and end, including messages of open transactions.

    `leaders`: the epoch of each partition's leader, unique to that leader. None if the cluster does
    not report it.
    """

    topic_id: str
    spans: Spans
    leaders: dict[int, int | None]

    # Keeps KP12.
    def written_since(self, earlier: "TopicEnds | None") -> Spans:
        """The spans of all messages written after `earlier`.

        They cover a whole partition if the topic or its leader is another one: the topic may have
        been restored, and the new leader may have lost messages.
        """
        if earlier is None or earlier.topic_id != self.topic_id:
            return self.spans
        spans = {}
        for part, (first, end) in self.spans.items():
            leader = self.leaders[part]
            if leader is not None and leader == earlier.leaders.get(part):
                first = max(first, earlier.spans[part][1])
            spans[part] = first, end
        return spans

    def save(self, folder: ArchivePath) -> None:
        """Save this durably with an attempt's data files, unless an earlier one exists."""
        with suppress(FileExistsError):
            write_new(folder / _FILE, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: ArchivePath) -> Self | None:
        """The ends that an attempt has saved. Returns None if they are missing or damaged."""
        try:
            plain = parse_json((folder / _FILE).read_bytes())
            spans = {int(part): (int(a), int(b)) for part, (a, b) in plain["spans"].items()}
            leaders = {int(part): plain["leaders"][part] for part in plain["spans"]}
            return cls(topic_id=plain["topic_id"], spans=spans, leaders=leaders)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def topic_ends(admin: AdminClient, topic: str) -> TopicEnds:
    """The current ends of a topic. Raises KafkaException if it does not exist."""
    [answer] = admin.describe_topics(
        TopicCollection([topic]), request_timeout=ANSWER_SECONDS
    ).values()
    described = answer.result()
    parts = [TopicPartition(topic, part.id) for part in described.partitions]
    firsts = _offsets(admin, parts, OffsetSpec.earliest())
    lasts = _offsets(admin, parts, OffsetSpec.latest())
    return TopicEnds(
        topic_id=str(described.topic_id),
        spans={part: (firsts[part].offset, last.offset) for part, last in lasts.items()},
        leaders={part: last.leader_epoch for part, last in lasts.items()},
    )


def _offsets(
    admin: AdminClient, parts: list[TopicPartition], which: OffsetSpec
) -> dict[int, ListOffsetsResultInfo]:
    answers = query_offsets(admin, {part: which for part in parts}, committed=False)
    return {part.partition: answer for part, answer in answers.items()}
