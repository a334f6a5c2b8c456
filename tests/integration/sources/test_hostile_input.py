"""Hostile sources and declarations through all verbs: all is accounted for, nothing gets out."""

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.batches.account import run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.hostile import FILES, NAMES, SUFFIX, lines_of
from semel import settings as where
from semel.errors import CorruptionError, SpecError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.plan.register import register
from semel.spark.transforms import load_transforms

FEW = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=6,
    # Each example is a pipeline of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


SHOWN = NAMES.filter(lambda name: name and not name.startswith(b"."))


@pytest.fixture
def numbers() -> Iterator[int]:
    return count()


@FEW
@given(
    files=st.dictionaries(SHOWN, FILES, min_size=1, max_size=3),
    form=st.sampled_from(["jsonl", "csv"]),
)
def test_any_files_with_any_names(
    bench: Workbench, ledger: Ledger, numbers: Iterator[int], files: dict[bytes, bytes], form: str
) -> None:
    """Each line of each file is a survivor, a duplicate, or a dead letter that holds its bytes.

    The sum holds, the audit finds each record once, and what is refused is only a name.
    """
    number = next(numbers)
    folder = bench.data / f"in{number}"
    folder.mkdir()
    head = b"id,n,at\n" if form == "csv" else b""
    expected = []
    for name, data in files.items():
        data = head + data + b"\n"
        Path(folder, os.fsdecode(name + SUFFIX)).write_bytes(data)
        try:
            shown = (name + SUFFIX).decode("utf-8")
        except UnicodeDecodeError:
            continue
        lines = lines_of(data, b" \t\r")
        expected += [(shown, at, line) for at, line in lines.items() if at or not head]
    spec = bench.spec(f"p{number}", source={"path": f"in{number}/*", "format": form})
    ran = run(ledger, spec, "r1")
    assert {item.reason for item in ran.plan.refusals} <= {"name"}
    found = settled(spec)
    assert found.counts.records_read == len(expected)
    placed = {(name, at): line for name, at, line in expected}
    assert all(placed[name, at] == raw for name, at, _, raw in found.letters)
    survivors = found.counts.survivors
    assert survivors + len(found.decisions) + len(found.letters) == len(expected)
    assert survivors == len(found.rows) == len({row["id"] for row in found.rows})
    names = {"_semel", *(f"p{n}" for n in range(999))}
    assert {item.name for item in (bench.data / "out").iterdir()} <= names


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_columns_named_as_those_of_the_audit(
    bench: Workbench, ledger: Ledger, form: str
) -> None:
    """No name of a column that may be declared is one of the audit's own."""
    names = [
        "Batch", "file", "part", "pos", "line", "line_no", "claim", "f", "beside", "id", "content",
        "record_id", "offset", "reason", "source_partition_id", "rows", "file_row_number", "batch_",
    ]  # fmt: skip
    rows = [dict.fromkeys(names, n) for n in (1, 1, 2)]
    if form == "jsonl":
        bench.write("in/a.jsonl", rows)
    else:
        (bench.data / "in").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), bench.data / "in" / "a.parquet")
    spec = bench.spec(
        source={"path": "in/*", "format": form, "schema": dict.fromkeys(names, "bigint")},
        record_id=["Batch", "file"],
    )
    run(ledger, spec, "r1")
    assert settled(spec).rows == [rows[0], rows[2]]


# fmt: off
OUTSIDE = [
    "/etc/*", "/etc/passwd", "../*.jsonl", "in/../../x/*", "~/*", "~root/x", "$HOME/*",
    "${HOME}/x", "%(home)s/x", "file:///etc/passwd", "//etc/passwd", "link/*", "link/deep/x", ".",
    "in/link/*.jsonl", "C:\\x\\*",
]
# fmt: on


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_declared_path_stays_below_the_data_roots(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """No text of a path leads out: it is refused, or means a folder below the first data root.

    Nothing of the environment is put in its place.
    """
    outside = bench.folder / "outside"
    outside.mkdir()
    monkeypatch.setenv("HOME", str(outside))
    (bench.data / "link").symlink_to(outside)
    (bench.data / "in" / "link").symlink_to(outside)
    for part in ({"source": {"path": path}}, {"sink": {"path": path.replace("*", "x")}}):
        try:
            spec = bench.spec(**part)
        except SpecError:
            continue
        for found in (spec.source_root(), spec.sink_path()):
            assert found.is_relative_to(bench.data) and found == Path(os.path.realpath(found))


@pytest.mark.parametrize("part", ["source", "sink"])
def test_a_root_that_is_taken_away_stops_the_pipeline(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """What the deployment allows counts at each run, also for a spec that was loaded before."""
    place = {"source": "in/*.jsonl", "sink": "out/events"}[part]
    bench.write("in/a.jsonl", events(0, 5))
    spec = bench.spec(**{part: {"path": str(bench.data / place)}})
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(bench.folder / "elsewhere"))
    with pytest.raises(TerminalError, match=rf"{part}.path: .* outside the allowed folders"):
        run(ledger, spec, "r1")
    assert not (bench.data / "out").exists()
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(bench.data))
    run(ledger, spec, "r1")
    assert len(settled(spec).ids) == 5


