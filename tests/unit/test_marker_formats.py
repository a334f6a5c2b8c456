"""Markers of a stored sink are read by semel and by the README's way, and refused when unknown.

tests/stored_sink is a source and a sink as they were written once: what semel writes now must not
change what it reads.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.honest import HonestSink
from fixtures.files.markers import claims_beside, duckdb_count, second_marker, snippet, stored_sink
from semel import settings
from semel.archive.claims import pack_claims, read_claims
from semel.archive.marker import markers
from semel.audit import audit
from semel.errors import CorruptionError, TerminalError
from semel.model.batch import Claim
from semel.reader import dataset
from semel.reports.find import find


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored sink in data/out/flights below the working folder, as README has it."""
    sink = stored_sink(tmp_path)
    monkeypatch.setattr(settings, "data_roots", lambda: [(tmp_path / "data").resolve()])
    monkeypatch.chdir(tmp_path)
    return sink


def check(sink: Path) -> None:
    """All ways of reading see the six records of the two batches, and where each came from."""
    one, two = markers(sink)
    assert dataset(sink).count_rows() == duckdb_count() == 6
    found: dict = {}
    exec(snippet("Python:"), found)
    assert found["table"].num_rows == 6
    assert [(c.name, c.start, c.end) for c in (*one.claims, *two.claims)] == [
        ("/srv/data/in/a.jsonl", 0, 224),
        ("/srv/data/in/b.jsonl", 0, 66),
        ("/srv/data/in/a.jsonl", 224, 392),
    ]
    places = find(one.spec, ["e000001"], sink).places
    assert [(p.what, p.source, p.offset) for p in places] == [
        ("output", None, None), ("duplicate_in_catalog", "/srv/data/in/a.jsonl", 224),
    ]  # fmt: skip


# Attacks R3, L6.
def test_a_stored_sink_stays_readable(sink: Path) -> None:
    """A sink that was written before is read, searched and proven."""
    check(sink)
    verdict = audit(markers(sink)[0].spec, sink)
    assert verdict.ok, verdict.checks
    for marker in markers(sink):
        assert (marker.generation, marker.code_digest, marker.parser_rules) == (1, None, 1)


def test_an_archive_inside_of_the_sink_stays_readable(sink: Path) -> None:
    """Where the sink was a mount point once."""
    (sink.parent / "_semel" / "flights").rename(sink / "_semel")
    assert dataset(sink).count_rows() == 6
    assert audit(markers(sink)[0].spec, sink).ok


def test_two_archives_are_refused(sink: Path) -> None:
    """Which of them counts nobody can tell."""
    shutil.copytree(sink.parent / "_semel" / "flights", sink / "_semel")
    with pytest.raises(TerminalError, match="both have markers.*declare sink.archive"):
        dataset(sink)
    assert dataset(sink, sink / "_semel").count_rows() == 6


def test_claims_in_a_file_of_their_own(sink: Path) -> None:
    """Where a batch has many, its marker lists the file that holds them."""
    claims_beside(sink, code_digest="ab", parser_rules=3, generation=1)
    check(sink)
    marker = markers(sink)[1]
    assert (marker.generation, marker.code_digest, marker.parser_rules) == (1, "ab", 3)


# Attacks R3.
@pytest.mark.parametrize(
    "more",
    [
        {"replaces": [{"batch_id": 1, "generation": 1}]}, {"sink": {"type": "kafka"}},
        {"generation": 2}, {"generation": 2, "replaces": [{"batch_id": 2, "generation": 1}]},
        {"format": 3}, {"format": 5}, {"format": "4"}, {"format": None}, {"files": []},
    ],
)  # fmt: skip
def test_what_a_reader_cannot_follow_is_refused(sink: Path, more: dict) -> None:
    """A marker whose files are not all that counts must not be read as if they were."""
    claims_beside(sink)
    path = second_marker(sink)
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    with pytest.raises(CorruptionError, match="b00000002.json"):
        markers(sink)


# Attacks R3.
def test_what_is_nested_without_end_is_refused(sink: Path) -> None:
    """A marker that no parser can follow is damage like any other: it is named, nothing else ends.
    """
    path = second_marker(sink)
    path.write_text("[" * 100_000)
    with pytest.raises(CorruptionError, match="b00000002.json.*nested too deeply"):
        markers(sink)


VALUES = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    str: st.text(st.characters(exclude_categories=["Cs"])),
}
VALUES[dict[str, Any]] = st.dictionaries(VALUES[str], VALUES[str] | VALUES[int] | st.booleans())
CLAIMS = st.builds(Claim, **{name: VALUES[kind] for name, kind in Claim.__annotations__.items()})


@given(claims=st.lists(CLAIMS, max_size=5))
def test_claims_are_read_back(
    claims: list[Claim], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every number and every name that the ledger can hold."""
    path = tmp_path_factory.mktemp("claims") / "claims.parquet"
    path.write_bytes(pack_claims(claims))
    assert list(read_claims(path)) == claims


@pytest.mark.parametrize("evidence", [{}, {"head_length": "9", "head_hash": "", "tail_hash": ""}])
def test_a_claim_without_evidence_proves_nothing(tmp_path: Path, evidence: dict) -> None:
    """The audit says so, and goes on with the others."""
    made = HonestSink(tmp_path)
    for number in range(2):
        made.land("a.jsonl", {"id": str(number)})
        made.batch()
    content = made.marker(1)
    content["claims"][0]["evidence"] = evidence
    made.rewrite_marker(1, content)
    verdict = audit(made.spec, made.path)
    blamed = [o.what for check in verdict.checks if check.name == "source" for o in check.offenders]
    assert len(blamed) == 1 and "batch 1 cannot be proven" in blamed[0]
    assert "has no evidence of a file" in blamed[0]
