"""Repairs that an operator decides after a fault: accept a loss, rebuild a ledger."""
