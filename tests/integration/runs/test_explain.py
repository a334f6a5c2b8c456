"""`semel explain` against what Spark did: the same plans, as many shuffles, as many stages."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.documents import ROOT
from fixtures.commands.shell import Shell
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.sources.files.source import FilesSource
from semel.spark.engine import SparkEngine
from semel.spark.explain import BatchPlan, Stage, StageEnd, StepRunner, explain

TRANSFORMS = """
from pyspark.sql import functions as F

def grouped(frame):
    return frame.groupBy("n").agg(F.count("*").alias("events"), F.max("at").alias("at"))

def distinct(frame):
    return frame.groupBy("n").agg(F.countDistinct("id").alias("ids"), F.sum("n").alias("sum"))

def ordered(frame):
    return frame.repartition(5, "id").orderBy("n")

def many(frame):
    names = frame.sparkSession.range(0, 9, 1, 3).selectExpr("id AS n", "id AS name")
    return frame.join(names, "n")

def hinted(frame):
    names = frame.sparkSession.range(0, 9, 1, 3).selectExpr("id AS n", "id AS name")
    return frame.hint("merge").join(names, "n")

def beside(frame):
    return frame.join(frame.groupBy("id").count(), "id")

def top(frame):
    return frame.orderBy("n").limit(7)

def python(frame):
    return frame.withColumn("low", F.udf(str.lower)("id")).where("n > 3")

def by_group(frame):
    return frame.groupBy("n").applyInPandas(lambda rows: rows, frame.schema)

def cached(frame):
    return frame.repartition(3).cache().select("id", "n")

def cached_twice(frame):
    kept = frame.repartition(3).cache()
    return kept.join(kept.groupBy("n").count(), "n").drop("at")

def reused(frame):
    dealt = frame.repartition(5, "id")
    return dealt.hint("merge").join(dealt.select("id", F.col("n").alias("m")).hint("merge"), "id")

def again(frame):
    dealt = frame.repartition(5, "n").where("n > 1")
    return dealt.union(dealt)

def twice(frame):
    return frame.union(frame)

def raises(frame):
    raise ValueError("no such region")

def looks(frame):
    return frame.limit(frame.count() + 1)
