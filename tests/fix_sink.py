"""A tiny honest semel: it finalizes batches into a sink by hand, without any of semel's code.

Its records have `id` (text), `n` (integer) and `at` (timestamp). It knows of each line what became
of it, so tests can break one thing and see that the audit tells.
"""

import csv
import io
import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from semel.declare.ddl import PARSER_RULES
from semel.pipeline import Spec

SCHEMA = {"id": "string", "n": "bigint", "at": "timestamp"}
ARROW = pa.schema([("id", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
START = datetime(2024, 1, 1, tzinfo=UTC)


def spec_of(folder: Path, **changes) -> Spec:
    """The pipeline of a sink; `changes` by dotted key with `__` for the dot."""
    plain = {
        "name": "clicks",
        "source": {
            "type": "files", "path": str(folder / "in" / "*"), "format": "jsonl", "schema": SCHEMA,
        },
        "record_id": ["id"],
        "sink": {"type": "files", "path": str(folder / "out"), "format": "parquet"},
    }  # fmt: skip
    for key, value in changes.items():
        *parents, last = key.split("__")
        place = plain
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return Spec.model_validate(plain)


class HonestSink:
    """A source folder and a sink, filled batch by batch."""

    def __init__(self, folder: Path, **changes) -> None:
        self.spec = spec_of(folder, **changes)
        self.source, self.path = folder / "in", folder / "out"
        self.archive = folder / "_semel" / "out"
        self.source.mkdir()
        self._ids: set[object] = set()
        self._claimed: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self.batches = 0
        self.rules = PARSER_RULES

    def land(self, name: str, *lines: bytes | dict) -> Path:
        """Append lines to a source file."""
        path = self.source / name
        with open(path, "ab") as file:
            for line in lines:
                file.write((json.dumps(line).encode() if isinstance(line, dict) else line) + b"\n")
        return path

    def batch(self, kept=lambda row: True) -> int:
        """Finalize all that is unclaimed as one batch. `kept`: a transform's filter of rows."""
        self.batches += 1
        number, claims, rows, decisions, letters = self.batches, [], [], [], []
        seen: set[object] = set()
        for path in sorted(self.source.iterdir()):
            start, end = self._claimed.get(path.name, 0), path.stat().st_size
            if start < end:
                part = self._parts.setdefault(path.name, len(self._parts) + 1)
                claims.append(_claim(path, len(claims), part, start, end))
                self._read(path, part, start, end, seen, rows, decisions, letters)
                self._claimed[path.name] = end
        survivors = [row for row in rows if kept(row)] if self.spec.transforms else rows
        catalog = sum(reason == "duplicate_in_catalog" for *_, reason, _ in decisions)
        counts = {
            "records_read": len(rows) + len(decisions) + len(letters),
            "survivors": len(rows),
            "duplicates_batch": len(decisions) - catalog,
            "duplicates_catalog": catalog,
            "quarantined": len(letters),
            "late": 0,
            "rows_written": len(survivors),
            "bytes_read": sum(c["end"] - c["start"] for c in claims),
        }
        self._ids |= seen
        files = self._write(number, survivors, decisions, letters)
        self._mark(number, claims, counts, files)
        return number

    def replay(self, root: int, change=lambda table: table, **spec_changes) -> int:
        """Put what `change` makes of a batch's rows in the place of its output, as a replay does.

        The spec is the pipeline's with `spec_changes`. The old marker is kept aside.
        """
        self.batches += 1
        number, content = self.batches, self.marker(root)
        generation = content.get("generation", 1)
        self.aside(root, generation).parent.mkdir(exist_ok=True)
        self.aside(root, generation).write_text(json.dumps(content))
        spec = spec_of(self.path.parent, **spec_changes) if spec_changes else self.spec
        own, columns = [], content["sink_schema"]
        for part, file in enumerate(f for f in content["files"] if f["kind"] == "data"):
            table = change(pq.read_table(self.path / file["path"], partitioning=None))
            name = os.path.join(
                os.path.dirname(file["path"]), f"clicks-b{number:08d}-{part:05d}.parquet"
            )
            own.append(self.add("data", name, table))
            there = {field.name: str(field.type) for field in table.schema}
            columns = [[name, there.pop(name, kind)] for name, kind in content["sink_schema"]]
            columns += [[name, kind] for name, kind in there.items()]
        rows = sum(file["records"] for file in own)
        content |= {
            "spec": spec.to_json(), "spec_digest": spec.digest(), "parser_rules": PARSER_RULES,
            "sink_schema": columns, "counts": {**content["counts"], "rows_written": rows},
            "files": [*own, *(f for f in content["files"] if f["kind"] != "data")],
            "generation": generation + 1,
            "replaces": [{"batch_id": root, "generation": generation}],
            "replay": {
                "batch_id": number, "fence": 1, "request_key": f"again-{number}",
                "committed_at": (START + timedelta(hours=number)).isoformat(),
            },
        }  # fmt: skip
        self.rewrite_marker(root, content)
        return number

    def aside(self, root: int, generation: int) -> Path:
        """Where the marker of a replaced output is kept."""
        return self.archive / "replaced" / f"b{root:08d}-g{generation:04d}.json"

    def _read(self, path, part, start, end, seen, rows, decisions, letters) -> None:
        position = start
        data = path.read_bytes()[start:end]
        for line in data.splitlines(keepends=True):
            raw = line.removesuffix(b"\n").removesuffix(b"\r")
            row = self._parse(raw, position)
            position += len(line)
            place = (part, position - len(line))
            if row is None or not raw.strip():
                continue
            if isinstance(row, str):
                letters.append((*place, len(line), row, "because", raw))
                continue
            ident = tuple(row[name] for name in self.spec.record_id)
            if ident and ident in self._ids:
                decisions.append((*place, "duplicate_in_catalog", ident))
            elif ident and ident in seen:
                decisions.append((*place, "duplicate_in_batch", ident))
            else:
                seen.add(ident)
                rows.append({**row, "_semel_source": place[0], "_semel_offset": place[1]})

    def _parse(self, raw: bytes, position: int) -> dict | str | None:
        if not raw.strip():
            return None
        if self.spec.source.format == "csv":
            if position == 0:
                return None
            try:
                ident, n, at = next(csv.reader(io.StringIO(raw.decode())))
                row = {"id": ident or None, "n": int(n) if n else None, "at": at or None}
            except ValueError:
                return "malformed"
        else:
            try:
                found = json.loads(raw)
                row = {name: found.get(name) for name in SCHEMA}
            except (ValueError, AttributeError):
                return "malformed"
            if not (row["id"] is None or isinstance(row["id"], str)):
                return "type_mismatch"
        if row["at"] is not None:
            if self.rules == 1 and re.search(r"\.\d{7}", row["at"]):
                return "type_mismatch"
            row["at"] = datetime.fromisoformat(row["at"])
        if any(row[name] is None for name in self.spec.record_id):
            return "id_missing"
        return row

    def _write(self, number, rows, decisions, letters) -> list[dict]:
        files = []
        schema = self.schema
        groups: dict[str, list[dict]] = {}
        for row in rows:
            folder = "/".join(_folder(key, row[key]) for key in self.spec.sink.partition_by)
            groups.setdefault(folder, []).append(row)
        for part, (folder, held) in enumerate(sorted(groups.items())):
            table = pa.Table.from_pylist(held, schema=schema)
            table = table.drop_columns(list(self.spec.sink.partition_by))
            name = os.path.join(folder, f"clicks-b{number:08d}-{part:05d}")
            files.append(self.add("data", f"{name}.{self.spec.sink.format}", table))
        if decisions:
            part, position, reason, ident = zip(*decisions, strict=True)
            table = pa.table(
                {
                    "source_partition_id": list(part), "offset": list(position),
                    "reason": list(reason),
                    "record_id": [dict(zip(self.spec.record_id, i, strict=True)) for i in ident],
                }
            )  # fmt: skip
            name = f"decisions/b{number:08d}-00001.parquet"
            files.append(self.add("decisions", name, table))
        if letters:
            names = ("source_partition_id", "offset", "length", "reason", "detail", "raw")
            columns = dict(zip(names, zip(*letters, strict=True), strict=True))
            table = pa.table({name: list(values) for name, values in columns.items()})
            name = f"dead_letters/b{number:08d}-00002.parquet"
            files.append(self.add("dead_letters", name, table))
        return files

    @property
    def schema(self) -> pa.Schema:
        schema = ARROW
        if self.spec.sink.position_columns:
            schema = schema.append(pa.field("_semel_source", pa.int64()))
            schema = schema.append(pa.field("_semel_offset", pa.int64()))
        return schema

    def add(self, kind: str, name: str, table: pa.Table) -> dict:
        """Write a file and return how a marker lists it."""
        path = self.root_of(kind) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".jsonl"):
            rows = [{k: v.isoformat() if k == "at" and v else v for k, v in row.items()}
                    for row in table.to_pylist()]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif name.endswith(".csv"):
            rows = [table.column_names, *(row.values() for row in table.to_pylist())]
            path.write_text("".join(",".join(map(_field, row)) + "\n" for row in rows))
        else:
            pq.write_table(table, path)
        root = "sink" if kind == "data" else "archive"
        return {"kind": kind, "root": root, "path": name, "records": table.num_rows, **_seal(path)}

    def _mark(self, number, claims, counts, files) -> None:
        schema = self.schema
        self.rewrite_marker(
            number,
            {
                "format": 4, "pipeline": "clicks", "batch_id": number, "fence": 1,
                "request_key": f"run-{number}", "commit_seq": number,
                "bucket_seconds": 81_000,
                "batch_time": (START + timedelta(hours=number)).isoformat(),
                "interval": [None, None], "spec": self.spec.to_json(),
                **({"parser_rules": self.rules} if self.rules > 1 else {}),
                "spec_digest": self.spec.digest(), "input_digest": "0",
                "sink_schema": [[field.name, str(field.type)] for field in schema],
                "counts": counts, "claims": claims, "files": files,
                "sink": {"type": "files", "address": str(self.path)},
            },
        )  # fmt: skip

    def marker_path(self, number: int) -> Path:
        return self.archive / "markers" / f"b{number:08d}.json"

    def root_of(self, kind: str) -> Path:
        return self.path if kind == "data" else self.archive

    def marker(self, number: int) -> dict:
        return json.loads(self.marker_path(number).read_text())

    def rewrite_marker(self, number: int, content: dict) -> None:
        self.marker_path(number).parent.mkdir(parents=True, exist_ok=True)
        self.marker_path(number).write_text(json.dumps(content))

    def rewrite(self, number: int, kind: str, change, *, at: int = 0) -> Path:
        """Change a file's table, and let the marker lie about it: size, checksum and rows."""
        content = self.marker(number)
        entry = [file for file in content["files"] if file["kind"] == kind][at]
        path = self.root_of(kind) / entry["path"]
        table = change(pq.read_table(path, partitioning=None))
        pq.write_table(table, path)
        entry.update(records=table.num_rows, **_seal(path))
        self.rewrite_marker(number, content)
        return path


def _field(value: object) -> str:
    """A field of CSV: all that is not null is quoted."""
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return '"' + text.replace('"', '""') + '"'


def _folder(key: str, value: object) -> str:
    text = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(str(value), safe="")
    return f"{key}={text}"


def _seal(path: Path) -> dict:
    data = path.read_bytes()
    return {"bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}


def _claim(path: Path, ordinal: int, part: int, start: int, end: int) -> dict:
    data, status = path.read_bytes(), path.stat()
    head = min(4096, len(data))
    return {
        "ordinal": ordinal, "source_partition_id": part, "name": str(path),
        "identity": f"{status.st_dev}:{status.st_ino}", "start": start, "end": end,
        "evidence": {
            "head_length": head, "head_hash": xxhash.xxh3_128_hexdigest(data[:head]),
            "tail_hash": xxhash.xxh3_128_hexdigest(data[max(0, end - 4096) : end]),
        },
    }  # fmt: skip
