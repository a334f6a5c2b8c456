"""Sealed parts: named pieces of a source that are whole and never change."""
