"""What ids of a queue's messages begin with: every cell of the rule."""

from itertools import product
from types import SimpleNamespace

import pytest

from semel.errors import SourceError
from semel.sources.queue import audit
from semel.sources.queue.spec import UNKNOWN, NatsSourceSpec, SqsSourceSpec

MADE = "2026-01-01T00:00:00.5Z"
LATER = "2026-02-02T00:00:00Z"

SEGMENTS = {"declared": "nats:new", "left": "nats:old"}
"""Of the stream that is declared, and of the one that was before, as the spool has it still."""

LAST = {
    "none": None, "unknown": UNKNOWN, "by name": "nats:old", "by time": f"nats:old@{MADE}",
    "of new": "nats:new",
}  # fmt: skip

GO_ON, OWN, SEGMENT, OLD, REFUSED = "last", "own", "segment", "nats:old", None

RULE = {
    # segment, address declared: by what the last ids begin with
    ("declared", None): (OWN, SEGMENT, REFUSED, REFUSED, GO_ON),
    ("declared", "new"): (OWN, SEGMENT, OWN, OWN, GO_ON),
    ("declared", "old"): (OLD, REFUSED, GO_ON, GO_ON, OLD),
    ("left", None): (OWN, SEGMENT, GO_ON, GO_ON, REFUSED),
    ("left", "new"): (OWN, SEGMENT, GO_ON, GO_ON, OWN),
    ("left", "old"): (OWN, SEGMENT, GO_ON, GO_ON, OWN),
}

CASES = list(product(SEGMENTS, (None, "new", "old"), LAST))


def nats(stream: str, address: str | None, message_id: str | None = "mid") -> NatsSourceSpec:
    return NatsSourceSpec.model_validate({
        "type": "nats", "servers": "nats://h:4222", "stream": stream, "consumer": "c",
        "spool": "spool", "value": "json", "schema": {"a": "int", "mid": "string"},
        "address": address, "message_id": message_id,
    })  # fmt: skip


# Attacks Q4.
@pytest.mark.parametrize(("segment", "last"), list(product(SEGMENTS, LAST)))
def test_ids_of_the_publishers(segment: str, last: str) -> None:
    """Where no column takes the service's ids, no stream is refused."""
    assert nats("new", None, None).id_address(f"{SEGMENTS[segment]}@{LATER}", LAST[last])


# Attacks Q4.
@pytest.mark.parametrize(("segment", "address", "last"), CASES)
def test_what_ids_begin_with(segment: str, address: str | None, last: str) -> None:
    """New ids go by the stream's name, those of an older semel go on with the time that it took;
    another stream's are read only where a person has declared whose they are."""
    own, before = SEGMENTS[segment], LAST[last]
    wanted = RULE[segment, address][list(LAST).index(last)]
    found = nats("new", address).id_address(f"{own}@{LATER}", before)
    assert found == {GO_ON: before, OWN: own, SEGMENT: f"{own}@{LATER}"}.get(wanted, wanted)


@pytest.mark.parametrize(
    ("address", "declared", "right"),
    [
        (None, None, True), ("nats:new", None, True), (f"nats:new@{MADE}", None, True),
        ("nats:old", "old", True), ("nats:old", None, False), ("nats:old", "new", False),
        ("", None, False),
    ],
)  # fmt: skip
def test_the_audit_holds_claims_to_their_stream(
    address: str | None, declared: str | None, right: bool
) -> None:
    """A claim whose ids have an address that its segment's messages cannot have proves nothing."""
    claim = SimpleNamespace(evidence={} if address is None else {"address": address})
    segment = f"nats:new@{LATER}"
    if right:
        assert audit._id_address(segment, claim, nats("new", declared)) == (address or segment)
    else:
        with pytest.raises(SourceError, match="but their ids from"):
            audit._id_address(segment, claim, nats("new", declared))


@pytest.mark.parametrize("name", ["a@b", "a:b", f"a@{MADE[:10]}"])
def test_names_with_signs(name: str) -> None:
    """A stream's name may have the signs that part it from its time."""
    assert nats(name, None).id_address(f"nats:{name}@{LATER}", None) == f"nats:{name}"


def test_other_services(name: str = "arn:aws:sqs:eu-west-1:1:q") -> None:
    """Their addresses are what ids begin with, whatever came before."""
    queue = SqsSourceSpec.model_validate({
        "type": "sqs", "queue": "https://sqs.eu-west-1.amazonaws.com/1/q", "spool": "spool",
        "value": "json", "schema": {"a": "int"},
    })  # fmt: skip
    assert {queue.id_address(name, last) for last in (None, UNKNOWN, name, "x")} == {name}
