"""Queues that redeliver: receive puts messages into a spool, and stage reads its segments."""
