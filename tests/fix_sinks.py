"""Each kind of sink for the contract suite: how it is made, harmed, and read without semel."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import xxhash

from fix_pipelines import Workbench, events
from semel.archive import layout
from semel.finalize import publish
from semel.model.manifest import Kind, ManifestFile, StagedFile
from semel.pipeline import Spec
from semel.pipeline.opening import open_sink
from semel.sinks import Sink, Won
from semel.sinks.files.sink import Folder, Looks
from semel.stage.part_files import PartWriter

Named = Callable[[int, int, int, StagedFile], str]
"""`Sink.target`: the name that a file will have."""


def won_of(
    folder: Path,
    named: Named,
    tables: Iterable[pa.Table],
    *,
    format: str = "parquet",
    pipeline: str = "events",
    batch_id: int = 1,
    commit_seq: int | None = None,
) -> Won:
    """A committed batch whose staged files, in a folder, hold these tables, a file each."""
    files, schema = [], None
    for part, table in enumerate(tables):
        schema = table.schema
        writer = PartWriter(str(folder), tag=f"b{batch_id}", format=format)
        writer.write(table)
        files += [
            ManifestFile(
                kind=Kind.DATA,
                staged_path=file.path,
                final_path=named(batch_id, 1, part, file),
                records=file.records,
                bytes=file.bytes,
                checksum=file.checksum,
            )
            for file in writer.close()
        ]
    return Won(
        pipeline=pipeline,
        batch_id=batch_id,
        fence=1,
        commit_seq=commit_seq or batch_id,
        files=tuple(files),
        schema=schema,
        digest=xxhash.xxh3_128_hexdigest("".join(file.checksum for file in files).encode()),
    )


class Place:
    """A sink of one kind, on a workbench: what the contract suite asks of each.

    A kind says how it is declared, which point its publish passes with a part of its work done
    (`half`), how it is read from outside, and what somebody else might do to it (`harms`).
    """

    half: str
    format = "parquet"

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.staged = bench.folder / "staged"
        self.staged.mkdir()

    @property
    def declared(self) -> dict[str, Any]:
        """The pipeline's `sink`."""
        raise NotImplementedError

    @property
    def harms(self) -> dict[str, Callable[[], object]]:
        """`removed`, `doubled`, `changed`, `gone`: what somebody does to a batch, or to all."""
        raise NotImplementedError

    def spellings(self) -> list[dict[str, Any]]:
        """Declarations of one and the same place. The last one is another place."""
        raise NotImplementedError

    def rows(self) -> list[tuple[int, str]]:
        """All that is there, as (batch, id), sorted; by another client than semel's."""
        raise NotImplementedError

    def unfit(self, patch: pytest.MonkeyPatch) -> str:
        """Make it such that no batch of the pipeline can land there. Returns what is to be said."""
        raise NotImplementedError

    def mended(self) -> None:
        """Take that back, but for the patch."""

    def spec(self, name: str = "events") -> Spec:
        return self.bench.spec(name, sink=self.declared)

    def sink(self) -> Sink:
        return open_sink(self.spec())

    def won(self, *spans: tuple[int, int], batch_id: int = 1) -> Won:
        """A committed batch with a file for each span of `events`."""
        tables = [table(*span) for span in spans]
        target = self.sink().target
        return won_of(self.staged, target, tables, format=self.format, batch_id=batch_id)

    def finalize(self, won: Won) -> None:
        """What finalize does with the output of a batch."""
        spec, looks = self.spec(), Looks()
        kept = Folder(layout.of(spec), spec.of_sink(), looks)
        with open_sink(spec, looks=looks) as sink:
            publish(sink, kept, won, list(won.files), looks)


class Files(Place):
    """A folder of files of one format, read by DuckDB."""

    half = "storage.after_link"

    def __init__(self, bench: Workbench, format: str) -> None:
        super().__init__(bench)
        self.format = format
        self.folder = bench.data / "out" / "events"

    @property
    def declared(self) -> dict[str, Any]:
        return {"type": "files", "path": "out/events", "format": self.format}

    @property
    def harms(self) -> dict[str, Callable[[], object]]:
        [path] = self._files()[:1]
        other = path.with_name(path.name.replace("-00000", "-00009"))
        return {
            "removed": path.unlink,
            "doubled": lambda: other.write_bytes(path.read_bytes()),
            "changed": lambda: path.write_bytes(path.read_bytes().replace(b"e0000", b"e9999", 1)),
            "gone": lambda: shutil.rmtree(self.folder),
        }

    def spellings(self) -> list[dict[str, Any]]:
        names = ("out/events", "out//events/", "./out/events", str(self.folder), "out/other")
        return [{**self.declared, "path": name} for name in names]

    def rows(self) -> list[tuple[int, str]]:
        found = []
        for path in self._files():
            batch = int(re.search(r"-b(\d{8})-", path.name)[1])
            with duckdb.connect() as engine:
                reader = {"jsonl": "json"}.get(self.format, self.format)
                told = engine.execute(f"SELECT id FROM read_{reader}(?)", [str(path)]).fetchall()
            found += [(batch, record_id) for (record_id,) in told]
        return sorted(found)

    def unfit(self, patch: pytest.MonkeyPatch) -> str:
        def no_links(*_: object) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        patch.setattr(os, "link", no_links)
        return "does not take hard links"

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


def table(start: int, stop: int) -> pa.Table:
    """`events(start, stop)` with the types of the workbench's pipeline."""
    rows = [(e["id"], e["n"], 0) for e in events(start, stop)]
    ids, numbers, times = zip(*rows, strict=True)
    return pa.table(
        {"id": ids, "n": pa.array(numbers, pa.int64()),
         "at": pa.array(times, pa.timestamp("us", "UTC"))}
    )  # fmt: skip
