"""One pipeline's trouble never stops another's collect."""

import pytest

from fixtures.batches.account import committed
from fixtures.batches.workbench import Workbench, events
from semel import collect
from semel.cli import main
from semel.ledger import Ledger
from semel.pipeline.spec import Spec


# Attacks G8.
def test_a_defect_is_told_and_the_others_are_collected(
    bench: Workbench,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error that is none of semel's ends the collect of its own pipeline alone, with a trace,
    and the exit code tells it.
    """
    bench.write("in/1.jsonl", events(0, 5))
    for name in ("a", "b"):
        committed(ledger, bench.spec(name), "r1")
    with ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE semel.batch SET committed_at = '1970-01-01', seen_at = '1970-01-01'"
        )
    finalize = collect.finalize

    def fails(ledger: Ledger, spec: Spec, batch_id: int) -> object:
        if spec.name == "a":
            raise RuntimeError("out of tune")
        return finalize(ledger, spec, batch_id)

    monkeypatch.setattr(collect, "finalize", fails)
    assert main(["collect"]) == 1
    told = capsys.readouterr()
    assert "collect of a failed: unexpected RuntimeError: out of tune" in told.err
    assert "Traceback" in told.err
    assert "next:" not in told.err, "the same again ends as this did"
    left = ledger.rows("collect", "unfinished", pipeline_id=2, orphan_seconds=0)
    assert list(left) == []
