"""Topics of a Kafka cluster, read."""
