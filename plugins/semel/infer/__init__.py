"""Infer a new pipeline from sample files, for `semel new`. It needs neither ledger nor Spark."""
