"""Opens the source and the sink of a pipeline, or those of a stored batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from semel.clients.connection import require_package
from semel.errors import AGAIN, StateError, TerminalError
from semel.pipeline.spec import Spec
from semel.sinks import Sink
from semel.sources import SettledPartition, Source


def open_source(spec: Spec) -> Source:
    """The source of a pipeline. Only for the driver, since it uses the folders of this machine.

    Raises TerminalError if a package is not installed.
    """
    with require_package(f"source.type: {spec.source.type}", spec.source.type):
        return spec.source.open(spec.of_source())


# Keeps F10.
def acknowledge_stored(stored: Spec, now: Spec, settled: Sequence[SettledPartition]) -> str | None:
    """Acknowledge finalized records to the source of a batch, as its `stored` declaration demands.

    The declaration of `now` has the connection, if it leads to the same source. Returns the note
    of `Source.acknowledge`.
    """
    moved = stored
    if stored.source.type == now.source.type:
        place = {key: getattr(now.source, key) for key in stored.source.way}
        moved = stored.model_copy(update={"source": stored.source.model_copy(update=place)})
    note = open_source(moved).acknowledge(settled)
    if note is not None and moved != stored:
        return open_source(stored).acknowledge(settled) and note
    return note


def open_sink(spec: Spec, address: str | None = None, cache: object = None) -> Sink:
    """The sink of a pipeline. `address`: its address in the ledger. `cache`: the readings that
    several sinks of folders share.

    Raises StateError if the declaration has another address, and TerminalError if the sink cannot
    be reached from here.
    """
    with require_package(f"sink.type: {spec.sink.type}", spec.sink.type):
        sink = spec.sink.open(spec.of_sink(), address, cache)
    if address not in (None, sink.address):
        raise elsewhere(spec, address, sink.address)
    return sink


def elsewhere(spec: Spec, address: str, declared: str) -> StateError:
    return StateError(
        f"pipeline {spec.name}: its sink is {address}, but now it declares {declared}. Put the "
        "declaration or the connection back. If you have renamed or moved the sink with all its "
        f"rows and notes, use `semel accept {spec.name} --moved`",
        next=AGAIN,
    )


# Keeps F10.
def open_stored(
    stored: Spec, now: Spec, address: str | None = None, cache: object = None
) -> Sink:
    """The sink of a batch: its place by the declaration of `now`, all else by the `stored` one.

    `address`: the sink's address in the ledger. If only the stored declaration leads there, its
    place is used. Raises the errors of `open_sink`.
    """
    if address is None or stored.sink.in_folder:
        return open_sink(stored.placed(now), address, cache)
    for spec in (stored.placed(now), stored.placed(now, stored.sink.way), stored):
        with suppress(TerminalError):  # For example, a connection that was removed.
            sink = open_sink(spec)
            if sink.address == address:
                return sink
    return open_sink(stored.placed(now), address)


@contextmanager
def open_sinks(*now: Spec) -> Iterator[Callable[[Spec], Sink]]:
    """A function that opens the sinks of batches by their specs. It opens equal sinks once, so that
    a reader of many batches loads a sink's state once.

    `now`: the present declarations of the pipelines, which have the places of the sinks.
    """
    opened: list[tuple[tuple[object, ...], Sink]] = []
    places = {spec.name: spec for spec in now}
    with ExitStack() as stack:

        def sink_of(spec: Spec) -> Sink:
            spec = spec.placed(places.get(spec.name, spec))
            key = spec.name, spec.sink, spec.of_sink().json_columns
            for opened_key, sink in opened:
                if opened_key == key:
                    return sink
            opened.append((key, stack.enter_context(open_sink(spec))))
            return opened[-1][1]

        yield sink_of
