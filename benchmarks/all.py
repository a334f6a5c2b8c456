"""All benchmarks, or the quick ones, each in a process of its own. The last line is a JSON object.

    python benchmarks/all.py
    python benchmarks/all.py --quick
    python benchmarks/all.py --smallest          # whether they still run
    python benchmarks/all.py --smallest history  # whether this one does

The object holds those of the issue's figures that were measured. A benchmark that fails is named on
standard error, the others go on, and the exit status is 1.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from results import ORDER, write

_HERE = Path(__file__).resolve().parent
_KEYS = (
    "ratio_id",
    "ratio_position",
    "ratio_id_2kb",
    "speedup_structured_streaming",
    "ratio_100m_over_1m",
    "ids_per_second",
    "bytes_per_id",
    "chunk_reads_share",
    "commit_ms_max",
    "collect_100m_s",
    "trigger_to_finalized_s",
    "ratio_max",
    "plan_idle_s",
    "small_files_s",
    "page_transaction_ms_max",
    "postgres_sink_ratio",
    "ratio_replay",
    "ratio_compare",
    "ratio_kafka_position",
    "ratio_kafka_id",
    "ratio_kafka_avro_position",
    "ratio_kafka_avro_id",
    "kafka_sink_ratio_rows",
    "ratio_receive_nats",
    "ratio_receive_nats_default",
    "ratio_receive_sqs",
    "ratio_receive_pubsub",
    "receive_pubsub_per_s",
    "ratio_windows_day",
    "ratio_windows_hour",
    "speedup_windows",
    "view_day_ms",
    "ratio_upload",
    "ratio_read_store",
    "ratio_delta",
    "round_trips_idle",
    "round_trips_id",
    "round_trips_position",
    "ratio_batch_overhead",
)
_ALL = (
    *ORDER,
    "stage --cluster --no-variants --runs 3",
    "latency --submit --runs 5",
)
_QUICK = (
    "stage --records 2000000 --wide 200000 --no-variants --runs 3",
    "catalog --records 10000000 --runs 3",
)
_TIMEOUT_S = 3_600


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="B1 with one share of repeats, and B3")
    sizes.add_argument("--smallest", action="store_true", help="the figures mean nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default all)")
    parser.add_argument("--results", type=Path, help="default benchmarks/results, or build/bench")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ORDER):
        parser.error(f"not in results.ORDER: {', '.join(sorted(unknown))}")
    small = options.quick or options.smallest
    # Only whole runs replace the results that are tracked.
    folder = options.results or (
        _HERE.parent / "build" / "bench" / "results" if small else _HERE / "results"
    )
    folder.mkdir(parents=True, exist_ok=True)
    headlines, failed = {}, []
    for command in _QUICK if options.quick else ORDER if options.smallest else _ALL:
        if options.names and command.split()[0] not in options.names:
            continue
        command += " --smallest" if options.smallest else ""
        found = _run(command, folder)
        if found is None:
            failed.append(command)
        else:
            headlines |= found
    print(f"written: {write(folder)}")
    for command in failed:
        print(f"failed: {command}", file=sys.stderr)
    print(json.dumps({key: headlines[key] for key in _KEYS if key in headlines}))
    sys.exit(1 if failed else 0)


def _run(command: str, folder: Path) -> dict[str, float] | None:
    """A benchmark's headline, None when it failed."""
    name, *arguments = command.split()
    print(f"{command}", flush=True)
    started = time.monotonic()
    arguments = [sys.executable, str(_HERE / f"{name}.py"), *arguments, "--results", str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            said, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # Its Postgres and Spark are to end as well.
            said, _ = process.communicate()
    print(f"  {time.monotonic() - started:.0f} s", flush=True)
    if process.returncode:
        return None
    last = said.strip().splitlines()[-1]
    print(f"  {last}", flush=True)
    return json.loads(last)


if __name__ == "__main__":
    main()
