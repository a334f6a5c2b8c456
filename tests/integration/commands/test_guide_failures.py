"""docs/guide/failures.md: each failure is made here, and semel says of it what is quoted."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.batches.account import quiet, run
from fixtures.batches.workbench import Workbench
from fixtures.commands.guide import FOLDER, quoted
from fixtures.commands.shell import Shell
from fixtures.spark.local import LocalEngine
from semel import reader, settings
from semel.airflow.task_failure import retry_steps, wrap_lines
from semel.audit import audit
from semel.errors import SemelError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reports import summary
from semel.spark.session import open_engine
from semel.stage import stage

STAGE = {
    "ti": SimpleNamespace(try_number=1, max_tries=0),
    "task": SimpleNamespace(task_id="stage"),
}
DAY = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
NEXT_DAY = datetime(2026, 3, 3, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC)
HEADER = "order_id,amount\n"
KEY = "airflow:orders:manual__1"
NAME = "orders/orders_2026-03-02.csv"


class Shop:
    """A pipeline of daily CSV files, and what its tasks say."""

    def __init__(self, bench: Workbench, ledger: Ledger, shell: Shell) -> None:
        self.bench, self.ledger, self.shell = bench, ledger, shell
        self.declare()

    def declare(self, **changes: object) -> Spec:
        self.spec = self.bench.spec("orders", **{
            "source": {
                "path": "orders/orders_*.csv", "format": "csv", "select": "interval",
                "interval_from": "orders_%Y-%m-%d.csv",
                "schema": {"order_id": "bigint", "amount": "decimal(18,2)"},
            },
            "record_id": ["order_id"], "schedule": "@daily",
            "limits": {"quarantine_ratio_max": 0.05}, **changes,
        })  # fmt: skip
        return self.spec

    def land(self, first: int = 1, stop: int = 41, day: int = 2, header: str = HEADER) -> Path:
        text = header + "".join(f"{n},{n}.50\n" for n in range(first, stop))
        path = self.bench.data / "orders" / f"orders_2026-03-{day:02d}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def runs(self) -> None:
        """The schedule's own run of the day."""
        key = "airflow:orders:scheduled__2026-03-03"
        run(self.ledger, self.spec, key, DAY)

    def planned(self) -> int:
        """The batch of another run of the day, which has planned and not more."""
        return plan(self.ledger, self.spec, KEY, DAY).batch.batch_id

    def says(self, work: Callable[[], object]) -> str:
        """What a task's log ends with: an error with what to do next, or a summary."""
        try:
            return summary.plan(work())
        except SemelError as error:
            return f"{error}\nnext: {error.next_step(retry_steps(STAGE, 'orders', None, error))}"

    def plans(self, interval: tuple[datetime, datetime] = DAY) -> str:
        return self.says(lambda: plan(self.ledger, self.spec, KEY, interval))

    def stages(self, batch: int) -> str:
        return self.says(lambda: stage(self.ledger, self.spec, batch, LocalEngine(), quiet))

    def prints(self, line: str) -> str:
        """What a command prints that fails."""
        return self.shell.runs(line, code=1) + self.shell.err


@pytest.fixture
def shop(bench: Workbench, ledger: Ledger, shell: Shell) -> Shop:
    return Shop(bench, ledger, shell)


def no_file(shop: Shop) -> str:
    shop.land(day=2)
    return shop.plans(interval=NEXT_DAY)


def done_already(shop: Shop) -> str:
    shop.land()
    shop.runs()
    return shop.plans()


def file_changed(shop: Shop) -> str:
    shop.land()
    shop.runs()
    shop.land(stop=40)
    return shop.plans()


def wrong_header(shop: Shop) -> str:
    shop.land(header="order,amount\n")
    return shop.plans()


def wrong_name(shop: Shop) -> str:
    shop.land().rename(shop.bench.data / "orders" / "orders_today.csv")
    return shop.plans()


def file_deleted(shop: Shop) -> str:
    path = shop.land()
    shop.runs()
    shop.land(stop=61)
    batch = shop.planned()
    path.unlink()
    return shop.stages(batch)


