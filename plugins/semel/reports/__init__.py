"""Read-only reports about a pipeline: what is complete, missing, set aside, changed; and what the
answer of each verb says to a person."""
