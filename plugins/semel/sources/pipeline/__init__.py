"""The output of another pipeline as a source: each finalized batch is a sealed part.

semel finds these batches by their success markers. It never lists the output's folder, which may
contain uncommitted and replaced files.
"""
