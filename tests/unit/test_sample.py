"""Attacks on the stop before the job: it comes only where the full count would refuse as well."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.files.claims import claim_of, job_over
from fixtures.files.honest import spec_of
from semel import limits
from semel.errors import LimitError
from semel.model.buckets import Buckets
from semel.stage.job import StageJob
from semel.stage.sample import check_sample
from tiers import examples

GOOD, BAD, LATE, BLANK = "good", "bad", "late", "blank"
LINES = {
    GOOD: b'{"id":"a","n":1,"at":"2024-01-01T00:00:00Z"}',
    BAD: b"{",
    LATE: b'{"id":"a","n":1,"at":"2001-01-01T00:00:00Z"}',
    BLANK: b"",
}


RUNS = st.tuples(st.sampled_from(list(LINES)), st.integers(1, 30))


def job_of(
    folder: Path, files: list[bytes], *, ratio_max: float, gzipped: bool = False
) -> StageJob:
    """A stage job over some files, each one claim; record times before 2010 are late in it."""
    claims = []
    for ordinal, data in enumerate(files):
        path = folder / (f"{ordinal}.jsonl.gz" if gzipped else f"{ordinal}.jsonl")
        path.write_bytes(gzip.compress(data) if gzipped else data)
        claims.append(claim_of(path, ordinal, 0, len(data)))
    spec = spec_of(
        folder, limits__quarantine_ratio_max=ratio_max, record_time="at", dedup__scope="bucket"
    )
    return job_over(
        folder, spec, claims, split_bytes=200, whole=gzipped, bucket_seconds=3600,
        forgotten=Buckets((0, 1_262_304_000 // 3600)), now_seconds=1_800_000_000, segment_id=1,
    )  # fmt: skip


def refused(job: StageJob) -> bool:
    try:
        check_sample(job)
    except LimitError:
        return True
    return False


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are taken of batches of any size, and hold a few records."""
    monkeypatch.setattr("semel.stage.sample.SAMPLED_BATCH_BYTES_MIN", 0)
    monkeypatch.setattr("semel.stage.sample.SAMPLE_BYTES", 60)
    monkeypatch.setattr(limits, "BLOCK_BYTES", 100)
    monkeypatch.setattr("semel.formats.blocks.LINE_STEP_BYTES", 50)


# Attacks S21.
@settings(
    derandomize=True, database=None, deadline=None, max_examples=examples(300),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    files=st.lists(st.lists(RUNS, min_size=1, max_size=5), min_size=1, max_size=3),
    ratio_max=st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.9, 0.99, 1.0]),
    ended=st.booleans(),
    gzipped=st.booleans(),
)
def test_what_is_refused_early_is_refused_by_the_count(
    small: None, tmp_path: Path, files: list, ratio_max: float, ended: bool, gzipped: bool
) -> None:
    """However good, bad, late and blank lines lie, no batch is stopped that would pass."""
    kinds = [[kind for kind, count in runs for _ in range(count)] for runs in files]
    content = [b"\n".join(LINES[kind] for kind in file) + b"\n" * ended for file in kinds]
    content = [data for data in content if data] or [b"\n"]
    job = job_of(tmp_path, content, ratio_max=ratio_max, gzipped=gzipped)
    told = [kind for file in kinds for kind in file if kind != BLANK]
    if refused(job):
        assert told.count(BAD) > ratio_max * len(told)


def test_bad_all_through_is_refused(small: None, tmp_path: Path) -> None:
    """The message says how many there are at least and at most, and what to do."""
    job = job_of(tmp_path, [b"{\n" * 1_000], ratio_max=0.05)
    said = (
        r"batch 1: of at most 1,001 records at least \d+ would [^\n]*\n"
        r"malformed \d+, one of them: '.*0\.jsonl' byte 0\n    not JSON.*\n    {\n"
    )
    with pytest.raises(LimitError, match=said):
        check_sample(job)
    assert refused(job_of(tmp_path, [b"{\n" * 1_000], ratio_max=0.05, gzipped=True))


def test_a_bad_beginning_is_not_the_whole(small: None, tmp_path: Path) -> None:
    """A batch at its limit passes, wherever its bad records lie; one more, and it is refused."""
    good = LINES[GOOD] + b"\n"
    assert not refused(job_of(tmp_path, [b"{\n" * 50 + good * 51], ratio_max=0.5))
    assert refused(job_of(tmp_path, [b"{\n" * 53 + good * 51], ratio_max=0.5))


def test_a_file_that_was_cut_is_for_the_job_to_tell(small: None, tmp_path: Path) -> None:
    """What cannot be counted is no proof: a damaged stream is read by the job."""
    job = job_of(tmp_path, [b"{\n" * 1_000], ratio_max=0.05, gzipped=True)
    path = Path(job.splits[0].claim.name)
    path.write_bytes(path.read_bytes()[:20])
    assert not refused(job)
