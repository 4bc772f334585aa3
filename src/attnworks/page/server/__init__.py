"""The live page: a server for this machine alone. It needs the extra `serve`."""

import importlib.util

from attnworks.core.errors import MissingExtraError

NEEDED = ("starlette", "uvicorn")


def check_installed() -> None:
    """An error with a remedy where the packages of a server are not installed."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise MissingExtraError(
            "attnworks serve", f"{' and '.join(missing)} installed", "no such package", "pip install attnworks[serve]"
        )
