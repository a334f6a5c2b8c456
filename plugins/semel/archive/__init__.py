"""What semel keeps of a pipeline beside its output, as files: markers and all they name."""
