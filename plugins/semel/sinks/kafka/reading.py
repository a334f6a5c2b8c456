"""Reads the rows of a batch back: the messages in its note's spans that name the batch."""

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
"""The notes of one pipeline by batch. A damaged note is its error."""

Strays = dict[int, list[bytes]]
"""Values of messages by the number of the batch that they name."""


def strays(target: KafkaTarget, notes: OwnNotes) -> Strays:
    """The messages in the whole topic that name a batch but lie outside its note's spans.

    Another program wrote them, or a batch landed twice because its first note was lost.
    `notes`: the notes of the pipeline. It skips batches whose note is damaged.
    """
    spans = {batch: note.spans for batch, note in notes.items() if isinstance(note, ControlNote)}
    unknown = notes.keys() - spans.keys()
    with target.cluster.admin() as admin:
        all_spans = topic_ends(admin, target.topic).spans
    stray_values: Strays = defaultdict(list)
    for message in control.committed_messages(
        target.cluster, target.topic, all_spans, limits.KAFKA_TRANSACTION_SECONDS
    ):
        value = message.value() or b""
        if named := _OWN.fullmatch(value[value.rfind(b'"%s"' % encode.BATCH_FIELD.encode()) :]):
            batch = int(named[1])
            if batch in unknown:
                continue
            start, end = spans.get(batch, {}).get(message.partition(), (0, 0))
            if not start <= message.offset() < end:
                stray_values[batch].append(value)
    return stray_values


def rows(
    target: KafkaTarget, marker: Published, note: ControlNote | CorruptionError | None
) -> Iterator[pa.Table]:
    """The rows of a finalized batch, in several tables.

    If rows are missing, raises OutputLostError if the topic's retention has deleted some,
    SupersededError (after the last table) if compaction has, and TerminalError otherwise.
    Raises CorruptionError if the note is damaged, or a message names the batch but is not its row.
    """
    if not sum(file.records for file in marker.of_kind(Kind.DATA)):
        return
    if isinstance(note, CorruptionError):
        raise note
    if note is None:
        raise TerminalError(
            f"{target.control} has no note of batch {marker.batch_id}, so semel does not know "
            f"where its messages are in {target.topic}. Restore it"
        )
    spans = {part: span for part, span in note.spans.items() if span[0] < span[1]}
    with target.cluster.admin() as admin:
        spans_now = topic_ends(admin, target.topic).spans
        for part, (start, end) in spans.items():
            first, last = spans_now.get(part, (0, 0))
            if first > start or last < end:
                what = (
                    f"{target.topic}: batch {marker.batch_id} has offsets {start} to {end} of "
                    f"partition {part}, but that now begins at offset {first} and ends at {last}"
                )
                raise _deletion_error(what, config_of(admin, target.topic), marker, cut=last < end)
    suffix = encode.suffix(marker.batch_id, marker.commit_seq)
    values: list[bytes] = []
    size = 0
    gaps = sum(end - start for start, end in spans.values())
    missing = note.rows - len(note.refused)
    for message in control.committed_messages(
        target.cluster, target.topic, spans, limits.KAFKA_TRANSACTION_SECONDS
    ):
        value = message.value()
        gaps -= 1
        if value is not None and value.endswith(suffix):
            missing -= 1
            values.append(value)
            size += len(value)
            if size >= PIECE_BYTES_MAX:
                yield typed_rows(target, marker, values)
                values, size = [], 0
    if values:
        yield typed_rows(target, marker, values)
    if missing > 0:
        raise _compaction_error(target, marker, missing, note, gaps)


def _compaction_error(
    target: KafkaTarget, marker: Published, missing: int, note: ControlNote, gaps: int
) -> TerminalError:
    """The error for missing messages. `gaps`: offsets in the spans without a message."""
    with target.cluster.admin() as admin:
        policy = config_of(admin, target.topic)["cleanup.policy"]
    what = (
        f"{target.topic}: of batch {marker.batch_id}, {missing} of "
        f"{note.rows - len(note.refused)} rows are missing"
    )
    if "compact" in policy.split(",") and missing <= gaps:
        return SupersededError(
            f"{what}. The topic is compacted (cleanup.policy={policy}), so it keeps only the last "
            "message of each key",
            next=f"semel audit {marker.pipeline}",
        )
    return TerminalError(
        f"{what}. Compaction does not explain that (cleanup.policy={policy}, {gaps} offsets "
        "without a message): the topic was compacted earlier, or another program has changed "
        f"{target.control}. Restore it"
    )


def _deletion_error(
    what: str, config: Mapping[str, str], marker: Published, *, cut: bool
) -> TerminalError:
    """The error for deleted messages. `cut`: the end of the partition is missing."""
    limits_now = {name: int(config[name]) for name in ("retention.ms", "retention.bytes")}
    text = ", ".join(f"{name}={value}" for name, value in limits_now.items())
    age_ms = 1000 * (time.time() - marker.committed_at.timestamp())
    if cut:
        return TerminalError(
            f"{what}. The topic was deleted and recreated, or the cluster has lost messages. "
            "Restore it"
        )
    if "delete" not in config["cleanup.policy"] or not (
        0 <= limits_now["retention.ms"] < age_ms or limits_now["retention.bytes"] >= 0
    ):
        return TerminalError(
            f"{what}. Its retention ({text}, cleanup.policy={config['cleanup.policy']}) does not "
            f"delete messages written since {marker.committed_at:%Y-%m-%d %H:%M:%S %Z}. A user has "
            "deleted them, or the retention was shorter. Ask the users who may do that"
        )
    return OutputLostError(
        f"{what}. Its retention ({text}) has deleted messages. Audit before that, or let the topic "
        "keep messages for longer"
    )


def typed_rows(target: KafkaTarget, marker: Published, values: list[bytes]) -> pa.Table:
    """Decode values of messages. Raises CorruptionError if one is not a row of the batch."""
    import duckdb

    try:
        return encode.read_back(values, marker.sink_schema)
    except (duckdb.Error, pa.ArrowException) as error:
        raise CorruptionError(
            f"{target.topic} has a message that names batch {marker.batch_id} but is not one of "
            f"its rows ({first_line(error)}). Find the other program that writes there"
        ) from error
