"""What of a declaration shapes a batch's data: by its digest stage knows the spec of the plan."""

import hashlib
import json
from collections.abc import Set
from typing import Any

_NOT_OF_THE_DATA = frozenset(
    """
    description schedule max_active_runs notify deadline limits dedup.keep_ids
    """.split()
)
"""Keys that say what a plan does, and what is kept beside a batch, not what is in it."""


# Keeps P20.
def digest(declared: dict[str, Any], aside: Set[str]) -> str:
    """Hex SHA-256 of what is declared and not a default, but for the keys `aside`.

    So a batch stays the one that was planned when semel learns a key.
    """
    shaping = _without(declared, _NOT_OF_THE_DATA | aside)
    text = json.dumps(shaping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(declared: dict[str, Any], aside: Set[str], within: str = "") -> dict[str, Any]:
    """The keys that are not `aside`, at all levels; and no mapping that has only such keys."""
    kept = {
        key: _without(value, aside, f"{within}{key}.") if isinstance(value, dict) else value
        for key, value in declared.items()
        if within + key not in aside
    }
    return {key: value for key, value in kept.items() if value != {}}
