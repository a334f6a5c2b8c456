"""The files that semel keeps beside a pipeline's output: markers, and all that they name."""
