"""RESULTS.md and its plots, from the JSON that the benchmarks wrote.

    python benchmarks/results.py
"""

import argparse
import json
from pathlib import Path
from typing import Any

import plot

ORDER = ("stage", "lookup", "catalog", "commit", "collect", "memory", "latency", "history")
ORDER += ("postgres_sink", "pages", "replay", "compare", "kafka_source", "kafka_sink")
ORDER += ("batch_overhead", "receive", "windows", "lake", "timeline", "peers")
_HERE = Path(__file__).resolve().parent
_TARGETS = {
    "ratio_id": "1.25 or less",
    "ratio_position": "1.0 or less",
    "ratio_id_2kb": "1.0 or less",
    "ratio_position_2kb": "1.0 or less",
    "speedup_structured_streaming": "5 or more",
    "ratio_100m_over_1m": "1.3 or less",
    "ids_per_second": "3,000,000 or more",
    "bytes_per_id": "15 or less",
    "chunk_reads_share": "0.01 or less",
    "commit_ms_max": "below 100",
    "commit_ratio_of_sizes": "1.5 or less",
    "collect_100m_s": "below 2",
    "trigger_to_finalized_s": "5 or less",
    "ratio_max": "1.5 or less",
    "plan_idle_s": "below 2",
    "plan_idle_lock_ms": "below 50",
    "small_files_s": "below 15",
    "postgres_sink_ratio": "1.3 or less",
    "page_transaction_ms_max": "below 200",
    "ratio_replay": "1.0 or less",
    "ratio_replay_small_files": "1.0 or less",
    "ratio_kafka_position": "0.7 or less",
    "ratio_kafka_id": "0.8 or less",
    "kafka_sink_ratio_rows": "1.2 or less",
    "ratio_receive_nats": "1.2 or less",
    "ratio_receive_nats_default": "1.2 or less",
    "ratio_receive_sqs": "1.2 or less",
    "ratio_receive_pubsub": "1.2 or less",
    "receive_pubsub_per_s": "15,000 or more",
    "ratio_windows_day": "1.05 or less",
    "speedup_windows": "5 or more",
    "view_day_ms": "below 100",
    "ratio_upload": "1.15 or less",
    "ratio_read_store": "1.1 or less",
    "ratio_delta": "1.3 or less",
    "round_trips_idle": "15 or less",
    "round_trips_id": "77 or less",
    "round_trips_position": "65 or less",
}
_HEAD = """# Results

Written by `python benchmarks/results.py` from the JSON in `benchmarks/results/`; do not edit. 
Each benchmark's figures come from one run: its sides run in turn, the first run of each is thrown
away, and medians count. Benchmarks were run on different days, and such a machine is twice as fast
on one as on another: hold ratios against each other, not seconds. `make bench` measures all of it
again.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=_HERE / "results")
    write(parser.parse_args().results)


def write(folder: Path) -> Path:
    """Write RESULTS.md beside a folder of JSON, and the plots into it. Returns its path."""
    reports = []
    for name in (*ORDER, "stage-cluster", "latency-submit"):
        path = folder / f"{name}.json"
        if path.exists():
            reports.append(json.loads(path.read_text(encoding="utf-8")))
    parts = [_HEAD, _targets(reports), *(_section(report, folder) for report in reports)]
    target = folder.parent / "RESULTS.md"
    target.write_text("\n".join(parts), encoding="utf-8")
    return target


def _targets(reports: list[dict[str, Any]]) -> str:
    rows = [
        [f"`{key}`", report["headline"][key], target, f"`{report['command']}`"]
        for key, target in _TARGETS.items()
        for report in reports
        if key in report["headline"]
    ]
    return "## Targets\n\n" + _table(["figure", "measured", "target", "command"], rows)


def _section(report: dict[str, Any], folder: Path) -> str:
    parts = [f"## {report['title']}\n", f"`{report['command']}`; {report['machine']}.\n"]
    for table in report["tables"]:
        parts += [f"{table['title']}:\n", _table(table["columns"], table["rows"])]
    for number, described in enumerate(report.get("plots", ()), start=1):
        name = f"{report['benchmark']}-{number}.svg"
        (folder / name).write_text(plot.svg(described), encoding="utf-8")
        parts.append(f"![{described['title']}]({folder.name}/{name})\n")
    return "\n".join(parts)


def _table(columns: list[str], rows: list[list[Any]]) -> str:
    cells = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows)]
    return "".join("| " + " | ".join(row) + " |\n" for row in cells)


if __name__ == "__main__":
    main()
