"""Read-only reports about a pipeline (complete, missing, quarantined and changed records), and the
text of each verb's result."""
