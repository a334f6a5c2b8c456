"""Values of Avro in Confluent's wire format: the byte 0, a schema's id, and the record.

semel decodes each value with its producer's schema, and then converts the result to the declared
columns in the same way as JSON.
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
"""The byte 0 and the schema id, a big-endian integer of four bytes."""

_NO_HEAD: Fault = (
    Reason.malformed, "expected the byte 0, a schema id of four bytes and an Avro record"
)  # fmt: skip
_LONG_TEXT: Fault = (
    Reason.malformed,
    f"expected a record of at most {limits.RECORD_BYTES_MAX} bytes as JSON",
)


def schema_id(value: bytes) -> int | None:
    """The schema id of a value. Returns None if the value does not begin with one."""
    if len(value) < HEAD_BYTES or value[0]:
        return None
    return int.from_bytes(value[1:HEAD_BYTES], "big")


class Avro:
    """Decodes the values of one split. It fetches each schema once, for its first value."""

    def __init__(
        self, registry: Registry, name: str, unknown_max: int = UNKNOWN_SCHEMAS_MAX
    ) -> None:
        """`name`: the source partition. `unknown_max`: how many unknown schema ids to tolerate."""
        self._registry, self._name, self._unknown_left = registry, name, unknown_max
        self._unknown_max = unknown_max
        self._decoders: dict[bytes, Decode | Fault] = {}
        self._open = ExitStack()
        self._client: SchemaRegistryClient | None = None

    def close(self) -> None:
        """Close the connection to the registry, if one was opened."""
        self._open.close()

    def texts(self, values: Sequence[bytes | None]) -> tuple[list[bytes], dict[int, Fault]]:
        """The JSON of each value, and by index the faults of bad values, whose JSON is empty.

        Raises TerminalError or UnavailableError if the registry gives no clear answer about a
        schema, LimitError if it lacks too many schemas.
        """
        texts, faults, decoders = [], {}, self._decoders
        for at, value in enumerate(values):
            text = b""
            if value is not None:
                decode = decoders.get(value[:HEAD_BYTES]) or self._reader(value)
                fault = decode if isinstance(decode, tuple) else None
                if len(value) > limits.RECORD_BYTES_MAX:
                    fault = too_long()
                elif fault is None:
                    try:
                        text = decode(value, HEAD_BYTES)
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
        schema = self._registry.find(self._client, number)
        decoder_or_fault: Decode | Fault
        if schema is None:
            self._count_unknown(number)
            decoder_or_fault = Reason.unknown_schema, f"{self._registry} has no schema {number}"
        elif schema.kind != AVRO:
            why = f"expected Avro, found schema {number}, which is {schema.kind}"
            decoder_or_fault = Reason.malformed, why
        else:
            try:
                decoder_or_fault = decoder(schema.text, schema.references)
            except SchemaError as error:
                decoder_or_fault = Reason.malformed, f"semel cannot use schema {number}: {error}"
        self._decoders[value[:HEAD_BYTES]] = decoder_or_fault
        return decoder_or_fault

    def _count_unknown(self, number: int) -> None:
        """Without a limit, a producer could make semel send one request per message."""
        self._unknown_left -= 1
        if self._unknown_left < 0:
            raise LimitError(
                f"{self._name!r}: its values name more than {self._unknown_max} schemas "
                f"(limits.unknown_schemas_max) that {self._registry} does not have, the last one "
                f"with id {number}. Nothing was staged. Find the producer, or restore the "
                "registry. If you raise the limit, values of unknown schemas become dead letters",
                next=ANEW,
            )
