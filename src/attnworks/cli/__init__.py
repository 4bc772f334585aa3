"""The command line. Modules of this room import click at the top and everything heavier inside the command."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from attnworks import __version__
from attnworks.errors import AttnworksError, UnknownNameError, UsageError

_COMMANDS = (
    "advise",
    "bench",
    "claims",
    "compare",
    "completion",
    "count",
    "examine",
    "experiment",
    "report",
    "reshape",
    "serve",
    "train",
    "translate",
)


class Verbs(click.Group):
    """Loads each command's module when it is asked for, and tells errors meant for people in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return getattr(importlib.import_module(f"attnworks.cli.{cmd_name}"), cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            return super().invoke(ctx)
        except AttnworksError as error:
            click.echo(f"attnworks: {error}", err=True)
            ctx.exit(2 if isinstance(error, UsageError | UnknownNameError) else 1)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(141)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="attnworks")
def main() -> None:
    """Build, examine and reshape attention.

    \b
    Examples:
      attnworks train tiny --corpus grammar --minutes 2 --out runs/quick
      attnworks translate runs/quick "Luca is studying in Spain . He is very happy ."
      attnworks examine runs/quick --out exams/quick      # what every head does
      attnworks report exams/quick --out report.html      # the same to look at, in one file
      attnworks serve runs/quick          # the same live: type a sentence, cut heads by click
      attnworks compare exams/quick exams/later
      attnworks advise runs/quick --n 1024        # which attention mechanisms would do
      attnworks reshape project runs/quick --heads "enc.0.*" --heal 200 --out runs/projected
      attnworks claims S0.17 --explain    # which published formulas hold, computed live
      attnworks experiment conti --out runs/conti
      attnworks bench attention --n 1024,4096     # mechanisms against dense, on this machine
      attnworks count base                # parameters of the 2017 Transformer, part by part
      attnworks completion bash           # tab completion for your shell

    Exit codes: 0 done, 1 could not be done, 2 wrong usage.
    """
