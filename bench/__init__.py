"""Figures of the server, each by a script that prints them: `python -m bench.health`, `python -m bench.costs`."""
