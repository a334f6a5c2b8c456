"""explain: which stages Spark makes of a batch, what each fuses, and what is shuffled between them.

How it works: the engine builds the very queries that it builds for a batch, over a job that reads
nothing, and Spark plans them. Its physical plan is cut into stages at each exchange. Adaptive
execution is off, so a batch runs this plan.

What it does not do: run anything, or ask the source, the sink or the ledger. A transform that looks
at records while it builds its query finds none.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame

from semel.archive import provenance
from semel.declare.durations import format_duration
from semel.formats.records import printable
from semel.model.batch import Claim
from semel.model.split import splits_of
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.spark.engine import JOB_FAILURES, PlanNode, SparkEngine, Task, translated
from semel.spark.transforms import Transform, load_transforms
from semel.stage.job import StageJob

TASKS = 2
"""Tasks of the batch that is planned: Spark shuffles nothing that is in one task anyway."""

_OWN = set(PlanNode)
_SOURCES = (PlanNode.read_ids, PlanNode.read_keep, PlanNode.read_write, PlanNode.survivors)
_AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec")
_CACHED = "InMemoryTableScanExec"
_WRAPPERS = ("WholeStageCodegenExec", "InputAdapter", "SubqueryExec")
_PYTHON = re.compile(r"Python|Pandas|InArrow")
_PARTITIONS = "spark.sql.shuffle.partitions"
_COUNTED_UP = re.compile(r", \[(plan_)?id=#?\d+\]|#\d+L?")
_PLAN_FIELDS = 60
_OF_SURVIVORS = "read the survivors from the files of tasks"
_SEMEL = "semel"
"""In place of a transform: what semel itself shuffles."""

_DEALT = {
    PlanNode.read_ids: "ids by shard, the rows stay where they are",
    PlanNode.classify: "verdicts by task, back to the rows",
}


class StageEnd(StrEnum):
    """Where the rows of a stage go."""

    shuffle = "shuffle"
    broadcast = "broadcast"
    subquery = "subquery"
    result = "result"


class Runs(StrEnum):
    """What runs a step: semel's own Python, a transform's, or Spark itself."""

    semel = "semel"
    python = "python"
    spark = "spark"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a stage. `fused`: Spark compiles neighbouring steps of one number to one function;
    None: it runs this one on its own.
    """

    runs: Runs
    text: str
    fused: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a task does without a shuffle. `tasks` is None where the batch's size says how many.

    `by`, `partitions`, `lifted`, `of` are of the exchange behind it: how rows are dealt out, to how
    many tasks (None as above), whether they are combined before it, and which transform wants it.
    """

    number: int
    steps: tuple[Step, ...]
    tasks: int | None
    ends: StageEnd
    by: str = ""
    partitions: int | None = None
    lifted: bool = False
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of a batch, with the stages in the order in which they can run."""

    name: str
    stages: tuple[Stage, ...]
    plan: str = field(repr=False)

    @property
    def shuffles(self) -> int:
        return sum(stage.ends is StageEnd.shuffle for stage in self.stages)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What Spark runs for a batch of several tasks. `shuffles_of_one_task`: those of a batch that
    is so small that one task reads it.
    """

    pipeline: str
    spark: str
    task_size: str
    shuffles: int
    shuffles_of_one_task: int
    queries: tuple[Query, ...]
    notes: tuple[str, ...]


def explain(spec: Spec, engine: SparkEngine) -> Explained:
    """Plan a batch in a classic session. TerminalError: a transform raised, or gave columns that
    cannot be written.
    """
    job = _job(spec, TASKS)
    transforms = load_transforms(spec.transforms, job.code)
    try:
        queries = _queries(engine, job, transforms)
        small = _queries(engine, _job(spec, 1), transforms)
    except JOB_FAILURES as error:
        raise translated(error) from error
    return Explained(
        pipeline=spec.name,
        spark=engine.session.version,
        task_size=spec.source.describe_amount(job.source.split_size),
        shuffles=sum(query.shuffles for query in queries),
        shuffles_of_one_task=sum(query.shuffles for query in small),
        queries=queries,
        notes=tuple(_notes(queries, engine.session.conf.get(_PARTITIONS))),
    )


def _job(spec: Spec, tasks: int) -> StageJob:
    """A job of so many tasks, of claims that nobody made."""
    nothing = {"name": "", "identity": "", "start": 0, "end": 1, "evidence": {}}
    claims = [Claim(ordinal=n, source_partition_id=n, **nothing) for n in range(tasks)]
    job = StageJob.apart(
        spec, open_source(spec), (), batch_id=0, shards=spec.dedup.shards, now_seconds=0,
        bucket_seconds=spec.bucket_seconds, code=provenance.read_code(spec).texts,
    )  # fmt: skip
    return replace(job, splits=splits_of(claims, 1, whole=set()))


def _queries(
    engine: SparkEngine, job: StageJob, transforms: list[Transform]
) -> tuple[Query, ...]:
    says = _steps_of(job.spec)
    first = engine.judged(job, write=not transforms)
    queries = [_query("read", first, says, 1, lambda _: _SEMEL)]
    if transforms:
        frames = engine.transformed(job, _nothing(), transforms)
        made = [set(_dealt(_executed(frame))) for frame in frames[1:]]
        names = [transform.name for transform in transforms]

        def wanted(exchange: str) -> str:
            of = (n for n, found in zip(names, made, strict=True) if exchange in found)
            return next(of, ", ".join(names))

        written, _ = engine.written(job, transforms, frames[-1])
        after = 1 + len(queries[0].stages)
        queries.append(_query("transform", written, says, after, wanted))
    return tuple(queries)


def _nothing() -> Task:
    """No survivors, for a transform that looks at them."""
    return lambda batches: (batch for batch in batches if batch is None)


def _executed(frame: DataFrame) -> Any:
    """The physical plan of a query, in the JVM."""
    return frame._jdf.queryExecution().executedPlan()


def _query(
    name: str,
    frame: DataFrame,
    says: dict[str, tuple[str, ...]],
    first: int,
    wanted: Callable[[str], str],
) -> Query:
    cut = _Cut(says=says, first=first, wanted=wanted)
    cut.end(cut.opened(_executed(frame)), StageEnd.result)
    jvm = frame.sparkSession._jvm
    plan = jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted")
    return Query(name=name, stages=tuple(cut.stages), plan=plan.strip())


@dataclass
class _Open:
    """A stage that is not at its end. `tasks`: of each input that it goes through."""

    steps: list[Step] = field(default_factory=list)
    tasks: list[int | None] = field(default_factory=list)


@dataclass(kw_only=True)
class _Cut:
    """Walks a physical plan from its leaves, and cuts it into `stages`, numbered from `first` on.

    `says`: what semel's functions do; `wanted`: for whom an exchange is.
    """

    says: dict[str, tuple[str, ...]]
    first: int
    wanted: Callable[[str], str]
    stages: list[Stage] = field(default_factory=list)
    fused: int | None = None
    cached: dict[str, list[int | None]] = field(default_factory=dict)

    def opened(self, node: Any) -> _Open:
        """The stage that a node ends in; the stages before it are done."""
        kind = _kind(node)
        fused, self.fused = self.fused, None
        for query in _each(node.subqueries()):
            if not _kind(query).startswith("Reused"):
                self.end(self.opened(query), StageEnd.subquery)
        self.fused = _fused_below(node, fused)
        cached = node.relation().cachedPlan().toString() if kind == _CACHED else None
        found = [self.opened(child) for child in _inputs(node) if cached not in self.cached]
        self.fused = fused
        if moved := _moved(node):
            return self._exchanged(node, found[0], moved)
        here = _Open([s for one in found for s in one.steps], [t for o in found for t in o.tasks])
        if kind == "CoalesceExec":
            here.tasks = [node.numPartitions()]
        elif kind == "UnionExec":
            here.tasks = [None if None in here.tasks else sum(here.tasks)]
        elif cached is not None:  # It is computed once, however often it is read.
            here.tasks = self.cached.setdefault(cached, here.tasks)
        elif not found:
            here.tasks = _tasks(node)
        here.steps += self._steps(node, kind)
        return here

    def end(self, here: _Open, ends: StageEnd, **exchange: Any) -> int:
        """Add a stage that is at its end, and return its number."""
        tasks = here.tasks[0] if here.tasks else None
        number = self.first + len(self.stages)
        made = Stage(number=number, steps=tuple(here.steps), tasks=tasks, ends=ends, **exchange)
        self.stages.append(made)
        return number

    def _exchanged(self, node: Any, before: _Open, ends: StageEnd) -> _Open:
        dealt, own = node.outputPartitioning().toString(), _own(node.child())
        parts = None
        if (
            ends is StageEnd.shuffle and own != PlanNode.classify
        ):  # Verdicts go to the batch's tasks.
            parts = node.outputPartitioning().numPartitions()
        number = self.end(
            before, ends, by=_DEALT.get(own) or _text(dealt), partitions=parts,
            lifted=_combined(node), of=self.wanted(dealt),
        )  # fmt: skip
        step = Step(runs=Runs.spark, text=f"takes the {ends} of stage {number}")
        here = _Open([step], [parts] if ends is StageEnd.shuffle else [])
        if _kind(node) == "TakeOrderedAndProjectExec":
            here.steps += self._steps(node, "")
        return here

    def _steps(self, node: Any, kind: str) -> list[Step]:
        if own := _own(node):
            return [Step(runs=Runs.semel, text=text) for text in self.says[own]]
        if kind in _WRAPPERS:
            return []
        runs = Runs.python if _PYTHON.search(kind) else Runs.spark
        text = _text(node.simpleString(_PLAN_FIELDS))
        return [Step(runs=runs, text=text, fused=self.fused)]


def _fused_below(node: Any, fused: int | None) -> int | None:
    """The number of the function that a node's children are compiled to."""
    if _kind(node) == "WholeStageCodegenExec":
        return node.codegenStageId()
    return None if _kind(node) == "InputAdapter" else fused


