"""The one table of formats: what is not in it, or not all there, is an error everywhere."""

import inspect
import re
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.files.honest import HonestSink, spec_of
from semel.archive import traces
from semel.archive.marker import markers
from semel.audit import audit, fast
from semel.declare import ddl
from semel.errors import CorruptionError, TerminalError
from semel.formats import table
from semel.formats.declared import format_of, has_header, header_of, is_whole
from semel.formats.output import columns_in_files
from semel.formats.table import SINKS, SOURCES, SinkCode, SinkFormat
from semel.model.manifest import Kind
from semel.pipeline import json_schema
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.reports.find import find
from semel.sources.files.source import FilesSource
from semel.sources.reread import csv_options
from semel.stage.part_files import PartWriter, write_table

DOCS = Path(__file__).parents[2] / "docs"
ROWS = pa.table({"id": ["1"], "n": [1]})


def with_format(spec: Spec, part: str, name: str) -> Spec:
    """A spec that says a format which no declaration could."""
    changed = getattr(spec, part).model_copy(update={"format": name})
    return spec.model_copy(update={part: changed})


@pytest.mark.parametrize("name", SINKS)
def test_an_entry_is_whole(name: str) -> None:
    """Each sink format has all functions of SinkCode; `validate` takes what the table has."""
    functions = {n: f for n, f in vars(SinkCode).items() if inspect.isfunction(f) and n[0] != "_"}
    for function, wanted in functions.items():
        found = inspect.signature(getattr(SINKS[name].code(), function))
        assert list(found.parameters) == list(inspect.signature(wanted).parameters)[1:]
    properties = json_schema()["$defs"]
    assert properties["FilesSinkSpec"]["properties"]["format"]["enum"] == list(SINKS)
    assert properties["FilesSourceSpec"]["properties"]["format"]["enum"] == list(SOURCES)


def test_the_documents_name_them() -> None:
    """The page of keys names each format; the protocol gives each file's suffix."""
    pages = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in ("pipelines", "protocol")}
    told = re.findall(r"^\| `format` \| ([^|]*) \|", pages["pipelines"], re.MULTILINE)
    files, objects, sink = (re.findall("`(.*?)`", formats) for formats in told)
    assert files == objects == list(SOURCES) and sink == list(SINKS)
    (header,) = re.findall(r"^\| a column of \|(.*)\|$", pages["pipelines"], re.MULTILINE)
    assert re.findall("`(.*?)`", header) == list(SINKS)
    (suffixes,) = re.findall(r"the suffix is ([^.]*`\..*?)\. ", pages["protocol"], re.DOTALL)
    assert re.findall("`(.*?)`", suffixes) == [form.suffix for form in SINKS.values()]


@pytest.mark.parametrize("name", SINKS)
def test_output_of_each_format_is_a_trace(tmp_path: Path, name: str) -> None:
    """A ledger that knows nothing of a sink sees what lies there, whatever its format was."""
    made = HonestSink(tmp_path, sink__format=name)
    made.path.mkdir()
    assert traces.describe_trace(made.path, made.archive, made.spec) is None
    (made.path / f"clicks-b00000001-00000.{name}x").touch()
    assert traces.describe_trace(made.path, made.archive, made.spec) is None
    (made.path / f"clicks-b00000001-00000.{name}").touch()
    assert "an output file" in traces.describe_trace(made.path, made.archive, made.spec)


def test_an_unknown_format_is_never_another_one(tmp_path: Path) -> None:
    """Whoever writes or reads the output, or looks for it, stops at a format without an entry."""
    made = HonestSink(tmp_path)
    made.land("a.jsonl", {"id": "1", "n": 1})
    made.batch()
    (marker,) = markers(made.path)
    spec = with_format(made.spec, "sink", "avro")
    object.__setattr__(marker, "spec", spec)
    attempts = {
        "write": lambda: write_table(tmp_path / "x", ROWS, Kind.DATA, "", "avro"),
        "part": lambda: PartWriter(tmp_path, tag="t", format="avro"),
        "columns": lambda: columns_in_files(marker),
        "audit": lambda: fast.output_expression(with_format(binary(tmp_path), "sink", "avro"), "b"),
    }
    for what, attempt in attempts.items():
        with pytest.raises(TerminalError, match="sink.format.* does not have 'avro', only parquet"):
            attempt()
            pytest.fail(what)
    content = made.marker(1)
    content["spec"]["sink"]["format"] = "avro"
    made.rewrite_marker(1, content)
    for read in (dataset, markers):
        with pytest.raises(CorruptionError, match="'avro'"):
            read(made.path)
    assert not audit(made.spec, made.path).ok


