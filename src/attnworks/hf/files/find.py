"""Where the weights of a model are: in which files of a folder, in which format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnworks.core.errors import UnsafeFileError
from attnworks.core.folders import load_error
from attnworks.hf.files.contract import WeightFiles
from attnworks.hf.files.shards import Shards, shard_paths
from attnworks.models.folder import CONFIG_FILE, WEIGHTS_FILE

SAFETENSORS_INDEX, TORCH_FILE, TORCH_INDEX = (
    f"{WEIGHTS_FILE}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SAFETENSORS, GGUF = ".safetensors", ".gguf"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
BARE_PICKLES = (".pkl", ".pickle")
Format = Literal["safetensors", "torch", "GGUF"]


@dataclass(frozen=True)
class ModelPlace:
    """Where a model is on disk.

    folder    with the files of the model; config and tokenizer are there too, unless the format is GGUF
    file      the file with the weights, or the index of several
    """

    folder: Path
    file: Path
    format: Format

    @property
    def is_index(self) -> bool:
        return self.file.name.endswith(".index.json")

    @property
    def named(self) -> Path:
        """What error messages about the whole model name."""
        return self.file if self.format == "GGUF" else self.folder

    @property
    def files(self) -> list[Path]:
        """All files with weights, and their index."""
        return [self.file, *(shard_paths(self.file, self._suffix) if self.is_index else [])]

    @property
    def _suffix(self) -> str:
        return SAFETENSORS if self.format == "safetensors" else ".bin"

    def weights(self) -> WeightFiles:
        """The weights, of which headers alone are read."""
        from attnworks.hf.files.from_gguf import GGUFFile
        from attnworks.hf.files.from_safetensors import SafetensorsFile
        from attnworks.hf.files.from_torch import TorchFile

        reader = {"safetensors": SafetensorsFile, "torch": TorchFile, "GGUF": GGUFFile}[self.format]
        return Shards(self.file, self._suffix, reader) if self.is_index else reader(self.file)


def find_weights(path: Path) -> ModelPlace:
    """The weights at a path: a file, or the file or index of a folder by the names that transformers gives.

    Of several formats in a folder the safest comes first. Any other name is taken if there is one such file.
    """
    if path.is_file():
        return _file(path)
    for name in (WEIGHTS_FILE, SAFETENSORS_INDEX, TORCH_FILE, TORCH_INDEX):
        if (path / name).is_file():
            return ModelPlace(path, path / name, "safetensors" if SAFETENSORS in name else "torch")
    suffixes = (GGUF,) if not (path / CONFIG_FILE).is_file() else (GGUF, *TORCH_SUFFIXES, *BARE_PICKLES)
    for chosen in ((GGUF,), suffixes):
        found = sorted(file for file in path.iterdir() if file.suffix in chosen and file.is_file())
        if len(found) == 1:
            return _file(found[0])
        if found:
            got = f"{len(found)}: {found[0].name}, {found[1].name}{', ...' * (len(found) > 2)}"
            raise load_error(path, "one file with weights", got, f"give the file: {found[0]}")
    expected = f"{WEIGHTS_FILE}, {SAFETENSORS_INDEX}, {TORCH_FILE}, or a GGUF file"
    raise load_error(path, expected, "none of them", "copy the weights into the folder")


def _file(path: Path) -> ModelPlace:
    if path.suffix == GGUF:
        return ModelPlace(path.parent, path, "GGUF")
    if path.suffix in BARE_PICKLES:
        got, remedy = "a pickle, which can run code", "convert it to safetensors, if you trust it"
        raise UnsafeFileError(f"open {path}", "safetensors", got, remedy)
    if path.suffix in (SAFETENSORS, *TORCH_SUFFIXES):
        return ModelPlace(path.parent, path, "safetensors" if path.suffix == SAFETENSORS else "torch")
    raise load_error(path, "a model folder, or a file with weights", "a file", "give the folder that it is in")


def is_gguf(path: Path) -> bool:
    """Whether this is a GGUF file, or a folder with a GGUF file and no config."""
    if path.is_file():
        return path.suffix == GGUF
    return path.is_dir() and not (path / CONFIG_FILE).exists() and any(path.glob(f"*{GGUF}"))
