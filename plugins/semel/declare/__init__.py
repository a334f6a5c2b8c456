"""What declarations are made of: YAML, types of columns, durations, problems."""
