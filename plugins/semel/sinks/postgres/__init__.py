"""A table of PostgreSQL."""
