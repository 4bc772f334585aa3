"""Options that several commands share, what they do before a command runs, and groups that suggest the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]


class SeedRange(click.IntRange):
    """Seeds that torch takes, whose largest number no help needs to show."""

    def _describe_range(self) -> str:
        return "x>=0"


SEED = SeedRange(0, 2**63 - 1)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object and nothing else."
)
device_option = click.option(
    "--device", default="cpu", show_default=True, help="Device to compute on: cpu, cuda, cuda:1 or mps."
)
seed_option = click.option("--seed", type=SEED, metavar="N", default=0, show_default=True, help="Random seed.")


class SuggestingGroup(click.Group):
    """A group that answers a mistyped command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and args[0] not in known and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], known, n=1)
            advice = f"Did you mean {close[0]!r}?" if close else f"Choose one of {', '.join(known)}."
            ctx.fail(f"No such command {args[0]!r}. {advice}")
        return super().resolve_command(ctx, args)


def add_options(command: F, *options: Option) -> F:
    """The command with these options, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def threads_option(default: str = "torch's choice") -> Option:
    """--threads."""
    return click.option(
        "--threads", type=click.IntRange(1), metavar="N", help=f"Number of CPU threads.  [default: {default}]"
    )


def dtype_option(
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16"), help: str = "Number type of weights and activations."
) -> Option:
    """--dtype."""
    return click.option(
        "--dtype",
        type=click.Choice(dtypes),
        default="float32",
        show_default=True,
        help=help,
    )


def compute_options(dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16")) -> Option:
    """--device, --dtype, --threads and --seed; the command gets them under these names."""
    return lambda command: add_options(command, device_option, dtype_option(dtypes), threads_option(), seed_option)


def text_options(lines: str, default: str) -> Option:
    """--text and --corpus, which `take_texts` reads.

    lines      what happens to the lines of a text file, beyond "one sentence per line"
    default    the corpus that is read if neither is given
    """
    return lambda command: add_options(
        command,
        click.option(
            "--text",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=f"Text file to read, one sentence per line; {lines}.",
        ),
        click.option("--corpus", help=f"Corpus to read, as for attnworks train.  [default: {default}]"),
    )


def take_texts(options: dict[str, Any]) -> Path | str | None:
    """Take --text and --corpus out of the options: a file, a corpus, or None if neither was given."""
    from attnworks.core.checks import one_of_options

    text, corpus = options.pop("text"), options.pop("corpus")
    one_of_options("the text to read", {"--corpus": corpus, "--text": text}, "leave one of them out", optional=True)
    if corpus is not None:
        from attnworks.text.sources import check_corpus

        check_corpus(corpus)
    return corpus if text is None else text


def comma_separated(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """A callback of click: names between commas as a tuple."""
    del context, parameter
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


def set_threads(threads: int | None) -> None:
    """Let torch use this number of threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def prepare(options: dict[str, Any]) -> bool:
    """Take --threads and --json out of the options, check the device, seed torch; whether --json was given."""
    import torch

    from attnworks.core.tensors import check_device

    set_threads(options.pop("threads", None))
    torch.manual_seed(options.get("seed") or 0)
    device = options.get("device") or "cpu"
    check_device(device, "--device", "use --device cpu")
    return options.pop("as_json", False)
