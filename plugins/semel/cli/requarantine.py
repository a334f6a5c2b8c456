"""`semel replay --requarantine`: judge the dead letters of finalized batches again."""

from typing import TYPE_CHECKING

from semel import console

if TYPE_CHECKING:
    from semel.ledger import Ledger
    from semel.pipeline.spec import Spec


def judge_again(
    ledger: "Ledger",
    spec: "Spec",
    request: str,
    roots: list[int],
    spark: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Admit what is good now of the dead letters of some batches, one batch after the other."""
    from semel import settings
    from semel.reports import summary
    from semel.runs import requarantine
    from semel.spark.session import open_engine

    left = requarantine.left(ledger, spec, roots)
    requarantine.refuse(ledger, spec, roots, left)
    if dry_run:
        payload = {"pipeline": spec.name, "letters": left}
        console.emit(payload, as_json=as_json, render=lambda: print(summary.letters_left(left)))
        return
    done = []
    if left:
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            for at, (root, letters) in enumerate(left.items(), 1):
                console.say(f"batch {root} ({at} of {len(left)}): {letters:,} dead letters")
                done.append(requarantine.run(ledger, spec, request, root, engine, console.say))
    admitted = [
        {
            "batch_id": one.root,
            "by": one.batch.batch_id,
            "admission": one.batch.admission,
            "counts": one.finalized.counts,
            "marker": one.finalized.marker,
        }
        for one in done
        if one.batch
    ]
    payload = {"pipeline": spec.name, "request": request, "admitted": admitted}
    console.emit(payload, as_json=as_json, render=lambda: print(summary.requarantine(done)))
