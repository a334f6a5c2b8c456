"""The catalog of record ids: headers and payload of id runs, filters, look-ups, merges."""
