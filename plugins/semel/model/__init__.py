"""The values that the rooms hand to each other. No SQL, no declaration."""
