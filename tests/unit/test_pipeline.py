"""Pipelines as YAML: every error names file, line and key, and a spec survives its storage.

At the end documents that nobody would write: loading gives a spec or a SpecError, whatever they
hold.
"""

import json
import time
from datetime import timedelta
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from semel import pipeline
from semel.airflow import COLLECT_DAG_ID
from semel.declare import yaml as spec_yaml
from semel.declare.parts import RESERVED_NAME
from semel.errors import SpecError, TerminalError
from semel.pipeline.spec import Spec
from semel.settings import pipelines_dir
from tiers import examples

ROOT = Path(__file__).resolve().parents[2]

BASE = """\
name: clicks
source:
  type: files
  path: clicks/*.jsonl
  format: jsonl
  schema:
    id: string
    at: timestamp
    score: double
    tags: array<string>
record_id: [id]
sink:
  type: files
  path: out/clicks
  format: parquet
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project folder of its own: data/ allowed, dags/pipelines/ and spark_jobs/ empty."""
    for part in ("data", "dags/pipelines", "spark_jobs"):
        (tmp_path / part).mkdir(parents=True)
    monkeypatch.setenv("SEMEL_HOME", str(tmp_path))
    monkeypatch.delenv("SEMEL_DATA_ROOTS", raising=False)
    monkeypatch.delenv("SEMEL_PIPELINES_DIR", raising=False)
    return tmp_path


def written(folder: Path, text: str, name: str = "clicks.yaml") -> Path:
    path = folder / "dags" / "pipelines" / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


