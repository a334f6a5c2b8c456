"""Notes of batches and copies of markers, which semel keeps below a prefix next to the data.

    _semel/batches/b000000000000000007.json   put before the first object of batch 7
    _semel/markers/b00000007.json             the newest marker of batch 7, put after the last one

Readers that list a prefix skip names with a leading `_`. Each put creates an object; semel replaces
only the copy of a marker, by its etag, with a later generation.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import xxhash

from semel.clients.objects import Object, Store
from semel.errors import AGAIN, CorruptionError, RetryableError, UnavailableError
from semel.model.plain import parse_json
from semel.sinks import BatchNote, CommittedBatch, DamagedNote, Notes, NotesQuery, search_starts
from semel.storage import CHECKSUM, ArchivePath, write_new

if TYPE_CHECKING:
    from semel.model.manifest import Published

DIGEST, GENERATION = "semeldigest", "semelgeneration"
"""The metadata of an object, besides CHECKSUM."""

SEMEL_FOLDER = "_semel"
BATCHES, MARKERS = f"{SEMEL_FOLDER}/batches", f"{SEMEL_FOLDER}/markers"

_FILE = "_notes.json"
"""The notes that stage has read, in the folder of an attempt's data files."""

_ROUNDS_MAX = 8  # Another attempt may put a copy at the same time, at most a few times.
_FIELDS = {"pipeline": str, "batch_id": int, "commit_seq": int, "fence": int, "rows": int,
           "ledger": str, "digest": str}  # fmt: skip


def note_key(batch_id: int) -> str:
    """The key of a batch's note. Keys sort like their numbers."""
    return f"{BATCHES}/b{batch_id:018d}.json"


# Keeps OB7.
def claim_number(store: Store, won: CommittedBatch) -> None:
    """Claim a batch's number below the prefix. Raises CorruptionError if another batch has it."""
    note = {
        "pipeline": won.pipeline, "batch_id": won.batch_id, "commit_seq": won.commit_seq,
        "fence": won.fence, "rows": sum(file.records for file in won.files), "ledger": won.ledger,
        "digest": won.digest,
    }  # fmt: skip
    text, key = json.dumps(note, sort_keys=True).encode(), note_key(won.batch_id)
    metadata = {CHECKSUM: xxhash.xxh3_128_hexdigest(text)}
    if store.create(key, text, metadata):
        return
    head, stored = store.head(key)
    if (head.size, stored.get(CHECKSUM)) != (len(text), metadata[CHECKSUM]):
        raise CorruptionError(
            f"batch {won.batch_id}: {store.place} already has another batch with this number, by "
            f"its note {key}; nothing was touched. Another ledger or pipeline writes there; give "
            "this pipeline a prefix of its own"
        )


def read_notes(
    store: Store, newest: NotesQuery | None, parallel: Callable[[Callable, Iterable[Object]], list]
) -> Notes:
    """All notes, or the newest. `parallel` is a map that runs several calls at once.

    Finalize requests only notes with another etag than those that stage has read.
    """
    count, has = (newest.count, newest.has or 0) if newest else (0, 0)
    objects: list[Object] = []
    for first in search_starts(has, count):
        start = note_key(first) if first else None
        objects = [one for page in store.list(BATCHES, start) for one in page]
        if len(objects) >= count:
            break
    read = _load_notes(newest.staged) if newest else {}
    objects = objects[-count:]
    notes = parallel(lambda item: read.get(_version(item)) or _read_note(store, item), objects)
    if newest and not read:
        _save_notes(newest.staged, objects, notes)
    return Notes(
        tuple(note for note in notes if isinstance(note, BatchNote)),
        damaged=tuple(note for note in notes if isinstance(note, DamagedNote)),
    )


# Keeps H2.
def _version(item: Object) -> str:
    return f"{item.key} {item.etag}"


def _save_notes(folder: ArchivePath, objects: list[Object], notes: list[BatchNote | DamagedNote]) -> None:
    """Save notes for finalize. Another attempt may have saved some, or have removed the folder."""
    plain = {
        _version(item): asdict(note)
        for item, note in zip(objects, notes, strict=True)
        if isinstance(note, BatchNote)
    }
    with suppress(FileExistsError, FileNotFoundError):
        write_new(folder / _FILE, json.dumps(plain).encode())


def _load_notes(folder: ArchivePath) -> dict[str, BatchNote]:
    """The notes that stage has saved, by key and etag. Empty if they are missing or damaged."""
    try:
        plain = parse_json((folder / _FILE).read_bytes())
        return {version: BatchNote(**note) for version, note in plain.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _read_note(store: Store, item: Object) -> BatchNote | DamagedNote:
    try:
        plain = parse_json(store.read(item.key, item.etag, 0, item.size))
        if {key: type(plain.get(key)) for key in _FIELDS} != _FIELDS:
            raise ValueError("a field is missing or has another type")
        if item.key != note_key(plain["batch_id"]):
            raise ValueError(f"its text is of batch {plain['batch_id']}")
        return BatchNote(**{key: plain[key] for key in _FIELDS if key != "digest"})
    except (ValueError, AttributeError, FileNotFoundError) as error:
        digits = "".join(filter(str.isdigit, item.key))[:18]
        what = f"{store.place}/{item.key} is not a note of a batch ({error}); remove it"
        return DamagedNote(int(digits or 0), what)


# Keeps OB12.
def put_marker_copy(store: Store, won: CommittedBatch, marker: ArchivePath) -> None:
    """Put a copy of the marker, or replace an older one. If there is one, HEAD decides, before and
    after each try.

    Raises CorruptionError if another object has its key, RetryableError if the copy changes
    constantly.
    """
    text, key = marker.read_bytes(), f"{MARKERS}/{marker.name}"
    generation = int(parse_json(text).get("generation", 1))
    metadata = {CHECKSUM: xxhash.xxh3_128_hexdigest(text), GENERATION: str(generation)}
    if store.create(key, text, metadata):
        return
    for _ in range(_ROUNDS_MAX):
        head, stored = store.head(key)
        number = stored.get(GENERATION, "")
        if stored == stored | metadata or (number.isdecimal() and int(number) > generation):
            return
        if not number.isdecimal() or int(number) == generation:
            raise CorruptionError(
                f"batch {won.batch_id}: {store.place}/{key} is not a copy of its marker {marker}. "
                "Nothing was changed. Find out who put this object, and remove it",
                next=AGAIN,
            )
        try:
            store.replace(key, text, metadata, head.etag, head.version)
        except (FileNotFoundError, UnavailableError):
            continue  # Another attempt was faster, or the answer was lost.
    raise RetryableError(
        f"batch {won.batch_id}: others changed {store.place}/{key} {_ROUNDS_MAX} times meanwhile; "
        "run this again"
    )


def check_copy(store: Store, marker: "Published") -> None:
    """Raises CorruptionError if the copy of a marker is missing or differs."""
    key = f"{MARKERS}/{marker.path.name}"
    try:
        metadata: dict[str, Any] = store.head(key)[1]
    except FileNotFoundError:
        metadata = {}
    if metadata.get(CHECKSUM) != xxhash.xxh3_128_hexdigest(marker.read_bytes()):
        raise CorruptionError(
            f"{store.place}/{key} is not a copy of the marker {marker.path}, and readers without "
            f"the archive need it. Replay batch {marker.batch_id}, or put the marker there"
        )
