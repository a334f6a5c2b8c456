"""The command line `semel`: one table of commands, one place where errors become exit codes.

Exit codes: 0 done; 1 a promise is broken or work failed; 2 usage, also an unknown pipeline;
130 interrupted. With --json standard output holds one JSON object, also on failure:
{"error": kind, "message": text}.
"""

import sys
import traceback
from collections.abc import Callable
from importlib import import_module

import typer
from typer.core import TyperGroup

from semel import __version__
from semel.cli import output
from semel.errors import SemelError

EXIT_FAILED = 1
EXIT_USAGE = 2

COMMANDS = {
    "up": "semel.cli.stack:up",
    "down": "semel.cli.stack:down",
    "status": "semel.cli.stack:status",
    "demo": "semel.cli.demo:demo",
    "validate": "semel.cli.validate:validate",
    "new": "semel.cli.new:new",
    "check": "semel.cli.check:check",
    "migrate": "semel.cli.run:migrate",
    "run": "semel.cli.run:run",
    "batches": "semel.cli.look:batches",
    "show": "semel.cli.look:show",
    "find": "semel.cli.look:find",
    "letters": "semel.cli.letters:letters",
    "gaps": "semel.cli.look:gaps",
    "days": "semel.cli.days:days",
    "audit": "semel.cli.look:audit",
    "accept": "semel.cli.mend:accept",
    "abandon": "semel.cli.mend:abandon",
    "adopt": "semel.cli.mend:adopt",
    "collect": "semel.cli.mend:collect",
}
"""Each command's function, in the order of the help. Imported only when called or listed."""

_UsageError = typer.BadParameter.__base__  # What typer raises for a wrong command line.


def _function(name: str) -> Callable[..., None]:
    """The function of a command."""
    module, _, function = COMMANDS[name].partition(":")
    return getattr(import_module(module), function)


class _Commands(TyperGroup):
    """A group that imports a command's module only when the command is called or listed."""

    def list_commands(self, ctx: typer.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> object | None:
        if cmd_name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False)
        single.command(name=cmd_name)(_function(cmd_name))
        return typer.main.get_command(single)


app = typer.Typer(cls=_Commands, add_completion=False, no_args_is_help=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"semel {__version__}")
        raise typer.Exit()


@app.callback()
def semel(
    version: bool = typer.Option(  # noqa: ARG001 - its callback does the work
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Exactly-once microbatches: plan, stage, commit, finalize, collect.

    Example: semel run flights
    """


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to the process's own."""
    words = sys.argv[1:] if arguments is None else arguments
    # Read from the words themselves, because a wrong command line is never parsed to its end.
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    try:
        code = typer.main.get_command(app).main(
            args=words, prog_name="semel", standalone_mode=not as_json
        )
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except _UsageError as error:
        output.fail(error, error.format_message(), as_json=as_json)
        return EXIT_USAGE
    except SemelError as error:
        output.fail(error, str(error), as_json=as_json)
        return _exit_code(error)
    except Exception as error:
        if not as_json:
            traceback.print_exc()
        message = f"unexpected {type(error).__name__}: {error}; this is a defect of semel"
        output.fail(error, message, as_json=as_json)
        return EXIT_FAILED


def _exit_code(error: SemelError) -> int:
    from semel.spec.pipeline import UnknownPipelineError

    return EXIT_USAGE if isinstance(error, UnknownPipelineError) else EXIT_FAILED
