"""What of a declaration shapes a batch's data: by its digest stage knows the spec of the plan."""

import hashlib
import json
from typing import Any

from semel.sources.spec import FilesSource

_NOT_OF_THE_DATA = frozenset(
    """
    description schedule max_active_runs notify deadline limits source.on_refused
    source.on_empty source.wait_at_most source.connection source.bootstrap_servers
    source.registry source.consumer_group dedup.keep_ids sink.archive sink.transaction_bytes
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

_FIRST_NAMES = {f"source.{now}": first for first, now in FilesSource.renamed.items()}


# Keeps P20.
def digest(plain: dict[str, Any], changed: dict[str, Any]) -> str:
    """Hex SHA-256 of a spec as plain JSON; of it, `changed` holds what is not a default.

    A key that came later counts only with another value than its default, so that a batch stays
    the one that was planned when semel learns a key.
    """
    shaping = _shaping(plain, changed, "")
    text = json.dumps(shaping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _shaping(plain: dict[str, Any], changed: dict[str, Any], within: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in plain.items():
        first = _FIRST_NAMES.get(within + key, key)
        name = within + first
        if name in _NOT_OF_THE_DATA or not (name in _FIRST or key in changed):
            continue
        nested = isinstance(value, dict)
        kept[first] = _shaping(value, changed.get(key, {}), f"{name}.") if nested else value
    return kept
