"""The declaration of a table of BigQuery as a sink."""

from typing import ClassVar, Literal

from pydantic import Field

from semel.declare.parts import Text
from semel.declare.place import TABLE, Location
from semel.sinks.spec import ServiceSinkSpec


class BigQuerySinkSpec(ServiceSinkSpec):
    """A BigQuery table. One load job appends the rows of a batch. Experimental."""

    no_aggregate_reason: ClassVar[str] = (
        "nothing there can merge partial rows; write to files or a PostgreSQL table"
    )
    type: Literal["bigquery"]
    """The kind of sink."""
    connection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection, of type google_cloud_platform; null: the machine's credentials."""
    project: str = Field(pattern=r"^[a-z][a-z0-9.:-]*$")
    """The project of the table, in which the load jobs also run."""
    location: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """The location of the table's dataset, such as `EU` or `europe-west3`. Job ids are unique
    within it."""
    table: str = Field(pattern=r"^[A-Za-z0-9_]+\.[A-Za-z0-9_-]+$")
    """The table, as dataset.table. One table, one pipeline."""
    archive: Text | None = None
    """The folder of markers and more, or the URL of a store; null: `<pipeline>/` below
    SEMEL_ARCHIVES, or else `_semel/<pipeline>/` below the first data root."""
    position_columns: bool = Field(default=False, strict=True)
    """Add the record's source partition and position as columns _semel_source and _semel_offset."""

    place: ClassVar[tuple[str, ...]] = ("connection", "project", "location", "table")
    way: ClassVar[tuple[str, ...]] = ("connection",)
    located_by: ClassVar[str] = "table"

    def describe(self) -> str:
        """The table."""
        return f"table `{self.project}.{self.table}` of BigQuery in `{self.location}`"

    def dataset(self, address: str) -> tuple[str, str]:  # noqa: ARG002 - the table says it
        """Project, dataset and table."""
        return "bigquery", f"{self.project}.{self.table}"

    def whereabouts(self) -> Location:
        """The table, without its location: a project has each dataset name only once."""
        name = f"{self.project}.{self.table}"
        return Location(kind=TABLE, name=name, servers=frozenset({"bigquery"}))


DECLARED = BigQuerySinkSpec
