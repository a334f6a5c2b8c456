"""A folder of files."""