def errors(path: Path) -> list[str]:
    """The lines of the SpecError that loading gives, without the file's path."""
    with pytest.raises(SpecError) as caught:
        pipeline.load(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


def test_the_base_is_right(folder):
    """The text that the cases below break is right, with the documented defaults."""
    spec = pipeline.load(written(folder, BASE))
    assert (spec.dedup.horizon, spec.dedup.shards) == (timedelta(days=30), 4)
    assert (spec.schedule, spec.max_active_runs, spec.by_position) == (None, 4, False)
    assert spec.limits.bytes_per_batch_max == 8 << 30
    assert spec.source_root() == folder / "data" / "clicks"
    assert spec.source.below() == "*.jsonl"
    assert spec.sink_path() == folder / "data" / "out" / "clicks"
    assert spec.sink.stem(spec.name, batch=7, part=2, fence=1) == "clicks-b00000007-00002"


# fmt: off
BROKEN = [
    ("name: clicks\n", "name: Clicks\n", "1: name: 'Clicks' must begin with a lower-case"),
    ("name: clicks\n", "name: \"clicks\\n\"\n", "1: name: 'clicks\\n' must begin with"),
    ("name: clicks\n", "name: no\n", "1: name: must be a valid string, not False; YAML reads"),
    ("name: clicks\n", "name: semel_collect\n",
     "1: name: 'semel_collect' is the name of the DAG for collect"),
    ("name: clicks\n", "name: clicks\nschedul: x\n", "2: schedul: is an unknown key; did you mean"),
    ("name: clicks\n", "name: clicks\nname: b\n", "2: name: is there twice, first in line 1"),
    ("name: clicks\n", "name: clicks\nschedule: 0 0 * *\n", "2: schedule: '0 0 * *' is neither"),
    ("name: clicks\n", "name: clicks\nschedule: 99 0 * * *\n", "2: schedule: '99 0 * * *' is"),
    ("name: clicks\n", "name: clicks\nschedule: @daily\n", "2: (yaml): found character '@'"),
    ("name: clicks\n", "name: clicks\nmax_active_runs: yes\n",
     "2: max_active_runs: must be a valid"),
    ("name: clicks\n", "name: clicks\ntransforms: [a:b:c]\n", "2: transforms[0]: 'a:b:c' does not"),
    ("name: clicks\n", "name: clicks\ntransforms: [gone:f]\n",
     "2: transforms[0]: 'gone:f': there is"),
    ("name: clicks\n", "name: clicks\nlimits: {quarantine_ratio_max: 5}\n",
     "2: limits.quarantine_ratio_max: must be less than or equal to 1"),
    ("name: clicks\n", "name: clicks\nlimits: {quarantine_ratio_max: .nan}\n",
     "2: limits.quarantine_ratio_max: must be"),
    ("name: clicks\n", "name: clicks\nlimits: {bytes_per_batch_max: 8 GX}\n",
     "2: limits.bytes_per_batch_max: '8 GX' has the unknown unit"),
    ("name: clicks\n", "name: clicks\ndedup: {horizon: 30}\n", "2: dedup.horizon: 30 is not a dur"),
    ("name: clicks\n", "name: clicks\ndedup: {horizon: 0 s}\n", "2: dedup.horizon: must be longer"),
    ("name: clicks\n", "name: clicks\ndedup: {shards: 0}\n", "2: dedup.shards: must be greater"),
    ("name: clicks\n", "name: clicks\ndedup: {scope: day}\n",
     "2: dedup.scope: must be 'horizon' or"),
    ("name: clicks\n", "name: clicks\ndedup: {scope: bucket}\n", "1: record_time: is missing"),
    ("name: clicks\n", "name: clicks\ndedup: {late: accept}\n", "2: dedup.late: needs scope"),
    ("name: clicks\n", "name: clicks\nrecord_time: when\n",
     "2: record_time: 'when' is not a column"),
    ("name: clicks\n", "name: clicks\nrecord_time: id\n", "2: record_time: 'id' is string, not a"),
    ("  type: files\n  path: clicks/*.jsonl", "  path: clicks/*.jsonl",
     "2: source.type: is missing"),
    ("  path: clicks/*.jsonl", "  path: ../x/*.jsonl", "4: source.path: '../x/*.jsonl' has '..'"),
    ("  path: clicks/*.jsonl", "  path: /etc/*.jsonl", "4: source.path: '/etc' lies outside"),
    ("  path: clicks/*.jsonl", "  path: clicks/", "4: source.path: 'clicks/' is a folder"),
    ("  path: clicks/*.jsonl", "  path: clicks/**", "4: source.path: 'clicks/**' ends in **"),
    ("  path: clicks/*.jsonl", "  path: a**/x", "4: source.path: 'a**/x' has ** next"),
    ("  path: clicks/*.jsonl", "  path: \"a\\nb\"", "4: source.path: 'a\\nb' has a control"),
    ("  path: clicks/*.jsonl", "  path: \"a\\0b\"", "4: source.path: has a NUL"),
    ("  format: jsonl\n", "  format: json\n",
     "5: source.format: must be 'jsonl', 'csv' or 'parquet', not 'json'"),
    ("  format: jsonl\n", "  format: csv\n", "10: source.schema.tags: array<string>: a CSV field"),
    ("  format: parquet\n", "  format: csv\n", "10: source.schema.tags: array<string>: a CSV fiel"),
    ("  format: jsonl\n", "  format: jsonl\n  csv: {multiline: true}\n",
     "6: source.csv: does not app"),
    ("  format: jsonl\n", "  format: jsonl\n  csv: {delimiter: ab}\n", "6: source.csv.delimiter: "),
    ("  format: jsonl\n", "  format: jsonl\n  csv: {delimiter: '\"'}\n",
     "6: source.csv.quote: is the"),
    ("  format: jsonl\n", "  format: jsonl\n  csv: {escape: '\"'}\n",
     "6: source.csv.escape: is the delimiter or the quote"),
    ("  format: jsonl\n", "  format: jsonl\n  csv: {quote: none, escape: '%'}\n",
     "6: source.csv.escape: does not apply without quotes"),
    ("  format: jsonl\n", "  format: jsonl\n  csv: {quote: none, multiline: true}\n",
     "6: source.csv.multiline: does not apply without quotes"),
    ("  format: jsonl\n", "  format: jsonl\n  select: interval\n",
     "2: source.interval_from: is mi"),
    ("  format: jsonl\n", "  format: jsonl\n  interval_from: mtime\n",
     "6: source.interval_from: does not apply"),
    ("  format: jsonl\n", "  format: jsonl\n  lookback: 1 day\n",
     "6: source.lookback: does not apply"),
    ("  format: jsonl\n", "  format: jsonl\n  select: interval\n  interval_from: \"%d.jsonl\"\n",
     "7: source.interval_from: '%d.jsonl' is not a strptime pattern"),
    ("    id: string\n", "    id: strin\n", "7: source.schema.id: 'strin' is not a column type"),
    ("    id: string\n", "    id: string\n    ID: int\n", "8: source.schema.ID: appears twice"),
    ("    id: string\n", "    id: string\n    _SEMEL_x: int\n",
     "8: source.schema._SEMEL_x: semel res"),
    ("    id: string\n", "    id: string\n    \"a\\tb\": int\n",
     "8: source.schema.a\tb: is not a column"),
    ("    id: string\n", "    id: string\n    1: 2\n",
     "8: source.schema.1: must be a valid string"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {x: {optional: true}}\n",
     "6: source.columns.x: is not a column; the schema has id, "),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {names: [score]}}\n",
     "6: source.columns.at.names[0]: 'score' is a column already"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {names: [t]}, score: {names: [s, t]}}\n",
     "6: source.columns.score.names[1]: 't' is a name of 'at' already"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {names: [t, t]}}\n",
     "6: source.columns.at.names[1]: 't' is a name of 'at' already"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {names: [_semel_rest]}}\n",
     "6: source.columns.at.names[0]: semel reserves names"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {optinal: true}}\n",
     "6: source.columns.at.optinal: is an unknown key; did you mean optional?"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {optional: 1}}\n",
     "6: source.columns.at.optional: must be a valid boolean"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: {names: t}}\n",
     "6: source.columns.at.names: must be a list, such as [t]"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {at: true}\n", "6: source.columns.at: must be"),
    ("  format: jsonl\n", "  format: jsonl\n  columns: {id: {optional: true}}\n",
     "6: source.columns.id.optional: 'id' is record_id, which each record needs"),
    ("source:\n", "record_time: at\nsource:\n  columns: {at: {optional: true}}\n",
     "4: source.columns.at.optional: 'at' is record_time, which each record needs"),
    ("record_id: [id]", "record_id: id", "11: record_id: must be a list, such as [id]"),
    ("record_id: [id]", "record_id: [idd]", "11: record_id[0]: 'idd' is not a column"),
    ("record_id: [id]", "record_id: [score]", "11: record_id[0]: 'score' is double: an id column"),
    ("record_id: [id]", "record_id: [tags]", "11: record_id[0]: 'tags' is array<string>: an id"),
    ("record_id: [id]", "record_id: [id, id]", "11: record_id: names 'id' twice"),
    ("record_id: [id]", "dedup: {shards: 2}", "11: dedup: needs record_id: without it"),
    ("sink:\n", "limits: {orphan_after: 29 s}\nsink:\n",
     "12: limits.orphan_after: is shorter than 30 s. Stage sends a heartbeat every "),
    ("sink:\n", "sinks:\n", "12: sinks: is an unknown key; did you mean sink?"),
    ("sink:\n", "window: {siz: 1 hour}\nsink:\n", "12: window.siz: is an unknown key; did you"),
    ("  path: out/clicks", "  path: /tmp", "14: sink.path: '/tmp' lies outside the allowed"),
    ("  path: out/clicks", "  path: clicks/out", "14: sink.path: "),
    ("  path: out/clicks", "  path: .", "14: sink.path: "),
    ("  path: out/clicks", "  path: out/*", "14: sink.path: 'out/*' has *, ? or ["),
    ("parquet\n", "parquet\n  partition_by: [x]\n", "16: sink.partition_by[0]: 'x' is not a col"),
    ("parquet\n", "parquet\n  partition_by: [tags]\n", "16: sink.partition_by[0]: 'tags' is array"),
    ("parquet\n", "parquet\n  partition_by: [id, ID]\n", "16: sink.partition_by: names 'id' twice"),
    ("parquet\n", "parquet\n  partition_by: [{of: at}]\n",
     "16: sink.partition_by[0].window: is missing"),
    ("parquet\n", "parquet\n  partition_by: [3]\n",
     "16: sink.partition_by[0]: must be a valid string, not 3"),
    ("parquet\n", "parquet\n  partition_by:\n  - window: 7 hours\n    of: at\n    name: h\n",
     "17: sink.partition_by[0].window: is not a week, a day, or a part"),
    ("parquet\n", "parquet\n  partition_by:\n  - id\n  - window: 1 h\n    of: at\n    nam: h\n",
     "20: sink.partition_by[1].nam: is an unknown key; did you mean name?"),
    ("parquet\n", "parquet\n  partition_by:\n  - {window: 1 h, of: at, name: h, zone: Berlin}\n",
     "17: sink.partition_by[0].zone: is not a time zone, such as Europe/Berlin"),
    ("parquet\n", "parquet\n  partition_by: [{window: 1 h, of: x, name: h}]\n",
     "16: sink.partition_by[0].of: 'x' is not a column; the output has id, "),
    ("parquet\n", "parquet\n  partition_by: [{window: 1 h, of: id, name: h}]\n",
     "16: sink.partition_by[0].of: 'id' is string, not a timestamp or date"),
    ("parquet\n", "parquet\n  partition_by: [{window: 1 h, of: at, name: Id}]\n",
     "16: sink.partition_by[0].name: 'Id' is a column: give the folder another name"),
    ("parquet\n", "parquet\n  partition_by: [{window: 1 h, of: at, name: _h}]\n",
     "16: sink.partition_by: '_h' begins with '.' or '_'"),
    ("parquet\n",
     "parquet\n  partition_by: [{window: 1 h, of: at, name: h}, {window: 1 d, of: at, name: h}]\n",
     "16: sink.partition_by: names 'h' twice"),
    ("parquet\n", "parquet\n  shards: 257\n", "16: sink.shards: must be less than or equal to 256"),
    ("parquet\n", "parquet\n  file_name: '{batch}-{part}-{window}'\n",
     "16: sink.file_name: has {window}, and partition_by has 0 windows, not one"),
    ("parquet\n", "parquet\n  shards: 2\ntransforms: [t:f]\n",
     "16: sink.shards: uses a record's position, which rows lack after a transform"),
    ("parquet\n", "parquet\n  position_columns: 1\n", "16: sink.position_columns: must be a valid"),
]
# fmt: on


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_an_error_names_line_and_key(folder, old, new, message):
    """Each kind of error is reported with its line, its key and what is wrong."""
    found = errors(written(folder, changed(old, new)))
    assert any(line.startswith(message) for line in found), found


