"""The command line: reads arguments, hands over to one function per command, turns refusals into one message.

Nothing is decided here. A command that cannot start says why in one message on standard error, without a
traceback, and exits with 2 (contract 13).
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.sources import Loaded, load, shown

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


@app.command()
def compare(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="One group a line, as JSON.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="One line of rewards for each group.")],
    config: Config = None,
) -> None:
    """Judge groups from a file, without a trainer; a stopped run goes on where it was."""
    from genrm_trio.ops.judge_files import compare_files  # noqa: PLC0415 - other commands start faster without it

    loaded = load(config)
    announce(loaded)
    sys.exit(compare_files(loaded.settings, source, output))


def announce(loaded: Loaded) -> None:
    """Say loudly when no judge was configured and the recorded one stands in."""
    if loaded.is_example:
        typer.echo(
            "genrm-trio: NO JUDGE IS CONFIGURED. Answers are judged by the RECORDED judge, which knows the shipped "
            "example and nothing else. Give --config FILE with judge.base_url for a judge of your own.",
            err=True,
        )


def main() -> None:
    """Run the command that the arguments name."""
    said: list[str] = []
    try:
        app()
    except* StartupError as group:
        said = [str(error) for error in leaves(group)]
    if said:
        typer.echo(f"genrm-trio: {said[0]}", err=True)
        sys.exit(USAGE_ERROR)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside a group and its groups: a nursery wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
