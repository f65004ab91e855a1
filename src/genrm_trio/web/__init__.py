"""Placeholder header of web."""