# Attacks L1.
# fmt: off
@pytest.mark.parametrize(
    "template",
    ["x", "{batch}", "{part}", "{batch}{part}", "{batch}0{part}", "{part}-{batch}{fence}",
     "a/{batch}-{part}", "_{batch}-{part}", ".{batch}-{part}", "{batch}-{part}-{user}",
     "{batch.__class__}-{part}", "{batch!r}-{part}", "{batch:x}-{part}", "{batch:8d}-{part}",
     "{batch:{part}}-{part}", "{pipeline:>70}-{batch}-{part}", "{batch}-{part} x",
     "{batch", "{}-{part}", "{batch}{window}-{part}", "{window}{batch}-{part}",
     "{window}{window}-{batch}-{part}", "{shard}{batch}-{part}", "{batch}-{part}{shard}",
     "{batch}-{shard}", "{window}-{part}", "{batch}-{part}-{window:>9}",
     "{pipeline}{batch:099d}-{part:099d}", "é{batch}-{part}"],
)
# fmt: on
def test_a_file_name_that_is_ambiguous_or_hidden_is_refused(folder, template):
    """No template may give two files one name, leave its folder or hide the file from readers."""
    by_hour = "  partition_by: [{window: 1 h, of: at, name: h}]\n"
    text = BASE + f"  file_name: {json.dumps(template)}\n" + by_hour
    found = errors(written(folder, text))
    assert found[0].startswith("16: sink.file_name: ")


