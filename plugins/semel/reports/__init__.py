"""Read-only reports about a pipeline: what is complete, missing, set aside, changed."""
