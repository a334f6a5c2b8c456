"""Sinks with markers of both formats, and the README's ways to read the output, as they stand."""

import json
import re
import shutil
from pathlib import Path

from semel.archive import layout
from semel.archive.claims import pack_claims, to_claim

_TESTS = Path(__file__).resolve().parent


def snippet(after: str) -> str:
    """README's first block of code behind a line. Its output is in data/out/flights."""
    text = (_TESTS.parent / "README.md").read_text(encoding="utf-8")
    _, _, behind = text.partition(f"\n{after}\n")
    return re.search(r"```\w+\n(.*?)```", behind, re.DOTALL)[1]


def duckdb_count() -> int:
    """What the snippet for DuckDB counts, from the working folder."""
    import duckdb

    with duckdb.connect() as connection:
        return connection.execute(snippet("DuckDB:")).fetchone()[0]


def stored_sink(folder: Path) -> Path:
    """Copy the source and the sink of format 1 to data/ in a folder. Returns the sink's path.

    Its archive was moved out of it.
    """
    shutil.copytree(_TESTS / "format_1" / "in", folder / "data" / "in")
    sink = folder / "data" / "out" / "flights"
    shutil.copytree(_TESTS / "format_1" / "out" / "clicks", sink)
    (sink.parent / "_semel").mkdir()
    (sink / "_semel").rename(sink.parent / "_semel" / "flights")
    return sink


def second_marker(sink: Path) -> Path:
    return layout.place(sink) / "markers" / "b00000002.json"


def as_format_2(sink: Path, **more: object) -> None:
    """Make the second marker of the stored sink one of format 2, with its claims beside it."""
    content = json.loads(second_marker(sink).read_text()) | {"format": 2} | more
    claims = [to_claim(claim) for claim in content.pop("claims")]
    path = layout.place(sink) / "claims" / "b00000002-00002.parquet"
    path.parent.mkdir()
    path.write_bytes(pack_claims(claims))
    entry = {"kind": "claims", "path": f"_semel/claims/{path.name}", "records": len(claims)}
    entry |= {"bytes": path.stat().st_size, "checksum": ""}
    content["files"].append(entry)
    second_marker(sink).write_text(json.dumps(content))