"""
ABOVE = "SELECT n, count(*) AS c FROM records WHERE n > (SELECT avg(n) FROM records) GROUP BY n"
COUNTED = {
    "record_time": "at",
    "window": {"size": "1 hour"},
    "aggregate": {"by": [["n"], []], "columns": {"events": "count()"}},
}
FUNCTIONS = [
    "grouped", "distinct", "ordered", "many", "hinted", "beside", "top", "python", "by_group",
    "cached", "cached_twice", "reused", "again", "twice",
]  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "by id": {},
    "by position": {"record_id": None},
    "counted": COUNTED,
    "counted, by position": {"record_id": None, **COUNTED},
    "query": {"transforms": ["above.sql"]},
    "in a row": {"record_id": None, "transforms": ["of:ordered", "above.sql"]},
    "counted, transformed": {"transforms": ["of:ordered"], **COUNTED},
    **{name: {"transforms": [f"of:{name}"], "record_id": None} for name in FUNCTIONS},
}


def declared(bench: Workbench, **changes: Any) -> Spec:
    (bench.transforms / "of.py").write_text(TRANSFORMS)
    (bench.transforms / "above.sql").write_text(ABOVE)
    return bench.spec(**changes)


@pytest.fixture
def engine(spark_engine: SparkEngine) -> Iterator[SparkEngine]:
    """Spark with three partitions for a shuffle: each is a task."""
    conf = spark_engine.session.conf
    before = conf.get("spark.sql.shuffle.partitions")
    conf.set("spark.sql.shuffle.partitions", "3")
    yield spark_engine
    conf.set("spark.sql.shuffle.partitions", before)
    spark_engine.session.catalog.clearCache()


class Ran:
    """What a session of Spark has run since this was made."""

    def __init__(self, engine: SparkEngine) -> None:
        self.session = engine.session
        self.before = set(self._plans()), set(self._stages())

    @property
    def plans(self) -> list[str]:
        """The plans of the queries that ran, in order; a query in SQL makes views first."""
        new = [plan for number, plan in self._plans().items() if number not in self.before[0]]
        return [plan for plan in new if "CreateViewCommand" not in plan]

    @property
    def stages(self) -> list[Any]:
        """The stages that ran to their end. Spark lists others, which it skipped."""
        return [stage for number, stage in self._stages().items() if number not in self.before[1]]

    def _plans(self) -> dict[int, str]:
        self.session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        found = self.session._jsparkSession.sharedState().statusStore().executionsList()
        of = {one.executionId(): one.physicalPlanDescription() for one in each(found)}
        return dict(sorted(of.items()))

    def _stages(self) -> dict[int, Any]:
        context = self.session.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty()
        none = context._jvm.java.util.ArrayList()
        quantiles = context._gateway.new_array(context._jvm.double, 0)
        store = context._jsc.sc().statusStore()
        found = each(store.stageList(none, False, False, quantiles, none))
        return {one.stageId(): one for one in found if one.status().toString() == "COMPLETE"}


def each(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]


def shape(plan: str) -> str:
    """A plan without the numbers that Spark counts up in a session."""
    return re.sub(r"#\d+L?|plan_id=\d+|id=#?\d*", "", plan).strip()


def stages_of(answer: BatchPlan) -> list[Stage]:
    return [stage for query in answer.queries for stage in query.stages]


@pytest.mark.parametrize("case", CASES)
def test_spark_runs_what_explain_says(
    bench: Workbench,
    ledger: Ledger,
    engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    """A batch of two tasks: Spark's own record of the plans that ran equals those that were
    explained; as many of its stages wrote a shuffle, and as many ran in all. It takes some seconds,
    for Spark runs a real batch.
    """
    spec = declared(bench, **CASES[case])
    answer = explain(spec, engine)
    size = bench.write("in/a.jsonl", events(0, 200)).stat().st_size
    monkeypatch.setattr(FilesSource, "split_size", size // 2 + 1)
    ran = Ran(engine)
    run(ledger, spec, "r1", engine=engine)
    assert [shape(plan) for plan in ran.plans] == [shape(q.plan) for q in answer.queries]
    wrote = [stage for stage in ran.stages if stage.shuffleWriteRecords()]
    sampled = [stage for stage in stages_of(answer) if stage.by.startswith("range")]
    assert len(wrote) == answer.shuffles
    assert len(ran.stages) == len(stages_of(answer)) + len(sampled)


def planned(bench: Workbench, engine: SparkEngine, *functions: str, **changes: Any) -> BatchPlan:
    """What is explained of a pipeline by position with these functions of TRANSFORMS."""
    names = [name if name.endswith(".sql") else f"of:{name}" for name in functions]
    return explain(declared(bench, record_id=None, transforms=names, **changes), engine)


def shuffled(answer: BatchPlan) -> list[tuple[str, bool, int | None]]:
    """Of each shuffle: for whom it is, whether rows are combined before it, to how many tasks."""
    ends = [stage for stage in stages_of(answer) if stage.ends is StageEnd.shuffle]
    return [(stage.of, stage.lifted, stage.partitions) for stage in ends]


def test_what_is_lifted(bench: Workbench, engine: SparkEngine) -> None:
    """Aggregates of Spark combine before their shuffle; what sorts, joins, deals out or groups in
    Python does not. Of several transforms the one is named that wants a shuffle.
    """
    lifted, not_lifted = ("of:grouped", True, 3), ("of:by_group", False, 3)
    assert shuffled(planned(bench, engine, "grouped")) == [lifted]
    assert shuffled(planned(bench, engine, "distinct")) == [("of:distinct", True, 3)] * 2
    assert shuffled(planned(bench, engine, "top")) == [("of:top", True, 1)]
    assert shuffled(planned(bench, engine, "by_group")) == [not_lifted]
    ordered = [("of:ordered", False, 5), ("of:ordered", False, 3)]
    assert shuffled(planned(bench, engine, "ordered")) == ordered
    assert shuffled(planned(bench, engine, "hinted")) == [("of:hinted", False, 3)] * 2
    assert shuffled(planned(bench, engine, "python", "grouped")) == [lifted]
    assert shuffled(planned(bench, engine, "by_group", "grouped")) == [not_lifted, lifted]
    assert shuffled(planned(bench, engine, "ordered", "grouped"))[1:] == [lifted]
    by_id = explain(declared(bench), engine)
    assert shuffled(by_id) == [("semel", False, 4), ("semel", False, None)]


def test_python_breaks_what_is_compiled(bench: Workbench, engine: SparkEngine) -> None:
    """Steps before and behind a Python function are not of one compiled function."""
    steps = planned(bench, engine, "python").queries[1].stages[0].steps
    runs = [step.runs for step in steps]
    first = [StepRunner.semel, StepRunner.spark, StepRunner.python]
    assert runs == [*first, StepRunner.spark, StepRunner.semel]
    before, python, after = steps[1:4]
    assert before.text.startswith("Filter")
    assert python.text.startswith(("ArrowEvalPython", "BatchEvalPython"))  # The second before 4.2.
    assert python.fused is None and None not in (before.fused, after.fused)
    assert before.fused != after.fused


def test_advice_can_be_followed(bench: Workbench, engine: SparkEngine) -> None:
    """Each note says what else to write, and with that it is gone."""
    assert any("frame.hint('merge')" in note for note in planned(bench, engine, "many").notes)
    assert not any("hint" in note for note in planned(bench, engine, "hinted").notes)
    pairs = "SELECT {}r.id FROM records r JOIN records s ON r.n = s.n"
    for hint in ("", "/*+ MERGE(r) */ "):
        (bench.transforms / "pairs.sql").write_text(pairs.format(hint))
        notes = planned(bench, engine, "pairs.sql").notes
        assert any("/*+ MERGE(r) */" in note for note in notes) == (not hint)
    noted = planned(bench, engine, "ordered").notes
    assert any("sortWithinPartitions" in n for n in noted) and any("coalesce" in n for n in noted)
    (bench.transforms / "kept.py").write_text(
        "def kept(frame):\n    return frame.repartition(5, 'id').sortWithinPartitions('n')\n"
        "def less(frame):\n    return frame.groupBy('n').count().coalesce(1)\n"
    )
    for name in ("kept", "less"):
        spec = declared(bench, record_id=None, transforms=[f"kept:{name}"])
        assert explain(spec, engine).notes == ()


def test_a_batch_of_one_task(bench: Workbench, engine: SparkEngine) -> None:
    """Spark shuffles nothing for a group where all rows are in one task anyway."""
    answer = planned(bench, engine, "grouped")
    assert (answer.shuffles, answer.shuffles_of_one_task) == (1, 0)


def test_it_runs_nothing(bench: Workbench, engine: SparkEngine) -> None:
    """No query of Spark runs; a transform that looks at records finds none."""
    ran = Ran(engine)
    planned(bench, engine, "grouped", "many")
    assert (ran.plans, ran.stages) == ([], [])
    assert planned(bench, engine, "looks").shuffles == 1


@pytest.fixture
def explaining(
    shell: Shell, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A shell with Spark, and with no ledger."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://127.0.0.1:9/none")
    monkeypatch.setattr("semel.spark.session.open_engine", lambda *_: nullcontext(engine))
    return shell


def test_the_command(bench: Workbench, explaining: Shell) -> None:
    """It tells stages, what is lifted, and the shuffles; without a ledger, and of a source that is
    not there.
    """
    declared(bench, **COUNTED)
    told = explaining.runs("semel explain events")
    assert "hash id, a part for each shard" in told
    assert "-> shuffle to 4 tasks: ids by shard" in told
    assert "-> shuffle to tasks of the batch: verdicts by task" in told
    assert "combine into partial rows by window_start, n (1 hour); lifted" in told
    assert told.rstrip().endswith("64.0 MiB; a batch has 2 shuffles")
    source = {"type": "kafka", "topics": ["t"], "bootstrap_servers": "127.0.0.1:9"}
    source |= {"value": "json", "schema": {"id": "string", "n": "bigint", "at": "timestamp"}}
    declared(bench, source=source, record_id=None, transforms=["of:grouped"])
    told = explaining.runs("semel explain events --plan")
    assert "for of:grouped, combined before it (lifted): hashpartitioning(n, 3)" in told
    assert "a batch has 1 shuffle, or 0 if one task reads all of it" in told
    assert told.count("== Physical Plan ==") == 2
    assert not list(bench.data.glob("out*"))


def test_the_example_in_the_documents(
    monkeypatch: pytest.MonkeyPatch, spark_engine: SparkEngine, shell: Shell
) -> None:
    """What docs/pipelines.md shows is what the command prints of the demo's pipeline."""
    monkeypatch.setattr("semel.spark.session.open_engine", lambda *_: nullcontext(spark_engine))
    told = shell.runs("semel explain delays_by_airport")
    page = (ROOT / "docs" / "pipelines.md").read_text()
    told = told.replace(f"as Spark {spark_engine.session.version} ", "as Spark 4.2.0 ")
    assert f"$ semel explain delays_by_airport\n{told}```" in page


