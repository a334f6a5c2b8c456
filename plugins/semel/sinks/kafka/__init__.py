"""A Kafka topic as a sink."""
