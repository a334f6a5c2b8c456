"""Load a folder of JSON Lines with dlt: `dlt_load.py append|delta|duckdb SOURCE TARGET`.

`append` writes Parquet files, `delta` merges by `id` into a Delta table, `duckdb` merges by `id`
into a table of DuckDB. The last line has the seconds.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"

import dlt  # noqa: E402
from dlt.sources.filesystem import filesystem, read_jsonl  # noqa: E402


def main() -> None:
    way, source, target = sys.argv[1:]
    Path(target).mkdir()
    started = time.perf_counter()
    records = (filesystem(bucket_url=source, file_glob="*.jsonl") | read_jsonl()).with_name("peer")
    if way != "append":
        table_format = "delta" if way == "delta" else None
        records.apply_hints(
            write_disposition="merge", primary_key="id", table_format=table_format
        )
    to_duckdb = way == "duckdb"
    pipeline = dlt.pipeline(
        "peer",
        destination=dlt.destinations.duckdb(f"{target}/peer.duckdb")
        if to_duckdb
        else dlt.destinations.filesystem(Path(target).as_uri()),
        dataset_name="out",
        pipelines_dir=f"{target}/pipelines",
    )
    pipeline.run(records, loader_file_format="parquet").raise_on_failed_jobs()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
