"""Documents that nobody would write: loading gives a spec or a SpecError, whatever they hold."""

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from semel.airflow import COLLECT_DAG_ID
from semel.errors import SpecError
from semel.spec import pipeline
from semel.spec import yaml as spec_yaml
from semel.spec.parts import RESERVED_NAME
from semel.spec.pipeline import Spec
from tiers import examples

BASE = """\
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
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The YAML file of a project of its own."""
    for part in ("data/clicks", "dags/pipelines", "spark_jobs"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "spark_jobs" / "mine.py").touch()
    monkeypatch.setenv("SEMEL_HOME", str(tmp_path))
    monkeypatch.delenv("SEMEL_DATA_ROOTS", raising=False)
    monkeypatch.delenv("SEMEL_PIPELINES_DIR", raising=False)
    return tmp_path / "dags" / "pipelines" / "clicks.yaml"


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


def test_the_base_is_right(file: Path) -> None:
    """What the mutations begin with is a pipeline."""
    assert loaded(file, BASE.encode()).name == "clicks"


def test_many_values_are_not_deep(file: Path) -> None:
    """Only nesting is bounded: what was closed before does not count."""
    file.write_text("a: [" + "[[1]], {b: {}}, " * 40 + "]\n")
    assert len(spec_yaml.read(file).data["a"]) == 80


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
            st.integers(0, len(BASE)),
            st.integers(0, 12),
            st.one_of(st.sampled_from(PIECES), st.text(max_size=3)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_pipeline_with_pieces_changed(file: Path, edits: list[tuple[int, int, str]]) -> None:
    """A right document in which anything was cut, put in or replaced is a spec or a SpecError."""
    text = BASE
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


PLACES = _places(yaml.safe_load(BASE))


@settings(OWN_CASE, max_examples=examples(60))
@given(place=st.sampled_from(PLACES), value=_ANY)
def test_any_value_in_any_place(file: Path, place: tuple, value: object) -> None:
    """A document whose YAML is right and one of whose values is not is a spec or a SpecError."""
    document = yaml.safe_load(BASE)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    loaded(file, yaml.safe_dump(document, allow_unicode=True, sort_keys=False).encode())


def with_value(key: str, text: str) -> bytes:
    """BASE with the rest of the line of a key replaced."""
    lines = [
        f"{line.partition(':')[0]}: {text}" if line.strip().startswith(f"{key}:") else line
        for line in BASE.splitlines()
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
    assert loaded(file, raw if key in BASE else BASE.encode() + f"{key}: {text}\n".encode()) is None


def test_a_key_that_nothing_can_hold(file: Path) -> None:
    """A key with a NUL or half a surrogate pair is told with its line."""
    for key in ("\\ud800", "a\\0"):
        file.write_bytes(f'{BASE}"{key}": 1\n'.encode())
        with pytest.raises(SpecError, match=f"line {BASE.count(chr(10)) + 1} has a key with a NUL"):
            pipeline.load(file)


@pytest.mark.parametrize("directive", ["%YAML 1." + "1" * 5_000, "%YAML " + "1" * 5_000 + ".1"])
def test_a_version_without_end(file: Path, directive: str) -> None:
    """The line before a document is read by the same rules."""
    assert loaded(file, f"{directive}\n---\n{BASE}".encode()) is None


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
    for raw in (with_value("description", f"{tag} ['true']"), f"{tag} {BASE}".encode()):
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


def test_the_refused_name_is_told(file: Path) -> None:
    """The error names line, key and reason."""
    file.write_bytes(with_value("name", RESERVED_NAME))
    why = "clicks.yaml:1: name: 'semel_collect' is the name of the DAG that collects"
    with pytest.raises(SpecError, match=why):
        pipeline.load(file)
