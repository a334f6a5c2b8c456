"""What reads rows holds little of them at once, however large a file of few bytes becomes."""

import gzip
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import committed, quiet
from fixtures.batches.workbench import Workbench
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import TABLE, Warehouse
from semel import limits
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.compare import BatchRange, compare
from semel.finalize import finalize
from semel.formats.output import rows_of
from semel.formats.parquetsink import ROW_GROUP_BYTES
from semel.formats.pieces import PIECE_BYTES_MAX, gather, read_pieces
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.reports.dead_letters import letters
from semel.reports.find import find
from semel.sinks import keys
from semel.stage.part_files import PartWriter, write_table

TEXT = 20_000
GOOD, BAD = 16_384, 512
DECODED_MB = GOOD * TEXT >> 20
GROWTH_MB = 250
"""What a verb may take beside what was imported: with a copy or two of some pieces. A verb that
held all rows would take DECODED_MB and more."""

Verb = Callable[[Ledger, Spec], object]


def _adopt(ledger: Ledger, spec: Spec) -> None:
    for marker in markers_of(spec):
        for file in marker.of_kind(Kind.IDS):
            marker.path_of(file).unlink()  # Then ids are read from the output.
    lose(ledger)
    assert adopt(ledger, spec, log=quiet)


VERBS: dict[str, Verb] = {
    "finalize": lambda ledger, spec: finalize(ledger, spec, 1),
    "find": lambda _, spec: find(spec, ["e000003"]),
    "letters": lambda _, spec: letters(spec, count=3),
    "audit's output": lambda _, spec: _read(spec, limits.AUDIT_CHUNK_BYTES),
    "compare": lambda ledger, spec: compare(
        ledger, spec, BatchRange(first=1, last=1), other=spec, difference_limit=1, log=quiet
    ),
    "adopt": _adopt,
}


def _read(spec: Spec, at_once: int) -> None:
    """As the audit reads output; its reading of the source takes more, whatever lies in it."""
    [marker] = markers_of(spec)
    count = 0
    for file in marker.of_kind(Kind.DATA):
        for table in gather(rows_of(marker, file), at_once):
            count += table.num_rows
    assert count == GOOD


def _growth_mb(verb: str, dsn: str, spec: Spec) -> int:
    """What a verb takes at its peak, in this process, beside what it had before."""
    with Ledger(dsn) as ledger:
        before = _peak_mb()
        VERBS[verb](ledger, spec)
    return _peak_mb() - before


def _peak_mb() -> int:
    """Linux. Not `ru_maxrss`: a new process has its parent's in it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) >> 10
    raise AssertionError("no VmHWM")


def grown(verbs: list[str], dsn: str, spec: Spec) -> dict[str, int]:
    """The growth of each verb, run in a process of its own."""
    found = {}
    for verb in verbs:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            found[verb] = process.submit(_growth_mb, verb, dsn, spec).result()
    print(f"of {DECODED_MB} MB: {found}")
    return found


def fat(bench: Workbench, **sink: object) -> Spec:
    """A pipeline whose records hold one long text, and dead letters as long."""
    text = "x" * TEXT
    with gzip.open(bench.data / "in" / "a.jsonl.gz", "wb", compresslevel=1) as file:
        for n in range(GOOD):
            record = {"id": f"e{n:06d}", "n": n, "at": "2026-01-01T00:00:00Z", "text": text}
            file.write(json.dumps(record).encode() + b"\n")
        for _ in range(BAD):
            file.write(b"{" + text.encode() + b"\n")
    columns = {"id": "string", "n": "bigint", "at": "timestamp", "text": "string"}
    return bench.spec(source={"path": "in/*.jsonl.gz", "schema": columns}, sink=sink)


# Attacks R5.
@pytest.mark.rest
def test_a_folder_is_read_in_pieces(bench: Workbench, ledger: Ledger, ledger_dsn: str) -> None:
    """Each verb that reads the files of a folder's batch takes little memory."""
    spec = fat(bench)
    assert committed(ledger, spec, "r1") == 1
    verbs = ["finalize", "find", "letters", "audit's output", "compare", "adopt"]
    found = grown(verbs, ledger_dsn, spec)
    assert {verb: mb for verb, mb in found.items() if mb > GROWTH_MB} == {}


