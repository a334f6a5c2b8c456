"""Which changes of a column's type leave the hashes of its values as they are."""

import itertools

import pyarrow as pa
import pytest

from fix_records import read_whole
from fix_sink import spec_of
from semel.catalog import identity
from semel.catalog.ids import hash_ids
from semel.errors import TerminalError
from semel.formats.csv import Csv
from semel.formats.jsonl import JsonLines
from semel.spec import ddl

TEXTS = ["0", "1", "-1", "300", "1.5", "1.50", "1.0", "1e3", "0x10", "true", "abc", "20260101"]
TEXTS += ["99999999999", "2026-01-01", "2026-01-01 10:11:12", "2026-01-01T10:11:12.5Z"]
TEXTS += ["2026-01-01T23:59:59-05:00", "1969-12-31", "1969-12-31T23:59:59.5Z"]
TYPES = [word for word in ddl.SCALARS if ddl.parse(word).identifies]
TYPES += ["decimal(10,0)", "decimal(10,2)", "decimal(38,2)"]


def values(kind: str) -> dict[tuple[str, str], pa.Table]:
    """The one-row table of each text, by format, that a column of this type can be read from."""
    schema, found = pa.schema([("a", ddl.parse(kind).arrow())]), {}
    for text in TEXTS:
        csv = Csv(delimiter=",", quote='"', multiline=False)
        read = {
            "number": read_whole(f'{{"a": {text}}}\n'.encode(), JsonLines(), schema),
            "text": read_whole(f'{{"a": "{text}"}}\n'.encode(), JsonLines(), schema),
            "csv": read_whole(f"a\n{text}\n".encode(), csv, schema, ["a"]),
        }
        for name, (blocks, _) in read.items():
            found |= {(name, text): b.table for b in blocks if b.table.num_rows}
    return found


def class_of(folder, kind: str) -> str:
    spec = spec_of(folder, source__schema={"id": kind}, record_id=["id"])
    return identity.identity_of(spec)["types"]["id"]


def hashed(table: pa.Table) -> tuple[int, int]:
    found = hash_ids(table, ("a",), shards=4)
    return int(found.h1[0]), int(found.h2[0])


@pytest.fixture(scope="module")
def read() -> dict[str, dict]:
    return {kind: values(kind) for kind in TYPES}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(TYPES, 2)))
def test_a_class_holds_what_hashes_alike(tmp_path, read, one: str, other: str) -> None:
    """Two types are of one class when each text that both can be read from gives the same id."""
    common = set(read[one]) & set(read[other])
    alike = [hashed(read[one][text]) == hashed(read[other][text]) for text in common]
    if class_of(tmp_path, one) == class_of(tmp_path, other):
        assert common, "nothing proves that these hash alike"
        assert all(alike)
    else:
        assert not any(alike)


def test_every_time_gives_the_same_bucket(read) -> None:
    """So record_time may become a date, or a timestamp: what both can be read from is one time."""
    common = set(read["timestamp"]) & set(read["date"])
    assert common
    for text in common:
        at, day = (read[kind][text].column("a") for kind in ("timestamp", "date"))
        assert at.cast(pa.timestamp("s", "UTC")) == day.cast(pa.timestamp("s", "UTC"))


def test_what_changed_is_named(tmp_path) -> None:
    """Each change, its old and its new value, and the way out."""
    old = identity.to_text(identity.identity_of(spec_of(tmp_path)))
    changed = spec_of(tmp_path, record_id=["id", "n"], dedup__shards=8)
    with pytest.raises(TerminalError) as found:
        identity.check(old, changed)
    assert str(found.value) == (
        'pipeline clicks: record_id cannot change from ["id"] to ["id", "n"]; dedup.shards cannot '
        "change from 4 to 8: the ids in its catalog are made of it, and every record would pass as "
        "new. Put it back, or declare a new pipeline with its own name and sink"
    )