def too_many_bad(shop: Shop) -> str:
    path = shop.land()
    path.write_text(path.read_text() + "".join(f"n/a,{n}.00\n" for n in range(5)))
    return shop.stages(shop.planned())


def declaration_changed(shop: Shop) -> str:
    shop.land()
    batch = shop.planned()
    shop.declare(sink={"position_columns": True})
    return shop.stages(batch)


def file_edited_since(shop: Shop) -> str:
    shop.land()
    batch = shop.planned()
    shop.land(first=2)
    return shop.stages(batch)


def yaml_wrong(shop: Shop) -> str:
    path = shop.bench.pipelines / "orders.yaml"
    path.write_text(path.read_text().replace("schema:", "shema:"))
    return shop.prints(f"semel validate {path}")


def ledger_away(shop: Shop) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.LEDGER_VARIABLE, "postgresql://semel@127.0.0.1:1/semel")
        return shop.prints("semel batches orders")


def spark_away(shop: Shop) -> str:
    def work() -> None:
        with open_engine("sc://127.0.0.1:1"):
            pass

    return shop.says(work)


def output_gone(shop: Shop) -> str:
    shop.land()
    shop.runs()
    [path] = shop.spec.sink_path().rglob("*.parquet")
    path.unlink()
    said = shop.prints("semel audit orders")
    lines = said.splitlines()
    return "\n".join([next(line for line in lines if line.startswith("files: ")), *lines[-2:]])


SCENES = [
    no_file, done_already, file_changed, wrong_header, wrong_name, file_deleted, too_many_bad,
    declaration_changed, file_edited_since, yaml_wrong, ledger_away, spark_away,
    output_gone,
]  # fmt: skip


def renames(shop: Shop) -> None:
    folder = shop.bench.data / "orders"
    (folder / "orders_today.csv").rename(folder / "orders_2026-03-02.csv")


def nothing(_: Shop) -> None:
    """Clearing the run is enough."""


ADVICE = [
    (file_changed, lambda shop: shop.shell.runs(f"semel accept orders {NAME}"), 40),
    (wrong_header, Shop.land, 40),
    (wrong_name, renames, 40),
    (file_deleted, lambda shop: shop.land(stop=61), 60),
    (too_many_bad, lambda shop: shop.declare(limits={"quarantine_ratio_max": 0.2}), 40),
    (declaration_changed, nothing, 40),
    (file_edited_since, nothing, 39),
    (output_gone, lambda shop: shop.shell.runs("semel replay orders --batches 1"), 40),
]
"""What the page tells to do before the run is cleared, and how many rows readers then see."""

QUOTED = quoted(FOLDER / "failures.md")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_what_is_quoted_is_said(scene: Callable[[Shop], str], shop: Shop) -> None:
    """A failure of the page, made anew, says what is quoted, in lines as a task's log has them."""
    said = scene(shop)
    for folder, name in ((shop.bench.data, "data"), (shop.bench.pipelines, "pipelines")):
        said = said.replace(str(folder), f"/srv/{name}")
    said = re.sub(r"\binode \d+", "inode 1234567", said)
    said = re.sub(r"digest \w{12}, now \w{12}", "digest 02bfc459ffaf, now a20570377cf5", said)
    text = "\n".join(wrap_lines(said))
    assert QUOTED[str(SCENES.index(scene) + 1)].rstrip() == text, text


@pytest.mark.parametrize(
    ("scene", "does", "rows"), ADVICE, ids=[scene.__name__ for scene, *_ in ADVICE]
)
def test_what_is_advised_helps(
    scene: Callable[[Shop], str], does: Callable[[Shop], object], rows: int, shop: Shop
) -> None:
    """After it the same run, cleared, ends well: its records are there, and the audit passes."""
    scene(shop)
    does(shop)
    run(shop.ledger, shop.spec, KEY, DAY)
    assert reader.dataset(shop.spec.sink_path()).count_rows() == rows
    if scene is not file_changed:  # What was read of the former file is nowhere any more.
        assert audit(shop.spec).ok


def test_each_quote_has_its_scene() -> None:
    """Thirteen, and none that nobody makes."""
    assert list(QUOTED) == [str(n + 1) for n in range(len(SCENES))] and len(SCENES) == 13
