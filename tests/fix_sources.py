"""Sources under the contract suite: how each is filled, renamed, changed, lost and restored."""

import gzip
import json
import shutil
from pathlib import Path

from fix_pipelines import Workbench, events
from semel.spec.pipeline import Spec


class Files:
    """A folder with one file, in one of the formats of files; gzip is another kind of it."""

    def __init__(self, bench: Workbench, kind: str) -> None:
        self.bench, self.kind = bench, kind
        self.path = bench.data / "in" / f"a.{kind}"
        self.path.parent.mkdir(exist_ok=True)

    def spec(self, **changes: object) -> Spec:
        """A pipeline by position over the source: a record that is read twice shows."""
        source = {"path": f"in/*.{self.kind}", "format": self.kind.removesuffix(".gz")}
        source |= changes.pop("source", {})
        return self.bench.spec(record_id=None, source=source, **changes)

    def append(self, start: int, stop: int) -> None:
        """Add `events(start, stop)`, complete records."""
        csv = self.kind == "csv"
        text = "id,n,at\n" if csv and not self.path.exists() else ""
        for record in events(start, stop):
            text += ",".join(map(str, record.values())) if csv else json.dumps(record)
            text += "\n"
        data = gzip.compress(text.encode()) if self.kind.endswith(".gz") else text.encode()
        with self.path.open("ab") as file:
            file.write(data)

    def rename(self) -> None:
        """The same partition, under another name."""
        self.path = self.path.rename(self.path.with_name(f"b.{self.kind}"))

    def change(self) -> None:
        """Other bytes where records were claimed."""
        self.path.unlink()
        self.append(900, 950)

    def lose(self) -> None:
        self.path.rename(self.bench.folder / "away")

    def restore(self) -> None:
        shutil.copy(self.bench.folder / "away", self.path)

    def holds(self, start: int, end: int) -> bytes:
        """What the positions [start, end) are."""
        data = Path(self.path).read_bytes()
        return (gzip.decompress(data) if self.kind.endswith(".gz") else data)[start:end]
