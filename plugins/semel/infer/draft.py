"""A pipeline drafted from sample files, and the trial read of it by semel's own parser."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel import settings
from semel.declare.parts import GLOB, RESERVED_PREFIX, Limits
from semel.declare.wording import FILES_NAMED_MAX, KEYS_NAMED_MAX
from semel.errors import NO_STEP, SourceError, TerminalError
from semel.formats.csv import CsvFormat
from semel.formats.declared import format_of
from semel.formats.jsonl import JsonLines
from semel.formats.jsontext import keys_of
from semel.formats.records import printable
from semel.infer import names
from semel.infer.dialect import InferredDialect, column_problem, dialect_of, not_utf8, parts_of
from semel.infer.identity import ProposedId, identity, record_time
from semel.infer.parse import blocks
from semel.infer.sample import Sampled, Samples, told
from semel.infer.types import Guess, type_of, widest
from semel.infer.write import spec_of
from semel.pipeline.opening import open_source
from semel.sources import quoted

NEW_KEYS_MAX = 200
"""Keys of JSON records that it makes columns of: more are data, and go into one column."""

RATIO_MAX: float = Limits().quarantine_ratio_max
"""A larger share of bad records stops a batch, so a draft stays below it."""

_MISSING, _ENCODING = "id_missing", "encoding"


@dataclass(frozen=True, kw_only=True)
class PipelineDraft:
    """A declaration in the making. What a person may change has its own field."""

    name: str
    dialect: InferredDialect
    """Of all samples; `dialects` are those of the filled ones, each with its own header."""
    dialects: tuple[InferredDialect, ...]
    path: str
    guesses: dict[str, Guess]
    left_out: dict[str, int]
    """Keys that are no columns, with the number of records that have them."""
    identity: ProposedId
    record_id: tuple[str, ...]
    record_time: str | None
    dates: names.Dates | None
    open_ends: tuple[Path, ...]
    """Samples whose last record has no line end."""
    optional: tuple[str, ...]
    """Columns that some samples lack."""
    sink: str

    @property
    def waits(self) -> bool:
        """Whether something is read only once its file is as old as `closed_after`."""
        return bool(self.open_ends) or self.dialect.csv.multiline

    def document(self) -> dict[str, Any]:
        """The declaration as plain data; keys in the order of the file."""
        source: dict[str, Any] = {"type": "files", "path": self.path}
        source["format"] = self.dialect.format
        said, plain = asdict(self.dialect.csv), asdict(CsvFormat())
        if said != plain:
            source["csv"] = {key: value for key, value in said.items() if value != plain[key]}
        if self.left_out:
            source["unknown"] = "keep"
        if self.dates is not None:
            source |= {"select": "interval", "interval_from": self.dates.pattern}
        if self.waits:
            source["closed_after"] = "1 minute"
        source["schema"] = {name: guess.type for name, guess in self.guesses.items()}
        if self.optional:
            source["columns"] = {name: {"optional": True} for name in self.optional}
        found: dict[str, Any] = {"name": self.name}
        if self.dates is not None and self.dates.schedule:
            found["schedule"] = self.dates.schedule
        found["source"] = source
        if self.record_id:
            found["record_id"] = list(self.record_id)
        if self.record_time is not None:
            found["record_time"] = self.record_time
        return found | {"sink": {"type": "files", "path": self.sink, "format": "parquet"}}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What semel's parser made of the samples. `reasons` counts the quarantined ones."""

    records: int
    reasons: dict[str, int]
    example: str | None

    @property
    def quarantined(self) -> int:
        """All records that were set aside."""
        return sum(self.reasons.values())

    @property
    def told(self) -> str:
        """The reasons with their numbers."""
        return ", ".join(f"{reason} {count:,}" for reason, count in self.reasons.items())

    @property
    def fits(self) -> bool:
        """Whether a batch of such records is taken."""
        return self.quarantined <= RATIO_MAX * self.records


