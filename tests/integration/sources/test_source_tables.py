"""A source that finds files of a Delta table would read some of no version of it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Objects, parquet_of
from fixtures.objects.s3 import S3
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.reports.gaps import gaps

DAY = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = pa.table({"id": ["a"], "day": ["2026-01-01"]})


# Attacks P32.
@pytest.mark.parametrize("shape", ["files-t/*.parquet", "files-**/*.parquet", "files-p/*/*.parquet",
                                   "objects-whole", "objects-by folder"])  # fmt: skip
def test_a_source_above_a_table(
    bench: Workbench, s3: S3, ledger: Ledger, shape: str
) -> None:
    """Whether its pattern begins above the table or in it: each plan and gaps fail, name the table,
    and plan nothing. Files beside a table are read.
    """
    kind, _, how = shape.partition("-")
    if kind == "files":
        parquet = {"format": "parquet", "schema": {"id": "string"}}
        spec = bench.spec(source={"path": f"in/{how}", **parquet})
        (bench.data / "in" / "p" / "x").mkdir(parents=True)
        (bench.data / "in" / "t").mkdir()
        for folder in ("p/x", "t"):
            pq.write_table(ROWS, bench.data / "in" / folder / "a.parquet")
        assert len(plan(ledger, spec, "before").names) >= 1
        table = bench.data / "in" / ("below" if how[0] == "*" else how.partition("/")[0])
        write_deltalake(str(table), ROWS, partition_by=["day"])
        interval = None
    else:
        place = Objects(bench, s3, "parquet")
        rule = {"select": "interval", "interval_from": "t/day=%Y-%m-%d/"}
        spec = place.spec(source=rule if how == "by folder" else {})
        interval = (DAY, DAY + timedelta(days=1)) if how == "by folder" else None
        place.put("t/day=2026-01-01/a.parquet", parquet_of(0, 3))
        place.put("u/_delta_log/0.json", b"{}")
        assert plan(ledger, spec, "before", interval).names == ("t/day=2026-01-01/a.parquet",)
        place.put("t/_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(TerminalError, match="the source's pattern matches files of a Delta table"):
        plan(ledger, spec, "r", interval)
    with pytest.raises(TerminalError, match="the source's pattern matches files of a Delta table"):
        gaps(ledger, spec)
