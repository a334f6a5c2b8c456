"""The parts of a declaration that fix a pipeline's ids and the rows of its windows.

They cannot change: the same records would have other hashes, and all would pass as new; or new
partial rows would not add up with old ones. A column's type may change within a class, because
equal hashes (catalog.ids) are equal ids.
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
"""Types whose equal values have equal hashes. Every other type is a separate class."""

_TIME = "time"
"""The class of record_time: a day and its midnight are in the same bucket."""

_FIELDS = {
    "record_id": "record_id",
    "scope": "dedup.scope",
    "shards": "dedup.shards",
    "record_time": "record_time",
    "window": "window",
    "aggregate": "aggregate",
}
"""The fields that must not change, each with its key in the declaration."""

_COUNTED = ("window", "aggregate")


def identity_of(spec: Spec) -> dict[str, Any]:
    """The fields that fix the ids of a pipeline and its partial rows, as plain JSON."""
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
    """The fields that fix partial rows. They leave out the delay of a window."""
    if spec.aggregate is None:
        return dict.fromkeys(_COUNTED)
    plain = spec.to_json()
    window = {key: plain["window"][key] for key in ("size", "every", "zone")}
    return {"window": window | {"of": spec.record_time}, "aggregate": plain["aggregate"]}


def to_text(identity: dict[str, Any]) -> str:
    """An identity as text for the ledger."""
    return json.dumps(identity)


# Keeps P12.
def check(stored: str, spec: Spec) -> None:
    """Raises TerminalError if the declaration has another identity than the ledger."""
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
        why = "the ids in its catalog would not match, and every record would pass as new"
        if {*changed} & {*_COUNTED}:
            why = "old and new rows of its windows would not add up"
        raise TerminalError(
            f"pipeline {spec.name}: {'; '.join(changes)}: {why}. Put it back, or declare a new "
            "pipeline with its own name and sink"
        )
