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

_FIRST = frozenset(
    """
    name source record_id record_time dedup transforms sink parser_rules
    source.type source.path source.format source.schema source.select source.interval_from
    source.lateness source.closed_after source.csv
    source.csv.delimiter source.csv.quote source.csv.multiline
    dedup.scope dedup.horizon dedup.shards dedup.late
    sink.type sink.path sink.format sink.partition_by sink.file_name sink.position_columns
    """.split()
)
"""The first keys that there were: with these, a default is in the digest. Nothing is added here."""


# Keeps P20.
def digest(
    plain: dict[str, Any], changed: dict[str, Any], aside: Set[str], renamed: dict[str, str]
) -> str:
    """Hex SHA-256 of a spec as plain JSON; of it, `changed` holds what is not a default.

    `aside`: keys of source and sink that do not count; `renamed`: keys of the source by their
    first names. A key that came later counts only with another value than its default, so that a
    batch stays the one that was planned when semel learns a key.
    """
    names = {f"source.{now}": first for first, now in renamed.items()}
    shaping = _shaping(plain, changed, "", _NOT_OF_THE_DATA | aside, names)
    text = json.dumps(shaping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _shaping(
    plain: dict[str, Any], changed: dict[str, Any], within: str, aside: Set[str],
    names: dict[str, str],
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in plain.items():
        first = names.get(within + key, key)
        name = within + first
        if name in aside or not (name in _FIRST or key in changed):
            continue
        kept[first] = value
        if isinstance(value, dict):
            kept[first] = _shaping(value, changed.get(key, {}), f"{name}.", aside, names)
    return kept
