"""Specs as the first version of semel stored them, and the digest that it gave them."""

import hashlib
import json
from typing import Any

from semel.pipeline import Spec

CLICKS = {
    "name": "clicks", "description": "", "schedule": None,
    "source": {
        "type": "files", "path": "in/*.jsonl", "format": "jsonl",
        "schema": [["id", "bigint"], ["at", "timestamp"]], "unknown": "ignore",
        "select": "arrival", "interval_from": None, "lateness": "0 seconds",
        "closed_after": None, "on_refused": None,
        "csv": {"delimiter": ",", "quote": "\"", "multiline": False},
    },
    "record_id": [], "record_time": None,
    "dedup": {
        "scope": "horizon", "horizon": "30 days", "shards": 4, "late": "quarantine",
        "keep_ids": None,
    },
    "transforms": [],
    "sink": {
        "type": "files", "path": "out/clicks", "format": "parquet", "partition_by": [],
        "file_name": "{pipeline}-b{batch:08d}-{part:05d}", "position_columns": False,
    },
    "limits": {
        "bytes_per_batch_max": 8589934592, "quarantine_ratio_max": 0.05, "log_samples": True,
        "orphan_after": "1 hour",
    },
    "max_active_runs": 4, "parser_rules": 2,
}  # fmt: skip
"""A spec as the first version of semel stored it."""


def as_first_stored(spec: Spec) -> dict[str, Any]:
    """A spec of today as the first version would have stored it."""
    plain = spec.to_json()
    plain["source"]["lateness"] = plain["source"].pop("lookback")
    stored = {key: plain[key] for key in CLICKS}
    for part in ("source", "dedup", "sink", "limits"):
        stored[part] = {key: plain[part][key] for key in CLICKS[part]}
    return stored


def first_digest(stored: dict[str, Any]) -> str:
    """The digest as the first version took it, of a spec as it stored it."""
    plain = json.loads(json.dumps(stored))
    for name in ("description", "schedule", "max_active_runs", "limits"):
        del plain[name]
    del plain["source"]["on_refused"], plain["dedup"]["keep_ids"]
    if plain["source"]["unknown"] == "ignore":
        del plain["source"]["unknown"]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
