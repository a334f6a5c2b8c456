"""B6: peak memory of driver, JVM and Python workers, by the number of records of a batch.

    python benchmarks/memory.py
    python benchmarks/memory.py --smallest

Each batch is staged in a new process with a new Spark (two cores, a JVM of 4 GB). Resident memory
is sampled from /proc (Linux), and `anonymous` is the part that is not a mapped file: the rest, such
as mapped filters and spills, the system takes back whenever it needs to.
"""

import multiprocessing
import os
import threading
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil

import harness
from data import Shape, landed
from harness import Clock, Place

_SAMPLE_S = 0.05
_ROLES = ("driver", "jvm", "workers", "largest worker")


def main() -> None:
    sizes = [1_000_000, 4_000_000, 20_000_000]
    parser = harness.options_of(__doc__, runs=1, nargs="+", default=sizes, help="of the batches")
    options = harness.parsed(parser, records=[1_000])
    with harness.open_place() as place:
        report = _measure(place, options)
    harness.save("memory", options, report)


def _measure(place: Place, options: Namespace) -> dict[str, Any]:
    rows = []
    workers = {}
    for size in options.records:
        for kind in ("id", "position"):
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as process:
                found = process.submit(_one, place, size, kind).result()
            harness.tell(f"{size} records by {kind}: {found}")
            peaks = [found[role, part] for role in _ROLES for part in ("all", "anonymous")]
            rows.append([f"{size:,} by {kind}", round(found["seconds", ""], 1), *peaks])
            workers[f"{size:,} by {kind}"] = found["workers", "all"]
    columns = ["batch", "seconds"]
    columns += [f"{role}{part}, MB" for role in _ROLES for part in ("", " anonymous")]
    table = {"title": "Peak resident memory", "columns": columns, "rows": rows}
    plot = {"kind": "bars", "title": "Peak of all Python workers, MB", "bars": workers}
    largest = max(options.records)
    headline = {"records": largest, "workers_mb_max": workers[f"{largest:,} by id"]}
    title = "B6: memory"
    return {"title": title, "headline": headline, "tables": [table], "plots": [plot]}


def _one(place: Place, records: int, kind: str) -> dict[tuple[str, str], float]:
    """Run one batch in this process. Returns peaks in MB, and the seconds."""
    from semel.ledger import Ledger
    from semel.runs.run import run_batch
    from semel.spark.engine import SparkEngine

    name = f"m{records}_{kind}"
    shape = Shape(records=records)
    landed(shape, place.data / name / "records.jsonl")
    declared: dict[str, Any] = {"record_id": ["id"]} if kind == "id" else {}
    with harness.open_spark(place) as spark, Ledger(place.dsn) as ledger:
        spec = place.spec(name, **declared)
        sampler = _Sampler()
        sampler.start()
        with (clock := Clock()):
            ran = run_batch(ledger, spec, "one", SparkEngine(spark), log=harness.quiet)
        sampler.stop()
    expected = shape.new if kind == "id" else records
    harness.check(name, ran.finalized.counts.survivors, expected)
    return {**sampler.peaks, ("seconds", ""): clock.seconds}


class _Sampler(threading.Thread):
    """Watches this process and what it started, and keeps the peaks by role."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.peaks: dict[tuple[str, str], float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._over.wait(_SAMPLE_S):
            self._sample()

    def stop(self) -> None:
        """The last sample has been taken when this returns."""
        self._over.set()
        self.join()

    def _sample(self) -> None:
        now: dict[tuple[str, str], float] = {}
        own = os.getpid()
        children = [child.pid for child in psutil.Process(own).children(recursive=True)]
        for pid in [own, *children]:
            found = _status(pid)
            if found is None:
                continue
            java = found["Name"].startswith("java")
            role = "driver" if pid == own else "jvm" if java else "workers"
            for part, key in (("all", "VmRSS"), ("anonymous", "RssAnon")):
                mb = int(found[key].split()[0]) / 1024
                now[role, part] = now.get((role, part), 0) + mb
                if role == "workers":
                    now["largest worker", part] = max(now.get(("largest worker", part), 0), mb)
        for key, mb in now.items():
            self.peaks[key] = max(self.peaks.get(key, 0), round(mb))


def _status(pid: int) -> dict[str, str] | None:
    """The lines of /proc/<pid>/status; None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = {key: value.strip() for key, _, value in (s.partition(":") for s in text.splitlines())}
    return found if "RssAnon" in found else None


if __name__ == "__main__":
    main()