# Attacks L1.
@pytest.mark.parametrize(
    "template",
    ["{window}-{batch}-{part}", "{batch}-{window}-s{shard}_{part}", "{part}-{batch}-{window}",
     "{shard}{pipeline}{window}T{batch}-{part}"],
)  # fmt: skip
def test_file_names_with_windows_are_unique(folder, template):
    """Whatever the window and the shard are, the name says which batch's and which part it is."""
    by_hour = "  partition_by: [{window: 1 h, of: at, name: h, zone: Europe/Berlin}]\n"
    text = BASE + f"  file_name: '{template}'\n" + by_hour
    sink = pipeline.load(written(folder, text)).sink
    windows = (None, "2013-10-27T02+0200", "2013-10-27T02+0100", "1892-01-01T00+005328")
    numbers = [(b, p) for b in (1, 2, 10, 12, 27, 102, 200) for p in (0, 1, 2, 10, 12, 27, 200)]
    names = {
        sink.stem("clicks", batch=b, part=p, fence=1, shard=shard, window=window): (b, p)
        for b, p in numbers for shard in (0, 1, 10) for window in windows
    }  # fmt: skip
    many = len(windows) * (3 if "{shard}" in template else 1)
    assert len(names) == len(numbers) * many


@pytest.mark.parametrize(
    "template", ["{batch}-{part}", "{batch:04d}{pipeline}{part}", "p{part}_b{batch}"]
)
def test_a_file_name_of_ones_own_is_taken(folder, template):
    """Batch and part in any order, as long as something stands between them."""
    spec = pipeline.load(written(folder, BASE + f'  file_name: "{template}"\n'))
    names = {spec.sink.stem(spec.name, batch=b, part=p, fence=1) for b in range(120) for p in range(120)}
    assert len(names) == 120 * 120


def test_all_errors_of_a_file_come_at_once(folder):
    """One SpecError holds every error of the file, in the order of the lines."""
    text = changed("name: clicks", "name: Clicks\nname: x\nfoo: 1").replace("parquet", "orc")
    found = errors(written(folder, text.replace("id: string", "id: strin")))
    keys = [line.split(": ")[1] for line in found]
    assert keys == ["name", "foo", "source.schema.id", "sink.format"]


# fmt: off
HOSTILE = [
    (b"", "1: (file): is not a mapping"),
    (b"- a\n", "1: (file): is not a mapping"),
    (b"name\n", "1: (file): is not a mapping"),
    (b"a: &x [1]\nb: *x\n", "1: (yaml): anchors and aliases"),
    (b"a: 1\nb: *x\n", "2: (yaml): anchors and aliases"),
    (b"a: 1\nb: [\n", "3: (yaml): "),
    (b"a: 1\n\tb: 2\n", "2: (yaml): "),
    (b"a: 1\n---\nb: 2\n", "2: (yaml): "),
    (b"a: \xff\n", "1: (yaml): is not valid UTF-8"),
    (b"a: 1\nb: \x00\n", "2: (yaml): the character U+0000"),
    (b"a: 1\nb: " + b"[" * 50_000 + b"\n", "2: (yaml): nests deeper than 16"),
    (b"a: 1\nb: !!python/object/apply:os.system ['true']\n", "2: (yaml): the tag tag:yaml.org"),
    (b"a: 1\nb: !!bool x\n", "2: (yaml): the tag tag:yaml.org,2002:bool is not allowed"),
    (b"a: 1\n" + b"".join(b"k%d: 1\n" % n for n in range(200)), "201: (file): 104 more problems"),
    (b"a: 1\nb: " + b"9" * 5_000 + b"\n", "2: b: cannot be read: "),
    (b"a: 1\nb: 2013-13-45\n", "2: b: cannot be read: "),
    (b"a: 1\n? [x]\n: 1\n", "1: (file): line 2 has a key that is not text"),
    (b'a: 1\n"\\ud800": 1\n', "1: (file): line 2 has a key with a NUL"),
    (b'a: 1\n"b\\0": 1\n', "1: (file): line 2 has a key with a NUL"),
    (b"a: 1\n<<: {b: 1}\n", "2: <<: is an unknown key"),
    (b"a: 1\na: {x: 1}\n", "2: a: is there twice"),
    (b"name: clicks\ndescription: \"\\ud800\"\n", "2: description: "),
]
# fmt: on


