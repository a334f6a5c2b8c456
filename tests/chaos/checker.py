"""Is the output exact? Read from the source and the sink alone: the ledger has no say here.

It needs `sink.position_columns: true`, so that each row of the output says where it came from. A
table, or a topic, is read through the connection that the environment names.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from fixtures.batches.account import marker_texts
from fixtures.kinds import landed_of
from semel.archive import layout
from semel.pipeline.spec import Spec
from semel.storage import ArchivePath, files_below

Position = tuple[str, int]


@dataclass
class Found:
    """What the markers of a sink list, by position in the source."""

    survivors: list[tuple[Position, str, int]] = field(default_factory=list)
    decisions: list[tuple[Position, str, str]] = field(default_factory=list)
    letters: list[Position] = field(default_factory=list)
    claims: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    order: dict[str, list[tuple[int, int, tuple[int, int]]]] = field(default_factory=dict)
    """By path: start and end of a claim, and the place of its records in the order of commits."""
    files: set[ArchivePath] = field(default_factory=set)
    generations: dict[int, int] = field(default_factory=dict)
    """By batch: which output of it the marker lists."""
    left: dict[int, list[Position]] = field(default_factory=dict)
    """By batch: its dead letters, without those that an admission has judged again."""
    admitted: dict[Position, int] = field(default_factory=dict)
    """The place in the order of commits of what an admission took."""


def assert_exact(spec: Spec, sources: list[Path]) -> Found:
    """Every record of the sources once, or accounted for once; nothing else in the sink."""
    found = _read(spec)
    lines = {(str(p), at): text for p in sources for at, text in _lines(p)}
    good = {at: text for at, text in lines.items() if isinstance(text, dict) and text.get("id")}

    for path in sources:
        spans = sorted(found.claims.get(str(path), []))
        borders = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == borders[:-1], f"{path}: gap or overlap in {spans}"
        assert borders[-1] == path.stat().st_size, f"{path}: read up to {borders[-1]} only"

    assert Counter(found.letters) == Counter(lines.keys() - good.keys())
    accounted = Counter(p for p, *_ in found.survivors) + Counter(p for p, *_ in found.decisions)
    assert accounted == Counter(good.keys()), "a record is missing, or there twice"
    for position, record_id, n in found.survivors:
        assert (record_id, n) == (good[position]["id"], good[position]["n"])
    winners = {record_id: position for position, record_id, _ in found.survivors}
    assert len(winners) == len(found.survivors), "an id is in the output twice"
    for position, record_id, reason in found.decisions:
        assert good[position]["id"] == record_id
        first, second = _place(found, winners[record_id]), _place(found, position)
        assert first < second, f"{record_id}: the later copy won"
        same = first[0] == second[0]
        assert reason == ("duplicate_in_batch" if same else "duplicate_in_catalog")
    _assert_nothing_else(spec, found)
    return found


def _lines(path: Path) -> list[tuple[int, Any]]:
    at, found = 0, []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            found.append((at, json.loads(line)))
        except ValueError:
            found.append((at, None))
        at += len(line)
    return found


def _read(spec: Spec) -> Found:
    found = Found()
    places, names = [], {}
    roots = {"sink": spec.sink_path(), "archive": layout.archive_folder(spec)}
    landed = None if roots["sink"] else landed_of(spec)
    for text in marker_texts(roots["archive"]).values():
        marker = json.loads(text)
        places.append(marker["commit_seq"])
        found.generations[marker["batch_id"]] = marker.get("generation", 1)
        claims = _claims(roots["archive"], marker)
        names |= {claim["source_partition_id"]: claim["name"] for claim in claims}
        for claim in claims:
            span = claim["start"], claim["end"]
            found.claims.setdefault(claim["name"], []).append(span)
            place = marker["commit_seq"], claim["ordinal"]
            found.order.setdefault(claim["name"], []).append((*span, place))
        counts = Counter()
        taken = len(found.survivors), len(found.decisions), len(found.letters)
        for file in marker["files"]:
            if file["kind"] == "claims":
                found.files.add(roots[file["root"]] / file["path"])
                continue
            counts[file["kind"]] += file["records"]
            if landed is None or file["root"] == "archive":
                _take(found, roots[file["root"]] / file["path"], file, names)
        if landed:
            _take_rows(found, landed.take(marker, counts), names)
        assert counts.pop("ids", marker["counts"]["survivors"]) == marker["counts"]["survivors"]
        counts.pop("refused", 0)  # They are counted as output.
        assert_sum(marker["counts"], counts)
        _admit(found, marker, *taken)
    if landed:
        for path in sorted((roots["archive"] / "replaced").glob("b*.json")):
            landed.take_replaced(json.loads(path.read_bytes()))
        landed.assert_all_taken()
    assert sorted(places) == list(range(1, len(places) + 1)), f"places of commits: {places}"
    return found


def _admit(
    found: Found, marker: dict[str, Any], survivors: int, decisions: int, letters: int
) -> None:
    """What a marker's batch left as dead letters; an admission has taken all that were left
    before it. The numbers say where what it took begins."""
    took = [p for p, *_ in (*found.survivors[survivors:], *found.decisions[decisions:])]
    left = found.letters[letters:]
    root = marker["batch_id"]
    if "admits" in marker:
        root = marker["admits"]["batch_id"]
        before = found.left[root]
        assert Counter(before) == Counter([*took, *left]), f"not the dead letters of batch {root}"
        found.letters = list((Counter(found.letters) - Counter(before)).elements())
        found.admitted |= dict.fromkeys(took, marker["commit_seq"])
    found.left[root] = left


def _claims(kept: Path, marker: dict[str, Any]) -> list[dict[str, Any]]:
    """A marker's claims; those of a batch with many are in a file beside it."""
    found = list(marker.get("claims", ()))
    for file in marker["files"]:
        if file["kind"] == "claims":
            found += rows_of(kept / file["path"], file)
    return found


