"""Repairs that an operator decides after something went wrong: accept a loss, rebuild a ledger."""