def draft(name: str, samples: Samples) -> PipelineDraft:
    """What the samples say. SourceError says why semel cannot read them.

    TerminalError: they lie where no source may.
    """
    filled = samples.filled
    dialects = [dialect_of(one) for one in filled]
    _check_alike(name, filled, dialects)
    path = _source_path(name, samples)
    # If one file has fields that hold line ends, or escapes, others may.
    dialect = max(dialects, key=lambda one: one.csv.multiline)
    escape = next((one.csv.escape for one in dialects if one.csv.escape), None)
    dialect = replace(dialect, csv=replace(dialect.csv, escape=escape))
    if dialect.format == "csv":
        left_out, texts = {}, _columns_of_csv(filled, dialects)
    else:
        left_out, texts = _columns_of_json(filled)
    guesses = {
        name: type_of(dialect.format, name, column, RATIO_MAX)
        for name, column in zip(texts.column_names, texts.columns, strict=True)
    }
    texts = _fitting(texts, guesses)
    optional = tuple(
        name for name in _widest(dialects).columns
        if any(name not in one.columns for one in dialects)
    )  # fmt: skip
    sure = {name: guess for name, guess in guesses.items() if name not in optional}
    found = identity(texts, sure) if texts.num_rows else ProposedId()
    return PipelineDraft(
        name=name,
        dialect=dialect,
        dialects=tuple(replace(one, csv=dialect.csv) for one in dialects),
        path=path,
        guesses=guesses,
        left_out=left_out,
        identity=found,
        record_id=found.record_id,
        record_time=record_time(sure),
        dates=names.dates_in(sorted({path.name for path in samples.named})),
        open_ends=tuple(one.path for one in filled if one.open_end),
        optional=optional,
        sink=f"out/{name}",
    )


def trial(made: PipelineDraft, samples: Samples) -> Trial:
    """Read the samples with the drafted spec. SpecError: something that a person answered is no
    declaration.
    """
    spec = spec_of(made.document())
    form, schema = format_of(spec.of_source()), spec.arrow_schema()
    records, reasons, example = 0, Counter[str](), None
    for one, dialect in zip(samples.filled, made.dialects, strict=True):
        for part in parts_of(one, dialect):
            columns = list(dialect.columns)
            for block in blocks(part, schema, form, columns, spec.record_id):
                missing = _without_id(block.table, spec.record_id)
                records += block.table.num_rows + len(block.faults)
                found = Counter(str(reason) for reason, _ in block.faults.values())
                reasons += found + Counter({_MISSING: missing})
                if block.faults and example is None:
                    at = min(block.faults)
                    reason, why = block.faults[at]
                    example = f"{told(Path(one.path.name))}: {reason} ({printable(why)})"
    return Trial(records=records, reasons=dict(reasons), example=example)


def widened(made: PipelineDraft, samples: Samples) -> tuple[PipelineDraft, Trial]:
    """The draft, its columns made wider until a batch of such records is taken; and its trial.

    SourceError: the records are bad in another way, such as the number of their fields.
    """
    while True:
        tried = trial(made, samples)
        if not tried.records:
            raise SourceError("the samples hold no record; name files that hold some")
        if tried.fits:
            return made, tried
        worst = max(made.guesses, key=lambda name: made.guesses[name].exceptions)
        guess = made.guesses[worst]
        if not guess.exceptions:
            other = filter(None, map(not_utf8, samples.read)) if _ENCODING in tried.reasons else ()
            raise SourceError(
                f"{tried.quarantined:,} of {tried.records:,} records of the samples cannot be read "
                f"({tried.told}); one of them: {tried.example}; {next(iter(other), 'correct the files')}"
            )
        guesses = made.guesses | {worst: widest(guess, made.dialect.format)}
        made = replace(
            made,
            guesses=guesses,
            record_id=tuple(name for name in made.record_id if name != worst),
            record_time=None if made.record_time == worst else made.record_time,
        )


