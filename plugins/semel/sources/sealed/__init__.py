"""Sealed parts: named pieces of a source that are complete and never change."""
