"""Sources under the contract suite: how each is filled, changed and lost."""

import gzip
import json
import shutil
from collections.abc import Mapping
from typing import Protocol

from fix_pipelines import Workbench, events
from semel.ledger import Ledger
from semel.pipeline import Spec


class Place(Protocol):
    """One source partition that a test fills, changes and loses. Topics are in fix_topics."""

    by_interval: Mapping[str, str]
    """What a spec's source declares to be read by interval."""

    @property
    def called(self) -> str:
        """What semel calls it."""
        ...

    def spec(self, **changes: object) -> Spec:
        """A pipeline by position over it: a record that is read twice shows."""
        ...

    def append(self, start: int, stop: int) -> None:
        """Add `events(start, stop)`, complete records."""
        ...

    def holds(self, start: int, end: int) -> list[bytes]:
        """The records at the positions [start, end), which ends where a record ends."""
        ...

    def change(self) -> None:
        """Other records where some were claimed: `events(900, 950)`."""
        ...

    def told(self, batch: int) -> str:
        """What is said, as a regular expression, when what a batch claimed was changed."""
        ...

    def take_change(self, ledger: Ledger, spec: Spec) -> None:
        """What a person does so that what is there now is read."""
        ...

    def lose(self) -> None:
        """Nothing of it is there any more."""
        ...


class Files:
    """A folder with one file, in one of the formats of files; gzip is another kind of it."""

    by_interval = {"select": "interval", "interval_from": "mtime"}

    def __init__(self, bench: Workbench, kind: str) -> None:
        self.bench, self.kind = bench, kind
        self.path = bench.data / "in" / f"a.{kind}"
        self.path.parent.mkdir(exist_ok=True)

    @property
    def called(self) -> str:
        return str(self.path)

    def spec(self, **changes: object) -> Spec:
        source = {"path": f"in/*.{self.kind}", "format": self.kind.removesuffix(".gz")}
        source |= changes.pop("source", {})
        return self.bench.spec(record_id=None, source=source, **changes)

    def append(self, start: int, stop: int) -> None:
        csv = self.kind == "csv"
        text = "id,n,at\n" if csv and not self.path.exists() else ""
        for record in events(start, stop):
            text += ",".join(map(str, record.values())) if csv else json.dumps(record)
            text += "\n"
        data = gzip.compress(text.encode()) if self.kind.endswith(".gz") else text.encode()
        with self.path.open("ab") as file:
            file.write(data)

    def holds(self, start: int, end: int) -> list[bytes]:
        data = self.text(start, end)
        assert data.endswith(b"\n"), f"no record ends at byte {end}"
        return data.splitlines(keepends=True)

    def change(self) -> None:
        self.path.unlink()
        self.append(900, 950)

    def told(self, batch: int) -> str:
        return f"semel abandon {batch}"

    def take_change(self, ledger: Ledger, spec: Spec) -> None:
        """Nobody is asked: the new file is read as it is."""

    def lose(self) -> None:
        self.path.rename(self.bench.folder / "away")

    def text(self, start: int, end: int) -> bytes:
        """The bytes at some positions, wherever records end."""
        data = self.path.read_bytes()
        return (gzip.decompress(data) if self.kind.endswith(".gz") else data)[start:end]

    def restore(self) -> None:
        """What was lost is there again."""
        shutil.copy(self.bench.folder / "away", self.path)

    def rename(self) -> None:
        """The same partition, under another name each time."""
        self.path = self.path.rename(self.path.with_name(f"b{self.path.name}"))
