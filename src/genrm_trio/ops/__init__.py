"""Placeholder header of ops."""
