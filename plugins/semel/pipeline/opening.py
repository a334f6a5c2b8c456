"""The source and the sink that a pipeline or a batch of it declares, ready to be asked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from semel.errors import AGAIN, StateError, TerminalError
from semel.pipeline import Spec
from semel.sinks import Sink
from semel.sinks.folder import Folder, Looks
from semel.sinks.spec import FilesSink, KafkaSink, PostgresSink
from semel.sources import Source
from semel.sources.files import FilesSource


def open_source(spec: Spec) -> Source:
    """The source of a pipeline. In the driver: it knows the folders of this machine.

    TerminalError: it needs a package that is not installed.
    """
    if spec.source.type == "kafka":
        from semel.sources.kafka import KafkaSource

        return KafkaSource.of(spec.of_source())
    return FilesSource.of(spec.of_source())


def open_sink(spec: Spec, address: str | None = None, looks: Looks | None = None) -> Sink:
    """The sink of a pipeline. `address`: where the ledger says that it is.

    StateError: it is declared to be elsewhere. TerminalError: it cannot be reached from here.
    """
    if isinstance(spec.sink, FilesSink):
        folder = Path(address) if address else spec.sink_path()
        if folder.is_absolute():
            return Folder(folder, spec.of_sink(), looks or Looks())
        raise elsewhere(spec, address, str(spec.sink_path()))
    kafka = isinstance(spec.sink, KafkaSink)
    sink = _topic(spec, spec.sink) if kafka else _table(spec, spec.sink)
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
    stored: Spec, now: Spec, address: str | None = None, looks: Looks | None = None
) -> Sink:
    """The sink of a batch: how rows are put there by its `stored` declaration, where by `now`.

    `address`: where the ledger says that it is; a declaration of now that names another place is
    not followed, where the stored one does not. Errors as of `open_sink`.
    """
    if address is None or isinstance(stored.sink, FilesSink):
        return open_sink(stored.placed(now), address, looks)
    reached = [name for name in stored.sink.place if name not in ("table", "topic")]
    for spec in (stored.placed(now), stored.placed(now, reached), stored):
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
            key = spec.name, spec.sink, _json_columns(spec)
            for known, sink in made:
                if known == key:
                    return sink
            made.append((key, stack.enter_context(open_sink(spec))))
            return made[-1][1]

        yield sink_of


def _table(spec: Spec, declared: PostgresSink) -> Sink:
    try:
        from semel.sinks.postgres import PostgresSink as Table
        from semel.sinks.postgres.target import PostgresTarget, dsn_of
    except ImportError as error:
        raise TerminalError(
            f"sink.type: postgres needs a package that is not installed here ({error})",
            next="pip install 'semel[postgres]'",
        ) from error
    target = PostgresTarget(
        dsn=dsn_of(declared.connection),
        table=declared.table,
        mode=declared.mode,
        key=declared.key,
        create=declared.create,
        json_columns=_json_columns(spec),
    )
    return Table(target)


def _json_columns(spec: Spec) -> tuple[str, ...]:
    return tuple(n for n, kind in spec.column_types().items() if kind.word == "json")


def _topic(spec: Spec, declared: KafkaSink) -> Sink:
    try:
        from semel.sinks.kafka import KafkaSink as Topic
    except ImportError as error:
        raise TerminalError(
            f"sink.type: kafka needs a package that is not installed here ({error})",
            next="pip install 'semel[kafka]'",
        ) from error
    from semel.clients.kafka.cluster import Cluster
    from semel.sinks.kafka.target import KafkaTarget

    target = KafkaTarget(
        cluster=Cluster(connection=declared.connection, servers=declared.bootstrap_servers),
        topic=declared.topic,
        key=declared.key,
        headers=tuple(declared.headers.items()),
        create=declared.create,
        transaction_bytes=declared.transaction_bytes,
    )
    return Topic(target, spec.name)
