"""Is the output exact? Judged by counting ids, by the audit, and by the chaos checker."""

import gzip
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checker import assert_exact
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one pipeline's records."""

    pipeline: str
    batches: int
    records: int
    """Records in the output."""
    read: int
    duplicates: int
    dead_letters: int
    lost: int
    """Valid ids of the source that are not in the output."""
    twice: int
    """Rows of the output whose id was there already, or that no source has."""
    broken: tuple[str, ...]
    """What the judges say; empty when all find it exact."""

    @property
    def exact(self) -> bool:
        return not (self.lost or self.twice or self.broken)


def sources(spec: Spec) -> list[Path]:
    """The source files of a pipeline."""
    return sorted(spec.source_root().glob(spec.source.below()))


def bytes_of(spec: Spec) -> int:
    """How many bytes the source files have, unpacked."""
    return sum(_size(path) for path in sources(spec))


def unread(spec: Spec, size: int) -> int:
    """How many positions no finalized batch has read, of a source that has `size` of them."""
    claims = [claim for marker in markers_of(spec) for claim in marker.claims]
    return size - sum(claim.end - claim.start for claim in claims)


def ids_of_files(spec: Spec) -> set[str]:
    """The ids of all valid records of the source files."""
    return {record_id for path in sources(spec) for record_id in _ids(path)}


def judge(spec: Spec, wanted: Collection[str], there: Counter[str]) -> Verdict:
    """Hold the ids that are `there` in the sink against those that must be.

    The ledger and the producer have no say.
    """
    found = markers_of(spec)
    broken: list[str] = []
    proof = audit(spec)
    for check in proof.checks:
        if not check.ok:
            broken.append(f"audit: {check.name}: {check.broken} broken: {check.offenders[:1]}")
    # The checker finds a row's record by its path, and a rotated log's records change theirs.
    if spec.source.type == "files" and not spec.by_position:
        try:
            assert_exact(spec, sources(spec))
        except AssertionError as error:
            broken.append(f"checker: {str(error)[:2000]}")
    totals = proof.totals
    return Verdict(
        pipeline=spec.name,
        batches=len(found),
        records=there.total(),
        read=totals.records_read,
        duplicates=totals.duplicates_batch + totals.duplicates_catalog,
        dead_letters=totals.quarantined + totals.late,
        lost=len(set(wanted) - there.keys()),
        twice=sum(count - (record_id in wanted) for record_id, count in there.items()),
        broken=tuple(broken),
    )


def ids_in_output(spec: Spec) -> Counter[str]:
    """How often each id is in the output files that the markers list."""
    sink, found = spec.sink_path(), Counter()
    for marker in markers_of(spec):
        for file in marker.of_kind(Kind.DATA):
            data = pa.BufferReader((sink / file.path).read_bytes())
            found.update(pq.read_table(data, columns=["id"])["id"].to_pylist())
    return found


def _content(path: Path) -> bytes:
    """A file's bytes, or what a gzip file unpacks to."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _size(path: Path) -> int:
    return len(_content(path)) if path.suffix == ".gz" else path.stat().st_size


def _ids(path: Path) -> list[str]:
    """The ids of a file's valid records."""
    found = []
    for line in _content(path).split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("id"):
            found.append(record["id"])
    return found
