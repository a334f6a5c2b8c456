"""Read-only questions about a pipeline: what is complete, missing, set aside, changed."""
