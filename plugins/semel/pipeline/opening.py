"""The source and the sink that a pipeline or a batch of it declares, ready to be asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from semel.clients.connection import require_package
from semel.errors import AGAIN, StateError, TerminalError
from semel.pipeline.spec import Spec
from semel.sinks import Sink
from semel.sources import SettledPartition, Source


def open_source(spec: Spec) -> Source:
    """The source of a pipeline. In the driver: it knows the folders of this machine.

    TerminalError: it needs a package that is not installed.
    """
    with require_package(f"source.type: {spec.source.type}", spec.source.type):
        return spec.source.open(spec.of_source())


# Keeps F10.
def acknowledge_stored(stored: Spec, now: Spec, settled: Sequence[SettledPartition]) -> str | None:
    """Tell the source of a batch what is finalized, as its `stored` declaration wants it; `now`
    says how it is reached, where that leads to what was read. Returns as `Source.acknowledge`.
    """
    reached = stored
    if stored.source.type == now.source.type:
        place = {key: getattr(now.source, key) for key in stored.source.way}
        reached = stored.model_copy(update={"source": stored.source.model_copy(update=place)})
    note = open_source(reached).acknowledge(settled)
    if note is not None and reached != stored:
        return open_source(stored).acknowledge(settled) and note
    return note


def open_sink(spec: Spec, address: str | None = None, looks: object = None) -> Sink:
    """The sink of a pipeline. `address`: where the ledger says that it is.

    `looks`: what several sinks of folders have seen together. StateError: it is declared to be
    elsewhere. TerminalError: it cannot be reached from here.
    """
    with require_package(f"sink.type: {spec.sink.type}", spec.sink.type):
        sink = spec.sink.open(spec.of_sink(), address, looks)
    if address not in (None, sink.address):
        raise elsewhere(spec, address, sink.address)
    return sink


def elsewhere(spec: Spec, address: str, declared: str) -> StateError:
    return StateError(
        f"pipeline {spec.name} has {address} as its sink, and {declared} is declared now; put the "
        "declaration or the connection back. Or, where it was renamed or moved there with all its "
        f"rows and notes, `semel accept {spec.name} --moved`",
        next=AGAIN,
    )


# Keeps F10.
def open_stored(
    stored: Spec, now: Spec, address: str | None = None, looks: object = None
) -> Sink:
    """The sink of a batch: how rows are put there by its `stored` declaration, where by `now`.

    `address`: where the ledger says that it is; a declaration of now that names another place is
    not followed, where the stored one does not. Errors as of `open_sink`.
    """
    if address is None or stored.sink.in_folder:
        return open_sink(stored.placed(now), address, looks)
    for spec in (stored.placed(now), stored.placed(now, stored.sink.way), stored):
        with suppress(TerminalError):  # Such as a connection that is not there any more.
            sink = open_sink(spec)
            if sink.address == address:
                return sink
    return open_sink(stored.placed(now), address)


@contextmanager
def open_sinks(*now: Spec) -> Iterator[Callable[[Spec], Sink]]:
    """What gives the sinks of batches by their specs, each within its block, for one that reads
    many batches: what a sink has to know for that it reads once.

    `now`: what their pipelines declare now, for that says where the sinks are.
    """
    made: list[tuple[tuple[object, ...], Sink]] = []
    places = {spec.name: spec for spec in now}
    with ExitStack() as stack:

        def sink_of(spec: Spec) -> Sink:
            spec = spec.placed(places.get(spec.name, spec))
            key = spec.name, spec.sink, spec.of_sink().json_columns
            for known, sink in made:
                if known == key:
                    return sink
            made.append((key, stack.enter_context(open_sink(spec))))
            return made[-1][1]

        yield sink_of
