"""What is told of keys that the schema does not name, on its way from a task to a person."""

from semel import limits
from semel.batch import Counts, Ignored
from semel.manifest import SplitReport

ODD = {"a\n\x1b[2J": 3, "\U0001f600é": 2, "": 1}


def test_a_report_carries_them() -> None:
    """Whatever the keys are, they pass through the shuffle as they are."""
    found = Ignored(keys=ODD, sampled=True)
    report = SplitReport(split=0, digest="", counts=Counts(), ignored=found)
    assert SplitReport.from_bytes(report.to_bytes()) == report


def test_splits_are_summed_up() -> None:
    """The most frequent come first and stay, in any order of splits; one sample makes all about."""
    many = Ignored(keys={f"k{n}": n for n in range(1, limits.KEYS_COUNTED_MAX + 50)})
    both = many + Ignored(keys={"k1": 1_000}, sampled=True)
    assert both == Ignored(keys={"k1": 1_000}, sampled=True) + many
    assert next(iter(both.keys.items())) == ("k1", 1_001) and both.sampled
    assert len(both.keys) == limits.KEYS_COUNTED_MAX and "k2" not in both.keys
