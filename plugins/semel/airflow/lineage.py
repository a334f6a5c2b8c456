"""What OpenLineage is told of a finalized batch: from where to where, which columns, how much.

Airflow's OpenLineage provider asks for it when a finalize task has succeeded. Only what it asks
imports this: the provider is an extra.
"""

import json
from typing import TYPE_CHECKING, Any

import attr
from airflow.configuration import conf
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    RunFacet,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from semel.airflow.plugin import PREFIX
from semel.model.batch import Counts
from semel.pipeline.spec import Spec

if TYPE_CHECKING:
    from semel.finalize import Finalized
    from semel.ledger import Ledger

FILES = "file"
"""OpenLineage's namespace of local files; their names are absolute paths."""


@attr.define
class BatchRunFacet(RunFacet):
    """Which batch a run has finalized, and its page. `replay`: the batch that made its output, of a
    generation above the first.
    """

    batchId: int  # noqa: N815 - so are OpenLineage's keys written
    generation: int
    replay: int | None
    commitSeq: int  # noqa: N815
    requestKey: str  # noqa: N815
    marker: str
    url: str


@attr.define
class ReplaysRunFacet(RunFacet):
    """Which batches a run has replayed."""

    replays: list[BatchRunFacet]


def finalized(
    ledger: "Ledger", spec: Spec, batches: "list[tuple[Finalized, bool]]"
) -> OperatorLineage:
    """The lineage of a run's batch, or of its replays. With each, whether its numbers count:
    without, they were told before.
    """
    of_each = [
        (done, *ledger.rows("lineage", "output", batch_id=done.batch.batch_id))
        for done, counted in batches
        if counted
    ]
    found = ledger.rows("lineage", "output", batch_id=batches[-1][0].batch.batch_id)[0]
    counts = sum((done.counts for done, _ in of_each), start=Counts())
    inputs, outputs, files = {}, {}, {}
    if spec.sink_path():
        files = {
            "size": sum(row["bytes"] for _, row in of_each),
            "fileCount": sum(row["files"] for _, row in of_each),
        }
    if of_each:
        inputs["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=counts.records_read, size=counts.bytes_read
        )
        outputs["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=counts.rows_written, **files
            )
        )
    names = _sources(ledger, spec, [done.batch.batch_id for done, _ in batches])
    sources = [
        InputDataset(
            namespace=namespace,
            name=name,
            facets={"schema": _schema(spec.source.columns.items())},
            # What was read is known of all topics together.
            inputFacets=inputs if len(names) == 1 else {},
        )
        for namespace, name in names
    ]
    namespace, name = spec.sink.dataset(found["sink_address"])
    sink = OutputDataset(
        namespace=namespace,
        name=name,
        facets={"schema": _schema(json.loads(found["sink_schema"] or "[]"))},
        outputFacets=outputs,
    )
    facets = [_batch(done) for done, _ in batches]
    replayed = batches[0][0].batch.replays is not None
    run = {"semel_replays": ReplaysRunFacet(facets)} if replayed else {"semel_batch": facets[0]}
    return OperatorLineage(inputs=sources, outputs=[sink], run_facets=run)


def _schema(columns: Any) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(name=n, type=t) for n, t in columns]
    return schema_dataset.SchemaDatasetFacet(fields=fields)


def _sources(ledger: "Ledger", spec: Spec, batches: list[int]) -> list[tuple[str, str]]:
    """Namespaces and names of what was read. Of topics by a pattern, those that batches claimed."""
    def claimed() -> list[str]:
        found = [c for batch in batches for c in ledger.rows("plan", "claims", batch_id=batch)]
        return [claim["name"] for claim in found]

    return spec.source.datasets(claimed)


def _batch(done: "Finalized") -> BatchRunFacet:
    batch, name = done.batch, done.batch.spec["name"]
    above = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return BatchRunFacet(
        batchId=batch.root,
        generation=batch.generation,
        replay=batch.batch_id if batch.replays is not None else None,
        commitSeq=batch.commit_seq,
        requestKey=batch.request_key,
        marker=str(done.marker),
        url=f"{above}{PREFIX}/dags/{name}/batches/{batch.batch_id}",
    )
