"""The command line. Modules of this package import click at the top and everything heavier inside the command."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from attnworks import __version__
from attnworks.cli.console import echo
from attnworks.cli.options import SuggestingGroup
from attnworks.core.errors import AttnworksError, UnknownNameError, UsageError, printable

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


_OUT_OF_MEMORY = ("allocate memory", "out of memory", "Storage size calculation overflowed")
"""What torch says when it gets no memory."""


class Verbs(SuggestingGroup):
    """Loads each command's module when it is asked for, and prints errors meant for people in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return getattr(importlib.import_module(f"attnworks.cli.{cmd_name}"), cmd_name)

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        with _escaped():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            with _escaped():
                return super().invoke(ctx)
        except AttnworksError as error:
            echo(f"attnworks: {error}", err=True)
            ctx.exit(2 if isinstance(error, UsageError | UnknownNameError) else 1)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(141)
        except OSError as error:
            from attnworks.core.folders import disk_error

            asked = "use the file system" if error.filename is None else f"use {os.fsdecode(error.filename)}"
            echo(f"attnworks: {disk_error(error, asked, 'check the path')}", err=True)
            ctx.exit(1)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(words in str(error) for words in _OUT_OF_MEMORY):
                raise
            echo("attnworks: not enough memory for this model, text or option; choose smaller sizes", err=True)
            ctx.exit(1)


@contextmanager
def _escaped() -> Iterator[None]:
    """click repeats what was typed; control characters in it are escaped."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message, keep="\n")
        raise


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