def binary(folder: Path) -> Spec:
    return spec_of(folder, source__schema={"id": "string", "b": "binary"})


def test_an_entry_without_code_is_never_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format that was added to the table alone stops at the first use, in each place."""
    monkeypatch.setitem(table.SINKS, "orc", SinkFormat(name="orc", module="semel.formats.orc"))
    made = HonestSink(tmp_path)
    made.land("a.jsonl", {"id": "1", "n": 1})
    made.batch()
    made.spec = with_format(made.spec, "sink", "orc")
    (marker,) = markers(made.path)
    object.__setattr__(marker, "spec", made.spec)
    monkeypatch.setattr("semel.archive.marker.parse_marker", lambda *_: marker)
    for attempt in (
        lambda: write_table(tmp_path / "x", ROWS, Kind.DATA, "", "orc"),
        lambda: columns_in_files(marker),
        lambda: dataset(made.path),
        lambda: find(made.spec, ["1"], made.path),
        lambda: audit(made.spec, made.path),
        lambda: SINKS["orc"].check(ROWS.schema),
    ):
        with pytest.raises(ModuleNotFoundError, match="semel.formats.orc"):
            attempt()


def test_an_unknown_source_format_is_never_another_one(tmp_path: Path) -> None:
    """Who reads records, and the audit that reads them by itself, stop at one without an entry."""
    spec = with_format(spec_of(tmp_path), "source", "avro")
    for ask in (format_of, is_whole, has_header, lambda s: header_of(s, "x")):
        with pytest.raises(TerminalError, match="source.format.* does not have 'avro', only jsonl"):
            ask(spec.of_source())
    with pytest.raises(TerminalError, match="'avro': this version of semel cannot audit it"):
        csv_options(spec.source)
    made = HonestSink(tmp_path)
    made.land("a.jsonl", {"id": "1"})
    made.batch()
    (marker,) = markers(made.path)
    with pytest.raises(TerminalError, match="does not have 'avro'"):
        FilesSource(context=spec.of_source(), root=tmp_path).can_join(marker.claims[0])


TYPES = [*ddl.SCALARS, "json", "decimal(6,2)", "array<binary>", "map<string, date>",
         "struct<a: array<int>>"]  # fmt: skip


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize("text", TYPES)
def test_validate_says_what_the_writer_says(name: str, text: str) -> None:
    """A declared type is refused by its word exactly when its Arrow type is."""
    kind, form = ddl.parse(text), SINKS[name]
    refused = form.code().refusal(kind.arrow()) is not None
    assert (kind.word in form.refuses) == refused


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize(
    ("kind", "named", "in_parquet"),
    [(pa.month_day_nano_interval(), "month_day_nano_interval", False),
     (pa.duration("us"), "duration", True), (pa.time64("us"), "time64", True),
     (pa.list_(pa.duration("us")), "duration", True)],
)  # fmt: skip
def test_columns_are_refused_before_they_are_written(
    name: str, kind: pa.DataType, named: str, in_parquet: bool
) -> None:
    """A column that no file can hold, or that nothing reads back from text, is named with its type;
    one of folders is not asked.
    """
    schema = pa.schema([("a", pa.int64()), ("when", kind)])
    SINKS[name].check(schema, ("when",))
    if name == "parquet" and in_parquet:
        SINKS[name].check(schema)
    else:
        with pytest.raises(TerminalError, match=f"column 'when' holds .*{named}"):
            SINKS[name].check(schema)
