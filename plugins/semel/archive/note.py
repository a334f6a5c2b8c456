"""A note in the archive of commits that were lost with a ledger: they never came to a marker.

The audit takes a gap in the order of commits for a marker that was removed, unless a note names it.
"""

import json
from pathlib import Path

import xxhash

from semel.archive import layout
from semel.errors import CorruptionError
from semel.storage import make_folder, write_new

_FORMAT = 1


def gaps(seqs: list[int]) -> list[list[int]]:
    """The ranges [first, last] of numbers from 1 that are missing before the last one."""
    found, expected = [], 1
    for seq in sorted(seqs):
        if seq > expected:
            found.append([expected, seq - 1])
        expected = seq + 1
    return found


# Keeps D6.
def write(kept: Path, lost: list[list[int]]) -> None:
    """Write the lost commits down, durably. The same note again changes nothing."""
    data = json.dumps({"format": _FORMAT, "commits_lost": lost}, sort_keys=True).encode() + b"\n"
    path = layout.adoptions(kept) / f"{xxhash.xxh3_64_hexdigest(data)}.json"
    make_folder(path.parent)
    try:
        write_new(path, data)
    except FileExistsError:
        if path.read_bytes() != data:
            raise CorruptionError(
                f"{path} is not what its name says; move it aside, then run adopt again"
            ) from None


def read(kept: Path) -> set[int]:
    """All commits that notes name. CorruptionError: one is no note."""
    found: set[int] = set()
    for path in sorted(layout.adoptions(kept).glob("[!.]*")):
        try:
            plain = json.loads(path.read_bytes())
            if plain["format"] != _FORMAT:
                raise ValueError(f"its format is {plain['format']!r}, and {_FORMAT} is known")
            for first, last in plain["commits_lost"]:
                found.update(range(first, last + 1))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"the note {path} cannot be read: {error}") from error
    return found
