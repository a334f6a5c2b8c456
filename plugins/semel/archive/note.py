"""Notes in the archive about commits lost with a ledger, which never got a marker.

To the audit, a gap in the commit order means a removed marker, unless a note names it.
"""

import json
from pathlib import Path

import xxhash

from semel.archive import layout
from semel.errors import CorruptionError
from semel.model.plain import parse_json
from semel.storage import make_folder, write_new

_FORMAT = 1


def gaps(seqs: list[int]) -> list[list[int]]:
    """The missing ranges [first, last] among the numbers from 1 to the last one."""
    found, expected = [], 1
    for seq in sorted(seqs):
        if seq > expected:
            found.append([expected, seq - 1])
        expected = seq + 1
    return found


# Keeps D6.
def write(kept: Path, lost: list[list[int]]) -> None:
    """Note the lost commits durably. Writing the same note again changes nothing."""
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
    """All commits that notes name. CorruptionError: a file is not a note."""
    found: set[int] = set()
    for path in sorted(layout.adoptions(kept).glob("[!.]*")):
        try:
            plain = parse_json(path.read_bytes())
            if plain["format"] != _FORMAT:
                raise ValueError(f"its format is {plain['format']!r}, and {_FORMAT} is known")
            for first, last in plain["commits_lost"]:
                found.update(range(first, last + 1))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"the note {path} cannot be read: {error}") from error
    return found
