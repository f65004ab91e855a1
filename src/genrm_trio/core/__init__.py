"""Placeholder header of core."""
