"""The values that the rooms exchange. No SQL, no declaration."""
