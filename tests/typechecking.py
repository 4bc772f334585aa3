"""Run-time checking of shapes and types, for `pytest --check-shapes`: jaxtyping's import hook with beartype.

Checking every call takes longer than the tests themselves, so `make test` checks the smoke tier and `make test-all`
checks everything.
"""

from __future__ import annotations

import sys

import jaxtyping
import pytest
from beartype import BeartypeConf, beartype

CHECKED_PACKAGES = [
    f"attnworks.{name}"
    for name in (
        *("attention", "models", "training", "traces", "hf", "exam", "reshape"),
        *("core.tensors", "core.team", "core.json_records", "text.tokens"),
        *("studies.long_range_cell", "studies.recall", "studies.tasks"),
        *("theory.collapse_cases", "theory.kernels", "theory.random_projection", "theory.retrieval"),
        "theory.structured_sets",
    )
]
typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""beartype, accepting an int where a float is annotated."""


def install() -> None:
    """Check every call of a function in `CHECKED_PACKAGES`. What was imported before would not be checked."""
    if "attnworks" in sys.modules:
        raise pytest.UsageError("--check-shapes: a conftest.py of the given paths imports attnworks; use -k or -m")
    jaxtyping.install_import_hook(CHECKED_PACKAGES, "tests.typechecking.typechecked")
