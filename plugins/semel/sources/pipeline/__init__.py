"""The output of another pipeline as a source: each finalized batch is a sealed part.

What there is, is told by success markers, never by a listing of the output's folder: that shows
what is not committed, and what a replay replaced.
"""
