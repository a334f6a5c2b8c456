"""Where things lie below a sink: output files, and `_semel/` with all that semel keeps beside them.

Readers of Hive-style folders skip names that begin with `_`. docs/protocol.md gives each file's
schema.
"""

from pathlib import Path

# Keeps L2.
OWN = "_semel"


def own(sink: Path) -> Path:
    return sink / OWN


def attempt(sink: Path, batch_id: int, fence: int) -> Path:
    """The folder of one attempt. Only the driver makes it, and collect removes it."""
    return staging(sink) / f"b{batch_id:08d}" / f"f{fence:04d}"


def staging(sink: Path) -> Path:
    return own(sink) / "staging"


def markers(sink: Path) -> Path:
    return own(sink) / "markers"


def adoptions(sink: Path) -> Path:
    """Notes of adopt: which commits were lost with a ledger."""
    return own(sink) / "adoptions"


def marker(sink: Path, batch_id: int) -> Path:
    """The success marker: it lists the files of a batch, and readers go by it."""
    return markers(sink) / f"b{batch_id:08d}.json"


def sink_of(marker_path: Path) -> Path:
    """The sink that a marker speaks of."""
    return marker_path.parents[2]


def kept(sink: Path, kind: str, batch_id: int, part: int) -> Path:
    """The final name of a `decisions`, `dead_letters` or `claims` file."""
    return own(sink) / kind / f"b{batch_id:08d}-{part:05d}.parquet"
