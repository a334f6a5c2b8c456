"""Files that are read together come to what each comes to alone: records, ids, digests, places."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.files.claims import claim_of, job_over
from fixtures.files.honest import spec_of
from semel import limits
from semel.errors import SourceError, TerminalError
from semel.stage import read
from semel.stage.job import StageJob
from semel.stage.spill import Spilled
from semel.stage.task_ids import read_task_ids
from semel.stage.together import small_groups
from semel.stage.verdicts import Verdicts
from tiers import examples

GOOD = [
    b'{"id": "a", "n": 1, "at": "2024-01-01T00:00:00Z"}', b'{"id": "b", "n": null, "at": null}',
    b'{"id": "c"}', b' {"id": "d", "n": 5}\t', b"", b"  ", b'{"id": "e", "n": 7}\r',
    b'{"id": "f", "at": "2024-01-01T00:00:00.123456Z"}', '{"id": "ä"}'.encode(),
]  # fmt: skip
ODD = [
    b"{bad", b"{}", b'{"id": null}', b'{"id": "g", "n": "x"}', b"\xff", b'{"id": "\0"}', b"[]",
    b"null",
    b'{"id": "h"} {"id": "i"}', b'{"id": "j",', b'"n": 1}', b'{"id": "k"}\r\r',
    b'{"id": "l", "at": "2024-01-01T00:00:00.123456789Z"}', b"\xef\xbb\xbf" + b'{"id": "m"}',
    b'{"id": "n", "id": "o"}', b"\r",
]  # fmt: skip


def texts(lines: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda parts, end: b"\n".join(parts) + end,
        st.lists(st.sampled_from(lines), min_size=1, max_size=4),
        st.sampled_from([b"", b"\n", b"\n\n"]),
    ).filter(bool)


FILES = st.one_of(
    st.lists(texts(GOOD), min_size=2, max_size=8),
    st.lists(texts(GOOD + ODD), min_size=2, max_size=8),
)


def job_of(folder: Path, files: list[tuple[bytes, bytes]], **changes: object) -> StageJob:
    """A job over files: of each, a head that was read before, and what is claimed."""
    spec = spec_of(folder, **changes)
    claims = []
    for number, (head, text) in enumerate(files):
        path = folder / "in" / f"{number}.jsonl"
        path.write_bytes(head + text)
        claims.append(claim_of(path, number, len(head), len(head) + len(text)))
    return job_over(folder, spec, claims, shards=2)


def outcome(job: StageJob, *, write: bool) -> list[object]:
    """All that reading a job gives, in a form that can be compared."""
    for folder in (job.spill_dir, job.data_dir):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    found: list[object] = []
    done = read.read_task(job, 0, write=write)
    parts = [read_task_ids(job, place) for place in done.ids]
    ids = [(part.task, *(c.tolist() for c in (part.h1, part.h2, part.row))) for part in parts]
    for report in done.reports:
        rows = []
        if not write:
            spilled = Spilled(job.spill_dir / report.spill)
            pieces = spilled.rows(report.first_row, report.counts.survivors)
            rows = [row for piece in pieces for row in piece.to_pylist()]
        files = [
            (file.kind, file.records, pq.read_table(file.path, partitioning=None).to_pylist())
            for file in report.files
        ]
        found.append((replace(report, spill=None, files=()), rows, files))
    return [*found, ids]


@settings(max_examples=examples(150), deadline=None)
@given(
    files=FILES,
    heads=st.lists(st.sampled_from([b"", b"x\n", b'{"id": "z"}\n']), min_size=8, max_size=8),
    record_id=st.sampled_from([["id"], ["id", "n"], ["at"], None]),
    write=st.booleans(),
)
def test_together_is_as_alone(
    files: list[bytes],
    heads: list[bytes],
    record_id: list[str] | None,
    write: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """For whatever bytes: the same reports, ids, rows with their places, and dead letters."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "in").mkdir()
    changes = {"record_id": record_id or [], "sink__position_columns": True}
    job = job_of(folder, list(zip(heads, files, strict=False)), **changes)
    write = write and not record_id
    together = outcome(job, write=write)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semel.stage.together.SMALL_SPLIT_BYTES", 0)
        assert together == outcome(job, write=write)


@settings(max_examples=examples(60), deadline=None)
@given(files=FILES, data=st.data(), only=st.booleans(), judged=st.booleans())
def test_a_selection_together_is_as_alone(
    files: list[bytes],
    data: st.DataObject,
    only: bool,
    judged: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever is left out of whatever files: the same reports, rows and ids, or the same error."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "in").mkdir()
    job = job_of(folder, [(b"x\n", file) for file in files], sink__position_columns=True)
    starts = [
        (number, 2 + at)
        for number, file in enumerate(files)
        for at in [0, *(found.end() for found in re.finditer(b"\n", file))]
        if at < len(file)
    ]
    named = sorted(data.draw(st.sets(st.sampled_from(starts))))
    verdicts = Verdicts(
        batch_id=1, partition=np.array([part for part, _ in named], np.int64),
        offset=np.array([at for _, at in named], np.int64), reason=np.zeros(len(named), int),
        reasons=("malformed",),
    )  # fmt: skip
    selected = verdicts.select(folder, job.splits, only=only, judged=judged)
    job = replace(job, selected=selected)
    together = outcome_or_error(job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semel.stage.together.SMALL_SPLIT_BYTES", 0)
        assert together == outcome_or_error(job)


def outcome_or_error(job: StageJob) -> list[object] | str:
    """What reading a job gives, or why a survivor of then is none now."""
    try:
        return outcome(job, write=not job.judges)
    except TerminalError as error:
        return str(error)


def test_good_files_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty files take one parse; the reader of single splits is not asked."""
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(read, "_read", None)
    job = job_of(tmp_path, [(b"", b'{"id": "%d"}\n' % n) for n in range(40)])
    *found, _ = outcome(job, write=False)
    assert [rows[0]["id"] for _, rows, _ in found] == [str(n) for n in range(40)]


# Attacks S6.
@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_small_file_that_changed_is_told(tmp_path: Path, how: str) -> None:
    """A file that is shorter, or another one, is an error here as it is alone."""
    (tmp_path / "in").mkdir()
    job = job_of(tmp_path, [(b"", b'{"id": "%d"}\n' % n) for n in range(3)])
    path = Path(job.splits[1].claim.name)
    if how == "cut":
        os.truncate(path, 3)
    else:
        path.with_name("other").write_bytes(path.read_bytes())
        path.with_name("other").rename(path)
    with pytest.raises(SourceError, match="1.jsonl"):
        outcome(job, write=False)


def test_what_is_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups keep the order, and hold what a block holds; large files and gzip stand alone."""
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(limits, "BLOCK_BYTES", 100)
    monkeypatch.setattr("semel.stage.together.SMALL_SPLIT_BYTES", 40)
    sizes = [40, 40, 40, 41, 10, 10, 50, 10]
    job = job_of(tmp_path, [(b"", b"x" * size) for size in sizes])
    groups = [[s.number for s in g] for g in small_groups(job, list(job.splits))]
    assert groups == [[0, 1], [2], [3], [4, 5], [6], [7]]
    csv = job_of(tmp_path, [(b"", b"x" * size) for size in sizes], source__format="csv")
    assert all(len(group) == 1 for group in small_groups(csv, list(csv.splits)))
