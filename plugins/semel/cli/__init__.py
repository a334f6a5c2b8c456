"""The command line `semel`: the table of commands, and the exit code of each error.

Exit codes: 0 success; 1 work failed, or a command found a broken promise; 2 wrong usage or an
unknown pipeline; 130 interrupted. With --json a command prints one JSON object on standard output:
{"command": name, "answer": {...}}, on failure {"command": name, "error": {"kind": ...,
"message": ..., "next": ...}}. A command that reports bad news prints an answer and exits with 1.
The last line of a failure is `next: ...`, a command.
"""

import inspect
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from semel import __version__, console
from semel.errors import Doing, SemelError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

COMMANDS = {
    "validate": "semel.cli.validate:validate",
    "new": "semel.cli.new:new",
    "check": "semel.cli.check:check",
    "explain": "semel.cli.explain:explain",
    "migrate": "semel.cli.run:migrate",
    "receive": "semel.cli.receive:receive",
    "run": "semel.cli.run:run",
    "replay": "semel.cli.replay:replay",
    "batches": "semel.cli.reports:batches",
    "show": "semel.cli.reports:show",
    "find": "semel.cli.reports:find",
    "letters": "semel.cli.letters:letters",
    "gaps": "semel.cli.reports:gaps",
    "days": "semel.cli.days:days",
    "windows": "semel.cli.windows:windows",
    "audit": "semel.cli.reports:audit",
    "compare": "semel.cli.compare:compare",
    "accept": "semel.cli.change:accept",
    "abandon": "semel.cli.change:abandon",
    "adopt": "semel.cli.change:adopt",
    "exact": "semel.cli.change:exact",
    "collect": "semel.cli.change:collect",
}
"""Each command's function, in the order of the help. `_Commands` imports it only when needed."""

_LOCAL_COMMANDS = ("up", "down", "status", "demo")
"""Commands of the package semel-local, which messages and pages name."""

_UsageError = typer.BadParameter.__base__  # Typer raises it for a wrong command line.


@cache
def _package_commands() -> dict[str, str]:
    """The commands that installed packages add: entry points of the group `semel.commands`."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="semel.commands")}


def commands() -> dict[str, str]:
    """Each command's function: the commands of other packages, then the library's own."""
    return _package_commands() | COMMANDS


def _value_of(name: str) -> str | None:
    """The value of a command, `module:function`. Asks other packages only if semel lacks it, since
    that reads a file of each installed package.
    """
    return COMMANDS.get(name) or _package_commands().get(name)


def _function(name: str) -> Callable[..., None] | None:
    """The function of a command. Returns None if there is no such command."""
    if (value := _value_of(name)) is None:
        return None
    module, _, function = value.partition(":")
    return getattr(import_module(module), function)


class _Commands(TyperGroup):
    """A group that imports a command's module only when a user calls or lists the command."""

    def __init__(self, **options: Any) -> None:
        # Typer uses only the keys, to suggest a similar name; get_command has the functions.
        super().__init__(**options | {"commands": dict.fromkeys(COMMANDS)})

    def invoke(self, ctx: typer.Context) -> object:
        try:
            return super().invoke(ctx)
        except typer.Abort as stop:
            if isinstance(stop.__context__, KeyboardInterrupt):
                console.say("A question was open, so nothing was done.")
                raise KeyboardInterrupt from None
            raise

    def list_commands(self, ctx: typer.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: typer.Context, cmd_name: str) -> object | None:
        if (function := _function(cmd_name)) is None:
            if cmd_name in _LOCAL_COMMANDS:
                raise _UsageError(
                    f"`semel {cmd_name}` is a command of the local stack, which is a package of its "
                    "own: semel-local. Install its wheel beside semel's; docs/deploy.md shows how"
                )
            self.commands.update(dict.fromkeys(_package_commands()))
            return None
        single = typer.Typer(add_completion=False)
        # Typer keeps a docstring's line breaks, and the docstring is wider than most terminals.
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        single.command(name=cmd_name, help=text)(function)
        return typer.main.get_command(single)


app = typer.Typer(cls=_Commands, no_args_is_help=True)


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
    """Run one command and return its exit code. Without `arguments` it uses the process's own."""
    words = sys.argv[1:] if arguments is None else arguments
    # It searches the words, because typer stops parsing at the first error.
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    console.command.set(words[0] if words and _value_of(words[0]) else None)
    try:
        code = typer.main.get_command(app).main(
            args=words, prog_name="semel", standalone_mode=not as_json
        )
        if code == EXIT_INTERRUPTED:
            _report_interrupt(words, as_json=as_json)
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            _report_interrupt(words, as_json=as_json)
        if end.code == EXIT_USAGE:  # Typer has printed the error.
            print(f"next: {_help_of(words)}", file=sys.stderr)
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except _UsageError as error:
        console.fail(error, error.format_message(), _help_of(words), as_json=as_json)
        return EXIT_USAGE
    except SemelError as error:
        step = error.next_step(_doing(_with_similar_pipeline(words, error)))
        console.fail(error, str(error), step, as_json=as_json)
        return _exit_code(error)
    except Exception as error:
        if not as_json:
            traceback.print_exc()
        message = f"unexpected {type(error).__name__}: {error}. This is a bug of semel: report it"
        console.fail(error, message, "", as_json=as_json)  # The same would most likely fail again.
        return EXIT_FAILED


def _report_interrupt(words: list[str], *, as_json: bool) -> None:
    """Print that Ctrl-C ended a command, and the command that goes on if it can resume."""
    message, step = "interrupted", ""
    if words and getattr(_function(words[0]), "resumes", False):
        message = "interrupted. Finished work stays, and the same command resumes there"
        step = _doing(words).again
    console.fail(KeyboardInterrupt(), message, step, as_json=as_json)


def _doing(words: list[str]) -> Doing:
    """The running command as the errors' `next` needs it: again means the same line."""
    from semel.sources import quoted

    again = " ".join(["semel", *map(quoted, words)])
    if any("token=" in word for word in words):  # Spark Connect's secret must not reach a log.
        again = "the same command again"
    command = words and typer.main.get_command(app).get_command(None, words[0])
    if not command:
        return Doing(again=again, anew=again)
    params = command.make_context(words[0], words[1:], resilient_parsing=True).params
    fields = {"pipeline": params.get("pipeline") or "", "batch_id": params.get("batch")}
    return Doing(again=again, anew=again, **fields)


def _with_similar_pipeline(words: list[str], error: SemelError) -> list[str]:
    """The command line with an existing pipeline's name in place of a misspelled one."""
    from semel.pipeline import UnknownPipelineError

    if not isinstance(error, UnknownPipelineError) or error.meant is None:
        return words
    typed, existing = error.meant
    return [existing if word == typed else word for word in words]


def _help_of(words: list[str]) -> str:
    """The same line with the command of a similar name, if there is one; else a line that prints
    help.
    """
    name = words[0] if words else ""
    if name not in commands() and (close := get_close_matches(name, commands(), n=1)):
        from semel.sources import quoted

        return " ".join(["semel", close[0], *map(quoted, words[1:])])
    return f"semel {name} --help" if name in commands() else "semel --help"


def _exit_code(error: SemelError) -> int:
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