@dataclass(frozen=True, kw_only=True)
class SourceFinding:
    """What the source shows now: `files`, and `refused` ones with the reason of the first.

    `days`: the first day of the files' times and the day after the last one, with
    `select: interval`.
    """

    files: int
    refused: int
    reason: str | None
    days: tuple[date, date] | None


def find(made: PipelineDraft, samples: Samples) -> SourceFinding:
    """What the drafted source shows. SourceError: a sample is refused, or not found."""
    shown = open_source(spec_of(made.document())).discover()
    names_found = {one.name for one in shown.items}
    refused = {one.name: f"{one.reason}: {one.detail}" for one in shown.refusals}
    for path in samples.named:
        if str(path) not in names_found:
            why = refused.get(str(path)) or f"{made.path!r} does not find it"
            raise SourceError(f"{told(path)}: {why}")
    times = [one.when for one in shown.items if one.when is not None]
    days = (min(times).date(), max(times).date() + timedelta(days=1)) if times else None
    first = next((f"{name!r}: {why}" for name, why in refused.items()), None)
    return SourceFinding(files=len(names_found), refused=len(refused), reason=first, days=days)


def _without_id(table: pa.Table, record_id: tuple[str, ...]) -> int:
    missing = pa.scalar(False)
    for name in record_id:
        missing = pc.or_(missing, table.column(name).is_null())
    return pc.sum(missing).as_py() or 0 if record_id and table.num_rows else 0


def _check_alike(name: str, files: list[Sampled], dialects: list[InferredDialect]) -> None:
    """SourceError if the samples are not files of one source; its next step names the one with most
    columns, and all that are like it or lack some of these.
    """
    first = _widest(dialects)
    path = files[dialects.index(first)].path
    for one, dialect in zip(files, dialects, strict=True):
        if not _is_part(dialect, first):
            why = (
                f"is {_told(dialect)}, {told(path)} is {_told(first)}; a pipeline reads "
                "files of one kind, so make one for each"
            )
        elif _marks(dialect) != _marks(first):
            why = (
                f"is written with the delimiter {dialect.csv.delimiter!r} and the quote "
                f"{dialect.csv.quote!r}, {told(path)} with {first.csv.delimiter!r} and "
                f"{first.csv.quote!r}; make a pipeline for each"
            )
        else:
            continue
        alike = (
            quoted(str(file.path)) for file, other in zip(files, dialects, strict=True)
            if _is_part(other, first) and _marks(other) == _marks(first)
        )
        raise SourceError(
            f"{told(one.path)} {why}", next=f"semel new {quoted(name)} {' '.join(alike)}"
        )


def _widest(dialects: list[InferredDialect]) -> InferredDialect:
    """The first one with the most columns, of those in the first one's format."""
    alike = (one for one in dialects if one.format == dialects[0].format)
    return max(alike, key=lambda one: len(one.columns))


def _is_part(dialect: InferredDialect, whole: InferredDialect) -> bool:
    """Whether files of one header may be files of the other that lack columns."""
    return dialect.format == whole.format and {*dialect.columns} <= {*whole.columns}


def _marks(dialect: InferredDialect) -> tuple[str, str]:
    return dialect.csv.delimiter, dialect.csv.quote


def _told(dialect: InferredDialect) -> str:
    if dialect.format != "csv":
        return dialect.format
    columns = ", ".join(dialect.columns[: KEYS_NAMED_MAX])
    return f"csv with {len(dialect.columns)} columns ({printable(columns)})"


def _columns_of_csv(files: list[Sampled], dialects: list[InferredDialect]) -> pa.Table:
    """All good records as text, with the columns in the order of the header with the most."""
    order = _widest(dialects).columns
    schema = pa.schema([(name, pa.string()) for name in order])
    tables = [
        block.table.select(order)
        for one, dialect in zip(files, dialects, strict=True)
        for part in parts_of(one, dialect)
        for block in blocks(part, schema, dialect.csv, list(dialect.columns))
    ]
    return pa.concat_tables([schema.empty_table(), *tables])