@pytest.mark.parametrize(("raw", "message"), HOSTILE)
def test_hostile_yaml_is_an_error_with_its_line(folder, raw, message):
    """Bombs, tags, broken encodings and other documents end as a SpecError, never otherwise."""
    found = errors(written(folder, raw))
    assert any(line.startswith(message) for line in found), found


def test_a_file_that_cannot_be_read_is_an_error(folder):
    """A folder, a missing file and one above the limit are SpecErrors that name the file."""
    pipelines = folder / "dags" / "pipelines"
    for path in (pipelines, pipelines / "gone.yaml", written(folder, "#" * (65 << 10))):
        with pytest.raises(SpecError, match=str(path)):
            pipeline.load(path)


def test_a_spec_survives_jsonb(folder):
    """A stored spec is read back equal, with its column order, although jsonb reorders keys."""
    text = BASE + "  partition_by: [id]\n" + "schedule: '*/5 * * * *'\ndedup: {horizon: 1 week}\n"
    spec = pipeline.load(written(folder, text))
    stored = json.loads(json.dumps(spec.to_json(), sort_keys=True))
    again = pipeline.Spec.from_json(stored)
    assert again == spec
    assert list(again.source.columns) == ["id", "at", "score", "tags"]
    assert again.digest() == spec.digest()


def test_a_stored_spec_needs_no_machine(folder, monkeypatch):
    """A stored spec is read where its transforms are not; only its folders are still checked."""
    (folder / "spark_jobs" / "mine.py").write_text("")
    spec = pipeline.load(written(folder, BASE + "transforms: [mine:f]\n"))
    (folder / "spark_jobs" / "mine.py").unlink()
    again = pipeline.Spec.from_json(spec.to_json())
    monkeypatch.setenv("SEMEL_DATA_ROOTS", "/nonexistent")
    assert again.sink_path() == Path("/nonexistent/out/clicks")


def test_a_stored_spec_that_does_not_fit_is_an_error(folder):
    """A spec stored by another version is refused by key, not half read."""
    stored = pipeline.load(written(folder, BASE)).to_json()
    with pytest.raises(SpecError, match=r"stored declaration: dedup.shards: must be"):
        pipeline.Spec.from_json(stored | {"dedup": {"shards": 0}})


def test_a_stored_limit_is_read_though_no_file_may_declare_it(folder):
    """Markers and batches keep the limits that they were made with."""
    stored = pipeline.load(written(folder, BASE)).to_json()
    stored["limits"]["orphan_after"] = "1 s"
    again = pipeline.Spec.from_json(stored)
    assert again.limits.orphan_after == timedelta(seconds=1)


def test_the_digest_follows_the_data_only(folder):
    """The digest changes with what shapes a batch, column order included, and with nothing else."""

    def digest(text: str) -> str:
        return pipeline.load(written(folder, text)).digest()

    base = digest(BASE)
    same = ["description: x", "schedule: '@daily'", "max_active_runs: 9", "dedup: {horizon: 720 h}",
            "limits: {quarantine_ratio_max: 0.5}"]  # fmt: skip
    assert {digest(BASE + line + "\n") for line in same} == {base}
    assert digest(changed("array<string>", "ARRAY < String >")) == base
    other = ["dedup: {horizon: 31 days}", "record_time: at", "transforms: [t:f]"]
    (folder / "spark_jobs" / "t.py").write_text("")
    moved = changed("    id: string\n    at: timestamp\n", "    at: timestamp\n    id: string\n")
    digests = [digest(BASE + line + "\n") for line in other] + [digest(moved)]
    assert len({base, *digests}) == 5


def test_columns_of_a_transform_may_partition(folder):
    """partition_by may name what a transform makes: only the run can know."""
    (folder / "spark_jobs" / "t.py").write_text("")
    text = BASE + "  partition_by: [made]\ntransforms: [t:f]\n"
    assert pipeline.load(written(folder, text)).sink.partition_by == ("made",)


def test_types_become_arrow(folder):
    """Every type of the schema has the documented Arrow type."""
    types = {
        "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "smallint": pa.int16(),
        "double": pa.float64(), "float": pa.float32(), "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"), "date": pa.date32(),
        "decimal(10,2)": pa.decimal128(10, 2), "array<array<int>>": pa.list_(pa.list_(pa.int32())),
        "struct<a: int, B: struct<c: date>>": pa.struct(
            [("a", pa.int32()), ("B", pa.struct([("c", pa.date32())]))]
        ),
    }  # fmt: skip
    columns = "".join(f'    c{n}: "{text}"\n' for n, text in enumerate(types))
    spec = pipeline.load(written(folder, changed("    id: string\n", "    id: string\n" + columns)))
    got = {field.name: field.type for field in spec.arrow_schema()}
    assert [got[f"c{n}"] for n in range(len(types))] == list(types.values())


# fmt: off
@pytest.mark.parametrize(
    "text",
    ["", "int int", "array", "array<int", "array<>", "struct<>", "struct<a int>", "struct<a: int,>",
     "struct<a: int, A: int>", "decimal", "decimal(39,0)", "decimal(5,6)", "decimal(a,b)",
     "map<int,int>",
     "int;", "array<" * 20 + "int" + ">" * 20],
)
# fmt: on
def test_a_wrong_type_is_an_error(folder, text):
    """Half, unknown, too deep and impossible types are errors at their column's line."""
    found = errors(written(folder, changed("id: string", f'id: "{text}"')))
    assert found[0].startswith("7: source.schema.id: ")


