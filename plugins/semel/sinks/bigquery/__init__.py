"""A table of BigQuery, appended to by load jobs."""
