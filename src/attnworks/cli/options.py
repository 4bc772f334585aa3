"""Options that every computing command shares, and groups of commands that suggest the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class SuggestingGroup(click.Group):
    """A group that answers a mistyped command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and args[0] not in known and not args[0].startswith("-"):
            close = self._inside(ctx, args[0]) or difflib.get_close_matches(args[0], known, n=1)
            advice = f"Did you mean {close[0]!r}?" if close else f"Choose one of {', '.join(known)}."
            ctx.fail(f"No such command {args[0]!r}. {advice}")
        return super().resolve_command(ctx, args)

    def _inside(self, ctx: click.Context, name: str) -> list[str]:
        """The command of this name in one of the groups of this group: `reshape prune` for prune."""
        groups = ((inner, self.get_command(ctx, inner)) for inner in self.list_commands(ctx))
        return [
            f"{inner} {name}" for inner, group in groups if isinstance(group, click.Group) and name in group.commands
        ]


def compute_options(
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16"), threads: str = "torch's own choice"
) -> Callable[[F], F]:
    """--device, --dtype, --threads and --seed; the command gets them under these names."""

    def add(command: F) -> F:
        for option in reversed(
            (
                click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:1, mps."),
                click.option("--dtype", type=click.Choice(dtypes), default="float32", show_default=True),
                click.option("--threads", type=click.IntRange(1), help=f"CPU threads.  [default: {threads}]"),
                click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
            )
        ):
            command = option(command)
        return command

    return add


def prepare(device: str, threads: int | None, seed: int) -> None:
    """Check the device, and set torch's threads and random state."""
    import torch

    from attnworks.core.errors import UsageError

    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"--device {device}", "a device that torch can use", str(error).splitlines()[0], "use --device cpu"
        ) from error
