"""attnworks builds, examines and reshapes attention."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnworks import attention as attention
    from attnworks import exam as exam
    from attnworks import hf as hf
    from attnworks import models as models
    from attnworks import nn as nn
    from attnworks import reshape as reshape
    from attnworks import text as text
    from attnworks import traces as traces
    from attnworks import training as training
    from attnworks.api.exams import compare as compare
    from attnworks.api.exams import examine as examine
    from attnworks.api.exams import view as view
    from attnworks.api.exports import export as export
    from attnworks.api.heads import grow as grow
    from attnworks.api.heads import project as project
    from attnworks.api.heads import prune as prune
    from attnworks.api.mechanisms import advise as advise
    from attnworks.api.mechanisms import swap as swap
    from attnworks.api.proofs import claims as claims
    from attnworks.api.reshapes import apply as apply
    from attnworks.api.reshapes import history as history
    from attnworks.api.runs import train as train
    from attnworks.api.server import serve as serve
    from attnworks.api.subjects import open as open
    from attnworks.api.tables import count as count
    from attnworks.api.translations import Translation as Translation
    from attnworks.api.translations import translate as translate
    from attnworks.attention import Mask as Mask
    from attnworks.exam.compare import Comparison as Comparison
    from attnworks.exam.examination import Examination as Examination
    from attnworks.exam.reading import Reading as Reading
    from attnworks.models import build as build
    from attnworks.models import preset as preset
    from attnworks.page.file import WrittenPage as WrittenPage
    from attnworks.page.file import report as report
    from attnworks.reshape.history import replay as replay
    from attnworks.reshape.history import undo as undo
    from attnworks.reshape.receipt import Receipt as Receipt
    from attnworks.reshape.swapping.advice import Advice as Advice
    from attnworks.traces.cache import Activations as Activations
    from attnworks.traces.cache import TraceCache as TraceCache
    from attnworks.traces.cache import trace as trace
    from attnworks.traces.subject import Subject as Subject
    from attnworks.traces.subject import wrap as wrap

_HOMES = {
    "api.exams": "compare examine view",
    "api.exports": "export",
    "api.heads": "grow project prune",
    "api.mechanisms": "advise swap",
    "api.proofs": "claims",
    "api.reshapes": "apply history",
    "api.runs": "train",
    "api.server": "serve",
    "api.subjects": "open",
    "api.tables": "count",
    "api.translations": "Translation translate",
    "attention": "Mask",
    "exam.compare": "Comparison",
    "exam.examination": "Examination",
    "exam.reading": "Reading",
    "models": "build preset",
    "page.file": "WrittenPage report",
    "reshape.history": "replay undo",
    "reshape.receipt": "Receipt",
    "reshape.swapping.advice": "Advice",
    "traces.cache": "Activations TraceCache trace",
    "traces.subject": "Subject wrap",
}
"""Module -> the public names that it holds."""
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = ("attention", "exam", "hf", "models", "nn", "reshape", "text", "traces", "training")

__all__ = ["__version__", *_MODULES, *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def _get(name: str) -> object:
    """Import public names on first use, so that `attnworks --help` never waits for torch."""
    if name in _MODULES:
        return importlib.import_module(f"attnworks.{name}")
    if name not in _HOME:
        from attnworks.core.suggestions import name_instead

        raise AttributeError(f"module 'attnworks' has no attribute {name!r}; {name_instead(name, __all__)}")
    found = getattr(importlib.import_module(f"attnworks.{_HOME[name]}"), name)
    return _suggesting(found) if isinstance(found, FunctionType) else found


if not TYPE_CHECKING:  # type checkers would believe that every name is there
    __getattr__ = _get


@functools.cache
def _suggesting(function: FunctionType) -> Callable[..., object]:
    """The function, whose errors for misspelled arguments, and for too many without a name, say what to write."""
    import inspect

    from attnworks.core.suggestions import argument_instead

    known = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return function

    unnamed = [name for name, parameter in known.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in known.values())

    @functools.wraps(function)
    def call(*given: object, **named: object) -> object:
        if len(given) > len(unnamed) and not takes_any:
            others = [name for name in known if name not in unnamed]
            example = "tokenizer" if "tokenizer" in others else others[0] if others else None
            remedy = f"give the others by name, such as {example}=..." if example else "leave the others out"
            order = f"{function.__name__}({', '.join(unnamed)})"
            raise TypeError(f"{order} got {len(given)} arguments without a name; {remedy}")
        for name in named.keys() - known.keys():
            remedy = argument_instead(name, known)
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}; {remedy}")
        return function(*given, **named)

    call.__module__ = __name__  # where pickle finds it
    return call


def __dir__() -> list[str]:
    return sorted(__all__)
