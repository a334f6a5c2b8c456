"""The source that a spec declares."""

from collections.abc import Sequence

from semel.pipeline import Spec
from semel.sources import Settled, Source
from semel.sources.files import FilesSource


def open_source(spec: Spec) -> Source:
    """The source of a pipeline. In the driver: it knows the folders of this machine.

    TerminalError: it needs a package that is not installed.
    """
    if spec.source.type == "kafka":
        from semel.sources.kafka import KafkaSource

        return KafkaSource.of(spec)
    return FilesSource.of(spec)


# Keeps F10.
def acknowledge_stored(stored: Spec, now: Spec, settled: Sequence[Settled]) -> str | None:
    """Tell the source of a batch what is finalized, as its `stored` declaration wants it; `now`
    says how it is reached, where that leads to what was read. Returns as `Source.acknowledge`.
    """
    reached = stored
    if stored.source.type == now.source.type:
        place = {key: getattr(now.source, key) for key in stored.source.place}
        reached = stored.model_copy(update={"source": stored.source.model_copy(update=place)})
    note = open_source(reached).acknowledge(settled)
    if note is not None and reached != stored:
        return open_source(stored).acknowledge(settled) and note
    return note
