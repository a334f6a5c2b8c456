"""The source that a spec declares."""

from semel.pipeline import Spec
from semel.sources import Source
from semel.sources.files import FilesSource


def open_source(spec: Spec) -> Source:
    """The source of a pipeline. In the driver: it knows the folders of this machine.

    TerminalError: it needs a package that is not installed.
    """
    if spec.source.type == "kafka":
        from semel.sources.kafka import KafkaSource

        return KafkaSource.of(spec)
    return FilesSource.of(spec)
