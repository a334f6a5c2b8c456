"""What a pipeline's catalog of ids is made of: it cannot change while the catalog lives.

A change would make other hashes of the same records, and all of them would pass as new. Column
types may change within a class, for what hashes alike (catalog.ids) stays the same id.
"""

import json
from typing import Any

from semel.declare.parts import Scope
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
}
"""What must be equal, and the key of the declaration that it comes from."""


def identity_of(spec: Spec) -> dict[str, Any]:
    """What the ids of a pipeline are made of, as plain JSON."""
    kinds = spec.column_types()
    types = {name: _CLASSES.get(kinds[name].word, kinds[name].word) for name in spec.record_id}
    by_bucket = spec.dedup.scope is Scope.BUCKET
    if by_bucket:
        types.setdefault(spec.record_time, _TIME)
    return {
        "record_id": list(spec.record_id),
        "scope": str(spec.dedup.scope),
        "shards": spec.dedup.shards,
        "record_time": spec.record_time if by_bucket else None,
        "types": types,
    }


def to_text(identity: dict[str, Any]) -> str:
    """An identity as the ledger keeps it."""
    return json.dumps(identity)


# Keeps P12.
def check(stored: str, spec: Spec) -> None:
    """TerminalError when the declaration is not what the catalog's ids were made of."""
    old, new = json.loads(stored), identity_of(spec)
    changes = [
        f"{key} cannot change from {json.dumps(old[field])} to {json.dumps(new[field])}"
        for field, key in _FIELDS.items()
        if old[field] != new[field]
    ]
    changes += [
        f"the type of {name!r} in source.schema cannot change from {old['types'][name]} to {kind}"
        for name, kind in new["types"].items()
        if old["types"].get(name, kind) != kind
    ]
    if changes:
        raise TerminalError(
            f"pipeline {spec.name}: {'; '.join(changes)}: the ids in its catalog are made of it, "
            "and every record would pass as new. Put it back, or declare a new pipeline with its "
            "own name and sink"
        )
