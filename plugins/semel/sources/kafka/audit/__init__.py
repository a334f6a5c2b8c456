"""The audit's own reader of topics. It shares only the connection to the cluster with stage."""

from semel.sources.kafka.audit.topics import opened as opened
