"""Names that nobody would give: of source files, and of the folders that values make in a sink."""

import os
import shutil
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fixtures.batches.workbench import Workbench
from fixtures.files.hostile import NAMES, SUFFIX
from semel.errors import LimitError
from semel.formats.output import NULL_FOLDER
from semel.limits import FOLDER_NAME_BYTES_MAX
from semel.pipeline.spec import Spec
from semel.sinks.files.spec import FilesSinkSpec
from semel.sources import Refusal
from semel.sources.files.listing import file_time, list_files
from semel.stage.part_files import PartWriter
from tiers import examples

FEW = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=examples(40),
    # What an example leaves in the folder it removes itself.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def spec(bench: Workbench) -> Spec:
    return bench.spec()


@pytest.mark.parametrize("seconds", [-62_135_596_801, 253_402_300_800, 1_764_237_600_000, 1 << 62])
def test_a_file_of_no_year(bench: Workbench, seconds: int) -> None:
    """A disk that has such times: the file is refused by its name, and says why."""
    spec = bench.spec(source={"select": "interval", "interval_from": "mtime"})
    found = file_time(spec.of_source(), "in/a.jsonl", seconds * 10**9)
    assert isinstance(found, Refusal) and (found.name, found.reason) == ("in/a.jsonl", "interval")
    assert f"its mtime is {seconds} s after 1970" in found.detail


@FEW
@given(names=st.lists(NAMES, max_size=8, unique=True))
def test_each_file_is_listed_refused_or_hidden(spec: Spec, names: list[bytes]) -> None:
    """A file's name is its own: it is listed as it is, unless it is hidden or not UTF-8.

    A name that is not UTF-8 is refused, and shown in a way that the ledger can hold.
    """
    folder = spec.source_root()
    shutil.rmtree(folder)
    folder.mkdir()
    for name in names:
        Path(folder, os.fsdecode(name + SUFFIX)).write_bytes(b"{}\n")
    listing = list_files(spec.of_source())
    refused = listing.refusals
    shown = [name + SUFFIX for name in names if not (name + SUFFIX).startswith(b".")]
    assert {os.fsencode(file.path) for file in listing.items} == {
        os.fsencode(folder) + b"/" + name for name in shown if _is_text(name)
    }
    assert [item.reason for item in refused] == ["name"] * sum(not _is_text(n) for n in shown)
    for item in refused:
        assert "\0" not in (item.name + item.detail).encode("utf-8").decode()
        assert Path(item.name).parent == folder


def _is_text(name: bytes) -> bool:
    try:
        return bool(name.decode("utf-8") or True)
    except UnicodeDecodeError:
        return False


def folders(tmp_path: Path, schema: pa.Schema, rows: list[dict]) -> dict[str, int]:
    """The folders that the rows are written for, each with the number of its rows."""
    keys = tuple(schema.names[1:])
    writer = PartWriter(tmp_path, format="parquet", partition_by=keys, tag="t")
    writer.write(pa.Table.from_pylist(rows, schema))
    return {file.folder: file.records for file in writer.close()}


