"""Checks of arguments, and the bounds they use."""

from __future__ import annotations

from attnworks.core.errors import UsageError

LARGEST_FLOAT = 1e30


def whole(name: str, option: str, value: object, least: int, remedy: str) -> int:
    """An option that must be a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise UsageError(
            asked=f"{name} with {option}={value}",
            expected=f"a whole number from {least}",
            got=repr(value),
            remedy=remedy,
        )
    return value
