"""What a batch published, read back: the messages within the spans of its note that say so."""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pyarrow as pa

from semel import limits
from semel.errors import CorruptionError, TerminalError, first_line
from semel.formats.pieces import PIECE_BYTES_MAX
from semel.model.manifest import Kind, Published
from semel.sinks import OutputLostError, SupersededError
from semel.sinks.kafka import control, encode
from semel.sinks.kafka.control import ControlNote
from semel.sinks.kafka.ends import topic_ends
from semel.sinks.kafka.facts import config_of
from semel.sinks.kafka.target import KafkaTarget

_OWN = re.compile(rb'"%s":([0-9]+),"%s":[0-9]+}' % (
    encode.BATCH_FIELD.encode(), encode.SEQ_FIELD.encode()
))  # fmt: skip

OwnNotes = dict[int, ControlNote | CorruptionError]
"""Those of one pipeline, by batch; where one is damaged, what is said of it."""

Strays = dict[int, list[bytes]]
"""Values of messages that say that they are of a batch, by its number."""


def strays(target: KafkaTarget, notes: OwnNotes) -> Strays:
    """The messages of the whole topic that name a batch, and lie where its note does not say.

    There are none, unless somebody wrote them, or a batch landed twice: of that the first note is
    gone. TerminalError as of `rows`. `notes`: those of the pipeline; where one is damaged, nobody
    knows where its batch's messages lie.
    """
    spans = {batch: note.spans for batch, note in notes.items() if isinstance(note, ControlNote)}
    unknown = notes.keys() - spans.keys()
    with target.cluster.admin() as admin:
        every = topic_ends(admin, target.topic).spans
    found: Strays = defaultdict(list)
    for message in control.committed_messages(
        target.cluster, target.topic, every, limits.KAFKA_TRANSACTION_SECONDS
    ):
        value = message.value() or b""
        if own := _OWN.fullmatch(value[value.rfind(b'"%s"' % encode.BATCH_FIELD.encode()) :]):
            batch = int(own[1])
            if batch in unknown:
                continue
            start, end = spans.get(batch, {}).get(message.partition(), (0, 0))
            if not start <= message.offset() < end:
                found[batch].append(value)
    return found


def rows(
    target: KafkaTarget, marker: Published, note: ControlNote | CorruptionError | None
) -> Iterator[pa.Table]:
    """The rows of a finalized batch, some at once. TerminalError: they are not all there;
    OutputGoneError: for the topic's retention has deleted some; SupersededError, at the end: for
    its compaction has.

    CorruptionError: a message that says that it is of the batch is no row of it, or its note is
    damaged.
    """
    if not sum(file.records for file in marker.of_kind(Kind.DATA)):
        return
    if isinstance(note, CorruptionError):
        raise note
    if note is None:
        raise TerminalError(
            f"{target.control} has no note of batch {marker.batch_id}, and so nobody knows where "
            f"its messages lie in {target.topic}; restore it"
        )
    spans = {part: span for part, span in note.spans.items() if span[0] < span[1]}
    with target.cluster.admin() as admin:
        there = topic_ends(admin, target.topic).spans
        for part, (start, end) in spans.items():
            first, last = there.get(part, (0, 0))
            if first > start or last < end:
                what = (
                    f"{target.topic}: of batch {marker.batch_id}, offsets {start} to {end} of "
                    f"partition {part} are not all there: it begins at offset {first} now, and "
                    f"ends at {last}"
                )
                raise _missing(what, config_of(admin, target.topic), marker, cut=last < end)
    own = encode.suffix(marker.batch_id, marker.commit_seq)
    values: list[bytes] = []
    size = 0
    gaps = sum(end - start for start, end in spans.values())
    missing = note.rows - len(note.refused)
    for message in control.committed_messages(
        target.cluster, target.topic, spans, limits.KAFKA_TRANSACTION_SECONDS
    ):
        value = message.value()
        gaps -= 1
        if value is not None and value.endswith(own):
            missing -= 1
            values.append(value)
            size += len(value)
            if size >= PIECE_BYTES_MAX:
                yield typed_rows(target, marker, values)
                values, size = [], 0
    if values:
        yield typed_rows(target, marker, values)
    if missing > 0:
        raise _compacted(target, marker, missing, note, gaps)


def _compacted(
    target: KafkaTarget, marker: Published, missing: int, note: ControlNote, gaps: int
) -> TerminalError:
    """Why messages are missing between others. `gaps`: offsets there that have no message."""
    with target.cluster.admin() as admin:
        policy = config_of(admin, target.topic)["cleanup.policy"]
    what = (
        f"{target.topic}: of batch {marker.batch_id}, {missing} of its "
        f"{note.rows - len(note.refused)} rows are"
    )
    if "compact" in policy.split(",") and missing <= gaps:
        return SupersededError(
            f"{what} gone: the topic is compacted (cleanup.policy={policy}), and keeps of each key "
            "the last message",
            next=f"semel audit {marker.pipeline}",
        )
    return TerminalError(
        f"{what} missing, and its compaction does not explain that (cleanup.policy={policy}, "
        f"{gaps} offsets without a message): it was compacted before, or somebody has changed "
        f"{target.control}; restore it"
    )


def _missing(
    what: str, config: Mapping[str, str], marker: Published, *, cut: bool
) -> TerminalError:
    """Why messages are missing, as far as it is known. `cut`: the last ones are."""
    kept = {name: int(config[name]) for name in ("retention.ms", "retention.bytes")}
    told = ", ".join(f"{name}={value}" for name, value in kept.items())
    age_ms = 1000 * (time.time() - marker.committed_at.timestamp())
    if cut:
        return TerminalError(
            f"{what}. Somebody has deleted the topic and made it anew, or the cluster lost "
            "messages; restore it"
        )
    if "delete" not in config["cleanup.policy"] or not (
        0 <= kept["retention.ms"] < age_ms or kept["retention.bytes"] >= 0
    ):
        return TerminalError(
            f"{what}. Its retention ({told}, cleanup.policy={config['cleanup.policy']}) deletes "
            f"nothing that was written since {marker.committed_at:%Y-%m-%d %H:%M:%S %Z}: somebody "
            "has deleted messages, or the retention was shorter; ask who may"
        )
    return OutputLostError(
        f"{what}. Its retention ({told}) deletes what is over it; audit within it, or let the "
        "topic keep messages for longer"
    )


def typed_rows(target: KafkaTarget, marker: Published, values: list[bytes]) -> pa.Table:
    """Values of messages as rows of a batch. CorruptionError: one is none."""
    import duckdb

    try:
        return encode.read_back(values, marker.sink_schema)
    except (duckdb.Error, pa.ArrowException) as error:
        raise CorruptionError(
            f"{target.topic} has a message that ends as those of batch {marker.batch_id} do, and "
            f"is none of its rows ({first_line(error)}); find out who else writes there"
        ) from error
