"""`clew completion`: the script that teaches a shell to complete commands, options and run ids."""

import click
from click.shell_completion import get_completion_class

from clew.cli.common import shared


@click.command("completion", epilog='Example: eval "$(clew completion bash)", in ~/.bashrc')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "clew", "_CLEW_COMPLETE").source())
