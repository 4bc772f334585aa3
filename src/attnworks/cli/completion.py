"""`attnworks completion SHELL`: tab completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that gives a shell tab completion.

    \b
    Examples:
      attnworks completion bash >> ~/.bashrc
      attnworks completion zsh  >> ~/.zshrc
      attnworks completion fish > ~/.config/fish/completions/attnworks.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "attnworks", "_ATTNWORKS_COMPLETE").source())
