"""Values of Avro as text, by the schemas of a registry."""

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
"""A byte 0 and the id of a schema."""

_Read = Callable[[bytes, int], tuple[str, list[str]]]


@dataclass(kw_only=True)
class ValueTexts:
    """What each value means as text, empty where that is none. By the value's index: `bad` says why
    it is none, `doubts` why readers may differ about it, `unknown` has the id that nobody knows."""

    texts: list[bytes] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    doubts: dict[int, str] = field(default_factory=dict)
    unknown: dict[int, int] = field(default_factory=dict)


class Schemas:
    """The schemas of a registry. Each is asked for once."""

    def __init__(self, registry: Registry, opened: ExitStack) -> None:
        """`opened` ends the connection to it."""
        self._registry, self._opened = registry, opened
        self._client: SchemaRegistryClient | None = None
        self._compiled = cache(self._compile)

    def read(self, values: Sequence[bytes | None]) -> ValueTexts:
        """The JSON of values.

        TerminalError, UnavailableError: the registry does not answer as it should.
        """
        found = ValueTexts()
        for at, value in enumerate(values):
            text = ""
            if value is not None:
                try:
                    text = self._text(at, value, found)
                except NotAvro as error:
                    found.bad[at] = str(error)
            found.texts.append(text.encode())
        return found

    def _text(self, at: int, value: bytes, found: ValueTexts) -> str:
        if len(value) < _HEAD_BYTES or value[0] != 0:
            raise NotAvro("it does not begin with the byte 0 and a schema's id")
        if len(value) > limits.RECORD_BYTES_MAX:
            raise NotAvro(f"it is longer than {limits.RECORD_BYTES_MAX} bytes")
        number = int.from_bytes(value[1:_HEAD_BYTES], "big")
        read = self._compiled(number)
        if read is None:
            found.unknown[at] = number
            raise NotAvro(f"the registry has no schema {number}")
        if isinstance(read, str):
            raise NotAvro(read)
        text, doubts = read(value, _HEAD_BYTES)
        if doubts:
            found.doubts[at] = doubts[0]
        return text

    def _compile(self, number: int) -> _Read | str | None:
        """What reads by a schema, or why nothing can; None: the registry has none of this id."""
        if self._client is None:
            self._client = self._opened.enter_context(self._registry.client())
        written = self._registry.find(self._client, number)
        if written is None:
            return None
        if written.kind != AVRO:
            return f"its schema {number} is {written.kind}, and not Avro"
        try:
            return reader(written.text, written.refers)
        except NotAvro as error:
            return str(error)
