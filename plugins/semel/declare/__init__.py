"""The building blocks of declarations: YAML, column types, durations, problems."""
