"""Repairs that an operator decides after a fault, such as accepting a loss or rebuilding a ledger."""