def test_a_folder_that_became_a_link_is_not_followed(bench: Workbench, ledger: Ledger) -> None:
    """Between load and run the source's and the sink's folder may be replaced: refused then."""
    outside = bench.folder / "outside"
    outside.mkdir()
    (outside / "a.jsonl").write_bytes(b'{"id": "secret"}\n')
    for name in ("in", "out"):
        bench.write(f"{name}/keep", [])
        spec = bench.spec()
        (bench.data / name).rename(bench.data / f"{name}-away")
        (bench.data / name).symlink_to(outside)
        with pytest.raises(TerminalError, match="outside the allowed folders"):
            run(ledger, spec, "r1")
        (bench.data / name).unlink()
        (bench.data / f"{name}-away").rename(bench.data / name)
    assert [item.name for item in outside.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("trap", ["hard link", "link to a file", "link to nothing"])
def test_a_name_that_leads_out_is_never_written_through(
    bench: Workbench, ledger: Ledger, trap: str
) -> None:
    """A file outside whose other name lies under a final name keeps its bytes; finalize refuses."""
    outside = bench.folder / "outside"
    outside.write_bytes(b"not ours")
    spec = bench.spec()
    with ledger.transaction() as connection:
        register(connection, spec, open_sink(spec))
    final = spec.sink_path() / "events-b00000001-00000.parquet"
    final.parent.mkdir(parents=True)
    if trap == "hard link":
        final.hardlink_to(outside)
    else:
        final.symlink_to(outside if trap == "link to a file" else bench.folder / "nothing")
    bench.write("in/a.jsonl", events(0, 5))
    with pytest.raises(CorruptionError, match=f"{final}.*final file wrong"):
        run(ledger, spec, "r1")
    assert outside.read_bytes() == b"not ours" and not (bench.folder / "nothing").exists()
    final.unlink()
    finalize(ledger, spec, 1)
    assert settled(spec).ids == [event["id"] for event in events(0, 5)]


# fmt: off
@pytest.mark.parametrize(
    "name",
    ["os:system", "subprocess:run", "../evil:f", "/abs/evil:f", "evil.py:f", "a/evil:f", "a.evil:f",
     "evil:f.g", "evil:f()", "evil", ":f", "evil:", "Evil:f", "evil:f\n", "semel:f", "pkg:f",
     "link:f", "loop:f", "gone:f", "folder:f", "builtins:exec", "__main__:f", "évil:f"],
)
# fmt: on
def test_a_transform_comes_from_its_folder_alone(bench: Workbench, name: str) -> None:
    """Paths, installed modules, packages and links that lead out are refused when it is loaded."""
    evil = bench.folder / "evil.py"
    evil.write_text("def f(frame):\n    return frame\n")
    folder = bench.transforms
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text(evil.read_text())
    (folder / "folder.py").mkdir()
    (folder / "link.py").symlink_to(evil)
    (folder / "loop.py").symlink_to(folder / "loop.py")
    with pytest.raises(SpecError, match="transforms"):
        bench.spec(transforms=[name])


def test_a_link_within_the_folder_is_a_transform(bench: Workbench) -> None:
    """As where a folder is mounted whose files are links to its current version."""
    (bench.transforms / "..data").mkdir()
    (bench.transforms / "..data" / "mine.py").write_text("def f(frame):\n    return frame\n")
    (bench.transforms / "mine.py").symlink_to("..data/mine.py")
    assert bench.spec(transforms=["mine:f"]).transforms == ("mine:f",)


def test_a_module_of_a_known_name_is_the_folders_own(bench: Workbench) -> None:
    """A file that is called like a module of Python is loaded itself, and is nobody else's."""
    (bench.transforms / "json.py").write_text("def dumps(frame):\n    return 'ours'\n")
    spec = bench.spec(transforms=["json:dumps"])
    [found] = load_transforms(spec.transforms, {"json.py": b"def dumps(frame): return 'ours'"})
    assert found.apply(None) == "ours" and json.dumps(None) == "null"
    assert where.transforms_dir() == bench.transforms
