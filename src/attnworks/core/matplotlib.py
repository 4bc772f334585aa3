"""What every picture needs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from attnworks.core.errors import MissingExtraError


def need_matplotlib(path: Path) -> None:
    """Refuse to draw where the extra is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            asked=f"draw {path.name}",
            expected="matplotlib",
            got="an environment without it",
            remedy="pip install 'attnworks[plot]'",
        )
