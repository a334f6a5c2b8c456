"""explain: show the stages of a batch in Spark, their fused steps, and the shuffles between them.

How it works: the engine builds the same queries as for a batch, over a job without input, and
Spark plans them. This module cuts the physical plan into stages at each exchange. Adaptive
execution is off, so a batch runs this plan.

semel does not run the queries, and does not contact the source, the sink or the ledger. A transform
that reads records while it builds its query gets an empty frame.
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
from semel.spark.engine import JOB_FAILURES, PlanNode, SparkEngine, Task, translate_error
from semel.spark.transforms import Transform, load_transforms
from semel.stage.job import StageJob

TASKS = 2
"""Tasks of the batch that Spark plans. With one task, Spark would leave out shuffles."""

_SEMEL_NODES = set(PlanNode)
_SOURCES = (PlanNode.read_ids, PlanNode.read_keep, PlanNode.read_write, PlanNode.survivors)
_AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec")
_CACHED = "InMemoryTableScanExec"
_WRAPPERS = ("WholeStageCodegenExec", "InputAdapter", "SubqueryExec")
_PYTHON = re.compile(r"Python|Pandas|InArrow")
_PARTITIONS = "spark.sql.shuffle.partitions"
_PLAN_IDS = re.compile(r", \[(plan_)?id=#?\d+\]|#\d+L?")
_PLAN_FIELDS = 60
_READ_SURVIVORS = "read the survivors from the files of tasks"
_SEMEL = "semel"
"""Stands for a transform if semel itself needs the shuffle."""

_SHUFFLE_TEXTS = {
    PlanNode.read_ids: "ids by shard; the rows stay where they are",
    PlanNode.classify: "verdicts by task, back to the rows",
}


class StageEnd(StrEnum):
    """The destination of a stage's rows."""

    shuffle = "shuffle"
    broadcast = "broadcast"
    subquery = "subquery"
    result = "result"


class StepRunner(StrEnum):
    """The code that runs a step: semel's Python, a transform's Python, or Spark."""

    semel = "semel"
    python = "python"
    spark = "spark"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a stage.

    `fused`: Spark compiles adjacent steps with the same number into one function. None if Spark
    runs the step alone.
    """

    runs: StepRunner
    text: str
    fused: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The steps that a task runs between two exchanges.

    `tasks`: the number of tasks. None if it depends on the batch's size.

    The fields of the exchange after the stage:
    - `by`: the partitioning of the rows, as text
    - `partitions`: the number of tasks that get the rows. None as in `tasks`
    - `lifted`: Spark combines rows before the exchange
    - `of`: the transform that needs the exchange, or `semel`
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
    """One query of a batch, with its stages in an order in which they can run."""

    name: str
    stages: tuple[Stage, ...]
    plan: str = field(repr=False)

    @property
    def shuffles(self) -> int:
        return sum(stage.ends is StageEnd.shuffle for stage in self.stages)


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Spark's plan for a batch of several tasks. `shuffles_of_one_task`: the number of shuffles if
    one task reads the whole batch.
    """

    pipeline: str
    spark: str
    task_size: str
    shuffles: int
    shuffles_of_one_task: int
    queries: tuple[Query, ...]
    notes: tuple[str, ...]


def explain(spec: Spec, engine: SparkEngine) -> BatchPlan:
    """Plan a batch. The engine MUST have a classic session, whose plans this process can read.

    Raises TerminalError if a transform raises or its columns do not fit the sink, RetryableError if
    Spark fails.
    """
    job = _job(spec, TASKS)
    transforms = load_transforms(spec.transforms, job.code)
    try:
        queries = _queries(engine, job, transforms)
        small = _queries(engine, _job(spec, 1), transforms)
    except JOB_FAILURES as error:
        raise translate_error(error) from error
    return BatchPlan(
        pipeline=spec.name,
        spark=engine.session.version,
        task_size=spec.source.describe_amount(job.source.split_size),
        shuffles=sum(query.shuffles for query in queries),
        shuffles_of_one_task=sum(query.shuffles for query in small),
        queries=queries,
        notes=tuple(_notes(queries, engine.session.conf.get(_PARTITIONS))),
    )


def _job(spec: Spec, tasks: int) -> StageJob:
    """A job with this number of tasks, over invented claims of a whole split each."""
    source = open_source(spec)
    values = {"name": "", "identity": "", "start": 0, "end": source.split_size, "evidence": {}}
    claims = [Claim(ordinal=n, source_partition_id=n, **values) for n in range(tasks)]
    job = StageJob.apart(
        spec, source, (), batch_id=0, shards=spec.dedup.shards, now_seconds=0,
        bucket_seconds=spec.bucket_seconds, code=provenance.read_code(spec).texts,
    )  # fmt: skip
    return replace(job, splits=splits_of(claims, source.split_size, whole=set()))


