"""What became of each record, by a sink's markers, audited: nothing lost, nothing twice."""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import sqlalchemy as sa

from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from semel.archive import layout
from semel.audit import audit
from semel.cli import main
from semel.commit import commit
from semel.ledger import Ledger
from semel.model.batch import Counts
from semel.pipeline import Spec
from semel.plan import plan
from semel.runs.run import Ran, run_batch
from semel.stage import stage

Letter = tuple[str, int, str, bytes]
"""A dead letter: file name, offset, reason, raw bytes."""


@dataclass
class Account:
    """All finalized batches of a sink. Files of the source go by their names, without folders."""

    rows: list[dict] = field(default_factory=list)
    decisions: list[tuple[str, int, str]] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    @property
    def ids(self) -> list[str]:
        """The ids in the output, sorted; one that is there twice is here twice."""
        return sorted(row["id"] for row in self.rows)

    @property
    def reasons(self) -> dict[str, int]:
        """How many dead letters there are for each reason."""
        return dict(Counter(reason for _, _, reason, _ in self.letters))


def quiet(_: str) -> None:
    """Takes what a verb says."""


def run(
    ledger: Ledger, spec: Spec, key: str, interval: Any = None, *, engine: Any = None
) -> Ran:
    """All verbs, one after the other, by the local engine unless another one is given."""
    return run_batch(ledger, spec, key, engine or LocalEngine(), interval, log=quiet)


def first_batch(
    bench: Workbench, ledger: Ledger, records: Iterable[dict | bytes], **changes: object
) -> Spec:
    """A pipeline that has finalized its first batch: all of in/a.jsonl."""
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", records)
    run(ledger, spec, "r1")
    return spec


def committed(ledger: Ledger, spec: Spec, key: str) -> int:
    """The number of a batch that was planned, staged and committed, and is not finalized."""
    batch = plan(ledger, spec, key).batch.batch_id
    stage(ledger, spec, batch, LocalEngine(), log=quiet)
    commit(ledger, spec, batch, lambda: None, log=quiet)
    return batch


def ids(start: int, stop: int) -> list[str]:
    """The ids of `events(start, stop)`."""
    return [event["id"] for event in events(start, stop)]


def lines(start: int, stop: int) -> bytes:
    """`events(start, stop)` as JSON Lines."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events(start, stop))


def settled(spec: Spec, *, audited: bool = True) -> Account:
    """Read what the markers list and prove it.

    Each marker's sum is right and is what its files hold, and the audit finds each record of the
    source once. Not `audited`: the source no longer holds what was read.
    """
    roots = {"sink": spec.sink_path(), "archive": layout.of(spec)}
    found = Account()
    for path in sorted((roots["archive"] / "markers").glob("b*.json")):
        marker = json.loads(path.read_text())
        counts = Counts(**marker["counts"])
        beside = [f for f in marker["files"] if f["kind"] == "claims"]
        claims = [c for f in beside for c in _rows(roots["archive"] / f["path"], "claims")]
        claims = claims or marker["claims"]
        names = {c["source_partition_id"]: os.path.basename(c["name"]) for c in claims}
        held = Counter()
        for file in marker["files"]:
            rows = _rows(roots[file["root"]] / file["path"], file["kind"])
            assert len(rows) == file["records"]
            held[file["kind"]] += len(rows)
            _take(found, file["kind"], rows, names)
        dropped = counts.duplicates_batch + counts.duplicates_catalog
        letters = counts.quarantined + counts.late
        assert counts.records_read == counts.survivors + dropped + letters
        assert (held["decisions"], held["dead_letters"]) == (dropped, letters)
        assert held["data"] == counts.rows_written
        found.counts += counts
    found.letters.sort()
    found.decisions.sort()
    if audited:
        verdict = audit(spec)
        assert verdict.ok, {c.name: c.offenders for c in verdict.checks if not c.ok}
    return found


def _take(found: Account, kind: str, rows: list[dict], names: dict[int, str]) -> None:
    if kind == "data":
        found.rows += rows
    if kind not in ("decisions", "dead_letters"):
        return
    for row in rows:
        place = names[row["source_partition_id"]], row["offset"]
        if kind == "decisions":
            found.decisions.append((*place, row["reason"]))
        else:
            found.letters.append((*place, row["reason"], row["raw"]))


def _rows(path: Path, kind: str) -> list[dict]:
    quoted = ds.CsvFileFormat(parse_options=pa.csv.ParseOptions(newlines_in_values=True))
    form = {".jsonl": "json", ".csv": quoted, ".parquet": "parquet"}[path.suffix]
    return ds.dataset(path, format=form).to_table().to_pylist()


def sql(ledger: Ledger, text: str, **values: object) -> list:
    """The rows of a statement that a test makes up."""
    with ledger.transaction() as connection:
        done = connection.execute(sa.text(text), values)
        return list(done.mappings()) if done.returns_rows else []


def refusals(ledger: Ledger) -> dict[str, str]:
    """The reasons in semel.refusal, by file name: what is waiting for a person."""
    found = sql(ledger, "SELECT name, reason FROM semel.refusal")
    return {os.path.basename(row["name"]): row["reason"] for row in found}


def advised(ledger: Ledger, detail: str, option: str = "") -> None:
    """Follow a message's advice: run the command in it that has an option (or none), as typed."""
    commands = [shlex.split(text)[1:] for text in re.findall(r"`(semel [^`]+)`", detail)]
    options = [[word for word in words if re.match("--.", word)] for words in commands]
    wanted = [option] if option else []
    words = next(w for w, o in zip(commands, options, strict=True) if o == wanted)
    before = os.environ.get("SEMEL_LEDGER_DSN")
    os.environ["SEMEL_LEDGER_DSN"] = ledger.dsn
    try:
        assert main(words) == 0, words
    finally:
        os.environ.pop("SEMEL_LEDGER_DSN")
        if before is not None:
            os.environ["SEMEL_LEDGER_DSN"] = before
