"""Kafka clusters: how one is declared, reached and asked, and what its errors mean.

Shared by the source and the sink. The client is confluent-kafka (librdkafka), imported only where
it is used: it belongs to the extra `semel[kafka]`.
"""
