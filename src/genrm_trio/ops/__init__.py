"""What an operator touches: settings, logs, metrics and the command line.

The outermost room. It turns a configuration into the plain values that the inner rooms take and puts the
rooms together; no rule of the contract is decided here.
"""
