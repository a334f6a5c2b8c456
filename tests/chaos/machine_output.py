"""Is what readers see right at this moment? From markers and files alone, batch after batch.

The model: of the ids that a pipeline read, by the order of its commits, the first copy of each is
in the output, and another only a horizon later. In scope `bucket` it never comes again: once an
earlier batch's ids of a bucket may have been forgotten, what comes of that bucket may be late, and is
a dead letter then; no other record is. A replay puts the same rows into other files.
"""

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from checker import assert_sum, rows_of
from fixtures.batches.account import packed_texts
from machine_files import File, parsed
from semel.archive import layout
from semel.pipeline.spec import Spec
from semel.storage import checksum

Position = tuple[int, int]
Key = tuple[int | None, str]
_GONE = 0, 0, 0
_BAD = {"malformed", "id_missing", "type_mismatch", "encoding"}


@dataclass
class Listed:
    """What the files of one marker hold, by position."""

    survivors: dict[Position, tuple[str, int | None]] = field(default_factory=dict)
    duplicates: dict[Position, str] = field(default_factory=dict)
    letters: dict[Position, str] = field(default_factory=dict)
    positions: Counter[Position] = field(default_factory=Counter)


class Output:
    """The output of one pipeline, as a reader of whole batches sees it grow."""

    def __init__(self, spec: Spec, states: dict[tuple[int, str], bytes]) -> None:
        self.roots = {"sink": spec.sink_path(), "archive": layout.archive_folder(spec)}
        self.by_bucket = spec.dedup.scope == "bucket"
        self.horizon = spec.dedup.horizon
        self.states = states
        self.visible: dict[Path, tuple[tuple[int, int, int], str | None]] = {}
        self.replaced: dict[Path, tuple[int, int, int]] = {}
        """Output files that no marker lists any more: they are as they were, or gone."""
        self.markers: dict[Path, tuple[str, Listed]] = {}
        self.survivors: dict[Key, list[tuple[int, datetime]]] = defaultdict(list)
        self.spans: dict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
        self.read: dict[int, list[tuple[int, datetime]]] = defaultdict(list)
        """By bucket: the commits that took records of it."""
        self.counts: Counter[str] = Counter()
        self._batches: dict[int, tuple[datetime, set[Key], set[int]]] = {}
        self._settled = 0

    def look(self) -> None:
        """What was visible is as it was, replaced, or packed; and what became visible is right."""
        for path, text in packed_texts(self.roots["archive"]).items():
            if path not in self.markers:
                self._take(path, text.decode())
            if _status(path) == _GONE and self.visible.pop(path, None):
                assert self.markers[path][0] == text.decode(), f"{path} was packed as another one"
                self.counts["packed"] += 1
        for path in [p for p in self.markers if _status(p) != self.visible.get(p, (_GONE,))[0]]:
            self._replace(path)
        for path, (known, _) in self.visible.items():
            assert _status(path) == known, f"{path} was visible, and is changed or gone"
        for path, known in self.replaced.items():
            assert _status(path) in (known, _GONE), f"{path} was replaced, and is changed"
        folder = self.roots["archive"] / "markers"
        names = os.listdir(folder) if folder.is_dir() else []
        for name in sorted(names):
            if not name.startswith(".") and folder / name not in self.visible:
                self._take(folder / name, (folder / name).read_text())
        while self._settled + 1 in self._batches:
            self._settle(self._settled + 1)

    def complete(self, files: list[File]) -> None:
        """At the end: every line of every file has been read, whole and in one partition."""
        assert self._settled == len(self._batches), f"commits {sorted(self._batches)}"
        for spans in self.spans.values():
            spans.sort()
        for file in files:
            whole = [p for p, spans in self.spans.items() if _covers(spans, file)]
            assert whole or not file.end, f"{file.path} was not read up to {file.end}"
        for path, (_, digest) in self.visible.items():
            assert digest is None or checksum(path) == digest, path
        own = self.roots["archive"]
        for path in (path for root in self.roots.values() for path in root.rglob("*")):
            hidden = path.is_relative_to(own / "staging") or path.name.startswith(".")
            hidden |= path.parent == own / "packs"
            known = path in self.visible or path in self.replaced
            assert path.is_dir() or hidden or known, f"{path} is in no marker"

    def _replace(self, path: Path) -> None:
        """A replay's marker is in the place of another one, which was kept."""
        text, listed = self.markers[path]
        old, marker = json.loads(text), json.loads(path.read_text())
        first, newest = old.get("generation", 1), marker["generation"]
        assert first < newest, f"{path} was visible, and is changed"
        assert self._kept(path, first, newest)[0] == text, f"{path} was kept as another one"
        for key in ("batch_id", "batch_time", "commit_seq", "counts", "input_digest", "interval"):
            assert marker[key] == old[key], f"{path}: its {key} is another one"
        for file in old["files"]:
            assert file["kind"] == "data" or file in marker["files"], f"{path} lacks {file}"
        self.visible[path] = _status(path), None
        rows = Listed()
        for file in marker["files"]:
            if file["kind"] == "data":
                _list(rows, "data", self._rows(file))
        assert rows.survivors == listed.survivors, f"{path}: its rows are others than they were"
        self.markers[path] = path.read_text(), listed

    def _kept(self, path: Path, first: int, newest: int) -> list[str]:
        """The markers that were replaced, from one generation on up to the newest. What they list
        may go.
        """
        found = []
        for generation in range(first, newest):
            kept = self.roots["archive"] / "replaced" / f"{path.stem}-g{generation:04d}.json"
            found.append(kept.read_text())
            marker = json.loads(found[-1])
            assert marker.get("generation", 1) == generation, kept
            self.visible[kept] = _status(kept), checksum(kept)
            for file in marker["files"]:
                if file["kind"] == "data":
                    data = self.roots["sink"] / file["path"]
                    self.replaced[data] = self.visible.pop(data, (_status(data),))[0]
            self.counts["replays"] += 1
        return found

    def _take(self, path: Path, text: str) -> None:
        marker = json.loads(text)
        self.visible[path] = _status(path), None
        listed, counts = Listed(), Counter()
        self.markers[path] = text, listed
        self._kept(path, 1, marker.get("generation", 1))
        claims = marker.get("claims", [])
        for file in marker["files"]:
            rows = self._rows(file)
            if file["kind"] == "claims":
                claims += rows
                continue
            counts[file["kind"]] += len(rows)
            _list(listed, file["kind"], rows)
        assert_sum(marker["counts"], counts)
        self.counts += Counter(marker["counts"])
        lines = self._claimed(claims)
        assert listed.positions == Counter(lines.keys()), f"{path}: a record is missing or twice"
        self._judge(path, marker, lines, listed)

    def _rows(self, file: dict[str, Any]) -> list[dict[str, Any]]:
        path = self.roots[file["root"]] / file["path"]
        assert path not in self.visible, f"{path} is in two markers"
        self.visible[path] = _status(path), file["checksum"]
        return rows_of(path, file)

    def _claimed(self, claims: list[dict[str, Any]]) -> dict[Position, bytes]:
        """The lines of a batch's claims, in source order."""
        lines: dict[Position, bytes] = {}
        for claim in sorted(claims, key=lambda claim: claim["ordinal"]):
            start, end, partition = claim["start"], claim["end"], claim["source_partition_id"]
            state = self.states.get((end, _tail_hash(claim)))
            assert state is not None, f"no file ever had these bytes: {claim}"
            for other_start, other_end, other in self.spans[partition]:
                apart = end <= other_start or other_end <= start
                assert apart, f"partition {partition}: {start} to {end} is claimed twice"
                one = state.startswith(other) or other.startswith(state)
                assert one, f"partition {partition} is of two files"
            self.spans[partition].append((start, end, state))
            for line in state[start:end].splitlines(keepends=True):
                if line.strip():
                    lines[partition, start] = line
                start += len(line)
        return lines

    def _judge(
        self, path: Path, marker: dict[str, Any], lines: dict[Position, bytes], listed: Listed
    ) -> None:
        """Each record is where the model has it. Causes that are not visible yet come later."""
        now, seq = datetime.fromisoformat(marker["batch_time"]), marker["commit_seq"]
        seconds = marker["bucket_seconds"]
        first: dict[Key, str] = {}
        causes: set[Key] = set()
        late: set[int] = set()
        for at, line in lines.items():
            record = parsed(line)
            reason = listed.letters.get(at)
            if record is None:
                assert reason in _BAD, f"{path}: {line!r} at {at} is {reason}"
                continue
            bucket = None
            if self.by_bucket:
                bucket = int(datetime.fromisoformat(record["at"]).timestamp() // seconds)
            if reason == "late" and self.by_bucket:
                late.add(bucket)
                continue
            assert reason is None, f"{path}: {line!r} at {at} is {reason}"
            key = bucket, record["id"]
            found = listed.duplicates.get(at, "survivor")
            if found == "survivor":
                assert listed.survivors[at] == (record["id"], record["n"]), f"{path}: {at}"
                self._survives(key, seq, now, path)
            if key not in first:
                assert found != "duplicate_in_batch", f"{path}: {key} has no copy before {at}"
                first[key] = found
                if found != "survivor":
                    causes.add(key)
                continue
            told = {"survivor": "duplicate_in_batch"}.get(first[key], first[key])
            assert found == told, f"{path}: {key} at {at} is {found}, and should be {told}"
        assert seq not in self._batches, f"{path}: commit {seq} is another batch's"
        self._batches[seq] = now, causes, late

    def _survives(self, key: Key, seq: int, now: datetime, path: Path) -> None:
        for other, then in self.survivors[key]:
            far = not self.by_bucket and abs(now - then) >= self.horizon
            assert far, f"{path}: {key} is in commits {other} and {seq}, {now - then} apart"
        self.survivors[key].append((seq, now))
        self.read[key[0]].append((seq, now))

    def _settle(self, seq: int) -> None:
        """With all commits before this one in sight: nothing was dropped without a cause, and
        nothing was late of which no batch had ids for a horizon.
        """
        now, causes, late = self._batches[seq]
        before = self._batches.get(seq - 1, (datetime.min.replace(tzinfo=UTC),))[0]
        assert before < now, f"commit {seq} is of {now}, and the one before of {before}"
        for key in causes:
            held = any(other < seq for other, _ in self.survivors[key])
            assert held, f"{key} was dropped in commit {seq}, and no earlier one has it: lost"
        for bucket in late:
            held = (now - then for other, then in self.read[bucket] if other < seq)
            assert any(age >= self.horizon for age in held), f"{bucket} is late in commit {seq}"
        self._settled = seq


def _list(listed: Listed, kind: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if kind == "data":
            at = row["_semel_source"], row["_semel_offset"]
            listed.survivors[at] = row["id"], row["n"]
        else:
            at = row["source_partition_id"], row["offset"]
            kept = listed.duplicates if kind == "decisions" else listed.letters
            kept[at] = row["reason"]
        listed.positions[at] += 1


def _status(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return _GONE
    return found.st_ino, found.st_size, found.st_mtime_ns


def _covers(spans: list[tuple[int, int, bytes]], file: File) -> bool:
    ends = [0, *(end for _, end, _ in spans)]
    state = spans[-1][2] if spans else b""
    whole = [start for start, _, _ in spans] == ends[:-1]
    return whole and state == file.data[: file.end]


def _tail_hash(claim: dict[str, Any]) -> str:
    evidence = claim["evidence"]
    return (json.loads(evidence) if isinstance(evidence, str) else evidence)["tail_hash"]
