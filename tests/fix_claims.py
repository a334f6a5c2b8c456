"""Claims of files, as a plan would write them, and stage jobs over them."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from semel.model.batch import Claim
from semel.model.buckets import Buckets
from semel.model.split import splits_of
from semel.pipeline import Spec
from semel.sources.files.source import FilesSource
from semel.stage import fatal
from semel.stage.job import StageJob


def claim_of(path: object, ordinal: int, start: int, end: int, *, tail_hash: str = "") -> Claim:
    """A claim of a file's bytes; the file need not be there."""
    inode = os.stat(path).st_ino if os.path.exists(path) else 0
    evidence = {"head_length": 0, "head_hash": "", "tail_hash": tail_hash}
    return Claim(
        ordinal=ordinal, source_partition_id=ordinal, name=str(path), identity=f"0:{inode}",
        start=start, end=end, evidence=evidence,
    )  # fmt: skip


def job_over(
    folder: Path, spec: Spec, claims: Sequence[Claim], *, split_bytes: int = 1 << 20,
    whole: bool = False, **changes: object,
) -> StageJob:  # fmt: skip
    """A stage job whose claims are below a folder. `whole`: no file of theirs can be cut."""
    fatal.make_folder(folder)
    ordinals = {claim.ordinal for claim in claims} if whole else set()
    values = {
        "pipeline_id": 1, "batch_id": 1, "attempt_id": 1, "began_at": datetime.min, "fence": 1,
        "shards": 1, "bucket_seconds": 60, "forgotten": Buckets(), "now_seconds": 0, "segment_id": None,
        "runs": (), "splits": splits_of(claims, split_bytes, whole=ordinals),
        "source": FilesSource(context=spec.of_source(), root=folder),
    }  # fmt: skip
    return StageJob(spec=spec, folder=folder, **values | changes)
