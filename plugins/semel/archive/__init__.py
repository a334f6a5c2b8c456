"""The files that semel keeps next to a pipeline's output: markers, and the files that they list."""
