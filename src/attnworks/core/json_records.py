"""Strict reading of JSON into frozen dataclasses: errors name the place of an unknown key or a wrong type."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from attnworks.core.checks import LARGEST_FLOAT, choice
from attnworks.core.errors import UsageError

_T = TypeVar("_T")


def parse(cls: type[_T], data: Mapping[str, object], where: str) -> _T:
    """A dataclass `cls` from a mapping of its fields and nothing else; fields with defaults may be missing."""
    if not isinstance(data, Mapping):
        raise _wrong(where, "a JSON object", shown_value(data), "correct it")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    hints = typing.get_type_hints(cls)
    for key in data:
        choice(f"key of {where}", key, fields)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise _wrong(f"{where}.{name}", _named(hints[name]), "nothing", "add the key")
    return cls(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _value(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        for argument in arguments:
            with suppress(UsageError):
                return _value(argument, value, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise _wrong(where, f"one of {', '.join(map(repr, arguments))}", shown_value(value))
        return value
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise _wrong(where, f"{len(arguments)} values", f"{len(value)}")
        return tuple(_value(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(key): _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return parse(typing.cast(type, hint), value, where)
    if hint is float and type(value) is int and abs(value) < LARGEST_FLOAT:
        return float(value)
    if hint in (int, float, str, bool, types.NoneType) and type(value) is hint:
        return value
    raise _wrong(where, _named(hint), shown_value(value))


def _wrong(where: str, expected: str, got: str, remedy: str = "correct that key") -> UsageError:
    return UsageError(where, expected, got, remedy)


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if not typing.get_origin(hint) else str(hint)


def shown_value(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
