"""The formats of files, read and written."""
