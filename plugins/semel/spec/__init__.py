"""A pipeline as its user declares it."""
