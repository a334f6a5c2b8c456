"""B18: where the time of a batch goes: its tasks over time, and CPU seconds by process and function.

    python benchmarks/timeline.py
    python benchmarks/timeline.py --smallest

The tasks are those of Spark's event log. The functions are those of the same batch without Spark:
its steps in one process, under cProfile.
"""

import cProfile
import json
import pstats
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import harness
from data import Shape, landed
from fixtures.spark.local import LocalEngine
from harness import Place, quiet
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

_CORES = 2
_FUNCTIONS_SHOWN = 20
_STEPS = {1: ("read and write",), 3: ("read", "classify", "write")}
"""What the stages of a batch are, by their number."""

_EVENTS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Records to read, and how a pipeline tells them apart."""

    size: str
    way: str
    path: str
    declared: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.size}, {self.way}"

    def spec(self, place: Place, run: str) -> Spec:
        """A pipeline that has read nothing yet. `run`: makes its name unique."""
        name = f"{run} {self.name}".replace(",", "").replace(" ", "_").lower()
        return place.spec(name, path=self.path, **self.declared)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch that has run: when it began and ended (seconds since 1970), the seconds of each verb,
    and the CPU seconds of each process.
    """

    start: float
    end: float
    verbs: dict[str, float]
    cpu: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of Spark. Times are seconds since 1970, `cpu` the seconds of the JVM's thread."""

    stage: int
    start: float
    end: float
    cpu: float


def main() -> None:
    parser = harness.options_of(__doc__, runs=2, default=4_000_000, help="default 4 million")
    parser.add_argument("--repeats", type=float, default=0.02, help="share of repeated records")
    options = harness.parsed(parser, records=4_000)
    with harness.open_place() as place, Ledger(place.dsn) as ledger:
        cases = _cases(place, options)
        events = place.folder / "events"
        events.mkdir()
        more = _EVENTS | {"spark.eventLog.dir": events.as_uri()}
        batches: dict[str, Batch] = {}
        with harness.open_spark(place, more=more) as spark:
            engine = SparkEngine(spark)
            for run in range(options.runs + 1):
                for case in cases:
                    batches[case.name] = _batch(ledger, case.spec(place, f"r{run}"), engine)
        (log,) = events.iterdir()
        tasks = _tasks(log)
        profiles = {
            case.name: _profile(ledger, case.spec(place, "alone"))
            for case in cases
            if case.way == "by id"
        }
    harness.save("timeline", options, _report(batches, tasks, profiles))


def _cases(place: Place, options: Namespace) -> list[Case]:
    ways: dict[str, dict[str, Any]] = {"by id": {"record_id": ["id"]}, "by position": {}}
    sizes = {"160 bytes": 1, "2 kB": 8}
    cases = []
    for size, divisor in sizes.items():
        shape = Shape(
            records=options.records // divisor, repeats=options.repeats, wide=divisor > 1
        )
        file = landed(shape, place.data / f"in{divisor}" / "records.jsonl")
        path = str(file.relative_to(place.data))
        cases += [Case(size=size, way=way, path=path, declared=ways[way]) for way in ways]
    return cases


def _batch(ledger: Ledger, spec: Spec, engine: SparkEngine) -> Batch:
    before, start = _cpu(ledger), time.time()
    verbs = run_batch(ledger, spec, "one", engine, log=quiet).seconds
    end, after = time.time(), _cpu(ledger)
    cpu = {name: seconds - before[name] for name, seconds in after.items()}
    harness.tell(f"  {spec.name}: {end - start:.2f} s, {sum(cpu.values()):.2f} CPU s")
    return Batch(start=start, end=end, verbs=verbs, cpu=cpu)


def _cpu(ledger: Ledger) -> dict[str, float]:
    """The CPU seconds that each kind of process has used, with its ended children."""
    driver = psutil.Process()
    (jvm,) = [child for child in driver.children() if child.name() == "java"]
    with ledger.engine.connect() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    server = psutil.Process(backend).parent()
    return {
        "driver": _own(driver),
        "JVM": _own(jvm),
        "Python workers": sum(map(_with_ended, jvm.children(recursive=True))),
        "PostgreSQL": sum(map(_with_ended, [server, *server.children()])),
    }


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _with_ended(process: psutil.Process) -> float:
    times = process.cpu_times()
    return _own(process) + times.children_user + times.children_system