def _moved(node: Any) -> StageEnd | None:
    """How rows leave the stage below a node, if they do."""
    kind = _kind(node)
    if kind == "ShuffleExchangeExec":
        return StageEnd.shuffle
    if kind == "TakeOrderedAndProjectExec":  # It has a shuffle of its own.
        only = node.child().outputPartitioning().numPartitions() == 1
        return None if only else StageEnd.shuffle
    return StageEnd.broadcast if kind == "BroadcastExchangeExec" else None


def _combined(exchange: Any) -> bool:
    """Whether rows are combined before a shuffle: by an aggregate that needs none itself."""
    if _kind(exchange) == "TakeOrderedAndProjectExec":
        return True
    node = exchange.child()
    while _kind(node) in (*_WRAPPERS, "ProjectExec"):
        node = node.child()
    return _kind(node) in _AGGREGATES and node.requiredChildDistributionExpressions().isEmpty()


def _inputs(node: Any) -> list[Any]:
    """The nodes whose rows a node takes; of what a transform cached, those that make it."""
    if _own(node) in _SOURCES:
        return []
    if _kind(node) == _CACHED:
        return [node.relation().cachedPlan()]
    return _each(node.children())


def _tasks(leaf: Any) -> list[int | None]:
    """How many tasks read a leaf of a plan: none of their own where a broadcast comes in again."""
    if _own(leaf):
        return [None]
    if _kind(leaf) == "ReusedExchangeExec" and _moved(leaf.child()) is StageEnd.broadcast:
        return []
    return [leaf.outputPartitioning().numPartitions() or None]


