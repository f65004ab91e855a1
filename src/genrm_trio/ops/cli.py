"""The command line: reads arguments, hands over to one function per command, turns refusals into one message.

Nothing is decided here. A command that cannot start says why in one message on standard error, without a
traceback, and exits with 2 (contract 13).
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from genrm_trio.judging.text import scrub
from genrm_trio.ops.complaints import OperationFailed, StartupError, leaves
from genrm_trio.ops.outputs import drain, protect_stderr, wait_for_no_reader
from genrm_trio.ops.refusals import judge_never_asked
from genrm_trio.ops.sources import Loaded, load, shown

USAGE_ERROR = 2
FAILED = 1
INTERRUPTED = 130

app = typer.Typer(
    name="genrm-trio",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

traces = typer.Typer(no_args_is_help=True)
app.add_typer(traces, name="trace", help="Look at what serve --trace FILE wrote.")

Config = Annotated[Path | None, typer.Option("--config", help="YAML file with the settings.", metavar="FILE")]


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        typer.echo(f"genrm-trio {version('genrm-trio')}")
        raise typer.Exit


@app.callback()
def commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A cohort reward server for RL training: holds N rollouts, has a judge compare them, publishes N rewards."""


@app.command("config")
def show_config(config: Config = None) -> None:
    """Print the effective configuration as YAML, secrets masked."""
    from genrm_trio.judging.judge import Unobserved  # noqa: PLC0415 - other commands start faster without them
    from genrm_trio.ops.assembly import make_judge  # noqa: PLC0415 - as above

    loaded = load(config)
    make_judge(loaded.settings, Unobserved())  # refuses what serve would refuse; nothing is connected
    typer.echo(f"# effective configuration: {loaded.origin}, then the environment, then flags; secrets are masked")
    typer.echo(shown(loaded.settings), nl=False)


@app.command()
def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; wins over the configuration.")] = None,
    port: Annotated[int | None, typer.Option(help="The same for the port; 0 takes a free one.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Gets the URL once requests are accepted.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what the judge says, for judge.backend recorded.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every action of the core, for trace check.")
    ] = None,
    await_restore: Annotated[
        bool, typer.Option("--await-restore", help="Let data requests wait until a controller has restored.")
    ] = False,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    from genrm_trio.ops import service  # noqa: PLC0415 - other commands start faster without it

    wait_for_no_reader()
    loaded = load(config, {"host": host, "port": port})
    announce(loaded)
    if warning := judge_never_asked(loaded.settings):
        typer.echo(f"genrm-trio: {warning}.", err=True)
    options = service.Options(ready_file, record, trace, await_restore)
    sys.exit(service.serve(loaded, options))


@app.command()
def compare(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="One group a line, as JSON.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="One line of rewards for each group.")],
    config: Config = None,
) -> None:
    """Judge groups from a file, without a trainer; a stopped run goes on where it was.

    INPUT has one JSON object a line: prompt (or input, conversation_history), answers (or responses, response_objs;
    each a text, an object with text, or a Response), and if wanted id (or group_id, question_id), principle,
    expected_rubric_ids. OUTPUT gets id, line, rewards, members and more for each, in order of completion; groups
    that fail go to OUTPUT with .failed before its suffix. See docs/compare.md.

    Exit codes: 0 all judged, 1 some failed, 2 cannot start (OUTPUT of other settings, too), 130 stopped.
    """
    from genrm_trio.ops.judge_files import compare_files  # noqa: PLC0415 - other commands start faster without it

    loaded = load(config)
    announce(loaded)
    sys.exit(compare_files(loaded.settings, source, output))


@app.command()
def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A checkpoint, or one server's part of it.")],
) -> None:
    """Show what a checkpoint holds and check its digests; exit code 1 when it is damaged.

    Damage is what every restore refuses. A restore may refuse an undamaged one too, for the server's configuration.
    """
    from genrm_trio.checkpoints.inspection import inspect_checkpoint  # noqa: PLC0415 - as above

    try:
        if not directory.is_dir():
            raise StartupError(f"{directory}: there is no such folder")
        parts = inspect_checkpoint(directory)
    except OSError as error:
        raise StartupError(f"{directory}: {error.strerror}") from None
    for part in parts:
        for name, value in part.rows():
            typer.echo(f"{name:>22}  {scrub(value)}")
        for label, texts in (("DAMAGED", part.damage), ("note", part.notes)):
            for text in texts:
                typer.echo(f"{label:>22}  {scrub(text)}")
        untold = part.damage_count - len(part.damage)
        if untold > 0:
            typer.echo(f"{'DAMAGED':>22}  and {untold} more")
        typer.echo()
    if any(part.damaged for part in parts):
        sys.exit(FAILED)


@traces.command("check")
def check_trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What serve --trace FILE wrote.")],
) -> None:
    """Have TLC check that a server did what the formal spec says; exit code 1 when it did not."""
    from genrm_trio.ops.trace_check import check_file  # noqa: PLC0415 - as above

    sys.exit(check_file(file))


@app.command("demo")
def run_demo(
    seed: Annotated[int, typer.Option(help="Replays one schedule of arrivals.")] = 0,
    cohorts: Annotated[int | None, typer.Option(min=1, help="How many of the example's cohorts to play.")] = None,
) -> None:
    """Play real cohorts against the real server with the recorded judge, and show what came of it."""
    from genrm_trio.ops.demo import demo  # noqa: PLC0415 - other commands start faster without it

    demo(seed=seed, limit=cohorts)


def announce(loaded: Loaded) -> None:
    """Say loudly when no judge was configured and the recorded one stands in."""
    if loaded.is_example:
        typer.echo(
            "genrm-trio: NO JUDGE IS CONFIGURED. Answers are judged by the RECORDED judge, which knows the shipped "
            "example and nothing else. Give --config FILE with judge.base_url for a judge of your own.",
            err=True,
        )


def main() -> None:
    """Run the command that the arguments name, and wait a moment until what it said is out."""
    protect_stderr()
    try:
        run()
    finally:
        drain()


def run() -> None:
    """Run the command; say in one message why it could not."""
    stopped: list[tuple[BaseException, int]] = []
    try:
        app()
    except* StartupError as group:
        stopped += [(error, USAGE_ERROR) for error in leaves(group)]
    except* OperationFailed as group:
        stopped += [(error, FAILED) for error in leaves(group)]
    except* KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    for error, code in stopped[:1]:
        typer.echo(f"genrm-trio: {error}", err=True)
        sys.exit(code)
