"""Topics as the audit reads them again. Shared with stage is how a cluster is reached."""

from semel.sources.kafka.audit.topics import opened as opened