def _queries(
    engine: SparkEngine, job: StageJob, transforms: list[Transform]
) -> tuple[Query, ...]:
    texts = _steps_of(job.spec)
    first = engine.report_query(job, write=not transforms)
    queries = [_query("read", first, texts, 1, lambda _: _SEMEL)]
    if transforms:
        frames = engine.transform_frames(job, _no_survivors(), transforms)
        exchanges = [set(_partitionings(_executed_plan(frame))) for frame in frames[1:]]
        names = [transform.name for transform in transforms]

        def owner(exchange: str) -> str:
            owners = (n for n, its in zip(names, exchanges, strict=True) if exchange in its)
            return next(owners, ", ".join(names))

        written, _ = engine.write_query(job, transforms, frames[-1])
        number = 1 + len(queries[0].stages)
        queries.append(_query("transform", written, texts, number, owner))
    return tuple(queries)


def _no_survivors() -> Task:
    """A task without survivors, for a transform that reads them while it builds its query."""
    return lambda batches: (batch for batch in batches if batch is None)


def _executed_plan(frame: DataFrame) -> Any:
    """The physical plan of a query, in the JVM."""
    return frame._jdf.queryExecution().executedPlan()


def _query(
    name: str,
    frame: DataFrame,
    texts: dict[str, tuple[str, ...]],
    first: int,
    owner: Callable[[str], str],
) -> Query:
    cutter = _PlanCutter(texts=texts, first=first, owner=owner)
    cutter.end(cutter.open_stage(_executed_plan(frame)), StageEnd.result)
    jvm = frame.sparkSession._jvm
    plan = jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted")
    return Query(name=name, stages=tuple(cutter.stages), plan=plan.strip())


@dataclass
class _OpenStage:
    """A stage that has not ended yet. `tasks`: the number of tasks of each input."""

    steps: list[Step] = field(default_factory=list)
    tasks: list[int | None] = field(default_factory=list)


@dataclass(kw_only=True)
class _PlanCutter:
    """Walks a physical plan from its leaves, and cuts it into `stages`, numbered from `first` on.

    `texts`: the steps of semel's functions. `owner`: returns the transform that needs an exchange.
    `fused`: the number of the compiled function around the current node. `cached`: by the plan of
    each cached frame, the tasks that compute it.
    """

    texts: dict[str, tuple[str, ...]]
    first: int
    owner: Callable[[str], str]
    stages: list[Stage] = field(default_factory=list)
    fused: int | None = None
    cached: dict[str, list[int | None]] = field(default_factory=dict)

    def open_stage(self, node: Any) -> _OpenStage:
        """The open stage that ends with a node. Adds the stages before it to `stages`."""
        kind = _kind(node)
        fused, self.fused = self.fused, None
        for query in _each(node.subqueries()):
            if not _kind(query).startswith("Reused"):
                self.end(self.open_stage(query), StageEnd.subquery)
        self.fused = _fused_below(node, fused)
        cached = node.relation().cachedPlan().toString() if kind == _CACHED else None
        inputs = [self.open_stage(child) for child in _inputs(node) if cached not in self.cached]
        self.fused = fused
        if ends := _stage_end(node):
            return self._exchange(node, inputs[0], ends)
        steps = [step for one in inputs for step in one.steps]
        stage = _OpenStage(steps, [tasks for one in inputs for tasks in one.tasks])
        if kind == "CoalesceExec":
            stage.tasks = [node.numPartitions()]
        elif kind == "UnionExec":
            stage.tasks = [None if None in stage.tasks else sum(stage.tasks)]
        elif cached is not None:  # Spark computes it once, even if several nodes read it.
            stage.tasks = self.cached.setdefault(cached, stage.tasks)
        elif not inputs:
            stage.tasks = _tasks(node)
        stage.steps += self._steps(node, kind)
        return stage

    def end(self, stage: _OpenStage, ends: StageEnd, **exchange: Any) -> int:
        """Add a stage to `stages`. Returns its number."""
        tasks = stage.tasks[0] if stage.tasks else None
        number = self.first + len(self.stages)
        ended = Stage(number=number, steps=tuple(stage.steps), tasks=tasks, ends=ends, **exchange)
        self.stages.append(ended)
        return number

    def _exchange(self, node: Any, stage: _OpenStage, ends: StageEnd) -> _OpenStage:
        partitioning, function = node.outputPartitioning().toString(), _semel_node(node.child())
        parts = None  # Verdicts go to the tasks of the batch, whose number depends on its size.
        if ends is StageEnd.shuffle and function != PlanNode.classify:
            parts = node.outputPartitioning().numPartitions()
        number = self.end(
            stage, ends, by=_SHUFFLE_TEXTS.get(function) or _text(partitioning), partitions=parts,
            lifted=_combines_rows(node), of=self.owner(partitioning),
        )  # fmt: skip
        step = Step(runs=StepRunner.spark, text=f"takes the {ends} of stage {number}")
        next_stage = _OpenStage([step], [parts] if ends is StageEnd.shuffle else [])
        if _kind(node) == "TakeOrderedAndProjectExec":
            next_stage.steps += self._steps(node, "")
        return next_stage

    def _steps(self, node: Any, kind: str) -> list[Step]:
        if function := _semel_node(node):
            return [Step(runs=StepRunner.semel, text=text) for text in self.texts[function]]
        if kind in _WRAPPERS:
            return []
        runs = StepRunner.python if _PYTHON.search(kind) else StepRunner.spark
        text = _text(node.simpleString(_PLAN_FIELDS))
        return [Step(runs=runs, text=text, fused=self.fused)]