def test_a_split_of_too_many_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other splits its task has: those that are over do not count."""
    monkeypatch.setattr("semel.stage.part_files.PARTITION_FILES_PER_SPLIT_MAX", 2)
    writer = PartWriter(tmp_path, tag="t", partition_by=("k",))
    for split in ("ab", "bc", "de"):
        writer.write(pa.table({"id": [1, 2], "k": list(split)}))
        writer.end_split()
    with pytest.raises(LimitError, match="more than 2 values in one part of a batch"):
        writer.write(pa.table({"id": [1, 2, 3], "k": ["a", "b", "c"]}))
    done = PartWriter(tmp_path, tag="u", partition_by=("k",))
    done.write(pa.table({"id": [1, 2], "k": ["a", "b"]}))
    done.end_split()
    done.write(pa.table({"id": [3], "k": ["a"]}))
    assert {file.folder: file.records for file in done.close()} == {"k=a": 2, "k=b": 1}


TEXTS = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.sampled_from(
        ["", ".", "..", "/", "../..", "a/b", "a=b", "%2F", "%", "\0", "\n", "~", "-", "_semel",
         "\\", "C:\\x", "é", "e\u0301", "\U0001f600", "\u202e", "A", "a", " ", "null", "None"]
    ),
)  # fmt: skip


@FEW
@given(
    name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
    values=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6),
)
@example(name="..", values=[("..", "/")])
def test_values_name_folders_and_are_had_back(
    tmp_path: Path, name: str, values: list[tuple[str | None, str | None]]
) -> None:
    """No value leads out of the sink, two folders are two values, and each is had back from one.

    All names are of a length that file systems take.
    """
    schema = pa.schema([("id", pa.int64()), (name, pa.string()), (f"{name}2", pa.string())])
    rows = [{"id": 1, name: one, f"{name}2": two} for one, two in values]
    found = folders(tmp_path, schema, rows)
    back = {}
    for folder, count in found.items():
        parts = folder.split("/")
        assert len(parts) == 2 and not {".", ".."} & {*parts}
        assert (tmp_path / folder).resolve().is_relative_to(tmp_path)
        assert all(len(part.encode()) <= FOLDER_NAME_BYTES_MAX for part in parts)
        keys, texts = zip(*(part.split("=") for part in parts), strict=True)
        assert [unquote(key) for key in keys] == [name, f"{name}2"]
        back[tuple(None if t == NULL_FOLDER else unquote(t) for t in texts)] = count
    wanted = Counter((one or None, two or None) for one, two in values)
    assert back == wanted  # An empty text has null's folder.


def test_the_word_for_null_is_a_text_too(tmp_path: Path) -> None:
    """A value that reads like the folder of null is not taken for null."""
    schema = pa.schema([("id", pa.int64()), ("place", pa.string())])
    rows = [{"id": 1, "place": None}, {"id": 2, "place": NULL_FOLDER}]
    assert len(folders(tmp_path, schema, rows)) == 2


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (pa.bool_(), [True, False, None], ["true", "false", NULL_FOLDER]),
        (pa.int64(), [-1, 0], ["-1", "0"]),
        (pa.date32(), [date(2013, 1, 31)], ["2013-01-31"]),
        (pa.decimal128(6, 2), [Decimal("-0.10")], ["-0.10"]),
        (pa.timestamp("us"), [datetime(2013, 1, 31, 5)], ["2013-01-31%2005%3A00%3A00.000000"]),
    ],
)
def test_other_values_as_folders(
    tmp_path: Path, kind: pa.DataType, values: list, names: list[str]
) -> None:
    """Numbers, days, times and flags have one text each."""
    schema = pa.schema([("id", pa.int64()), ("x", kind)])
    found = folders(tmp_path, schema, [{"id": 1, "x": value} for value in values])
    assert sorted(found) == sorted(f"x={name}" for name in names)


# Attacks S27.
@pytest.mark.parametrize("letter", ["x", "\u0436", "\u6f22", "\U0001f600", "\u00e9", "%", "="])
def test_validate_measures_folder_names_as_stage_writes_them(tmp_path: Path, letter: str) -> None:
    """A column is taken where a value of one byte has room in its folder's name, and no other one."""

    def folder(name: str) -> str:
        schema = pa.schema([("id", pa.int64()), (name, pa.string())])
        return next(iter(folders(tmp_path, schema, [{"id": 1, name: "v"}])))

    size = len(folder(letter).encode()) - len("=v")
    longest = letter * ((FOLDER_NAME_BYTES_MAX - len("=v")) // size)
    (tmp_path / folder(longest)).mkdir()
    declared = {"type": "files", "path": "out", "format": "parquet"}
    assert FilesSinkSpec(**declared, partition_by=[longest]).folders == (longest,)
    with pytest.raises(ValidationError, match="too long for the name of a folder"):
        FilesSinkSpec(**declared, partition_by=[longest + letter])
