"""Queues that redeliver: messages are received into a spool, and read from its segments."""
