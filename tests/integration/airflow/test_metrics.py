"""The metrics of a pipeline, as a real StatsD server gets them from Airflow's tasks."""

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.airflow.dags import ROOT
from fixtures.airflow.receivers import StatsdServer
from fixtures.airflow.tasks import Tasks
from fixtures.batches.account import committed, quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs import replay

KEY = "airflow:events:r1"
COUNTED = {
    "semel.records_read": 14, "semel.records_new": 10, "semel.records_repeated": 3,
    "semel.records_quarantined": 1, "semel.records_late": 0,
}  # fmt: skip


@pytest.fixture
def tasks(
    tasks: Tasks, statsd: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tasks]:
    """Tasks whose Airflow sends its metrics to the server."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    for name, value in statsd.settings.items():
        monkeypatch.setenv(name, value)
    clients = []

    def client() -> Any:
        clients.append(stats_utils.get_stats_factory()())
        return clients[-1]

    stats.initialize(factory=client, export_legacy_names=True)
    yield tasks
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    for one in clients:
        one.statsd.close()


def of(found: list[tuple[str, float, str]], kind: str) -> dict[str, float]:
    """The metrics of a kind; each came once."""
    some = [(name, value) for name, value, its in found if its == kind]
    assert len(dict(some)) == len(some), some
    return dict(some)


def declared(bench: Workbench, ledger: Ledger) -> Spec:
    """A pipeline whose batch has committed and is not finalized."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 3), b"{broken"])
    committed(ledger, spec, KEY)
    return spec


def test_a_batch_is_counted_once(
    bench: Workbench, ledger: Ledger, tasks: Tasks, statsd: StatsdServer
) -> None:
    """Its account arrives under each name, also with the pipeline in it, when it is finalized. A
    task that only prints it again counts nothing.
    """
    declared(bench, ledger)
    tasks.run("Finalize")
    found = statsd.arrived()
    both = COUNTED | {f"{name}.events": value for name, value in COUNTED.items()}
    assert of(found, "c") == both
    took = of(found, "ms")
    assert set(took) == {"semel.duration", "semel.duration.events.finalize"}
    assert all(0 < value < 60_000 for value in took.values())
    assert of(found, "g") == {"semel.lag": 0, "semel.lag.events": 0}
    for name in ("Finalize", "Commit", "Collect"):
        tasks.run(name)
    found = statsd.arrived()
    assert not [one for one in found if one[2] == "c"]
    took = {name.rpartition(".")[2] for name, _, kind in found if kind == "ms"}
    assert took == {"duration", "finalize", "commit", "collect"}


def test_a_batch_is_counted_again_only_when_its_task_died(
    bench: Workbench, ledger: Ledger, tasks: Tasks, statsd: StatsdServer
) -> None:
    """A count goes with the asset's event: killed before it, nothing is lost; between the count and
    the task's end, it is counted twice.
    """

    def killed() -> None:
        raise failpoints.FaultError

    declared(bench, ledger)
    with failpoints.armed("finalize.after_finalized", killed), pytest.raises(failpoints.FaultError):
        tasks.run("Finalize")
    assert of(statsd.arrived(), "c") == {}
    tasks.run("Finalize", ends=False)
    tasks.run("Finalize")
    tasks.run("Finalize")
    assert [v for name, v, _ in statsd.arrived() if name == "semel.records_new"] == [10, 10]


def test_a_replay_is_counted_apart(
    bench: Workbench, ledger: Ledger, tasks: Tasks, statsd: StatsdServer
) -> None:
    """Its records are no new ones: each of the other counters has them once."""
    spec = declared(bench, ledger)
    tasks.run("Finalize")
    statsd.arrived()
    replay.run(ledger, spec, "cli:replay", 1, LocalEngine(), quiet)
    with ledger.transaction() as connection:
        back = "UPDATE semel.batch SET committed_at = committed_at - interval '1 day'"
        connection.exec_driver_sql(back)
    tasks.run("Collect")
    both = {"semel.records_replayed": 10, "semel.records_replayed.events": 10}
    assert of(statsd.arrived(), "c") == both


def test_the_lag_is_that_of_the_oldest_open_batch(
    bench: Workbench, ledger: Ledger, tasks: Tasks, statsd: StatsdServer
) -> None:
    """Told by each task, also by one that fails: seconds since the oldest batch was planned."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    plan(ledger, spec, KEY)
    with ledger.transaction() as connection:
        back = "UPDATE semel.batch SET planned_at = planned_at - interval '1 hour'"
        connection.exec_driver_sql(back)
    with pytest.raises(SystemExit):
        tasks.run("Finalize")  # It has not committed.
    found = statsd.arrived()
    assert 3600 <= of(found, "g")["semel.lag.events"] < 3700
    assert of(found, "ms") == {}


def test_tags(
    bench: Workbench, ledger: Ledger, tasks: Tasks, statsd: StatsdServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With tags the pipeline is a tag; Airflow's own setting turns the names without them off."""
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    declared(bench, ledger)
    tasks.run("Finalize")
    found = statsd.arrived()
    assert of(found, "c") == {f"{name},pipeline=events": v for name, v in COUNTED.items()}
    assert list(of(found, "ms")) == ["semel.duration,pipeline=events,verb=finalize"]


@pytest.mark.parametrize("raised", [OSError, RuntimeError, KeyError])
def test_metrics_cost_no_batch(
    bench: Workbench, ledger: Ledger, tasks: Tasks, raised: type[Exception],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A client that fails, whatever it raises, is a warning; the batch is finalized."""
    from airflow.sdk.observability.stats import Stats

    def broken(*_: object, **__: object) -> None:
        raise raised("no such host")

    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, kind, staticmethod(broken))
    declared(bench, ledger)
    tasks.run("Finalize")
    assert len(ledger.rows("assets", "finalized", batch_id=1, window_seconds=60)) == 1
    assert "the metric semel.records_read was not sent" in caplog.text


def test_a_ledger_that_is_away_has_no_lag(statsd: StatsdServer, tasks: Tasks) -> None:
    """What a task says of it is not covered by a second error."""
    from semel.airflow import metrics

    with Ledger("postgresql://nobody@127.0.0.1:1/none") as away:
        with pytest.raises(UnavailableError):
            away.rows("metrics", "lag", pipeline="events")
        metrics.send_lag(away, "events")
    assert statsd.arrived() == [] and tasks.events == []


def test_the_documents_name_each_metric() -> None:
    """The table of docs/airflow.md has the metrics that there are, and no other."""
    from semel.airflow import metrics

    text = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    section = text.split("\n## Metrics\n")[1].split("\n## ")[0]
    named = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert named == {*metrics.COUNTERS, metrics.REPLAYED, metrics.LAG, metrics.DURATION}
