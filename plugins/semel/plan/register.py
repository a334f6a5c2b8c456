"""Registration, before each plan: make the pipeline's row once, and check it against the spec."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from semel import failpoints
from semel.archive import layout, owned
from semel.errors import NO_STEP, TerminalError
from semel.ledger import Ledger, change, pipelines, row, transition
from semel.model.batch import Pipeline
from semel.pipeline import identity
from semel.pipeline.opening import elsewhere, open_sink
from semel.pipeline.spec import Spec
from semel.sinks import Sink


def register(ledger: Ledger, spec: Spec) -> Pipeline:
    """The pipeline's row, made at its first plan. TerminalError: it contradicts the spec."""
    with registering(ledger, spec) as (_, pipeline):
        return pipeline


@contextmanager
def registering(ledger: Ledger, spec: Spec) -> Iterator[tuple[sa.Connection, Pipeline]]:
    """As `register`, with the transaction that read the row, for further reads."""
    with ledger.transaction() as connection:
        found = pipelines.find(connection, spec.name)
        sink = open_sink(spec)
        address = sink.address
        kept = str(_archive(spec, found, address))
        if found is None:
            _insert(connection, spec, sink, kept)
        if found is None or _place(found) != (address, kept):  # Otherwise it owns its place.
            owner = pipelines.owner(connection, address, kept)
            if owner is not None and owner.name != spec.name:
                raise _owned(spec, owner, address, kept)
            # Keeps H3.
            if found is not None and spec.sink_path() is None and found.sink_address != address:
                raise elsewhere(spec, found.sink_address, address)
            found = pipelines.find(connection, spec.name)
        identity.check(found.identity, spec)
        found = _guaranteed(connection, found, spec)
        if _place(found) != (address, kept):
            found = _moved(connection, found, spec, address, kept)
        yield connection, found
        failpoints.point("plan.before_register")
    failpoints.point("plan.after_register")


def _place(pipeline: Pipeline) -> tuple[str, str]:
    return pipeline.sink_address, pipeline.archive_path


def _archive(spec: Spec, found: Pipeline | None, address: str) -> Path:
    """The declared archive, else the current one: it moves only with its sink."""
    if spec.sink.archive is None and found is not None and found.sink_address == address:
        return Path(found.archive_path)
    return layout.of(spec)


def _owned(spec: Spec, owner: Pipeline, address: str, kept: str) -> TerminalError:
    if owner.sink_address == address:
        return TerminalError(
            f"the sink {address} belongs to pipeline {owner.name!r}, and {spec.name!r} would "
            "write its records there again; keep the old name, or give this one its own sink",
            next=NO_STEP,  # A command has the old name, or the new one.
        )
    return TerminalError(
        f"the archive {kept} belongs to pipeline {owner.name!r}; give {spec.name!r} one of its "
        "own by sink.archive, or another sink.path"
    )


def _insert(connection: sa.Connection, spec: Spec, sink: Sink, kept: str) -> None:
    if pipelines.owner(connection, sink.address, kept) is None:
        owned.refuse_traces(spec, sink, Path(kept))
    change(
        connection,
        "pipelines",
        "insert",
        name=spec.name,
        sink_address=sink.address,
        archive_path=kept,
        identity=identity.to_text(identity.identity_of(spec)),
        shards=spec.dedup.shards,
        bucket_seconds=spec.bucket_seconds,
        exact_from=spec.exact_from,
    )


# Keeps P24.
def _guaranteed(connection: sa.Connection, pipeline: Pipeline, spec: Spec) -> Pipeline:
    """The pipeline, of the declared guarantee. TerminalError: it has output of the other one."""
    wanted = spec.exact_from
    if (wanted is None) == (pipeline.exact_from is None):
        return pipeline
    values = {"pipeline_id": pipeline.pipeline_id, "exact_from": wanted}
    if row(connection, "pipelines", "guarantee", **values):
        return replace(pipeline, exact_from=wanted)
    if wanted:
        raise TerminalError(
            f"pipeline {spec.name} is declared exactly_once, and its {pipeline.commit_seq} commits "
            "were at_least_once: the catalog has none of their ids, and each record of theirs that "
            f"comes again would be new. `semel exact {spec.name}` teaches it the ids of the "
            "horizon; or put guarantee: at_least_once back",
            next=f"semel exact {spec.name}",
        )
    raise TerminalError(
        f"pipeline {spec.name} is exactly_once from commit {pipeline.exact_from} on, and cannot "
        "become at_least_once: whoever reads its output counts on it. Take guarantee: "
        "at_least_once out, or declare a new pipeline with its own name and sink",
        next=f"semel validate {spec.name}",
    )


# Keeps P15, D9.
def _moved(
    connection: sa.Connection, pipeline: Pipeline, spec: Spec, address: str, kept: str
) -> Pipeline:
    """Let the row follow the pipeline's files. TerminalError: they were not moved together."""
    pipelines.lock(connection, pipeline)
    pipeline_id, old = pipeline.pipeline_id, pipeline
    owned.refuse_foreign_markers(connection, pipeline_id, old.name, spec.sink_path(), Path(kept))
    last = row(connection, "pipelines", "last_finalized", pipeline_id=pipeline_id)
    if last and not layout.marker(Path(kept), last["batch_id"]).exists():
        raise TerminalError(
            f"pipeline {old.name} is declared with the sink {address}, whose archive {kept} has no "
            f"marker of batch {last['batch_id']}; move {old.sink_address} and {old.archive_path} "
            "there, both, or put the declaration back"
        )
    transition(
        connection,
        "pipelines",
        "move_sink",
        f"the sink of {old.name} cannot move from {old.sink_address} to {address} while a batch is "
        "on its way; put it back and finish or abandon what is planned or committed",
        next=f"semel batches {old.name}",
        pipeline_id=pipeline_id,
        sink_address=address,
        archive_path=kept,
    )
    return replace(pipeline, sink_address=address, archive_path=kept)
