"""What a target holds against what markers say: each cell, by number."""

import itertools

import pytest

from semel.sinks import BatchNote
from semel.sinks.note_comparison import (
    BatchVerdict,
    Differences,
    KnownBatch,
    MarkerVerdict,
    TargetVerdict,
    batches_text,
    compare,
    judge_batch,
)

KNOWN = {told: number for number, told in enumerate((MarkerVerdict.LISTED, MarkerVerdict.POSSIBLE), 1)}


def note(number: int, **other: object) -> BatchNote:
    values = {"pipeline": "flights", "batch_id": number, "commit_seq": number, "fence": 1}
    return BatchNote(**{**values, "rows": 10, "ledger": "ours", **other})  # type: ignore[arg-type]


def known(number: int, told: MarkerVerdict) -> KnownBatch:
    of = {"batch_id": number, "root": number, "commit_seq": number, "fence": 1}
    return KnownBatch(**of, rows=10, rows_left=10, verdict=told)  # type: ignore[arg-type]


# Attacks H1.
@pytest.mark.parametrize("cell", list(itertools.product(MarkerVerdict, TargetVerdict)), ids=str)
def test_each_cell(cell: tuple[MarkerVerdict, TargetVerdict]) -> None:
    """What the table says of a cell is what comes of a batch that is in it, and of no other one."""
    told, holds = cell
    batches = [known(1, told)] if told is not MarkerVerdict.UNKNOWN else []
    of = {TargetVerdict.NOTHING: [], TargetVerdict.SAME: [note(1)], TargetVerdict.OTHER: [note(1, rows=9)]}[holds]
    found = compare("flights", "ours", batches, of)
    shown = {
        BatchVerdict.FINE: Differences(),
        BatchVerdict.MISSING: Differences(missing=tuple(batches)),
        BatchVerdict.OTHER: Differences(conflicting=tuple(of)),
        BatchVerdict.STRAY: Differences(strays=tuple(of)),
    }
    assert found == shown[judge_batch(told, holds)]


@pytest.mark.parametrize("other", [{"commit_seq": 2}, {"fence": 2}, {"rows": 9}])
def test_what_is_the_same(other: dict[str, int]) -> None:
    """A batch is another one by its place, its attempt, and how many rows it has."""
    assert known(1, MarkerVerdict.LISTED).compare_note(note(1, **other)) is TargetVerdict.OTHER


# Attacks H1, H2.
@pytest.mark.parametrize(
    ("other", "holds"),
    [({}, TargetVerdict.SAME), ({"rows": 9}, TargetVerdict.SAME), ({"rows": 11}, TargetVerdict.OTHER),
     ({"commit_seq": 2}, TargetVerdict.OTHER)],
)  # fmt: skip
def test_rows_that_are_their_own_note(other: dict[str, int], holds: TargetVerdict) -> None:
    """They know neither attempt nor ledger, and some may have been deleted since; more are others.
    """
    told = note(1, fence=None, ledger=None, **other)
    assert known(1, MarkerVerdict.LISTED).compare_note(told) is holds
    assert compare("flights", "ours", [], [told]) == Differences(strays=(told,))


# Attacks H2.
def test_whose_notes_are_foreign() -> None:
    """Those of another pipeline or another ledger; who knows no ledger takes any for its own."""
    notes = [note(1), note(2, pipeline="other"), note(3, ledger="theirs"), note(4)]
    batches = [known(number, MarkerVerdict.LISTED) for number in (1, 4)]
    assert [one.batch_id for one in compare("flights", "ours", batches, notes).foreign] == [2, 3]
    assert [one.batch_id for one in compare("flights", None, batches, notes).foreign] == [2]


def test_batches_by_their_numbers() -> None:
    """Up to ten of them are named."""
    assert batches_text({7}) == "batch 7" and batches_text({3, 1}) == "batches 1, 3"
    assert batches_text(range(1, 13)) == "batches 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"
