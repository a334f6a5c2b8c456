"""The common part of the declarations of sinks that write files."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from string import Formatter
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from semel import limits
from semel.declare.ddl import ColumnType
from semel.declare.parts import FolderWindow, Text, folder_head, twice
from semel.declare.yaml import Key, Problem, Problems
from semel.formats.table import SINKS
from semel.sinks.spec import SinkSpec

if TYPE_CHECKING:
    from semel.model.manifest import StagedFile

FIELDS = ("pipeline", "batch", "part", "fence", "shard", "window")
"""The fields of `sink.file_name`. A window begins and ends with a digit, as a number does."""

LONGEST_WINDOW = "0001-01-01T000000+005328"
"""The longest text of a window in a name."""

_Folder = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[FolderWindow, Tag("[FolderWindow]")],
    Discriminator(
        lambda item: "[FolderWindow]" if isinstance(item, dict | FolderWindow) else "[text]"
    ),
]


class FileSinkSpec(SinkSpec):
    """Files that are only ever added, whole batches at a time."""

    in_files: ClassVar[bool] = True

    format: Literal[tuple(SINKS)]  # type: ignore[valid-type]
    """The format of the files."""
    partition_by: tuple[_Folder, ...] = ()
    """Columns that become folders (column=value), outermost first; and windows of time."""
    shards: int = Field(default=1, ge=1, le=256, strict=True)
    """Files over which each task spreads the rows of a folder, by a hash of their positions."""
    file_name: str = "{pipeline}-b{batch:08d}-{part:05d}"
    """A file's name without extension, from {pipeline}, {batch}, {part}, {fence}, {shard} and
    {window}."""
    position_columns: bool = Field(default=False, strict=True)
    """Add the record's source partition and position as columns _semel_source and _semel_offset."""

    def layout(self) -> str:
        """Its format and folders, in Markdown."""
        names = ", ".join(f"`{name}`" for name in self.folders)
        shards = f", in {self.shards} shards" if self.shards > 1 else ""
        by = f", in folders by {names}" if names else ""
        return f"{self.format}{by}{shards}"

    def folders_bytes_max(self, pipeline: str) -> int:  # noqa: ARG002 - a store's key has its name
        """The maximum bytes of the folders in a file's path."""
        return limits.FOLDERS_BYTES_MAX

    def path_of(
        self, pipeline: str, batch_id: int, fence: int, part: int, file: "StagedFile"
    ) -> str:
        """A file's final path, below the place of the output."""
        from semel.formats.output import folder_texts

        texts = folder_texts(file.folder)
        stem = self.stem(
            pipeline,
            batch=batch_id,
            part=part,
            fence=fence,
            shard=file.shard,
            window=next((texts[one.name] for one in self.windows), None),
        )
        return f"{file.folder}/{stem}{file.suffix}".lstrip("/")

    @field_validator("file_name")
    @classmethod
    def _file_name(cls, template: str) -> str:
        if why := _template_problem(template):
            raise ValueError(f"{template!r} {why}")
        return template

    @field_validator("partition_by")
    @classmethod
    def _partition_by(cls, folders: tuple[_Folder, ...]) -> tuple[_Folder, ...]:
        names = tuple(one if isinstance(one, str) else one.name for one in folders)
        if name := twice(names):
            raise ValueError(f"names {name!r} twice")
        for name in names:
            # Keeps S27.
            if (size := len(folder_head(name).encode())) >= limits.FOLDER_NAME_BYTES_MAX:
                raise ValueError(
                    f"{name[:20]!r}... is too long for the name of a folder: it has {size} bytes "
                    f"with =, and with a value at most {limits.FOLDER_NAME_BYTES_MAX} are possible"
                )
        if name := next((name for name in names if name[0] in "._"), None):
            raise ValueError(f"{name!r} begins with '.' or '_': readers skip it as a hidden folder")
        return folders

    @model_validator(mode="after")
    def _check(self) -> "FileSinkSpec":
        fields = {field for _, field, *_ in Formatter().parse(self.file_name)}
        if "window" in fields and len(self.windows) != 1:
            why = f"has {{window}}, and partition_by has {len(self.windows)} windows, not one"
            raise Problems([Problem(("file_name",), why)])
        return self

    def column_problems(
        self, columns: Mapping[str, ColumnType], listing: str
    ) -> Iterator[tuple[Key, str]]:
        """Checks also that each folder's column exists, and that one column is not a folder."""
        by_columns = [(at, one) for at, one in enumerate(self.partition_by) if isinstance(one, str)]
        for at, name in by_columns:
            if name not in columns:
                yield ("partition_by", at), f"{name!r} is not a column; {listing}"
            elif not columns[name].identifies:
                why = f"{name!r} is {columns[name]}, whose values cannot name a folder"
                yield ("partition_by", at), why
        if len(by_columns) >= len(columns):
            yield ("partition_by",), "has every column, so no column is left for the files"
        yield from super().column_problems(columns, listing)
        yield from self.window_problems({name: str(kind) for name, kind in columns.items()})

    def window_problems(self, kinds: Mapping[str, str]) -> Iterator[tuple[Key, str]]:
        """Why an output cannot have the declared windows: problems by the keys of this declaration.

        `kinds`: the type of each column of the output. The type of moments is called `timestamp`,
        that of days `date`.
        """
        listing = f"the output has {', '.join(kinds)}"
        columns = {name.lower() for name in kinds}
        for at, folder in enumerate(self.partition_by):
            if isinstance(folder, str):
                continue
            kind = kinds.get(folder.of)
            if kind is None:
                yield ("partition_by", at, "of"), f"{folder.of!r} is not a column; {listing}"
            elif kind not in ("timestamp", "date"):
                why = f"{folder.of!r} is {kind}, not a timestamp or date"
                yield ("partition_by", at, "of"), why
            elif kind == "date" and (folder.window % timedelta(days=1) or folder.zone != "UTC"):
                yield ("partition_by", at, "of"), (
                    f"{folder.of!r} is a date without hours or zone: declare a window of 1 day or "
                    "1 week, without a zone"
                )
            if folder.name.lower() in columns:
                why = f"{folder.name!r} is a column: give the folder another name"
                yield ("partition_by", at, "name"), why


