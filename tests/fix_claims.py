"""Claims of files, as a plan would write them."""

import os

from semel.batch import Claim


def claim_of(path: object, ordinal: int, start: int, end: int, *, tail_hash: str = "") -> Claim:
    """A claim of a file's bytes; the file need not be there."""
    inode = os.stat(path).st_ino if os.path.exists(path) else 0
    evidence = {"head_length": 0, "head_hash": "", "tail_hash": tail_hash}
    return Claim(
        ordinal=ordinal, source_partition_id=ordinal, name=str(path), identity=f"0:{inode}",
        start=start, end=end, evidence=evidence,
    )  # fmt: skip
