"""A prefix of an object store, to which files are only ever added."""