def test_the_answer_for_machines(bench: Workbench, explaining: Shell) -> None:
    """Scripts are built on these fields."""
    declared(bench, record_id=None, transforms=["of:grouped"])
    answer = explaining.answers("semel explain events")
    assert set(answer) == {
        "pipeline", "spark", "task_size", "shuffles", "shuffles_of_one_task", "queries", "notes"
    }  # fmt: skip
    read, write = answer["queries"]
    assert set(read) == {"name", "stages", "plan"}
    assert write["stages"][0] == {
        "number": 2,
        "steps": [
            {
                "runs": "semel", "text": "read the survivors from the files of tasks",
                "fused": None,
            },
            {"runs": "spark", "text": "Project [n, at]", "fused": 2},
            {
                "runs": "spark", "fused": 2,
                "text": "HashAggregate(keys=[n], functions=[partial_count(1), partial_max(at)])",
            },
        ],
        "tasks": None,
        "ends": "shuffle",
        "by": "hashpartitioning(n, 3)",
        "partitions": 3,
        "lifted": True,
        "of": "of:grouped",
    }  # fmt: skip


def test_what_cannot_be_explained(bench: Workbench, explaining: Shell) -> None:
    """A name that nobody declares is a usage error; a transform fails as it does in stage."""
    declared(bench)
    assert explaining.fails("semel explain event", code=2)
    declared(bench, transforms=["of:raises"])
    explaining.fails("semel explain events")
    assert "of:raises raised ValueError: no such region" in explaining.err
    declared(bench, transforms=["of:nowhere"])
    explaining.fails("semel explain events")
    assert "does not define a function 'nowhere'" in explaining.err
    (bench.transforms / "bad.sql").write_text("SELECT id,\n  nope FROM records")
    declared(bench, transforms=["bad.sql"])
    explaining.fails("semel explain events")
    assert "transform bad.sql, line 2, raised AnalysisException" in explaining.err


def test_spark_writes_nothing_before_the_answer(bench: Workbench) -> None:
    """As it is typed: what the JVM says at its start is kept from the screen."""
    declared(bench, **COUNTED)
    semel = [sys.executable, "-m", "semel", "explain", "events"]
    done = subprocess.run(semel, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
