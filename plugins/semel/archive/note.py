"""Notes in the archive about commits that were lost with a ledger and lack a marker.

The audit reports a gap in the commit order as a removed marker, unless a note lists it.
"""

import json

import xxhash

from semel.archive import layout
from semel.errors import CorruptionError
from semel.model.plain import parse_json
from semel.storage import ArchivePath, make_folder, write_new

_FORMAT = 1


def missing_ranges(seqs: list[int]) -> list[list[int]]:
    """The ranges [first, last] that are missing between 1 and the highest number."""
    ranges, expected = [], 1
    for seq in sorted(seqs):
        if seq > expected:
            ranges.append([expected, seq - 1])
        expected = seq + 1
    return ranges


# Keeps D6.
def write_note(archive: ArchivePath, lost: list[list[int]]) -> None:
    """Write a durable note of the lost commits. Writing the same note again changes nothing."""
    data = json.dumps({"format": _FORMAT, "commits_lost": lost}, sort_keys=True).encode() + b"\n"
    path = layout.adoptions(archive) / f"{xxhash.xxh3_64_hexdigest(data)}.json"
    make_folder(path.parent)
    try:
        write_new(path, data)
    except FileExistsError:
        if path.read_bytes() != data:
            raise CorruptionError(
                f"{path}: the content of this note does not match the digest in its name. Move it "
                "out of the archive, then run adopt again"
            ) from None


def read_notes(archive: ArchivePath) -> set[int]:
    """All commits that notes list. Raises CorruptionError if a file is not a note."""
    commits: set[int] = set()
    for path in sorted(layout.adoptions(archive).glob("[!.]*")):
        try:
            plain = parse_json(path.read_bytes())
            if plain["format"] != _FORMAT:
                raise ValueError(f"its format is {plain['format']!r}, not {_FORMAT}")
            for first, last in plain["commits_lost"]:
                commits.update(range(first, last + 1))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path}: semel cannot read this note: {error}") from error
    return commits
