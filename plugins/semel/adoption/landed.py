"""Rows that landed in a table or topic just before the ledger was lost: no marker lists them."""

from pathlib import Path

from semel.errors import AGAIN, TerminalError
from semel.reader import Marker, read_marker
from semel.sinks import archive
from semel.spec.sinks import CONTROL, KafkaSink, Sink


# Keeps D10.
def check_landed(
    pipeline: str,
    declared: Sink,
    address: str,
    kept: Path,
    found: list[Marker],
    landed: dict[int, int],
) -> None:
    """TerminalError: rows would stand beside those of the batch that reads their records again.

    `landed`: the batches that the sink has noted, each with its place in the order of commits. Of
    those that were replaced since, the marker is kept aside, and the rows are gone.
    """
    aside = archive.replaced(kept, 0, 0).parent
    old = [read_marker(path, None) for path in sorted(aside.glob("b*.json"))]
    known = {number for m in (*found, *old) for number in (m.batch_id, m.made_by)}
    stray = {number: seq for number, seq in sorted(landed.items()) if number not in known}
    roots = {marker.commit_seq: marker.batch_id for marker in found}
    if replays := {number: roots[seq] for number, seq in stray.items() if seq in roots}:
        number, root = next(iter(replays.items()))
        raise TerminalError(
            f"{address} has rows of batch {number}, which replaced those of batch {root} just "
            f"before the ledger was lost, and no marker in {kept} lists them. Let them be batch "
            f"{root}'s (UPDATE, SET _semel_batch = {root} WHERE _semel_batch = {number}), delete "
            f"batch {number}'s row in semel_batch, and run this again; after that `semel replay "
            f"{pipeline} --batches {root}` makes them what its marker will say",
            next=AGAIN,
        )
    if stray and isinstance(declared, KafkaSink):
        raise _of_topic(pipeline, declared.topic, address, kept, list(stray))
    if stray:
        shown = ", ".join(map(str, stray))
        raise TerminalError(
            f"{address} has rows of batches {shown}, which no marker in {kept} lists: they landed "
            "just before the ledger was lost, and their records will be read again. Delete these "
            f"rows (WHERE _semel_batch IN ({shown})) and the batches' rows in semel_batch, then "
            "run this again"
        )


def _of_topic(
    pipeline: str, topic: str, address: str, kept: Path, stray: list[int]
) -> TerminalError:
    shown = ", ".join(map(str, stray))
    keys = "".join(f'["{pipeline}",{number}]|NULL\\n' for number in stray)
    return TerminalError(
        f"{address} has messages of batches {shown}, which no marker in {kept} lists: they landed "
        "just before the ledger was lost, and their records will be read again. Messages cannot be "
        f"taken back: let the consumers pass over those whose _semel_batch is one of {shown}; then "
        f"take the notes of these batches out of the control topic: printf '{keys}' | "
        f"kafka-console-producer.sh --bootstrap-server BROKER --topic {CONTROL}{topic} --property "
        "parse.key=true --property 'key.separator=|' --property null.marker=NULL",
        next=AGAIN,
    )