def rows_of(path: Path, file: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file that a marker lists, which is as it says."""
    data = path.read_bytes()
    assert len(data) == file["bytes"], path
    assert xxhash.xxh3_128_hexdigest(data) == file["checksum"], path
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in data.splitlines()]
    else:
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    assert len(rows) == file["records"], path
    return rows


def _take(found: Found, path: Path, file: dict[str, Any], names: dict[int, str]) -> None:
    assert path not in found.files, f"{path} is listed twice"
    found.files.add(path)
    rows = rows_of(path, file)
    if file["kind"] in ("data", "refused"):
        _take_rows(found, rows, names)
        return
    if file["kind"] == "ids":
        return
    for row in rows:
        position = names[row["source_partition_id"]], row["offset"]
        if file["kind"] == "decisions":
            found.decisions.append((position, row["record_id"]["id"], row["reason"]))
        else:
            found.letters.append(position)


def _take_rows(found: Found, rows: list[dict[str, Any]], names: dict[int, str]) -> None:
    for row in rows:
        position = names[row["_semel_source"]], row["_semel_offset"]
        found.survivors.append((position, row["id"], row["n"]))


def assert_sum(counts: dict[str, int], files: Counter[str]) -> None:
    """What a marker counts is what its files hold."""
    duplicates = counts["duplicates_batch"] + counts["duplicates_catalog"]
    assert counts["survivors"] == counts["rows_written"] == files["data"]
    assert duplicates == files["decisions"]
    assert counts["quarantined"] + counts["late"] == files["dead_letters"]
    assert counts["records_read"] == sum(files.values())


def _place(found: Found, position: Position) -> tuple[int, int, int]:
    path, at = position
    [(seq, claim)] = [place for start, end, place in found.order[path] if start <= at < end]
    return found.admitted.get(position, seq), claim, at


def _assert_nothing_else(spec: Spec, found: Found) -> None:
    own = layout.archive_folder(spec)
    there = {
        path
        for root in filter(None, (spec.sink_path(), own))
        for path in files_below(root)
        if not path.is_relative_to(own / "staging")
        and path.parent not in (own / "markers", own / "packs")
        and not (path.is_relative_to(own) and path.name.startswith("."))
    }
    markers = {
        own / "replaced" / f"b{batch:08d}-g{generation:04d}.json": (batch, generation)
        for batch, newest in found.generations.items()
        for generation in range(1, newest)
    }
    there -= _replaced(spec, markers, there)
    lists = set((own / "ids").glob("b*.json"))
    taught = {own / file["path"] for path in lists for file in json.loads(path.read_bytes())["files"]}
    listed = {*found.files, *markers, *lists, *taught}
    assert there == listed, "a file that no marker lists, or a listed one that is not there"


def _replaced(spec: Spec, markers: dict[Path, tuple[int, int]], there: set[Path]) -> set[Path]:
    """The output files that are there of replaced generations: of each one all, or none."""
    old: set[Path] = set()
    for path, of in markers.items():
        marker = json.loads(path.read_bytes())
        assert (marker["batch_id"], marker.get("generation", 1)) == of, path
        if spec.sink_path():
            data = (file["path"] for file in marker["files"] if file["kind"] == "data")
            files = {spec.sink_path() / name for name in data}
            assert files & there in (files, set()), f"files of {path} are there by half"
            old |= files & there
    return old
