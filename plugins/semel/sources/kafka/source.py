"""Kafka as a source: a source partition is a partition of a topic, and a position is an offset.

The topic's id is part of the identity, so a recreated topic is another one.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from semel.clients.kafka.cluster import Cluster
from semel.declare.context import Context
from semel.model.batch import Claim
from semel.sources import (
    Acceptance,
    Evidence,
    ExecutorCheck,
    LedgerView,
    LostRange,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    SettledPartition,
    Source,
    Window,
)
from semel.sources.kafka import claim_checks, epochs, matching, probe, topics
from semel.sources.kafka.matching import PartitionOffer
from semel.sources.kafka.messages import first_time, messages
from semel.sources.kafka.records import MessageBlocks
from semel.sources.kafka.topics import ShownTopics

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split


SPLIT_OFFSETS = 200_000
"""Offsets per task: some 40 MB of small messages."""


def opened(context: Context) -> "KafkaSource":
    """The source that a pipeline declares."""
    source = context.declared
    cluster = Cluster(connection=source.connection, servers=source.bootstrap_servers)
    return KafkaSource(context=context, cluster=cluster)


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """`source: {type: kafka, ...}`."""

    context: Context
    cluster: Cluster

    split_size: ClassVar[int] = SPLIT_OFFSETS

    def discover(self) -> ShownTopics:
        return topics.discover(self.cluster, self.context.declared)

    def match(self, listing: ShownTopics, ledger: LedgerView, window: Window) -> MatchResult:
        return matching.match(self.context, self.cluster, listing, ledger, window)

    def refuse_lost(self, gone: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        return matching.lost_refusal(self.context, gone, spans)

    # Keeps P6.
    def last_record_end(
        self, offer: PartitionOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:
        return min(end, start + max(room, 1 if first else 0))

    def capacity(self, offers: Sequence[Offer]) -> int:
        return claim_checks.batch_capacity(self.context, self.cluster, offers)

    def evidence(self, offer: PartitionOffer, end: int) -> Evidence:
        return epochs.evidence(offer.topic_partition.topic_id, offer.topic_partition.extent)

    def accept(
        self,
        shown: ShownTopics,
        known: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        arguments = self.context, self.cluster, known, name
        return matching.accept_partition(*arguments, same=same, start=start, is_open=is_open)

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return claim_checks.locate_partitions(self.discover(), partitions)

    def first_time(self, name: str, start: int, end: int) -> float | None:
        return first_time(self.cluster, *claim_checks.place_of(name), start, end)

    def check(self, claims: Collection[Claim], batch_id: int) -> None:
        claim_checks.check_claims(self.cluster, claims, batch_id)

    def acknowledge(self, settled: Sequence[SettledPartition]) -> str | None:
        group = self.context.declared.consumer_group
        return claim_checks.commit_group_offsets(self.cluster, group, settled)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        topic, partition = claim_checks.place_of(split.claim.name)

        def check_topic() -> None:
            claim_checks.check_topic(self.cluster, split.claim, batch_id)

        check_topic()
        with closing(MessageBlocks(self.context, split.claim.name)) as records:
            offsets = split.start, split.end
            for chunk in messages(self.cluster, topic, partition, *offsets, check_topic):
                claim_checks.check_written(split.claim, chunk, batch_id)
                yield records.block(chunk, selection)
        # Keeps KS1. The topic may have been recreated during the read.
        check_topic()
        for part in records.digests():
            digest.update(part)

    def records_max(self, split: "Split", batch_id: int) -> int | None:
        return split.end - split.start

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context, self.cluster)
