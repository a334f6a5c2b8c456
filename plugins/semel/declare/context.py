"""The part of a declaration that the source, the sink and their file formats may read."""

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
    """The rules to merge partial rows: the aggregates and the windows of time."""

    aggregate: "Aggregate"
    windows: "Windows"


@dataclass(frozen=True, kw_only=True)
class Context:
    """A part of a pipeline's declaration. It goes to tasks, and does not contain secrets.

    `declared`: the source's or the sink's declaration. `columns`: the parsed type of each column,
    in order; empty for a sink after transforms or aggregate. `by_position`: as in Spec.
    `counting`: only with `aggregate`.
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
        """The columns with JSON as text."""
        return tuple(name for name, kind in self.columns.items() if kind.word == "json")

    def arrow_schema(self) -> "pa.Schema":
        """The columns in Arrow; all may be null, because a record may lack any."""
        import pyarrow as pa

        return pa.schema([(name, kind.arrow()) for name, kind in self.columns.items()])
