"""`python -m genrm_trio`: the command line, for environments whose scripts are not on the path."""

from genrm_trio.ops.cli import main

if __name__ == "__main__":
    main()
