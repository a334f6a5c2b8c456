"""Rows of batches that landed in a table just before the ledger was lost: no marker lists them."""

from pathlib import Path

from semel.errors import AGAIN, TerminalError
from semel.reader import Marker, read_marker
from semel.sinks import archive


# Keeps D10.
def check_landed(
    pipeline: str, address: str, kept: Path, found: list[Marker], landed: dict[int, int]
) -> None:
    """TerminalError: rows would stand beside those of the batch that reads their records again.

    `landed`: the batches that the table has noted, each with its place in the order of commits. Of
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
    if stray:
        shown = ", ".join(map(str, stray))
        raise TerminalError(
            f"{address} has rows of batches {shown}, which no marker in {kept} lists: they landed "
            "just before the ledger was lost, and their records will be read again. Delete these "
            f"rows (WHERE _semel_batch IN ({shown})) and the batches' rows in semel_batch, then "
            "run this again"
        )
