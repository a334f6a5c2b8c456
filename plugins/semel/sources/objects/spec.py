"""The declaration of objects of a store as a source."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from semel.clients.objects.access import URL, StoreLocation, check_url, location
from semel.declare.parts import GLOB, Select, Text
from semel.declare.place import Location, service
from semel.formats.table import SOURCES
from semel.sources import PRIVATE
from semel.sources.formatted import FormattedSourceSpec
from semel.sources.messages import CONNECTION
from semel.sources.objects.times import ObjectTimes

if TYPE_CHECKING:
    from semel.clients.objects import Store


class ObjectsSourceSpec(FormattedSourceSpec):
    """Objects below a prefix, each complete when it appears."""

    page: ClassVar[str] = "objects"
    part: ClassVar[str] = "object"
    complete: ClassVar[str] = "record"
    awaited: ClassVar[str] = "an object that can be read"
    passes_by: ClassVar[str] = (
        "its key sorts before keys that were read, so with source.ordered: true no run reads it. "
        "Declare ordered: false for one run"
    )
    expires: ClassVar[str] = "the objects that were read were deleted, perhaps by a lifecycle rule"
    limits: ClassVar[str] = "limits.bytes_per_batch_max"
    plan_keys: ClassVar[tuple[str, ...]] = (*FormattedSourceSpec.plan_keys, "connection", "ordered")
    begins_anywhere: ClassVar[bool] = False
    pattern_of_time: ClassVar[str] = 'a pattern of the keys ("dt=%Y-%m-%d/")'

    type: Literal["objects"]
    """The kind of source."""
    url: str = Field(pattern=URL)
    """The bucket or container and a prefix that ends before a slash: s3://bucket/prefix,
    gs://bucket/prefix, az://container/prefix. All below it is read."""
    connection: str | None = Field(default=None, pattern=CONNECTION)
    """The Airflow connection (aws, google_cloud_platform or wasb); on the command line and in
    Spark's executors the variable AIRFLOW_CONN_<CONNECTION>. Without one, the machine's role."""
    pattern: Text = "*"
    """Which keys below the prefix: *, ? and [...]; a * goes over slashes too. Empty objects are
    passed over; so are keys with a part that begins with _ or ., unless the pattern has one too."""
    format: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    """jsonl: one JSON object a line. csv: a header, then one record a line. parquet. Keys that end
    in .gz and .zst are unpacked, except Parquet."""
    interval_from: Text | None = None
    """Where an object's time is read: a strptime pattern of its key ("%Y/%m/%d.jsonl"), or of how
    that begins, where it ends with a slash ("dt=%Y-%m-%d/"), or "mtime". With a slash, only the
    folders of a run's interval are listed."""
    ordered: bool = Field(default=False, strict=True)
    """New keys are always greater than all before, so a run lists from what is not read yet on. A
    key that appears before is never read."""

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connection, if one is declared."""
        return (self.connection,) if self.connection else ()

    @property
    def times(self) -> ObjectTimes:
        """The rule for the time of an object."""
        return ObjectTimes(rule=self.interval_from)

    def open_store(self) -> "Store":
        """The store, before any request. Raises TerminalError as `Store` does."""
        from semel.clients.objects import Store

        return Store(self.url, self.connection)

    def describe(self) -> str:
        """The source in words: its place and format."""
        where = service(self.connection, None) if self.connection else "by the machine's role"
        return f"objects below `{self.url}` ({where}), {self.format}"

    def place(self) -> Location:
        """The prefix as a location."""
        return location(StoreLocation.of(self.url), self.connection)

    def reads_from(self, place: Location) -> bool:
        """Whether this source may read the objects of a sink: one prefix contains the other, and
        keys of a sink below may match the pattern.
        """
        prefix = self.place()
        if not prefix.holds(place):
            return place.holds(prefix)
        below = f"{place.name.removeprefix(prefix.name).strip('/')}/".lstrip("/")
        if PRIVATE.search(below) and not PRIVATE.search(self.pattern):
            return False
        first = GLOB.split(self.pattern)[0]
        return below.startswith(first) or first.startswith(below)

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The dataset of the prefix."""
        return [StoreLocation.of(self.url).dataset]

    _url = field_validator("url", mode="before")(check_url)

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if self.interval_from and (why := self.times.problem()):
            yield ("interval_from",), why
        if self.ordered and self.select is Select.INTERVAL:
            yield ("ordered",), "does not apply with select: interval; leave it out"


DECLARED = (ObjectsSourceSpec,)
