"""B1: whole batches of semel beside Spark's own pass-through.

    python benchmarks/stage.py                      # 4 million records, with all kinds of repeats
    python benchmarks/stage.py --no-variants        # one kind of repeats alone
    python benchmarks/stage.py --cluster --no-variants
    python benchmarks/stage.py --source parquet     # of the same records in a file of Parquet
    python benchmarks/stage.py --source csv         # or of CSV, each text in quotes
    python benchmarks/stage.py --smallest

The pass-through is `spark.read.schema(...).json(...).write.parquet(...)`: it reads and writes, and
promises nothing. semel's figure is the whole of plan, stage, commit and finalize. For Parquet and
CSV the pass-through reads these too, and the figure is that of stage alone as well.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import harness
from data import Shape
from harness import in_turn, medians, ratio, table
from semel.ledger import Ledger
from sides import LANDED, SEMEL, Sides, bars

_NAMES = {
    "pass_through": "Spark's pass-through",
    "floor": "semel's reader and writer alone",
    "transformed": "Spark's pass-through with a projection",
    **SEMEL,
}
_REPEATS = {
    "none": {"repeats": 0.0},
    "0.1 %, in bursts": {"repeats": 0.001, "bursts": True},
    "2 % at random": {"repeats": 0.02},
    "10 % at random": {"repeats": 0.1},
    "50 % at random": {"repeats": 0.5},
    "2 %, ids in order of time": {"ordered": True},
}


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    parser.add_argument("--repeats", type=float, default=0.02, help="share of repeated records")
    parser.add_argument("--wide", type=int, help="records of 2 kB (default an eighth of --records)")
    parser.add_argument("--no-variants", action="store_true", help="only one share of repeats")
    parser.add_argument("--cluster", action="store_true", help="a standalone Spark, two workers")
    parser.add_argument("--source", choices=("jsonl", "parquet", "csv"), default="jsonl")
    options = harness.parsed(parser, records=4_000)
    master = harness.CLUSTER if options.cluster else harness.LOCAL
    with (
        harness.open_place() as place,
        harness.open_spark(place, master) as spark,
        Ledger(place.dsn) as ledger,
    ):
        sides = Sides(place, spark, ledger)
        other = options.source != "jsonl"
        report = _measured_other(sides, options) if other else _measured(sides, options)
    if options.cluster:
        report["title"] += ", on a standalone cluster of two workers"
        report["headline"] = {f"{key}_cluster": x for key, x in report["headline"].items()}
    parts = [options.source] * other + ["cluster"] * options.cluster
    harness.save("stage", options, report, part="-".join(parts))


def _measured(sides: Sides, options: Namespace) -> dict[str, Any]:
    """All comparisons of B1, as harness.save takes them."""
    shape = Shape(records=options.records, repeats=options.repeats)
    found = sides.compared(
        shape, options, "pass_through", "floor", "id", "position", "at_least_once", "transformed",
        "id_transformed",
    )  # fmt: skip
    wide = Shape(records=options.wide or options.records // 8, wide=True)
    wide_found = sides.compared(wide, options, "pass_through", "id", "position")
    headline = {
        "ratio_id": ratio(found, "id"),
        "ratio_position": ratio(found, "position"),
        "ratio_at_least_once": ratio(found, "at_least_once"),
        "ratio_id_2kb": ratio(wide_found, "id"),
        "ratio_position_2kb": ratio(wide_found, "position"),
        "ratio_id_transformed": ratio(found, "id_transformed", "transformed"),
    }
    tables = [
        table(f"One batch of {options.records:,} records of 160 bytes", found, _NAMES),
        table(f"One batch of {wide.records:,} records of 2 kB", wide_found, _NAMES),
        _verb_table(sides),
    ]
    if not options.no_variants:
        tables.append(_variants(sides, shape, options))
    plots = [bars(f"Seconds for {options.records:,} records of 160 bytes", found, _NAMES)]
    title = "B1: a batch beside Spark's pass-through"
    return {"title": title, "headline": headline, "tables": tables, "plots": plots}


def _measured_other(sides: Sides, options: Namespace) -> dict[str, Any]:
    """One batch of a file of Parquet or CSV, as harness.save takes it."""
    shape, form = Shape(records=options.records, repeats=options.repeats), options.source
    source = LANDED[f".{form}"](shape, sides.fresh("in") / f"records.{form}")
    harness.tell(f"{source.stat().st_size / shape.records:.0f} bytes a record")
    names = "pass_through", "id", "position"
    found = in_turn({name: sides.side(name, shape, source) for name in names}, options.runs)
    stages = {"pass_through": found["pass_through"], **sides.stage_seconds}
    headline = {
        f"ratio_id_{form}": ratio(found, "id"),
        f"ratio_position_{form}": ratio(found, "position"),
        f"ratio_stage_id_{form}": ratio(stages, "id"),
        f"ratio_stage_position_{form}": ratio(stages, "position"),
    }
    named = {"parquet": "Parquet", "csv": "CSV"}[form]
    title = f"One batch of {options.records:,} records in a file of {named}"
    tables = [table(title, found, _NAMES), table("stage alone", stages, _NAMES)]
    plots = [bars(f"Seconds for {options.records:,} records of {named}", found, _NAMES)]
    title = f"B1: a batch of {named} beside Spark's pass-through"
    return {"title": title, "headline": headline, "plots": plots,
            "tables": [*tables, _verb_table(sides)]}  # fmt: skip


def _variants(sides: Sides, shape: Shape, options: Namespace) -> dict[str, Any]:
    names = "pass_through", "position", "id", "transformed", "id_transformed"
    wide = replace(shape, records=options.wide or shape.records // 8, wide=True)
    rows = []
    for size, of_size in {"160 bytes": shape, "2 kB": wide}.items():
        for repeats, changed in list(_REPEATS.items())[: 1 if options.smallest else None]:
            found = sides.compared(replace(of_size, **changed), options, *names)
            times = medians(found)
            rows.append(
                [
                    size,
                    repeats,
                    *(round(times[name], 2) for name in names[:3]),
                    ratio(found, "id"),
                    ratio(found, "id", "position"),
                    ratio(found, "id_transformed", "transformed"),
                ]
            )
    columns = [
        "records", "repeats", "pass-through, s", "by position, s", "by id, s",
        "id / pass-through", "id / position", "with a transform / pass-through with it",
    ]  # fmt: skip
    return {"title": "Repeats, same number of records", "columns": columns, "rows": rows}


def _verb_table(sides: Sides) -> dict[str, Any]:
    rows = [[name, *seconds.values()] for name, seconds in sides.verbs.items()]
    columns = ["semel", "plan, s", "stage, s", "commit, s", "finalize, s"]
    return {"title": "Each verb, in the last run", "columns": columns, "rows": rows}


if __name__ == "__main__":
    main()
