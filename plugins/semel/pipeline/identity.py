"""What a pipeline's catalog of ids is made of, and the rows of its windows: it cannot change.

A change would make other hashes of the same records, and all of them would pass as new; or partial
rows that do not add up with those that are there. Column types may change within a class, for what
hashes alike (catalog.ids) stays the same id.
"""

import json
from typing import Any

from semel.declare.parts import RepeatScope
from semel.errors import TerminalError
from semel.pipeline.spec import Spec

_CLASSES = {
    "string": "text",
    "bigint": "integer",
    "int": "integer",
    "smallint": "integer",
    "boolean": "integer",
}
"""Types whose values hash alike. Every other type is a class of its own."""

_TIME = "time"
"""The class of record_time: a bucket is the same whether a day or its midnight was read."""

_FIELDS = {
    "record_id": "record_id",
    "scope": "dedup.scope",
    "shards": "dedup.shards",
    "record_time": "record_time",
    "window": "window",
    "aggregate": "aggregate",
}
"""What must be equal, and the key of the declaration that it comes from."""

_COUNTED = ("window", "aggregate")


def identity_of(spec: Spec) -> dict[str, Any]:
    """What the ids of a pipeline are made of, as plain JSON."""
    kinds = spec.column_types()
    types = {name: _CLASSES.get(kinds[name].word, kinds[name].word) for name in spec.record_id}
    by_bucket = spec.dedup.scope is RepeatScope.BUCKET
    if by_bucket:
        types.setdefault(spec.record_time, _TIME)
    return {
        "record_id": list(spec.record_id),
        "scope": str(spec.dedup.scope),
        "shards": spec.dedup.shards,
        "record_time": spec.record_time if by_bucket else None,
        "types": types,
        **_counted(spec),
    }


# Keeps AG4.
def _counted(spec: Spec) -> dict[str, Any]:
    """What partial rows are made of. How long a window stays open is no part of it."""
    if spec.aggregate is None:
        return dict.fromkeys(_COUNTED)
    plain = spec.to_json()
    window = {key: plain["window"][key] for key in ("size", "every", "zone")}
    return {"window": window | {"of": spec.record_time}, "aggregate": plain["aggregate"]}


def to_text(identity: dict[str, Any]) -> str:
    """An identity as the ledger keeps it."""
    return json.dumps(identity)


# Keeps P12.
def check(stored: str, spec: Spec) -> None:
    """TerminalError when the declaration is not what the catalog's ids were made of."""
    old, new = json.loads(stored), identity_of(spec)
    changed = [field for field in _FIELDS if old[field] != new[field]]
    changes = [
        f"{_FIELDS[field]} cannot change from {json.dumps(old[field])} to {json.dumps(new[field])}"
        for field in changed
    ]
    changes += [
        f"the type of {name!r} in source.schema cannot change from {old['types'][name]} to {kind}"
        for name, kind in new["types"].items()
        if old["types"].get(name, kind) != kind
    ]
    if changes:
        why = "the ids in its catalog are made of it, and every record would pass as new"
        if {*changed} & {*_COUNTED}:
            why = "the rows of its windows are made of it, and old and new would not add up"
        raise TerminalError(
            f"pipeline {spec.name}: {'; '.join(changes)}: {why}. Put it back, or declare a new "
            "pipeline with its own name and sink"
        )
