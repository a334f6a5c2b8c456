"""What OpenLineage is told of a finalized batch: from where to where, which columns, how much.

Airflow's OpenLineage provider asks for it when a finalize task has succeeded. Only what it asks
imports this: the provider is an extra.
"""

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

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
from semel.spec.pipeline import Spec

if TYPE_CHECKING:
    from semel.finalize import Finalized
    from semel.ledger import Ledger

FILES = "file"
"""OpenLineage's namespace of local files; their names are absolute paths."""


@attr.define
class BatchRunFacet(RunFacet):
    """Which batch a run has finalized, and its page."""

    batchId: int  # noqa: N815 - so are OpenLineage's keys written
    commitSeq: int  # noqa: N815
    requestKey: str  # noqa: N815
    marker: str
    url: str


def finalized(
    ledger: "Ledger", spec: Spec, done: "Finalized", *, counted: bool
) -> OperatorLineage:
    """The lineage of a batch. `counted`: with its numbers; without, they were told before."""
    [found] = ledger.rows("lineage", "output", batch_id=done.batch.batch_id)
    files = {"size": found["bytes"], "fileCount": found["files"]} if spec.sink_path() else {}
    inputs, outputs = {}, {}
    if counted:
        inputs["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=done.counts.records_read, size=done.counts.bytes_read
        )
        outputs["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=done.counts.rows_written, **files
            )
        )
    source = InputDataset(
        namespace=FILES,
        name=str(spec.source_root()),
        facets={"schema": _schema(spec.source.columns.items())},
        inputFacets=inputs,
    )
    namespace, name = _sink(spec, found["sink_address"])
    sink = OutputDataset(
        namespace=namespace,
        name=name,
        facets={"schema": _schema(json.loads(found["sink_schema"] or "[]"))},
        outputFacets=outputs,
    )
    return OperatorLineage(
        inputs=[source], outputs=[sink], run_facets={"semel_batch": _batch(done)}
    )


def _schema(columns: Any) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(name=n, type=t) for n, t in columns]
    return schema_dataset.SchemaDatasetFacet(fields=fields)


def _sink(spec: Spec, address: str) -> tuple[str, str]:
    """Namespace and name, as OpenLineage's documents of names have them."""
    if folder := spec.sink_path():
        return FILES, str(folder)
    split = urlsplit(address)
    database, table = map(unquote, split.path.strip("/").split("/"))
    return f"postgres://{split.netloc}", f"{database}.{table}"


def _batch(done: "Finalized") -> BatchRunFacet:
    batch, name = done.batch, done.batch.spec["name"]
    above = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return BatchRunFacet(
        batchId=batch.batch_id,
        commitSeq=batch.commit_seq,
        requestKey=batch.request_key,
        marker=str(done.marker),
        url=f"{above}{PREFIX}/dags/{name}/batches/{batch.batch_id}",
    )
