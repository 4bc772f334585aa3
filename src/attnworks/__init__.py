"""attnworks builds, examines and reshapes attention."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnworks import attention, core, exam, hf, models, reshape, text, traces, training
    from attnworks.api import examine, load, save
    from attnworks.exam.compare import compare_exams
    from attnworks.exam.folder import read_exam
    from attnworks.models import build, preset
    from attnworks.page import report

__all__ = [
    "__version__",
    "attention",
    "build",
    "compare_exams",
    "core",
    "exam",
    "examine",
    "hf",
    "load",
    "models",
    "preset",
    "read_exam",
    "report",
    "reshape",
    "save",
    "text",
    "traces",
    "training",
]

_HOME = {
    "build": "models",
    "compare_exams": "exam.compare",
    "examine": "api",
    "load": "api",
    "preset": "models",
    "read_exam": "exam.folder",
    "report": "page",
    "save": "api",
}


def __getattr__(name: str) -> object:
    """Import packages on first use, so that `attnworks --help` never waits for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'attnworks' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(f"attnworks.{_HOME.get(name, name)}")
    return getattr(module, name) if name in _HOME else module


def __dir__() -> list[str]:
    return list(__all__)
