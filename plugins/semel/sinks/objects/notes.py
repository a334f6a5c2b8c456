"""What semel keeps below a prefix besides data: notes of batches, and copies of markers.

    _semel/batches/b000000000000000007.json   put before the first object of batch 7
    _semel/markers/b00000007.json             the newest marker of batch 7, put after the last one

Readers that list a prefix pass over what begins with `_`. All is put where nothing is; only the
copy of a marker is ever replaced, by the etag that it had, with a later generation.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from semel.clients.objects import Object, Store
from semel.errors import AGAIN, CorruptionError, RetryableError, UnavailableError
from semel.model.plain import parsed
from semel.sinks import BatchNote, CommittedBatch, DamagedNote, Notes, NotesQuery, search_starts

if TYPE_CHECKING:
    from semel.model.manifest import Published

CHECKSUM, DIGEST, GENERATION = "semelxxh3", "semeldigest", "semelgeneration"
"""What is stored with objects. Azure takes no hyphens in such names."""

OWN = "_semel"
BATCHES, MARKERS = f"{OWN}/batches", f"{OWN}/markers"

_ROUNDS_MAX = 8  # A twin puts a copy while this one does, at most a few times.
_FIELDS = {"pipeline": str, "batch_id": int, "commit_seq": int, "fence": int, "rows": int,
           "ledger": str, "digest": str}  # fmt: skip


def note_key(batch_id: int) -> str:
    """Where the note of a batch is. Keys sort as numbers do."""
    return f"{BATCHES}/b{batch_id:018d}.json"


# Keeps OB7.
def claim(store: Store, won: CommittedBatch) -> None:
    """Take a batch's number below the prefix, once. CorruptionError: another batch has it."""
    note = {
        "pipeline": won.pipeline, "batch_id": won.batch_id, "commit_seq": won.commit_seq,
        "fence": won.fence, "rows": sum(file.records for file in won.files), "ledger": won.ledger,
        "digest": won.digest,
    }  # fmt: skip
    text, key = json.dumps(note, sort_keys=True).encode(), note_key(won.batch_id)
    about = {CHECKSUM: xxhash.xxh3_128_hexdigest(text)}
    if store.create(key, text, about):
        return
    found, there = store.head(key)
    if (found.size, there.get(CHECKSUM)) != (len(text), about[CHECKSUM]):
        raise CorruptionError(
            f"batch {won.batch_id}: another batch of its number has put objects below "
            f"{store.place}, as {key} says; nothing was touched. Another ledger or pipeline writes "
            "there: give this one a prefix of its own"
        )


def read(
    store: Store, newest: NotesQuery | None, each: Callable[[Callable, Iterable[Object]], list]
) -> Notes:
    """The notes, or the newest of them. `each` asks for several at once."""
    count, has = (newest.count, newest.has or 0) if newest else (0, 0)
    found: list[Object] = []
    for first in search_starts(has, count):
        after = note_key(first) if first else None
        found = [one for page in store.list(BATCHES, after) for one in page]
        if len(found) >= count:
            break
    told = each(partial(_note, store), found[-count:])
    notes = [one for one in told if isinstance(one, BatchNote)]
    return Notes(tuple(notes), damaged=tuple(one for one in told if isinstance(one, DamagedNote)))


def _note(store: Store, found: Object) -> BatchNote | DamagedNote:
    try:
        plain = parsed(store.read(found.key, found.etag, 0, found.size))
        if {key: type(plain.get(key)) for key in _FIELDS} != _FIELDS:
            raise ValueError("it lacks something")
        if found.key != note_key(plain["batch_id"]):
            raise ValueError(f"it speaks of batch {plain['batch_id']}")
        return BatchNote(**{key: plain[key] for key in _FIELDS if key != "digest"})
    except (ValueError, AttributeError, FileNotFoundError) as error:
        digits = "".join(filter(str.isdigit, found.key))[:18]
        what = f"{store.place}/{found.key} is no note of a batch ({error}); remove it"
        return DamagedNote(int(digits or 0), what)


# Keeps OB12.
def copy(store: Store, won: CommittedBatch, marker: Path) -> None:
    """Keep a copy of the marker as it is now. HEAD decides, before and after each try.

    CorruptionError: something else is in its place. RetryableError: others are at it.
    """
    text, key = marker.read_bytes(), f"{MARKERS}/{marker.name}"
    generation = int(parsed(text).get("generation", 1))
    about = {CHECKSUM: xxhash.xxh3_128_hexdigest(text), GENERATION: str(generation)}
    for _ in range(_ROUNDS_MAX):
        try:
            found, there = store.head(key)
        except FileNotFoundError:
            store.create(key, text, about)
            continue
        of = there.get(GENERATION, "")
        if there == there | about or (of.isdecimal() and int(of) > generation):
            return
        if not of.isdecimal() or int(of) == generation:
            raise CorruptionError(
                f"batch {won.batch_id}: {store.place}/{key} is not a copy of its marker {marker}; "
                "nothing was touched. Ask who has put it, and remove it",
                next=AGAIN,
            )
        try:
            store.replace(key, text, about, found.etag, found.version)
        except (FileNotFoundError, UnavailableError):
            continue  # A twin was faster; or the answer was lost.
    raise RetryableError(
        f"batch {won.batch_id}: {store.place}/{key} was changed by others {_ROUNDS_MAX} times; run "
        "this again"
    )


def check_copy(store: Store, marker: "Published") -> None:
    """CorruptionError: there is no copy of a marker, or it is another one."""
    key = f"{MARKERS}/{marker.path.name}"
    try:
        about: dict[str, Any] = store.head(key)[1]
    except FileNotFoundError:
        about = {}
    if about.get(CHECKSUM) != xxhash.xxh3_128_hexdigest(marker.path.read_bytes()):
        raise CorruptionError(
            f"{store.place}/{key} is not a copy of the marker {marker.path}, by which readers "
            f"elsewhere go; replay batch {marker.batch_id}, or put the marker there"
        )
