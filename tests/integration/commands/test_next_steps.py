"""Steps that errors name, typed: each works, once its message was followed. `steps.txt` lists all."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps
from fixtures.batches.account import committed, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.server import database
from semel.cli import main
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.pipeline.spec import Spec
from semel.spark import check

WINDOW = {"record_time": "at", "window": {"size": "1 hour", "zone": "UTC"}}
COUNTED = {"record_id": ["id"], **WINDOW, "aggregate": {"columns": {"events": "count()"}}}
DAYS = {"path": "in/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
PARQUET = {"path": "in/*.parquet", "format": "parquet"}


class Scene:
    """A project, and a second ledger that knows nothing of it."""

    def __init__(self, bench: Workbench, ledger: Ledger, shell: Shell, lose: Callable) -> None:
        self.bench, self.ledger, self.shell, self.lose = bench, ledger, shell, lose
        self.mend: Callable[[], object] = lambda: None

    def batch(self, **changes: object) -> Spec:
        """A pipeline with one finalized batch of ten records."""
        spec = self.bench.spec(**changes)
        self.bench.write("in/2026-01-01.jsonl", events(0, 10))
        run(self.ledger, spec, "r1")
        return spec

    def file(self) -> Path:
        return self.bench.data / "in/2026-01-01.jsonl"

    def table(self, name: str = "a.parquet") -> Path:
        path = self.bench.data / "in" / name
        columns = {"id": ["e1", "e2"], "n": [1, 2], "at": pa.array([0, 0], pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(columns), path)
        return path


SCENES: dict[str, Callable[[Scene], str]] = {}
"""Place -> what leads to it; it returns the command that fails there."""


def at(place: str) -> Callable:
    """The scene of a place."""

    def keep(scene: Callable[[Scene], str]) -> Callable[[Scene], str]:
        SCENES[place] = scene
        return scene

    return keep


def simply(place: str, line: str, **changes: object) -> None:
    """A place that a command reaches in a pipeline with one finalized batch."""
    SCENES[place] = lambda scene: [line, scene.batch(**changes)][0]


simply("cli/receive.py:receive", "semel receive events")
simply("errors.py:StateError", "semel abandon 1")
simply("repair/accept.py:accept_moved", "semel accept events --moved")
simply("repair/accept.py:accept_columns", "semel accept events --columns", **COUNTED)
simply("repair/accept.py:accept_late", "semel accept events --late", **WINDOW)
simply("repair/exact.py:_exact", "semel exact events", record_id=None)
simply("repair/losses.py:_unread_ranges", "semel accept events in/2026-01-01.jsonl --lost")
simply("repair/erasure.py:_check_number", "semel accept events --erased 1 --rows 3 --why gone")
simply("reports/completeness.py:read_completeness", "semel windows events")
simply("reports/completeness.py:windows", "semel windows events --from 0001-01-01", **WINDOW)
simply("reports/completeness.py:_window_ranges", "semel windows events --from 1900-01-01", **WINDOW)
simply("reports/window_rows.py:query", "semel windows events --query")
simply("reports/find.py:_values", "semel find events e1", record_id=None)
simply("reports/find.py:_values#2", "semel find events '{bad'")
simply("reports/find.py:_value", "semel find events x", record_id=["n"])
simply("reports/find.py:_condition", f"semel find events {2**70}", record_id=["n"])
simply("runs/replay.py:roots", "semel replay events --batches 90..99")
simply("compare/choice.py:choose_batches#2", "semel compare events --batches 90..99")


@at("infer/write.py:_name_clash")
def _(scene: Scene) -> str:
    scene.batch()
    return f"semel new events {scene.file()} --yes"


@at("errors.py:SpecError")
def _(scene: Scene) -> str:
    scene.batch()
    twin = scene.bench.pipelines / "twin.yaml"
    shutil.copy(scene.bench.pipelines / "events.yaml", twin)
    scene.mend = twin.unlink
    return "semel run events"


@at("declare/yaml.py:_text#2")
def _(scene: Scene) -> str:
    scene.batch()
    path = scene.bench.pipelines / "events.yaml"
    right = path.read_text()
    path.write_text(right + "#" * 10_000_000)
    scene.mend = lambda: path.write_text(right)
    return "semel run events"


@at("repair/exact.py:_exact#2")
def _(scene: Scene) -> str:
    scene.bench.spec()
    return "semel exact events"


@at("plan/register.py:_guaranteed")
def _(scene: Scene) -> str:
    scene.batch(guarantee="at_least_once")
    scene.bench.spec()
    return "semel run events"


@at("plan/register.py:_guaranteed#2")
def _(scene: Scene) -> str:
    scene.batch()
    scene.bench.spec(guarantee="at_least_once")
    scene.mend = scene.bench.spec
    return "semel run events"


@at("runs/requarantine.py:letters_left")
def _(scene: Scene) -> str:
    spec = scene.bench.spec()
    scene.bench.write("in/2026-01-01.jsonl", events(0, 10))
    committed(scene.ledger, spec, "r1")
    return "semel replay events --batches 1 --requarantine"


@at("compare/choice.py:choose_batches#3")
def _(scene: Scene) -> str:
    spec = scene.bench.spec()
    scene.bench.write("in/2026-01-01.jsonl", events(0, 10))
    committed(scene.ledger, spec, "r1")
    return "semel compare events --batches 1"


@at("repair/erasure.py:accept_erased")
def _(scene: Scene) -> str:
    spec = scene.batch()
    next(spec.sink_path().glob("*.parquet")).unlink()
    scene.bench.write("in/2026-01-02.jsonl", events(20, 30))
    assert main(["replay", "events", "--batches", "1", "--dry-run"]) == 0
    from semel.runs import replay

    replay.plan_all(scene.ledger, spec, "r2", [1])
    return "semel accept events --erased 1 --rows 10 --why gone"


@at("runs/replay.py:refuse")
def _(scene: Scene) -> str:
    spec = scene.batch()
    next(spec.sink_path().glob("*.parquet")).unlink()
    assert main(shlex.split("accept events --erased 1 --rows 10 --why gone")) == 0
    return "semel replay events --batches 1"


@at("sources/files/acceptance.py:_same_partition")
def _(scene: Scene) -> str:
    scene.batch()
    scene.bench.write("in/2026-01-01.jsonl", events(50, 55))
    return "semel accept events in/2026-01-01.jsonl --same"


@at("sources/files/acceptance.py:decide_acceptance")
def _(scene: Scene) -> str:
    scene.batch()
    scene.bench.write("in/2026-01-02.jsonl", events(20, 30))
    return "semel accept events in/2026-01-02.jsonl"


@at("sources/sealed/matching.py:accept_unrefused")
def _(scene: Scene) -> str:
    scene.table()
    run(scene.ledger, scene.bench.spec(source=PARQUET), "r1")
    path = scene.table("b.parquet")
    pq.write_table(pq.read_table(path).slice(1), path)
    return "semel accept events in/b.parquet"


@at("sources/sealed/matching.py:accept_part")
def _(scene: Scene) -> str:
    path = scene.table()
    run(scene.ledger, scene.bench.spec(source=PARQUET), "r1")
    path.unlink()
    path = scene.table("b.parquet")
    pq.write_table(pq.read_table(path).slice(1), path.with_name("a.parquet"))
    path.unlink()
    return "semel accept events in/a.parquet --same"


@at("stage/__init__.py:_seal")
def _(scene: Scene) -> str:
    scene.batch()
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "more": "string"}
    scene.bench.spec(source={"schema": schema})
    scene.bench.write("in/2026-01-02.jsonl", events(20, 30))
    return "semel run events"


@at("archive/ownership.py:refuse_traces")
def _(scene: Scene) -> str:
    scene.batch()
    scene.lose()
    return "semel run events"


@at("repair/adopt/__init__.py:_adopt")
def _(scene: Scene) -> str:
    scene.bench.spec()
    return "semel adopt events"


@at("repair/adopt/__init__.py:_check_markers")
def _(scene: Scene) -> str:
    scene.batch()
    path = scene.bench.pipelines / "events.yaml"
    right = path.read_text()
    path.write_text(right.replace("name: events", "name: renamed"))
    scene.lose()
    scene.mend = lambda: path.write_text(right)
    return "semel adopt renamed"


@pytest.mark.parametrize("place", SCENES)
def test_a_step_works(
    place: str,
    bench: Workbench,
    ledger: Ledger,
    shell: Shell,
    postgres: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last line of the error is a command that ends well, and not with the same error."""
    monkeypatch.setattr(check, "open_engine", away)
    with database(postgres) as other:

        def lose() -> None:
            migrate(other)
            monkeypatch.setenv("SEMEL_LEDGER_DSN", other)

        scene = Scene(bench, ledger, shell, lose)
        line = SCENES[place](scene)
        shell.capsys.readouterr()
        assert main(shlex.split(line)[1:]) in (1, 2), shell.capsys.readouterr()
        shown = shell.capsys.readouterr().err
        scene.mend()
        step = shown.splitlines()[-1].removeprefix("next: ")
        code = main(shlex.split(step)[1:])
        again = shell.capsys.readouterr()
    assert code in (0, 1) and "defect" not in again.err, (shown, again)
    assert place in steps.STEPS.typed, (shown, dict(steps.STEPS.named), again.err)


def away(*_: object) -> None:
    """Spark as check finds it here."""
    raise UnavailableError("Spark does not answer")
