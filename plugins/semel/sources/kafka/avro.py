"""Values of Avro in Confluent's wire format: the byte 0, a schema's id, and the record.

A value is read by the schema that it was written by. What the declared columns make of it is judged
behind that, as with JSON.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from semel import limits
from semel.clients.kafka.registry import AVRO, Registry
from semel.declare.parts import UNKNOWN_SCHEMAS_MAX
from semel.errors import ANEW, LimitError
from semel.formats.avro import Decode, SchemaError, decoder
from semel.formats.lines import BadRecords, Fault
from semel.formats.records import too_long
from semel.model.reasons import Reason

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

HEAD_BYTES = 5
"""The byte 0, and the id in four bytes, the highest first."""

_NO_HEAD: Fault = (
    Reason.malformed, "expected the byte 0, a schema's id in four bytes and a record of Avro"
)  # fmt: skip
_LONG_TEXT: Fault = (
    Reason.malformed,
    f"expected a record that takes at most {limits.RECORD_BYTES_MAX} bytes as JSON",
)


def schema_id(value: bytes) -> int | None:
    """The id of the schema that a value was written by; None: it names none."""
    if len(value) < HEAD_BYTES or value[0]:
        return None
    return int.from_bytes(value[1:HEAD_BYTES], "big")


class Avro:
    """Reads the values of one split. A schema is asked for once, when the first value names it."""

    def __init__(
        self, registry: Registry, name: str, unknown_max: int = UNKNOWN_SCHEMAS_MAX
    ) -> None:
        """`name`: the partition that they are of. `unknown_max`: ids that nobody knows."""
        self._registry, self._name, self._unknown_left = registry, name, unknown_max
        self._unknown_max = unknown_max
        self._known: dict[bytes, Decode | Fault] = {}
        self._open = ExitStack()
        self._client: SchemaRegistryClient | None = None

    def close(self) -> None:
        """End the connection to the registry, if there is one."""
        self._open.close()

    def texts(self, values: Sequence[bytes | None]) -> tuple[list[bytes], dict[int, Fault]]:
        """The JSON of each value, nothing of those that have none; and why some have none.

        TerminalError, UnavailableError: the registry says neither that it knows a schema nor that
        it does not. LimitError: it does not know too many.
        """
        texts, faults, known = [], {}, self._known
        for at, value in enumerate(values):
            text = b""
            if value is not None:
                read = known.get(value[:HEAD_BYTES]) or self._reader(value)
                fault = read if isinstance(read, tuple) else None
                if len(value) > limits.RECORD_BYTES_MAX:
                    fault = too_long()
                elif fault is None:
                    try:
                        text = read(value, HEAD_BYTES)
                    except BadRecords as bad:
                        fault = bad.reason, bad.detail
                    if len(text) > limits.RECORD_BYTES_MAX:
                        text, fault = b"", _LONG_TEXT
                if fault is not None:
                    faults[at] = fault
            texts.append(text)
        return texts, faults

    # Keeps KS6.
    def _reader(self, value: bytes) -> Decode | Fault:
        number = schema_id(value)
        if number is None:
            return _NO_HEAD
        if self._client is None:
            self._client = self._open.enter_context(self._registry.client())
        written = self._registry.find(self._client, number)
        made: Decode | Fault
        if written is None:
            self._count_unknown(number)
            made = Reason.unknown_schema, f"{self._registry} has no schema {number}"
        elif written.kind != AVRO:
            why = f"expected Avro, found schema {number}, which is {written.kind}"
            made = Reason.malformed, why
        else:
            try:
                made = decoder(written.text, written.refers)
            except SchemaError as error:
                made = Reason.malformed, f"schema {number} cannot be read by: {error}"
        self._known[value[:HEAD_BYTES]] = made
        return made

    def _count_unknown(self, number: int) -> None:
        """Anybody who writes to the topic could let each message be a request."""
        self._unknown_left -= 1
        if self._unknown_left < 0:
            raise LimitError(
                f"{self._name!r}: values name more than {self._unknown_max} schemas "
                f"(limits.unknown_schemas_max) that {self._registry} does not have; the last is "
                f"{number}. Nothing of them was staged. Find out who writes there, or restore the "
                "registry; with a higher limit each of them is asked for, and their values are "
                "dead letters",
                next=ANEW,
            )
