"""The digest of the keys that shape a batch's data. Stage compares it with the plan's digest."""

import hashlib
import json
from collections.abc import Set
from typing import Any

_NOT_OF_THE_DATA = frozenset(
    """
    description schedule max_active_runs notify deadline limits dedup.keep_ids
    """.split()
)
"""Keys that affect when and how a plan runs, or files next to a batch, but not its data."""


# Keeps P20.
def digest(declared: dict[str, Any], aside: Set[str]) -> str:
    """Hex SHA-256 of the declared keys that are not defaults, without the keys in `aside`.

    So the digest of a batch does not change when a version of semel adds a key.
    """
    shaping = _without(declared, _NOT_OF_THE_DATA | aside)
    text = json.dumps(shaping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(declared: dict[str, Any], aside: Set[str], within: str = "") -> dict[str, Any]:
    """The keys that are not in `aside`, at all levels, without mappings that become empty."""
    shaping = {
        key: _without(value, aside, f"{within}{key}.") if isinstance(value, dict) else value
        for key, value in declared.items()
        if within + key not in aside
    }
    return {key: value for key, value in shaping.items() if value != {}}