def test_a_symlink_out_of_the_data_folder_is_refused(folder):
    """A path that leaves the data folders through a symlink is outside."""
    (folder / "data" / "clicks").symlink_to("/etc")
    assert "4: source.path: 'clicks' lies outside" in errors(written(folder, BASE))[0]
    with pytest.raises(TerminalError, match="source.path"):
        pipeline.Spec.model_validate(yaml.safe_load(BASE)).source_root()


def test_find_and_load_all(folder):
    """A pipeline is found by name beside a broken one; no two share a name or a sink."""
    path = written(folder, BASE, "any.yaml")
    written(folder, changed("name: clicks", "name: views\nx: 1").replace("out/c", "out/v"), "v.yml")
    assert pipeline.find("clicks").name == "clicks"
    with pytest.raises(pipeline.UnknownPipelineError, match="there are: clicks, views"):
        pipeline.find("click")
    with pytest.raises(SpecError, match=r"v\.yml:2: x: is an unknown key"):
        pipeline.find("views")
    with pytest.raises(SpecError, match=r"v\.yml:2: x:"):
        pipeline.load_all()
    written(folder, BASE.replace("out/clicks", "out/clicks/deep"), "v.yml")
    with pytest.raises(SpecError, match=r"declared in .*any\.yaml and .*v\.yml"):
        pipeline.find("clicks")
    with pytest.raises(SpecError, match=rf"(?s)v\.yml: name: {path}.*v\.yml: sink.path: "):
        pipeline.load_all()
    (folder / "dags" / "pipelines" / "v.yml").unlink()
    assert list(pipeline.load_all()) == ["clicks"]


def test_a_folder_of_many_pipelines_costs_one_parse(folder):
    """A pipeline is found by its name without parsing the files that do not have that word."""
    for number in range(200):
        written(folder, changed("name: clicks", f"name: clicks{number}"), f"c{number}.yaml")
    spec_yaml._document.cache_clear()
    assert pipeline.file_of("clicks7").name == "c7.yaml"
    assert spec_yaml._document.cache_info().misses == 1


def test_a_name_is_found_however_it_is_written(folder):
    """YAML may quote, fold or escape a name, and a file that is no YAML has its own name."""
    forms = ('"cl\\u0069cks"', "'clicks'", ">-\n  clicks", '"cli\\\n  cks"')
    for form in forms:
        path = written(folder, changed("name: clicks", f"name: {form}"), "any.yaml")
        assert pipeline.file_of("clicks") == path
    path.unlink()
    broken = written(folder, "{", "broken.yaml")
    assert pipeline.file_of("broken") == broken


def test_the_json_schema_is_current():
    """docs/pipeline.schema.json is what `semel validate --print-schema` prints."""
    text = (ROOT / "docs" / "pipeline.schema.json").read_text()
    assert text == pipeline.json_schema_text() + "\n", (
        "run: semel validate --print-schema > docs/pipeline.schema.json"
    )


def test_the_shipped_pipelines_are_right():
    """Every shipped pipeline loads, fits the JSON Schema and points its editor line at it."""
    assert pipelines_dir() == ROOT / "dags" / "pipelines"
    for path in pipeline.declarations():
        pipeline.load(path)
        jsonschema.validate(yaml.safe_load(path.read_text()), pipeline.json_schema())
        line = path.read_text().splitlines()[0]
        target = line.removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / target).resolve() == ROOT / "docs" / "pipeline.schema.json"
    assert "flights" in pipeline.load_all()


def test_every_key_is_documented():
    """docs/pipelines.md has a row for each key, and its example is right."""
    text = (ROOT / "docs" / "pipelines.md").read_text()
    schema = pipeline.json_schema()
    models = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]
    missing = [key for part in models for key in part["properties"] if f"| `{key}` |" not in text]
    assert not missing
    example = text.split("```yaml\n")[1].split("```")[0]
    assert pipeline.Spec.model_validate(yaml.safe_load(example)).name == "clicks"


FULL = """\
name: clicks
description: what it is for
schedule: "*/5 * * * *"
source:
  type: files
  path: clicks/**/*.jsonl
  format: jsonl
  schema: {id: string, at: timestamp, "a b": "struct<x: array<decimal(5,2)>>"}
  select: interval
  interval_from: "clicks-%Y-%m-%d.jsonl"
  lookback: 1 day
record_id: [id]
record_time: at
dedup: {scope: bucket, horizon: 30 days, shards: 4, late: accept}
transforms: [mine:f]
sink:
  type: files
  path: out/clicks
  format: parquet
  partition_by: [at]
  file_name: "{pipeline}-{batch:08d}-{part:05d}"
limits: {bytes_per_batch_max: 8 GiB, quarantine_ratio_max: 0.5, orphan_after: PT1H}
max_active_runs: 3
"""

OWN_CASE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    # The folder is one for all examples: each writes the same file anew.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

