"""What sample files say of a new pipeline, for `semel new`. Neither ledger nor Spark is asked."""
