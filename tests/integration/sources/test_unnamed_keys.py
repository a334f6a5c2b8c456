"""Keys that the schema does not name, through all verbs; the audit reads them alike."""

import json

import pytest

from fixtures.batches.account import run, settled
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.audit import audit
from semel.errors import LimitError, SpecError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reports import summary
from semel.stage import Staged, stage

SCHEMA = {"id": "string", "n": "bigint", "s": "struct<x: bigint>"}
LINES = [
    b'{"id":"0","n":1}',
    b'{"id":"1","zone":"b","n":1,"zone":"c"}',
    b'{"id":"2","s":{"x":1,"y":NaN},"k\x7f\\n\\u001b[2J":-Inf}',
]


def spec_of(bench: Workbench, unknown: str | None, **changes: object) -> Spec:
    name = unknown or "plain"
    source = {"schema": SCHEMA} | ({"unknown": unknown} if unknown else {})
    return bench.spec(name, source=source, sink={"path": f"out/{name}"}, **changes)


def staged(ledger: Ledger, spec: Spec) -> Staged:
    batch = plan(ledger, spec, "r1").batch.batch_id
    return stage(ledger, spec, batch, LocalEngine(), lambda _: None)


@pytest.mark.parametrize("files", [1, 3])
def test_ignored_keys_are_told(bench: Workbench, ledger: Ledger, files: int) -> None:
    """Stage names them, with how many records have each; also of small files read together."""
    spec = spec_of(bench, None)
    for n in range(files):
        bench.write(f"in/{n}.jsonl", LINES[n :: files])
    answer = staged(ledger, spec)
    expected = {"zone": 1, "s.y": 1, "k\x7f\n\x1b[2J": 1}
    assert answer.ignored.keys == expected and not answer.ignored.sampled
    (line,) = (one for one in summary.stage(answer).splitlines() if one.startswith("ignored"))
    assert "'zone' in 1 record" in line and "'s.y' in 1 record" in line
    assert line.isprintable() and "source.unknown: keep or quarantine" in line
    run(ledger, spec, "r1")
    assert settled(spec).ids == ["0", "1", "2"]


def test_ignored_keys_by_the_thousand(bench: Workbench, ledger: Ledger) -> None:
    """Ten are named, the others counted; where records were sampled, the numbers say `about`."""
    spec = spec_of(bench, None)
    many = b",".join(b'"k%d":1' % n for n in range(500))
    bench.write("in/a.jsonl", [b'{"id":"%d",%b}' % (n, many) for n in range(1_000)])
    text = summary.stage(staged(ledger, spec))
    assert text.count(" in about 1,000 records") == 10 and ", 90 keys more;" in text


def test_ignored_keys_are_not_named_where_no_text_is_told(
    bench: Workbench, ledger: Ledger
) -> None:
    """A key may be personal data: with log_samples: false it is counted, and not shown."""
    spec = spec_of(bench, None, limits={"log_samples": False})
    bench.write("in/a.jsonl", [b'{"id":"0","jane@example.org":1}'])
    answer = staged(ledger, spec)
    assert answer.ignored.keys == {"key 1": 1}
    assert "jane" not in summary.stage(answer)


def test_kept_keys_are_a_column(bench: Workbench, ledger: Ledger) -> None:
    """The last one: an object's text, null without any; what is no JSON costs its record."""
    spec = spec_of(bench, "keep")
    bench.write("in/a.jsonl", LINES)
    answer = staged(ledger, spec)
    assert answer.ignored.keys == {} and "ignored" not in summary.stage(answer)
    run(ledger, spec, "r1")
    found = settled(spec)
    rows = {row["id"]: row["_semel_rest"] for row in found.rows}
    assert rows == {"0": None, "1": '{"zone":"b","zone":"c"}'}
    assert list(found.rows[0]) == [*SCHEMA, "_semel_rest"]
    assert [(why, raw) for *_, why, raw in found.letters] == [("type_mismatch", LINES[2])]


def test_kept_keys_need_accept(bench: Workbench, ledger: Ledger) -> None:
    """They are a new column of the output: a pipeline that had none says so first."""
    bench.write("in/a.jsonl", LINES[:1])
    run(ledger, spec_of(bench, None), "r1")
    bench.write("in/a.jsonl", LINES[1:2], mode="ab")
    (bench.pipelines / "plain.yaml").unlink()
    source = {"schema": SCHEMA, "unknown": "keep"}
    spec = bench.spec("plain", source=source, sink={"path": "out/plain"})
    with pytest.raises(TerminalError, match="semel accept plain --columns"):
        run(ledger, spec, "r2")