def _tasks(log: Path) -> list[Task]:
    """The tasks of Spark's event log."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            info, metrics = event["Task Info"], event["Task Metrics"]
            found.append(
                Task(
                    stage=event["Stage ID"],
                    start=info["Launch Time"] / 1e3,
                    end=info["Finish Time"] / 1e3,
                    cpu=metrics["Executor CPU Time"] / 1e9,
                )
            )
    return sorted(found, key=lambda task: task.start)


def _profile(ledger: Ledger, spec: Spec) -> list[list[Any]]:
    """The functions that take most of a batch: name, calls, own seconds, seconds with its calls."""
    profiler = cProfile.Profile()
    with profiler:
        run_batch(ledger, spec, "one", LocalEngine(), log=quiet)
    found = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    rows = [
        [_named(*place), calls, round(own, 2), round(whole, 2)]
        for place, (_, calls, own, whole, _) in found
    ]
    return sorted(rows, key=lambda row: -row[2])[:_FUNCTIONS_SHOWN]


def _named(file: str, line: int, function: str) -> str:
    if file == "~":
        return function
    return f"{'/'.join(Path(file).with_suffix('').parts[-2:])}:{line} {function}"


def _report(
    batches: dict[str, Batch], tasks: list[Task], profiles: dict[str, list[list[Any]]]
) -> dict[str, Any]:
    kinds = list(next(iter(batches.values())).cpu)
    verbs = list(next(iter(batches.values())).verbs)
    spent, steps, plots = [], [], []
    for name, batch in batches.items():
        seconds = batch.end - batch.start
        cpu = [round(batch.cpu[kind], 2) for kind in kinds]
        spent.append([name, *batch.verbs.values(), round(seconds, 2), *cpu, round(sum(cpu), 2)])
        of_batch = [task for task in tasks if batch.start <= task.start <= batch.end]
        stages = sorted({task.stage for task in of_batch})
        named = dict(zip(stages, _STEPS[len(stages)], strict=True))
        for stage, step in named.items():
            its = [task for task in of_batch if task.stage == stage]
            busy = sum(task.end - task.start for task in its)
            wall = max(task.end for task in its) - min(task.start for task in its)
            idle = _CORES * wall - busy
            figures = (wall, busy, idle, sum(task.cpu for task in its))
            steps.append([name, step, len(its), *(round(figure, 2) for figure in figures)])
        plots.append(
            {
                "kind": "spans",
                "title": f"Tasks of a batch of {name}, seconds",
                "lanes": _lanes(of_batch, batch, named),
                "end": round(seconds, 3),
            }
        )
    tables = [
        {
            "title": "A batch: seconds of each verb, and CPU seconds of each process",
            "columns": ["batch", *verbs, "all, s", *kinds, "CPU, s"],
            "rows": spent,
        },
        {
            "title": "The tasks of each step",
            "columns": ["batch", "step", "tasks", "wall, s", "tasks, s", "idle cores, s", "JVM, s"],
            "rows": steps,
        },
    ]
    for name, rows in profiles.items():
        columns = ["function", "calls", "own, s", "with its calls, s"]
        title = f"Functions of a batch of {name}, in one process without Spark"
        tables.append({"title": title, "columns": columns, "rows": rows})
    small = batches["160 bytes, by id"], batches["160 bytes, by position"]
    cpu_id, cpu_position = (sum(batch.cpu.values()) for batch in small)
    return {
        "title": "B18: where the time of a batch goes",
        "headline": {"cpu_id_over_position": round(cpu_id / cpu_position, 3)},
        "tables": tables,
        "plots": plots,
    }


def _lanes(tasks: list[Task], batch: Batch, steps: dict[int, str]) -> list[list[list[Any]]]:
    """The tasks by core, each as its start and end in the batch and its step."""
    lanes: list[list[list[Any]]] = []
    for task in tasks:
        start, end = (round(at - batch.start, 3) for at in (task.start, task.end))
        free = [lane for lane in lanes if lane[-1][1] <= start]
        if not free:
            lanes.append([])
            free = lanes[-1:]
        free[0].append([start, end, steps[task.stage]])
    return lanes


if __name__ == "__main__":
    main()
