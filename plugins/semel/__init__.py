"""semel: exactly-once microbatches. The five verbs are plan, stage, commit, finalize, collect."""

__version__ = "0.1.0"
