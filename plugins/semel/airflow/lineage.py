"""The lineage of a finalized batch for OpenLineage: inputs, outputs, columns and counts.

Airflow's OpenLineage provider requests it after a finalize task has succeeded. Only that request
imports this module, because the provider is an optional package.
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
    """The batch that a run has finalized, and its page. `replay`: the batch that replayed it,
    if the generation is above the first.
    """

    batchId: int  # noqa: N815 - OpenLineage writes its keys this way
    generation: int
    replay: int | None
    commitSeq: int  # noqa: N815
    requestKey: str  # noqa: N815
    marker: str
    url: str


@attr.define
class ReplaysRunFacet(RunFacet):
    """The batches that a run has replayed."""

    replays: list[BatchRunFacet]


def lineage_of(
    ledger: "Ledger", spec: Spec, batches: "list[tuple[Finalized, bool]]"
) -> OperatorLineage:
    """The lineage of a run's batch, or of its replays. With each batch, whether its counts count:
    False if an earlier run has reported them.
    """
    of_each = [
        (result, *ledger.rows("lineage", "output", batch_id=result.batch.batch_id))
        for result, counted in batches
        if counted
    ]
    output = ledger.rows("lineage", "output", batch_id=batches[-1][0].batch.batch_id)[0]
    counts = sum((result.counts for result, _ in of_each), start=Counts())
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
    names = _sources(ledger, spec, [result.batch.batch_id for result, _ in batches])
    sources = [
        InputDataset(
            namespace=namespace,
            name=name,
            facets={"schema": _schema(spec.source.columns.items())},
            # The counts are those of all topics together.
            inputFacets=inputs if len(names) == 1 else {},
        )
        for namespace, name in names
    ]
    namespace, name = spec.sink.dataset(output["sink_address"])
    sink = OutputDataset(
        namespace=namespace,
        name=name,
        facets={"schema": _schema(json.loads(output["sink_schema"] or "[]"))},
        outputFacets=outputs,
    )
    facets = [_batch_facet(result) for result, _ in batches]
    replayed = batches[0][0].batch.replays is not None
    run = {"semel_replays": ReplaysRunFacet(facets)} if replayed else {"semel_batch": facets[0]}
    return OperatorLineage(inputs=sources, outputs=[sink], run_facets=run)


def _schema(columns: Any) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(name=n, type=t) for n, t in columns]
    return schema_dataset.SchemaDatasetFacet(fields=fields)


def _sources(ledger: "Ledger", spec: Spec, batches: list[int]) -> list[tuple[str, str]]:
    """Namespaces and names of the inputs. A pattern of topics counts as the topics claimed."""
    def claimed_names() -> list[str]:
        claims = [c for batch in batches for c in ledger.rows("plan", "claims", batch_id=batch)]
        return [claim["name"] for claim in claims]

    return spec.source.datasets(claimed_names)


def _batch_facet(result: "Finalized") -> BatchRunFacet:
    batch, name = result.batch, result.batch.spec["name"]
    base_url = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return BatchRunFacet(
        batchId=batch.root,
        generation=batch.generation,
        replay=batch.batch_id if batch.replays is not None else None,
        commitSeq=batch.commit_seq,
        requestKey=batch.request_key,
        marker=str(result.marker),
        url=f"{base_url}{PREFIX}/dags/{name}/batches/{batch.batch_id}",
    )
