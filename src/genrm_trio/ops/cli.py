"""The command line: reads arguments, hands over to one function per command, turns refusals into one message.

Nothing is decided here. A command that cannot start says why in one message on standard error, without a
traceback, and exits with 2 (contract 13).
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.sources import load, shown

USAGE_ERROR = 2

app = typer.Typer(
    name="genrm-trio",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path | None, typer.Option("--config", help="YAML file with the settings.", metavar="FILE")]


@app.callback()
def commands() -> None:
    """A cohort reward server for RL training: holds N rollouts, has a judge compare them, publishes N rewards."""


@app.command("config")
def show_config(config: Config = None) -> None:
    """Print the effective configuration as YAML, secrets masked."""
    loaded = load(config)
    typer.echo(f"# effective configuration: {loaded.origin}, then the environment, then flags; secrets are masked")
    typer.echo(shown(loaded.settings), nl=False)


def main() -> None:
    """Run the command that the arguments name."""
    try:
        app()
    except StartupError as error:
        typer.echo(f"genrm-trio: {error}", err=True)
        sys.exit(USAGE_ERROR)