# Attacks R5.
@pytest.mark.rest
def test_a_table_is_filled_and_read_in_pieces(
    bench: Workbench, ledger: Ledger, ledger_dsn: str, table: Warehouse
) -> None:
    """Finalize of a staged file that is small, and large when it is read; and who reads the table."""
    spec = fat(bench, **TABLE)
    assert committed(ledger, spec, "r1") == 1
    staged = [
        path
        for path in layout.staging(layout.archive_folder(spec)).rglob("data/*")
        if path.is_file()
    ]
    assert staged and sum(path.stat().st_size for path in staged) < DECODED_MB << 20 >> 6
    found = grown(["finalize", "find"], ledger_dsn, spec)
    assert table.run("SELECT count(*) FROM events") == [(GOOD,)]
    assert {verb: mb for verb, mb in found.items() if mb > GROWTH_MB} == {}


ROWS = pa.table({
    "id": pa.array(np.arange(30_000)),
    "text": pa.array(["x"] * 20_000 + ["y" * TEXT] * 10_000),
    "list": pa.array([["z"], []] * 15_000),
})  # fmt: skip


# Attacks R5.
def test_pieces_of_a_file(tmp_path: Path) -> None:
    """A file's rows come in order, each once, in pieces of bounded bytes, also where rows become
    long in its middle; and so do its row groups.
    """
    file = write_table(tmp_path / "a", ROWS, Kind.DATA, "", "parquet")
    assert file.bytes < 1 << 20 < ROW_GROUP_BYTES < ROWS.nbytes
    found = list(read_pieces(file.path))
    assert max(rows.nbytes for rows in found) <= PIECE_BYTES_MAX
    assert pa.Table.from_batches(found).equals(ROWS)
    with pq.ParquetFile(file.path) as groups:
        sizes = [groups.read_row_group(n).nbytes for n in range(groups.num_row_groups)]
    assert max(sizes) <= ROW_GROUP_BYTES
    small = list(read_pieces(file.path, ["id"], 1_000))
    assert max(rows.nbytes for rows in small) <= 1_000
    assert np.concatenate([rows.column("id").to_numpy() for rows in small]).tolist() == [
        *range(30_000)
    ]


def test_pieces_of_no_rows(tmp_path: Path) -> None:
    """A file without rows is one."""
    file = write_table(tmp_path / "a", ROWS.slice(0, 0), Kind.DATA, "", "parquet")
    assert sum(rows.num_rows for rows in read_pieces(file.path)) == file.records == 0


def test_small_tables_are_gathered() -> None:
    """Tables of one row become fewer ones; what is large stays as it is."""
    parts = [ROWS.slice(n, 1) for n in range(19_900, 20_100)]
    found = list(gather(parts, 100_000))
    assert pa.concat_tables(found).equals(ROWS.slice(19_900, 200)) and len(found) < 40
    assert list(gather([], 1)) == []


def test_a_writer_holds_little_for_all_folders(tmp_path: Path) -> None:
    """What many folders hold together goes to files, too, where no split ends meanwhile."""
    held = 400 * TEXT
    writer = PartWriter(tmp_path, tag="t", partition_by=("id",), held_bytes_max=held)
    most = 0
    for start in range(20_000, 21_000, 10):
        writer.write(ROWS.slice(start, 10))
        most = max(most, writer._bytes.total())
    assert most <= held
    files = writer.close()
    assert sum(file.records for file in files) == len({file.folder for file in files}) == 1_000


def test_one_key_in_all_rows(tmp_path: Path) -> None:
    """A key that each row has is counted without holding the rows."""
    file = write_table(tmp_path / "a", ROWS.slice(20_000), Kind.DATA, "", "parquet")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        found, mb = process.submit(_twice, file).result()
    assert (found.rows, found.keys, found.key) == (10_000, 1, {"text": "y" * TEXT})
    assert mb <= GROWTH_MB


def _twice(file: object) -> tuple[object, int]:
    before = _peak_mb()
    return keys.find_duplicate_key([file], ("text",)), _peak_mb() - before
