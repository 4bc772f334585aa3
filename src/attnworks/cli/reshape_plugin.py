"""`attnworks NAME` for a reshape of a plug-in: each field of its dataclass is an option."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.reshape_verbs import apply_and_show, reshape_options
from attnworks.core.errors import AttnworksError, UsageError, short_message
from attnworks.core.plugins import has_entry_points, load_requested, requested_plugins

if TYPE_CHECKING:
    from attnworks.reshape.contract import Reshape

_TYPES = (int, float, str, bool)


def plugin_command(ctx: click.Context, name: str) -> click.Command | None:
    """The command of a reshape that a plug-in registers under this name; None if there is none."""
    named = ctx.find_root().params.get("plugins", ())
    if not requested_plugins(named) and not has_entry_points("attnworks.reshapes"):
        return None
    load_requested(named)
    from attnworks.reshape import RESHAPES

    return reshape_command(name, RESHAPES[name]) if name in RESHAPES else None


def reshape_command(name: str, kind: type[Reshape]) -> click.Command:
    """A command with the options of a reshape, and those that all reshapes share."""
    fields = _fields(kind)

    def run(model: str, **options: Any) -> None:
        given = {field.name: options.pop(field.name) for field, _ in fields}
        with _one_line(f"reshape {name}", "options that it accepts", "change them"):
            asked = kind(**given)
        apply_and_show(asked, model, options)

    command = click.command(name, help=inspect.getdoc(kind))(reshape_options(run))
    taken = {parameter.name for parameter in command.params} | {"model"}
    with _one_line(f"reshape {name}", "fields that can be options", "change the fields"):
        own = [_option(name, field, hint, taken) for field, hint in fields]
    command.params = [click.Argument(["model"]), *own, *command.params]
    return command


@contextmanager
def _one_line(asked: str, expected: str, remedy: str) -> Iterator[None]:
    """An error of the code of a plug-in as a UsageError."""
    try:
        yield
    except AttnworksError:
        raise
    except Exception as error:
        raise UsageError(asked, expected, f"{type(error).__name__}: {short_message(error)}", remedy) from error


def _fields(kind: type[Reshape]) -> list[tuple[dataclasses.Field[Any], Any]]:
    if not dataclasses.is_dataclass(kind):
        raise UsageError(
            f"reshape {kind.__name__}", "a frozen dataclass", "another class", "write @dataclass(frozen=True) above it"
        )
    with _one_line(f"reshape {kind.__name__}", "fields whose types Python can look up", "import them in its module"):
        hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind) if field.init]


def _option(name: str, field: dataclasses.Field[Any], hint: Any, taken: set[str]) -> click.Option:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # int | None is an int that may be left out
        kinds = [one for one in typing.get_args(hint) if one is not types.NoneType]
        hint = kinds[0] if len(kinds) == 1 else hint
    if hint not in _TYPES or field.name in taken:
        raise UsageError(
            f"reshape {name} with the field {field.name}",
            "an int, float, str or bool, of a name that no other option has",
            "an option of every reshape" if field.name in taken else str(hint),
            "change the field",
        )
    word = field.name.replace("_", "-")
    needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    default = (
        None if needed else field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    declared = f"--{word}/--no-{word}" if hint is bool else f"--{word}"
    return click.Option([declared, field.name], type=hint, default=default, required=needed, show_default=not needed)
