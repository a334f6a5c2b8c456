"""A BigQuery table, to which load jobs append."""
