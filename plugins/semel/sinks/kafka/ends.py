"""Where the partitions of a topic end, now and when a batch was staged.

A batch's note is written after its attempt was staged, and a leader only appends. So the note lies
behind the end that the control topic had when stage began: the notes of all earlier batches need
not be read to find it.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from semel.clients.kafka.cluster import ANSWER_SECONDS, offsets_of
from semel.model.plain import parsed
from semel.storage import write_new

Spans = dict[int, tuple[int, int]]
"""Of each partition the first offset, and the one behind the last: its messages lie within."""

_KEPT = "_control.json"
"""Beside the data files of an attempt."""


@dataclass(frozen=True, kw_only=True)
class TopicEnds:
    """Where the partitions of a topic begin and end, under which leaders; the topic by its id.

    Messages of open transactions count. `leaders`: the epoch of each partition's leader, which
    another leader never has; None: the cluster does not tell it.
    """

    topic_id: str
    spans: Spans
    leaders: dict[int, int | None]

    # Keeps KP12.
    def written_since(self, earlier: "TopicEnds | None") -> Spans:
        """The spans that have all messages that were written after `earlier` was asked.

        Of a partition of another topic of this name, or which another leader has had, all is taken:
        the one may have been restored, and the other may have lost what it did not have yet.
        """
        if earlier is None or earlier.topic_id != self.topic_id:
            return self.spans
        found = {}
        for part, (first, end) in self.spans.items():
            leader = self.leaders[part]
            if leader is not None and leader == earlier.leaders.get(part):
                first = max(first, earlier.spans[part][1])
            found[part] = first, end
        return found

    def save(self, folder: Path) -> None:
        """Write this into the folder of an attempt's data files, durably. The first one stays."""
        with suppress(FileExistsError):
            write_new(folder / _KEPT, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """What an attempt has kept. None: nothing, or it cannot be read; then all counts."""
        try:
            plain = parsed((folder / _KEPT).read_bytes())
            spans = {int(part): (int(a), int(b)) for part, (a, b) in plain["spans"].items()}
            leaders = {int(part): plain["leaders"][part] for part in plain["spans"]}
            return cls(topic_id=plain["topic_id"], spans=spans, leaders=leaders)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def topic_ends(admin: AdminClient, topic: str) -> TopicEnds:
    """Where a topic's partitions end now. KafkaException: there is no such topic."""
    [asked] = admin.describe_topics(
        TopicCollection([topic]), request_timeout=ANSWER_SECONDS
    ).values()
    described = asked.result()
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
    found = offsets_of(admin, {part: which for part in parts}, committed=False)
    return {part.partition: answer for part, answer in found.items()}