# Keeps L1.
def _template_problem(template: str) -> str | None:
    """The problem of sink.file_name, or None. Each (batch, part) MUST have a name of its own."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"is not a template: {error}"
    literals = "".join(literal for literal, *_ in parts)
    if not re.fullmatch(r"[A-Za-z0-9._-]*", literals, re.ASCII):
        return "may contain only letters, digits, '.', '_', '-' and fields"
    if template[:1] in (".", "_", "-"):
        return "begins with '.', '_' or '-': readers such as Spark skip it as a hidden file"
    separated, fields = True, []
    for literal, field, spec, conversion in parts:
        separated = separated or bool(re.search(r"[^0-9]", literal))
        if field is None:
            continue
        if field not in FIELDS:
            return f"has the unknown field {{{field}}}; known: {', '.join(FIELDS)}"
        number = field not in ("pipeline", "window")
        if conversion or not re.fullmatch(r"(0[0-9]{1,2}d)?" if number else "", spec):
            return f"formats {{{field}}} in another way than {{batch:08d}}"
        if field != "pipeline" and not separated:
            return f"has a number right before {{{field}}}: 1 and 12 would look like 11 and 2"
        separated = field == "pipeline"
        fields.append(field)
    if missing := {"batch", "part"} - set(fields):
        return f"lacks {{{sorted(missing)[0]}}}: two files would have one name"
    large = dict.fromkeys(("part", "fence", "shard"), 1 << 31)
    longest = template.format(pipeline="p" * 63, batch=1 << 62, window=LONGEST_WINDOW, **large)
    if len(longest) > limits.FILE_NAME_BYTES_MAX:
        return f"can grow longer than {limits.FILE_NAME_BYTES_MAX} bytes"
    return None
