"""The first step of plan: the pipeline's row, made at its first plan and held against its spec."""

from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from semel import faults
from semel.batch import Pipeline
from semel.catalog import identity
from semel.errors import TerminalError
from semel.ledger import Ledger, change, pipelines, row, transition
from semel.sinks import owned
from semel.spec.pipeline import Spec


def register(ledger: Ledger, spec: Spec) -> Pipeline:
    """The pipeline's row, made at its first plan. TerminalError when it contradicts the spec."""
    sink_path = str(spec.sink_path())
    with ledger.transaction() as connection:
        if pipelines.find(connection, spec.name) is None:
            _insert(connection, spec, sink_path)
        owner = pipelines.owner(connection, sink_path)
        if owner not in (None, spec.name):
            raise TerminalError(
                f"sink.path {sink_path} belongs to pipeline {owner!r}, and {spec.name!r} would "
                "write its records there again; keep the old name, or give this one its own sink"
            )
        pipeline = _completed(connection, pipelines.find(connection, spec.name), spec)
        identity.check(pipeline.identity, spec)
        if pipeline.sink_path != sink_path:
            pipeline = _moved(connection, pipeline, sink_path)
        faults.point("plan.before_register")
    faults.point("plan.after_register")
    return pipeline


def _insert(connection: sa.Connection, spec: Spec, sink_path: str) -> None:
    if pipelines.owner(connection, sink_path) is None:
        owned.refuse_traces(spec, Path(sink_path))
    change(
        connection,
        "pipelines",
        "insert",
        name=spec.name,
        sink_path=sink_path,
        identity=identity.to_text(identity.identity_of(spec)),
        shards=spec.dedup.shards,
        bucket_seconds=spec.bucket_seconds,
    )


def _completed(connection: sa.Connection, pipeline: Pipeline, spec: Spec) -> Pipeline:
    """Give a row of an earlier version the fields that its identity lacks."""
    if identity.is_whole(pipeline.identity):
        return pipeline
    found = row(connection, "pipelines", "latest_spec", pipeline_id=pipeline.pipeline_id)
    made_of = Spec.from_json(found["spec"]) if found else spec
    whole = identity.completed(pipeline.identity, made_of)
    values = {"pipeline_id": pipeline.pipeline_id, "stored": pipeline.identity, "whole": whole}
    change(connection, "pipelines", "complete_identity", **values)
    return pipelines.get(connection, pipeline.pipeline_id)


def _moved(connection: sa.Connection, pipeline: Pipeline, sink_path: str) -> Pipeline:
    pipelines.lock(connection, pipeline)
    owned.refuse_foreign_markers(
        connection, pipeline.pipeline_id, pipeline.name, Path(sink_path)
    )
    transition(
        connection,
        "pipelines",
        "move_sink",
        f"sink.path of {pipeline.name} cannot move from {pipeline.sink_path} to {sink_path} while "
        "a batch is on its way; put it back and finish or abandon what `semel batches` shows",
        pipeline_id=pipeline.pipeline_id,
        sink_path=sink_path,
    )
    return replace(pipeline, sink_path=sink_path)