def _dealt(node: Any) -> Iterator[str]:
    """How the exchanges of a plan deal rows out."""
    if _moved(node):
        yield node.outputPartitioning().toString()
    for below in [*_inputs(node), *_each(node.subqueries())]:
        yield from _dealt(below)


def _own(node: Any) -> str | None:
    """The name of semel's own function that a node runs."""
    name = node.func().name() if _kind(node) == "MapInArrowExec" else None
    return name if name in _OWN else None


def _kind(node: Any) -> str:
    return node.getClass().getSimpleName()


def _each(nodes: Any) -> list[Any]:
    return [nodes.apply(at) for at in range(nodes.size())]


def _text(shown: str) -> str:
    return printable(_COUNTED_UP.sub("", shown))


def _steps_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """What semel's own functions do, by their names in Spark's plan."""
    read = f"read {spec.source.type}, parse, set bad records aside"
    keep = "keep the rows in a file of the task"
    write = ("write the rows to staged files",)
    if spec.aggregate is not None:
        by = ", ".join(["window_start", *spec.aggregate.keys])
        slices = format_duration(spec.window.every or spec.window.size)
        write = (
            f"combine to partial rows by {by} ({slices}); lifted: readers merge them, no shuffle",
            "write the partial rows to staged files",
        )
    ids = ", ".join(spec.record_id)
    judge = "judge ids: repeats in the batch, then the catalog (Bloom filters, then exact look-up)"
    return {
        PlanNode.read_ids: (read, keep, f"hash {ids}, a part for each shard"),
        PlanNode.read_keep: (read, keep),
        PlanNode.read_write: (read, *write),
        PlanNode.classify: (judge, "write the new ids of the shard"),
        PlanNode.mark_kept: ("write decisions, mark the survivors",),
        PlanNode.write_kept: ("write decisions, drop repeats", *write),
        PlanNode.survivors: (_OF_SURVIVORS,),
        PlanNode.write_rows: write,
    }


def _notes(queries: tuple[Query, ...], partitions: str) -> Iterator[str]:
    """What costs more than it must, each with what can be done. `partitions`: Spark's own number of
    those of a shuffle.
    """
    for stage in (stage for query in queries for stage in query.stages):
        read = any(step.text == _OF_SURVIVORS for step in stage.steps)
        if stage.ends is StageEnd.broadcast and read:
            yield (
                f"stage {stage.number} sends the survivors to each executor: Spark takes them for "
                "a few bytes. Where they may be many, join with a hint: frame.hint('merge'), or "
                "/*+ MERGE(r) */ in SQL, of records r"
            )
        if stage.by.startswith("rangepartitioning"):
            yield (
                f"stage {stage.number} runs twice, first for a sample of the order. Where it is "
                "enough that each file is in order, sortWithinPartitions needs no shuffle"
            )
    last = queries[-1].stages[-1]
    if len(queries) > 1 and last.tasks == int(partitions) > 1:
        yield f"a batch writes up to {last.tasks} files; for fewer, end with coalesce(n)"
