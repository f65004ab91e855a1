"""Placeholder header of runtime."""
