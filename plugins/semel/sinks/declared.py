"""The sink that a pipeline declares, ready to be asked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from semel.errors import StateError, TerminalError
from semel.sinks import Sink
from semel.sinks.folder import Folder, Looks
from semel.spec.pipeline import Spec
from semel.spec.sinks import FilesSink, KafkaSink, PostgresSink


def open_sink(spec: Spec, address: str | None = None, looks: Looks | None = None) -> Sink:
    """The sink of a pipeline. `address`: where the ledger says that it is.

    StateError: it is declared to be elsewhere. TerminalError: it cannot be reached from here.
    """
    if not isinstance(spec.sink, FilesSink):
        kafka = isinstance(spec.sink, KafkaSink)
        sink = _topic(spec, spec.sink) if kafka else _table(spec, spec.sink)
        if address not in (None, sink.address):
            raise StateError(
                f"pipeline {spec.name} has {address} as its sink, and {sink.address} is declared "
                "now; put the declaration or the connection back"
            )
        return sink
    return Folder(Path(address) if address else spec.sink_path(), spec, looks or Looks())


@contextmanager
def open_sinks() -> Iterator[Callable[[Spec], Sink]]:
    """What gives the sinks of batches by their specs, each within its block, for one that reads
    many batches: what a sink has to know for that it reads once.
    """
    made: list[tuple[Spec, Sink]] = []
    with ExitStack() as stack:

        def sink_of(spec: Spec) -> Sink:
            for known, sink in made:
                if known == spec:
                    return sink
            made.append((spec, stack.enter_context(open_sink(spec))))
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
        json_columns=tuple(n for n, kind in spec.column_types().items() if kind.word == "json"),
    )
    return Table(target)


def _topic(spec: Spec, declared: KafkaSink) -> Sink:
    try:
        from semel.sinks.kafka import KafkaSink as Topic
    except ImportError as error:
        raise TerminalError(
            f"sink.type: kafka needs a package that is not installed here ({error})",
            next="pip install 'semel[kafka]'",
        ) from error
    from semel.kafka.cluster import Cluster
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
