"""Converts Avro values to JSON, with the schemas of a registry."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from semel import limits
from semel.clients.kafka.registry import AVRO, Registry
from semel.sources.kafka.audit.avro import NotAvro, reader

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_HEAD_BYTES = 5
"""The byte 0 and the schema id."""

_Read = Callable[[bytes, int], tuple[str, list[str]]]


@dataclass(kw_only=True)
class ValueTexts:
    """The JSON of each value, empty if it is bad.

    By the value's index, `bad` has the reason, `doubts` says why decoders may differ, and `unknown`
    has the schema id that the registry lacks.
    """

    texts: list[bytes] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    doubts: dict[int, str] = field(default_factory=dict)
    unknown: dict[int, int] = field(default_factory=dict)


class Schemas:
    """The schemas of a registry. It fetches each one once."""

    def __init__(self, registry: Registry, exits: ExitStack) -> None:
        """`exits` closes the connection."""
        self._registry, self._exits = registry, exits
        self._client: SchemaRegistryClient | None = None
        self._compiled = cache(self._compile)

    def read(self, values: Sequence[bytes | None]) -> ValueTexts:
        """The JSON of values.

        Raises TerminalError or UnavailableError if the registry gives no clear answer.
        """
        result = ValueTexts()
        for at, value in enumerate(values):
            text = ""
            if value is not None:
                try:
                    text = self._text(at, value, result)
                except NotAvro as error:
                    result.bad[at] = str(error)
            result.texts.append(text.encode())
        return result

    def _text(self, at: int, value: bytes, result: ValueTexts) -> str:
        if len(value) < _HEAD_BYTES or value[0] != 0:
            raise NotAvro("it does not begin with the byte 0 and a schema id")
        if len(value) > limits.RECORD_BYTES_MAX:
            raise NotAvro(f"it is longer than {limits.RECORD_BYTES_MAX} bytes")
        number = int.from_bytes(value[1:_HEAD_BYTES], "big")
        decode = self._compiled(number)
        if decode is None:
            result.unknown[at] = number
            raise NotAvro(f"the registry has no schema {number}")
        if isinstance(decode, str):
            raise NotAvro(decode)
        text, doubts = decode(value, _HEAD_BYTES)
        if doubts:
            result.doubts[at] = doubts[0]
        return text

    def _compile(self, number: int) -> _Read | str | None:
        """The decoder of a schema, or the reason why it is unusable.

        Returns None if the registry does not know this id.
        """
        if self._client is None:
            self._client = self._exits.enter_context(self._registry.client())
        schema = self._registry.find(self._client, number)
        if schema is None:
            return None
        if schema.kind != AVRO:
            return f"its schema {number} is {schema.kind}, not Avro"
        try:
            return reader(schema.text, schema.references)
        except NotAvro as error:
            return str(error)
