"""Real rows that ship with the package: data only, for the demo and for `serve` without a configuration.

Where they come from and under which licence stands in the README beside them.
"""
