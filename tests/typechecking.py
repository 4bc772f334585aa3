"""How annotations are checked while tests run: beartype, with an int wherever a float is asked for.

Checking every call takes twice the time of all the rest, so that of each function the first calls in a test are
checked; with THOROUGH=1, all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

CHECKED = 5
"""Calls of one function in one test."""
calls: Counter[CodeType] = Counter()
typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def at_first(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator of functions and dataclasses: `check`, which takes its time, decorates what is called, when it is."""

    def decorate(plain: Any) -> Any:
        if inspect.isclass(plain):
            if dataclasses.is_dataclass(plain):
                plain.__init__ = decorate(plain.__init__)
            return plain
        checked = functools.cache(lambda: check(plain))

        @functools.wraps(plain)
        def called(*args: Any, **kwargs: Any) -> Any:
            if calls[plain.__code__] >= CHECKED:
                return plain(*args, **kwargs)
            calls[plain.__code__] += 1
            return checked()(*args, **kwargs)

        return called

    return decorate


if os.environ.get("THOROUGH") != "1":
    every_call = jaxtyping.jaxtyped
    jaxtyping.jaxtyped = lambda typechecker: at_first(every_call(typechecker=typechecker))
