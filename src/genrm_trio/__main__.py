"""Where the command `genrm-trio` and `python -m genrm_trio` begin: an interrupt while modules load is an interrupt.

Imports nothing of ours before `main` is called: loading the command line takes long enough for a Ctrl-C.
"""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from genrm_trio.ops import cli  # noqa: PLC0415 - an interrupt in the middle of it must not be a traceback
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    cli.main()


if __name__ == "__main__":
    main()
