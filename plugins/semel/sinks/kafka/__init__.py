"""A topic of a Kafka cluster, written."""