def _columns_of_json(files: list[Sampled]) -> tuple[dict[str, int], pa.Table]:
    """The keys that are no columns; and all good records as texts of values, with the other keys
    in the order in which they come.
    """
    parts = [part for one in files for part in one.parts]
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(_keys(part))
    keys, left_out = _declared(counts)
    if not keys:
        raise SourceError("the samples' objects have no key that a column can be made of")
    schema = pa.schema([(name, pa.string()) for name in keys])
    form = JsonLines(json=tuple(keys))
    tables = [block.table.select(keys) for part in parts for block in blocks(part, schema, form)]
    return left_out, pa.concat_tables([schema.empty_table(), *tables])


def _fitting(texts: pa.Table, guesses: Mapping[str, Guess]) -> pa.Table:
    """The records whose values fit: the others are quarantined, and never meet another one's id."""
    for name, guess in guesses.items():
        column = texts.column(name)
        if guess.exceptions:
            texts = texts.filter(pc.invert(pc.is_in(column, guess.unfit.cast(column.type))))
    return texts


def _keys(part: bytes) -> Counter[str]:
    """The keys of objects, each with the number of records that have it."""
    counts: Counter[str] = Counter()
    nobody = pa.schema([(f"{RESERVED_PREFIX}_no_key", pa.string())])
    for block in blocks(part, nobody, JsonLines()):
        good = block.lines.without(block.faults)
        if len(good):
            counts.update(itertools.chain.from_iterable(keys_of(good.packed())))
    return counts


def _declared(counts: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """The keys that become columns, and the others: too many, and names that no schema takes, or
    none with a column of type json, which any key may turn out to be.
    """
    seen: set[str] = set()
    able = []
    for key in counts:
        strange = column_problem(key) or any(char in '\\"' for char in key)
        if not strange and key.lower() not in seen:
            seen.add(key.lower())
            able.append(key)
    kept = set(sorted(able, key=lambda key: -counts[key])[:NEW_KEYS_MAX])
    keys = [key for key in able if key in kept]
    return keys, {key: count for key, count in counts.items() if key not in kept}


def _source_path(name: str, samples: Samples) -> str:
    """source.path: relative to the first data folder, or absolute in another one.

    TerminalError: the samples lie elsewhere, or in no folder of their own.
    """
    roots = settings.data_roots()
    folder = roots[0] / name
    root = next((r for r in roots if all(p.is_relative_to(r) for p in samples.named)), None)
    some = samples.named[:FILES_NAMED_MAX]
    there = " ".join(quoted(str(path)) for path in some)
    kept = " ".join(quoted(str(folder / path.name)) for path in some)
    where = quoted(str(folder))
    # Of more files the pipeline would lack some, and those of one name would replace each other.
    is_whole = len({path.name for path in some}) == len(samples.named)

    def by(command: str) -> str:
        step = f"mkdir -p {where} && {command} {there} {where} && semel new {name} {kept}"
        return step if is_whole else NO_STEP

    if root is None:
        raise TerminalError(
            f"the samples lie outside of the data folders {os.pathsep.join(map(str, roots))}; copy "
            f"them into one, or name theirs in {settings.DATA_VARIABLE}",
            next=by("cp"),
        )
    pattern = names.source_pattern(
        [PurePosixPath(path.relative_to(root)) for path in samples.named]
    )
    first = PurePosixPath(pattern).parts
    if len(first) == 1 or GLOB.search(first[0]):
        raise TerminalError(
            f"the samples have no folder of their own below the data folder {root}, where the "
            "output lies as well, or its name holds what a pattern takes for something else; give "
            "them one",
            next=by("mv"),
        )
    return pattern if root == roots[0] else str(PurePosixPath(root) / pattern)