CPU_SECONDS_MAX = 10
"""The worst document below takes 1.5 s of an idle core."""


@pytest.fixture
def file(folder: Path) -> Path:
    """A YAML file in a project whose pipeline `FULL` is right."""
    (folder / "data" / "clicks").mkdir()
    (folder / "spark_jobs" / "mine.py").touch()
    return folder / "dags" / "pipelines" / "clicks.yaml"


def loaded(file: Path, raw: bytes) -> Spec | None:
    """The spec of a document, None when it is refused: in lines that name the file, printable.

    Its name is had without an error too, for all pipelines are found by the names of all files.
    """
    file.write_bytes(raw)
    assert spec_yaml.declared_name(file).isprintable()
    try:
        spec = pipeline.load(file)
    except SpecError as error:
        lines = str(error).encode("utf-8").decode().splitlines()
        assert lines and all(line.startswith(f"{file}:") for line in lines), lines
        return None
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.digest() and spec.source_root() and spec.sink_path()
    return spec


def test_many_values_are_not_deep(file: Path) -> None:
    """Only nesting is bounded: what was closed before does not count."""
    file.write_text("a: [" + "[[1]], {b: {}}, " * 40 + "]\n")
    assert len(spec_yaml.read(file).data["a"]) == 80


def test_the_full_one_is_right(file: Path) -> None:
    """What the mutations begin with is a pipeline."""
    assert loaded(file, FULL.encode()).name == "clicks"


@settings(OWN_CASE, max_examples=examples(40))
@given(raw=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes(file: Path, raw: bytes) -> None:
    """Arbitrary bytes are no pipeline, and no other error than SpecError."""
    assert loaded(file, raw) is None


PIECES = [
    "\t", "\n", " ", ":", "- ", "[", "]", "{", "}", ",", "#", "&a ", "*a", "!", "|", ">", "'", '"',
    "%", "@", "?", "---\n", "...\n", "<<: ", "~", "\\", "\0", "\x7f", "\x85", "\u2028", "\ufeff",
    "\U0001f600", "0x", "1:1", ".inf", ".nan", "1e999", "yes", "null", "2013-13-01", "9" * 30, "..",
    "/", "%Y", "{batch}", "\\ud800", "\\U00110000",
]  # fmt: skip


@settings(OWN_CASE, max_examples=examples(60))
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(FULL)),
            st.integers(0, 12),
            st.one_of(st.sampled_from(PIECES), st.text(max_size=3)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_pipeline_with_pieces_changed(file: Path, edits: list[tuple[int, int, str]]) -> None:
    """A right document in which anything was cut, put in or replaced is a spec or a SpecError."""
    text = FULL
    for at, cut, new in edits:
        text = text[:at] + new + text[at + cut :]
    loaded(file, text.encode("utf-8", "surrogatepass"))


_KEYS = ["name", "source", "path", "schema", "sink", "dedup", "limits", "x", ""]
_ANY = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.datetimes(),
        st.text(max_size=6), st.sampled_from([p.strip() for p in PIECES]), st.just("x" * 300),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=3), st.sampled_from(_KEYS)), inner, max_size=3),
    ),
    max_leaves=4,
)  # fmt: skip


