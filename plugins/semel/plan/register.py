"""Registration, before each plan: make the pipeline's row once, and check it against the spec."""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from semel import storage
from semel.archive import layout, ownership
from semel.errors import NO_STEP, TerminalError
from semel.ledger import change, pipelines, row, transition
from semel.model.batch import Pipeline
from semel.pipeline import identity
from semel.pipeline.opening import elsewhere
from semel.pipeline.spec import Spec
from semel.sinks import Sink
from semel.storage import packs


@dataclass(frozen=True, kw_only=True)
class DeclaredPlace:
    """The declared place of a pipeline's output: its sink, and the folder of its archive."""

    sink: Sink
    archive: str

    @classmethod
    def of(cls, spec: Spec, sink: Sink, pipeline: Pipeline | None) -> "DeclaredPlace":
        """The declared archive, or else the current one, which moves only with its sink."""
        if spec.sink.archive is None and pipeline and pipeline.sink_address == sink.address:
            return cls(sink=sink, archive=pipeline.archive_path)
        return cls(sink=sink, archive=str(layout.archive_folder(spec)))

    @property
    def address(self) -> str:
        """The address of the sink."""
        return self.sink.address

    def is_of(self, pipeline: Pipeline) -> bool:
        """Whether the pipeline's row names this place."""
        return (self.address, self.archive) == (pipeline.sink_address, pipeline.archive_path)


def register(connection: sa.Connection, spec: Spec, sink: Sink) -> Pipeline:
    """The pipeline's row, which its first plan inserts. `sink` is the declared one.

    Raises TerminalError or StateError if the row contradicts the declaration.
    """
    pipeline = pipelines.find(connection, spec.name)
    place = DeclaredPlace.of(spec, sink, pipeline)
    if pipeline is None:
        pipeline = _insert(connection, spec, place)
    identity.check(pipeline.identity, spec)
    pipeline = _guaranteed(connection, pipeline, spec)
    return pipeline if place.is_of(pipeline) else _moved(connection, pipeline, spec, place)


def _insert(connection: sa.Connection, spec: Spec, place: DeclaredPlace) -> Pipeline:
    """The new row, or that of another plan that registers the pipeline at the same time."""
    if pipelines.owner(connection, place.address, place.archive) is None:
        ownership.refuse_traces(spec, place.sink, storage.at(place.archive))
    change(
        connection,
        "pipelines",
        "insert",
        name=spec.name,
        sink_address=place.address,
        archive_path=place.archive,
        identity=identity.to_text(identity.identity_of(spec)),
        shards=spec.dedup.shards,
        bucket_seconds=spec.bucket_seconds,
        exact_from=spec.exact_from,
    )
    _refuse_owned(connection, spec, place)
    return pipelines.find(connection, spec.name)


def _refuse_owned(connection: sa.Connection, spec: Spec, place: DeclaredPlace) -> None:
    """Raises TerminalError if the sink or the archive belongs to another pipeline."""
    owner = pipelines.owner(connection, place.address, place.archive)
    if owner is None or owner.name == spec.name:
        return
    if owner.sink_address == place.address:
        raise TerminalError(
            f"the sink {place.address} belongs to pipeline {owner.name!r}, and {spec.name!r} would "
            "write its records there again. Nothing was planned. Keep the old name, or declare "
            "another sink",
            next=NO_STEP,  # A command has the old name, or the new one.
        )
    raise TerminalError(
        f"the archive {place.archive} belongs to pipeline {owner.name!r}. Nothing was planned. "
        f"Declare another sink.archive or another sink.path for {spec.name!r}"
    )


# Keeps P24.
def _guaranteed(connection: sa.Connection, pipeline: Pipeline, spec: Spec) -> Pipeline:
    """The pipeline with the declared guarantee. Raises TerminalError if it has output with the
    other guarantee.
    """
    wanted = spec.exact_from
    if (wanted is None) == (pipeline.exact_from is None):
        return pipeline
    values = {"pipeline_id": pipeline.pipeline_id, "exact_from": wanted}
    if row(connection, "pipelines", "guarantee", **values):
        return replace(pipeline, exact_from=wanted)
    if wanted:
        raise TerminalError(
            f"pipeline {spec.name} is declared exactly_once, and its {pipeline.commit_seq} commits "
            "were at_least_once: the catalog does not have their ids, so it would treat their "
            f"records as new if they came again. `semel exact {spec.name}` writes the ids of the horizon "
            "into the catalog. Run it, or put guarantee: at_least_once back",
            next=f"semel exact {spec.name}",
        )
    raise TerminalError(
        f"pipeline {spec.name} is exactly_once from commit {pipeline.exact_from} on, and cannot "
        "become at_least_once, because its readers rely on it. Remove guarantee: at_least_once, or "
        "declare a new pipeline with its own name and sink",
        next=f"semel validate {spec.name}",
    )


# Keeps H3, P15, D9.
def _moved(
    connection: sa.Connection, pipeline: Pipeline, spec: Spec, place: DeclaredPlace
) -> Pipeline:
    """Let the row follow the pipeline's files.

    Raises TerminalError if its output and its archive did not move together, and StateError if the
    sink is a table or a topic whose address has changed, or if a batch is open.
    """
    _refuse_owned(connection, spec, place)
    folder, pipeline_id, old = spec.sink_path(), pipeline.pipeline_id, pipeline.sink_address
    if folder is None and old != place.address:
        raise elsewhere(spec, old, place.address)
    pipelines.lock(connection, pipeline)
    archive = storage.at(place.archive)
    ownership.refuse_foreign_markers(connection, pipeline_id, spec.name, folder, archive)
    last = row(connection, "pipelines", "last_finalized", pipeline_id=pipeline_id)
    if last and not packs.has_marker(layout.marker(archive, last["batch_id"])):
        raise TerminalError(
            f"pipeline {spec.name} is declared with the sink {place.address}, whose archive "
            f"{archive} lacks the marker of batch {last['batch_id']}. Nothing was planned. Move "
            f"both {old} and {pipeline.archive_path} there, or put the declaration back"
        )
    transition(
        connection,
        "pipelines",
        "move_sink",
        f"the sink of {spec.name} cannot move from {old} to {place.address} while a batch is "
        "open. Put the declaration back, then finish or abandon the open batches",
        next=f"semel batches {spec.name}",
        pipeline_id=pipeline_id,
        sink_address=place.address,
        archive_path=place.archive,
    )
    return replace(pipeline, sink_address=place.address, archive_path=place.archive)
