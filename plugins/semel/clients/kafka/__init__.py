"""Kafka clusters: their settings, clients and errors, for the source and the sink.

The client is confluent-kafka (librdkafka), of the extra `semel[kafka]`. Modules import it only
within the functions that use it.
"""