def test_an_unnamed_key_sets_its_record_aside(bench: Workbench, ledger: Ledger) -> None:
    """With quarantine, at any depth; the dead letter names the key."""
    spec = spec_of(bench, "quarantine")
    bench.write("in/a.jsonl", [*LINES, b'{"id":"3","s":{"x":1,"y":1}}', b'{"id":4,"z":1}'])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ["0"] and found.reasons == {"unknown_key": 3, "type_mismatch": 1}
    strict = spec_of(bench, "quarantine", limits={"quarantine_ratio_max": 0.1})
    bench.write("in/a.jsonl", [b'{"id":"5","s":{"y":1}}'], mode="ab")
    with pytest.raises(LimitError, match=r'(?s)unknown_key.*does not name the key "s\.y"'):
        run(ledger, strict, "r2")


@pytest.mark.parametrize("unknown", ["ignore", "keep", "quarantine"])
def test_the_audit_judges_by_what_was_declared(
    bench: Workbench, ledger: Ledger, unknown: str
) -> None:
    """A batch that was read in another way than its marker says fails its audit."""
    spec = spec_of(bench, unknown)
    bench.write("in/a.jsonl", LINES)
    run(ledger, spec, "r1")
    settled(spec)
    (marker,) = (layout.archive_folder(spec) / "markers").glob("*.json")
    content = json.loads(marker.read_text())
    content["spec"]["source"]["unknown"] = "ignore" if unknown == "quarantine" else "quarantine"
    marker.write_text(json.dumps(content))
    assert not audit(spec).ok


REFUSED = {
    r"source\.unknown: .*does not apply to format: csv.*header": {
        "source": {"format": "csv", "unknown": "keep"}
    },
    r"source\.unknown: .*'ignore', 'keep' or 'quarantine'": {"source": {"unknown": "drop"}},
    r"source\.schema\.m: map<string, int>: a CSV field cannot hold": {
        "source": {"format": "csv", "schema": {"id": "string", "m": "map<string, int>"}}
    },
    r"source\.schema\.m: .*a map's keys are string, not 'int'": {
        "source": {"schema": {"id": "string", "m": "map<int, int>"}}
    },
    r"source\.schema\.m: .*map must be the type of a column": {
        "source": {"schema": {"id": "string", "m": "array<map<string, int>>"}}
    },
    r"source\.schema\.m: .*json must be the type of a column": {
        "source": {"schema": {"id": "string", "m": "map<string, json>"}}
    },
    r"record_id.*'m' is map<string, int>": {
        "source": {"schema": {"id": "string", "m": "map<string, int>"}}, "record_id": ["m"]
    },
    r"record_time: 'm' is map<string, int>, not a timestamp": {
        "source": {"schema": {"id": "string", "m": "map<string, int>"}}, "record_time": "m"
    },
    r"sink\.partition_by.*'m' is map<string, int>, whose values cannot name a folder": {
        "source": {"schema": {"id": "string", "m": "map<string, int>"}},
        "sink": {"partition_by": ["m"]},
    },
    r"record_id.*'p' is json": {
        "source": {"schema": {"id": "string", "p": "json"}}, "record_id": ["p"]
    },
    r"record_id.*'b' is binary": {
        "source": {"schema": {"id": "string", "b": "binary"}}, "record_id": ["b"]
    },
    r"source\.schema\.p: .*string": {
        "source": {"format": "csv", "schema": {"id": "string", "p": "json"}}
    },
    r"source\.schema\.p: .*json must be the type of a column": {
        "source": {"schema": {"id": "string", "p": "array<json>"}}
    },
    r"record_id.*'_semel_rest' is not a column": {
        "source": {"unknown": "keep"}, "record_id": ["_semel_rest"]
    },
}  # fmt: skip


@pytest.mark.parametrize(("said", "changes"), list(REFUSED.items()))
def test_validate_says_where_it_makes_no_sense(
    bench: Workbench, said: str, changes: dict[str, object]
) -> None:
    """Each refusal has the file, the line and the key."""
    with pytest.raises(SpecError, match=rf"events\.yaml:\d+: {said}"):
        bench.spec(**changes)


def test_the_default_is_no_part_of_the_digest(bench: Workbench) -> None:
    """Batches that were planned before there was a choice stay what they are; the others count."""
    plain, ignore = bench.spec(), bench.spec(source={"unknown": "ignore"})
    assert plain.digest() == ignore.digest()
    older = plain.to_json()
    del older["source"]["unknown"]
    assert Spec.from_json(older).digest() == plain.digest()
    others = {bench.spec(source={"unknown": word}).digest() for word in ("keep", "quarantine")}
    assert len(others | {plain.digest()}) == 3
