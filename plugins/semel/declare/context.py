"""What of a pipeline its source, its sink and the formats of their files may know."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.declare.ddl import ColumnType
from semel.declare.naming import Naming
from semel.declare.parts import Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from semel.declare.aggregate import Aggregate
    from semel.model.windows import Windows


@dataclass(frozen=True)
class Counting:
    """How partial rows are merged: what is counted, and in which windows of time."""

    aggregate: "Aggregate"
    windows: "Windows"


@dataclass(frozen=True, kw_only=True)
class Context:
    """A part of a pipeline's declaration. It goes to tasks, and holds no secret.

    `declared`: the keys of the source, or those of the sink. `columns`: the parsed type of each
    column, in order, where the rows are those of the source. `by_position`: as of the pipeline. `counting`:
    of one with `aggregate`.
    """

    name: str
    declared: Any
    columns: dict[str, ColumnType]
    record_id: tuple[str, ...]
    by_position: bool
    limits: Limits
    counting: Counting | None = None
    record_time: str | None = None

    @property
    def naming(self) -> Naming:
        """The names that files of the source have for its columns."""
        needed = frozenset(filter(None, (*self.record_id, self.record_time)))
        return replace(self.declared.naming, needed=needed)

    @property
    def json_columns(self) -> tuple[str, ...]:
        """The columns that hold JSON as text."""
        return tuple(name for name, kind in self.columns.items() if kind.word == "json")

    def arrow_schema(self) -> "pa.Schema":
        """The columns in Arrow; all may be null, because a record may lack any."""
        import pyarrow as pa

        return pa.schema([(name, kind.arrow()) for name, kind in self.columns.items()])
