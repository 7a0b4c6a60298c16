"""The command `clew`: its commands by name, each loaded when it is used, and the edge where errors become sentences."""

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from clew.app.version import version
from clew.cli.common import Common, shared
from clew.cli.output import complain, harmless, spell_what_cannot_be_shown
from clew.errors import ClewError, UsageError

# By name: the module in this folder whose `command` it is, in the order of `--help`.
COMMANDS = {
    "demo": "demo.command",
    "run": "run",
    "runs": "runs",
    "show": "show",
    "watch": "watch",
    "tickets": "tickets",
    "decide": "decide",
    "cancel": "cancel",
    "worker": "worker",
    "check": "check",
    "torture": "torture",
    "schema": "schema",
    "completion": "completion",
}

DONE, ERROR, USAGE, WAITING = 0, 1, 2, 3
INTERRUPTED = 130  # as a shell says of what Ctrl-C ended
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
COMPLETE = "_CLEW_COMPLETE"  # what the completion scripts set


class Commands(click.Group):
    """Loads a command's module when that command is meant, so that each starts as fast as it can."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(f"clew.cli.{COMMANDS[cmd_name]}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            close = get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean `clew {close[0]}`?" if close else "`clew --help` lists them."
            raise click.UsageError(f"there is no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `clew demo`. Each command's --help has an example.",
)
@click.version_option(version(), prog_name="clew", message="%(prog)s %(version)s")
@shared
def clew() -> None:
    """A durable agent runtime: kill it at any instant, it goes on exactly where it was."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 error, 2 usage, 3 waiting, 4 differs."""
    common = Common()
    args = list(sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    spell_what_cannot_be_shown()
    _log_harmlessly()
    code: Any = DONE
    try:
        code = _called(args, common)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return _refused(error, as_json=common.json or "--json" in args)
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)  # behind the terminal's ^C
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough, as in `clew runs | head`; the interpreter must not find out again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # noqa: BLE001
        return _told(error, common)
    return code if isinstance(code, int) else DONE


def _called(args: list[str], common: Common) -> Any:
    """What the command returns. Click's own `main` would take a broken pipe for an error of ours."""
    if COMPLETE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(clew, {"obj": common}, "clew", COMPLETE, os.environ[COMPLETE])
    with clew.make_context("clew", args, obj=common) as ctx:
        return clew.invoke(ctx)


def _open_what_is_closed() -> None:
    """As after `clew runs >&-`: Python has no stream there, and the next file that is opened would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 -- as long as the process


class Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record), lines=True)


def _log_harmlessly() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Harmless("clew: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _refused(error: click.ClickException, *, as_json: bool) -> int:
    """What was typed is wrong; Click says how."""
    if as_json:
        complain(error.format_message(), kind=UsageError.__name__, as_json=True)
    else:
        said = io.StringIO()
        error.show(said)
        click.echo(harmless(said.getvalue(), lines=True), err=True, nl=False)
    return error.exit_code


def _told(error: Exception, common: Common) -> int:
    """The last handler: a sentence for the errors that Clew raises on purpose, and a way to more for any other."""
    if common.debug:
        click.echo(harmless("".join(traceback.format_exception(error)), lines=True), err=True)
    if isinstance(error, ClewError):
        complain(str(error), kind=type(error).__name__, as_json=common.json)
        return USAGE if isinstance(error, UsageError) else ERROR
    said = f"{type(error).__name__}: {error} (a bug in Clew, or in code of yours; --debug shows where)"
    if isinstance(error, OSError) and error.errno in FULL:
        said = f"the output cannot be written: {error.strerror}"  # a store says in its own words what is wrong with it
    complain(said, kind=type(error).__name__, as_json=common.json)
    return ERROR