def _places(node: object, way: tuple = ()) -> list[tuple]:
    """The path of each value in a document."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(
        node, list) else ()  # fmt: skip
    return [p for key, value in pairs for p in [(*way, key), *_places(value, (*way, key))]]


PLACES = _places(yaml.safe_load(FULL))


@settings(OWN_CASE, max_examples=examples(60))
@given(place=st.sampled_from(PLACES), value=_ANY)
def test_any_value_in_any_place(file: Path, place: tuple, value: object) -> None:
    """A document whose YAML is right and one of whose values is not is a spec or a SpecError."""
    document = yaml.safe_load(FULL)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    loaded(file, yaml.safe_dump(document, allow_unicode=True, sort_keys=False).encode())


def with_value(key: str, text: str) -> bytes:
    """FULL with the rest of the line of a key replaced."""
    lines = [
        f"{line.partition(':')[0]}: {text}" if line.strip().startswith(f"{key}:") else line
        for line in FULL.splitlines()
    ]
    return "\n".join(lines).encode()


# fmt: off
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("description", '"\\U00110000"'),        # no character has this number
        ("description", '"\\UFFFFFFFF"'),        # nor can a C int hold this one
        ("description", "1" + ":1" * 200 + ".0"),  # base 60, beyond a float
        ("description", "1" + ":1" * 20_000),    # base 60: Python refuses to print it
        ("max_active_runs", "0x" + "f" * 20_000),
        ("max_active_runs", "9" * 20_000),
        ("interval_from", '"%Y-%Y.jsonl"'),      # strptime makes a regex with one name twice
        ("interval_from", '"%Y-%H.jsonl"'),      # an hour of the first of January
        ("interval_from", '"%Y-%d.jsonl"'),
        ("interval_from", '"%Y-%m-%H.jsonl"'),
        ("interval_from", '"%Y-%m-%dT%S.jsonl"'),
        ("interval_from", '"%Y-W%U.jsonl"'),     # strptime passes over weeks
        ("interval_from", '"%Y-%m-%d-%I.jsonl"'),
        ("transforms", f"[{'x' * 300}:f]"),      # no file system has such a name
        ("schema", '{"\\ud800": string}'),
        ("schema", '{"\\0": string}'),
        ("name", '"a\\nb"'),
        ('"a\\nb"', "1"),
        ("partition_by", "[_hidden]"),           # folders that readers pass over
        ("partition_by", "['.hidden']"),
    ],
)
# fmt: on
def test_values_with_a_story(file: Path, key: str, text: str) -> None:
    """Values at which a part of Python raises by itself, and others, are refused in our words."""
    raw = with_value(key, text)
    assert loaded(file, raw if key in FULL else FULL.encode() + f"{key}: {text}\n".encode()) is None


@pytest.mark.parametrize(
    "rule",
    ["%Y", "%Y-%m", "%Y%m%d", "%Y-%j", "x-%d-%b-%Y", "%Y%m%dT%H", "%Y-%m-%d-%H%M%S", "%Y%m%d%I%p",
     "%Y-%m-%dT%H%M%S.%f", "%A %d %B %Y"],
)  # fmt: skip
def test_patterns_of_times(file: Path, rule: str) -> None:
    """Down to any unit, with all above it."""
    assert loaded(file, with_value("interval_from", f'"{rule}.jsonl"'))


@pytest.mark.parametrize("directive", ["%YAML 1." + "1" * 5_000, "%YAML " + "1" * 5_000 + ".1"])
def test_a_version_without_end(file: Path, directive: str) -> None:
    """The line before a document is read by the same rules."""
    assert loaded(file, f"{directive}\n---\n{FULL}".encode()) is None


@pytest.mark.parametrize("depth", [3, 60])
def test_a_path_that_no_system_has(file: Path, depth: int) -> None:
    """Names and paths that are too long are no crash, whether the folder is there or not."""
    loaded(file, with_value("path", "clicks/" + "x" * 300))
    loaded(file, with_value("path", "clicks/" + "/".join(["x" * 100] * depth) + "/*.jsonl"))
    loaded(file, with_value("interval_from", "null").replace(b"select: interval", b"lookback: 0 s"))


# fmt: off
BULKY = {
    "aliases": "x: &a [" + "1," * 100 + "]\ny: [" + "*a," * 20_000 + "]",
    "laughs": "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 2_000)),
    "brackets": "description: " + "[" * 60_000,
    "braces": "description: " + "{" * 60_000,
    "flow": "description: [" + "a," * 30_000 + "]",
    "maps": "description: [" + "{a: b}," * 8_000 + "]",
    "keys": "".join(f"k{n}: 1\n" for n in range(6_000)),
    "columns": "source: {schema: {" + "".join(f"c{n}: int," for n in range(5_000)) + "}}",
    "ids": "record_id: [" + "id," * 20_000 + "]",
    "transforms": "transforms: [" + "a:b," * 14_000 + "]",
    "type": "source: {schema: {id: '" + "struct<a: " * 5_000 + "'}}",
    "number": "description: " + "1" * 60_000,
    "cron": "schedule: '" + "1," * 30_000 + "1 * * * *'",
    "escapes": 'description: "' + "\\x41" * 15_000 + '"',
    "lines": "description: >\n" + " a\n" * 20_000,
    "comments": "#\n" * 30_000,
    "stars": "source: {path: '" + "*/" * 30_000 + "x'}",
    "fields": "sink: {file_name: '" + "{batch}-" * 8_000 + "'}",
    "percents": "source: {interval_from: '" + "%Y" * 30_000 + "'}",
}
# fmt: on


SLOW = ("maps", "keys", "columns", "ids", "transforms")
"""They take as long as `flow` does, each in another part of the reading."""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.proof if n in SLOW else ()) for n in BULKY]
)
def test_the_largest_documents_take_seconds_at_most(file: Path, name: str) -> None:
    """Within the limit of 64 KiB no document keeps a parser busy, nor grows in memory."""
    began = time.process_time()
    assert loaded(file, BULKY[name].encode()[: 64 << 10]) is None
    assert time.process_time() - began < CPU_SECONDS_MAX


TAGS = ["!!python/object/apply:os.system", "!!python/name:os.system", "!!python/module:os", "!!map",
        "!!binary", "!!set", "!local", "!!python/object/new:os.system", "!<tag:x,1:y>"]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_tags_make_nothing(file: Path, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tag names what is built, wherever it stands."""
    monkeypatch.setattr("os.system", lambda _: pytest.fail("the document ran a command"))
    for raw in (with_value("description", f"{tag} ['true']"), f"{tag} {FULL}".encode()):
        assert loaded(file, raw) is None


@settings(OWN_CASE, max_examples=20)
@given(name=st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True))
@example(name=RESERVED_NAME)
@example(name="semel")
@example(name="semel_collected")
def test_a_name_is_a_dags_of_its_own(file: Path, name: str) -> None:
    """Every name of the pattern may be taken, but that of the DAG that collects."""
    spec = loaded(file, with_value("name", f'"{name}"'))
    assert (spec is None) == (name == COLLECT_DAG_ID)
    assert RESERVED_NAME == COLLECT_DAG_ID