def _fused_below(node: Any, fused: int | None) -> int | None:
    """The number of the compiled function that runs a node's children. None if they run alone."""
    if _kind(node) == "WholeStageCodegenExec":
        return node.codegenStageId()
    return None if _kind(node) == "InputAdapter" else fused


def _stage_end(node: Any) -> StageEnd | None:
    """The end of the stage of a node's input. Returns None if the node is in the same stage."""
    kind = _kind(node)
    if kind == "ShuffleExchangeExec":
        return StageEnd.shuffle
    if kind == "TakeOrderedAndProjectExec":  # This node shuffles its own input to one task.
        only = node.child().outputPartitioning().numPartitions() == 1
        return None if only else StageEnd.shuffle
    return StageEnd.broadcast if kind == "BroadcastExchangeExec" else None


def _combines_rows(exchange: Any) -> bool:
    """True if Spark reduces the rows of each task before this exchange.

    A partial aggregate does, which works without a shuffle, and an ORDER BY with a LIMIT.
    """
    if _kind(exchange) == "TakeOrderedAndProjectExec":
        return True
    node = exchange.child()
    while _kind(node) in (*_WRAPPERS, "ProjectExec"):
        node = node.child()
    return _kind(node) in _AGGREGATES and node.requiredChildDistributionExpressions().isEmpty()


def _inputs(node: Any) -> list[Any]:
    """The input nodes of a node. A cached frame's input is the plan that computes it."""
    if _semel_node(node) in _SOURCES:
        return []
    if _kind(node) == _CACHED:
        return [node.relation().cachedPlan()]
    return _each(node.children())


def _tasks(leaf: Any) -> list[int | None]:
    """The number of tasks that read a leaf of a plan, in a list. None if it depends on the batch.

    The list is empty for a reused broadcast, which any number of tasks can read.
    """
    if _semel_node(leaf):
        return [None]
    if _kind(leaf) == "ReusedExchangeExec" and _stage_end(leaf.child()) is StageEnd.broadcast:
        return []
    return [leaf.outputPartitioning().numPartitions() or None]


def _partitionings(node: Any) -> Iterator[str]:
    """The partitioning of each exchange in a plan."""
    if _stage_end(node):
        yield node.outputPartitioning().toString()
    for below in [*_inputs(node), *_each(node.subqueries())]:
        yield from _partitionings(below)


def _semel_node(node: Any) -> str | None:
    """The name of semel's function that a node runs. Returns None for other nodes."""
    name = node.func().name() if _kind(node) == "MapInArrowExec" else None
    return name if name in _SEMEL_NODES else None


def _kind(node: Any) -> str:
    return node.getClass().getSimpleName()


def _each(nodes: Any) -> list[Any]:
    return [nodes.apply(at) for at in range(nodes.size())]


def _text(plan: str) -> str:
    return printable(_PLAN_IDS.sub("", plan))


def _steps_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The steps of semel's functions, by their names in Spark's plan."""
    read = f"read {spec.source.type}, parse, set bad records aside"
    keep = "keep the rows in a file of the task"
    write = ("write the rows to staged files",)
    if spec.aggregate is not None:
        by = ", ".join(["window_start", *spec.aggregate.keys])
        slices = format_duration(spec.window.every or spec.window.size)
        write = (
            f"combine into partial rows by {by} ({slices}); lifted: readers merge them, no shuffle",
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
        PlanNode.survivors: (_READ_SURVIVORS,),
        PlanNode.write_rows: write,
    }


def _notes(queries: tuple[Query, ...], partitions: str) -> Iterator[str]:
    """Avoidable costs, each with a remedy. `partitions`: Spark's default number for a shuffle."""
    for stage in (stage for query in queries for stage in query.stages):
        reads_survivors = any(step.text == _READ_SURVIVORS for step in stage.steps)
        if stage.ends is StageEnd.broadcast and reads_survivors:
            yield (
                f"stage {stage.number} sends all new records to each executor, because Spark "
                "expects few. If a batch may have many, join with a hint: frame.hint('merge'), or "
                "/*+ MERGE(r) */ in SQL, for records r"
            )
        if stage.by.startswith("rangepartitioning"):
            yield (
                f"stage {stage.number} runs twice, first to sample the order. If only the rows of "
                "each file must be in order, use sortWithinPartitions, which does not shuffle"
            )
    last = queries[-1].stages[-1]
    if len(queries) > 1 and last.tasks == int(partitions) > 1:
        yield (
            f"a batch writes up to {last.tasks} files. For fewer, end the last transform with "
            "coalesce(n)"
        )
