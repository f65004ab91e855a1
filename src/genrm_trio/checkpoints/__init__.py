"""Placeholder header of checkpoints."""
