"""Placeholder header of judging."""
