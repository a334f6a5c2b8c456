"""The declaration of objects of a store as a source."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from semel.clients.objects.access import URL, Place
from semel.declare import ddl
from semel.declare.parts import OnRefused, Select, Text, Unknown
from semel.declare.place import reached
from semel.formats.table import SOURCES, source_format
from semel.sources.messages import CONNECTION
from semel.sources.objects.times import Times
from semel.sources.spec import Csv, Records

if TYPE_CHECKING:
    from semel.clients.objects import Store


class ObjectsSource(Records):
    """Objects below a prefix, each whole when it appears."""

    page: ClassVar[str] = "objects"
    part: ClassVar[str] = "object"
    complete: ClassVar[str] = "record"
    awaited: ClassVar[str] = "an object that can be read"
    expires: ClassVar[str] = "somebody, or a rule of the store, has deleted what was read"
    limits: ClassVar[str] = "limits.bytes_per_batch_max"
    aside: ClassVar[tuple[str, ...]] = (*Records.aside, "connection", "ordered")

    type: Literal["objects"]
    """The kind of source."""
    url: str = Field(pattern=URL)
    """The bucket or container and a prefix that ends before a slash: s3://bucket/prefix,
    gs://bucket/prefix, az://container/prefix. All below it is read."""
    connection: str | None = Field(default=None, pattern=CONNECTION)
    """The Airflow connection (aws, google_cloud_platform or wasb); on the command line and in
    Spark's executors the variable AIRFLOW_CONN_<CONNECTION>. Without one, the machine's role."""
    pattern: Text = "*"
    """Which keys below the prefix: *, ? and [...]; a * goes over slashes too. Keys with a part that
    begins with _ or . are passed over, and objects of no bytes."""
    format: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    """jsonl: one JSON object a line. csv: a header, then one record a line. parquet. Keys that end
    in .gz and .zst are unpacked, but for Parquet."""
    interval_from: Text | None = None
    """Where an object's time is read: a strptime pattern of its key ("%Y/%m/%d.jsonl"), or of how
    that begins, where it ends with a slash ("dt=%Y-%m-%d/"), or "mtime". With a slash, only the
    folders of a run's interval are listed."""
    ordered: bool = Field(default=False, strict=True)
    """New keys are always greater than all before, so a run lists from what is not read yet on. A
    key that appears before is never read."""

    @property
    def unit(self) -> str:  # type: ignore[override]
        """What positions count: of rows, an object has no bytes that are a record."""
        return source_format(self.format).unit

    @classmethod
    def unit_of(cls, stored: Mapping[str, Any]) -> str:
        """As in `Records`."""
        return source_format(stored["format"]).unit

    @property
    def beside(self) -> dict[str, str]:
        """All columns, where a record is a row and has no text."""
        is_rows = source_format(self.format).sealed
        return {name: f"column {name}" for name in self.columns} if is_rows else {}

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared, or what is right for the selection."""
        by_interval = self.select is Select.INTERVAL
        return self.on_refused or (OnRefused.FAIL if by_interval else OnRefused.WARN)

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connection, where one is declared."""
        return (self.connection,) if self.connection else ()

    @property
    def times(self) -> Times:
        """How an object's time is told."""
        return Times(rule=self.interval_from)

    def opened_store(self) -> "Store":
        """The store, which is not asked yet. TerminalError: as `Store`."""
        from semel.clients.objects import Store

        return Store(self.url, self.connection)

    def describe(self) -> str:
        """Where, and its format."""
        where = reached(self.connection, None) if self.connection else "by the machine's role"
        return f"objects below `{self.url}` ({where}), {self.format}"

    def selected_by(self) -> str:
        """What gives an object its time."""
        return f"`{self.interval_from}`"

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The prefix."""
        place = Place.of(self.url)
        return [(f"{place.service}://{place.bucket}", place.prefix or "/")]

    @field_validator("url", mode="before")
    @classmethod
    def _url(cls, found: object) -> object:
        # In words of its own: who puts a login into a URL is not to read it in a log.
        if isinstance(found, str) and not re.fullmatch(URL, found):
            raise ValueError(
                "is no URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix;"
                " a login belongs in a connection"
            )
        if isinstance(found, str) and {".", "..", ""} & {*found.rstrip("/").split("/")[3:]}:
            raise ValueError("has an empty part or one of dots; write the prefix without")
        return found

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        by_interval = self.select is Select.INTERVAL
        if by_interval and self.interval_from is None:
            yield ("interval_from",), (
                'is missing: select: interval needs a pattern of the keys ("dt=%Y-%m-%d/") or '
                '"mtime"'
            )
        if not by_interval and self.interval_from is not None:
            yield ("interval_from",), "has no meaning with select: arrival; leave it out"
        if self.interval_from and (why := self.times.problem()):
            yield ("interval_from",), why
        if self.ordered and by_interval:
            yield ("ordered",), "has no meaning with select: interval; leave it out"
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if form.unknown and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), (
                f"{self.unknown} has no meaning with format: {self.format}: {form.unknown}; leave "
                "it out"
            )
        if self.format != "csv" and self.csv != Csv():
            yield ("csv",), f"has no meaning with format: {self.format}; leave it out"


DECLARED = (ObjectsSource,)
