"""Files that grow, or appear."""
