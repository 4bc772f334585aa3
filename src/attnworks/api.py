"""The public functions that put several packages together: save and load any model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnworks.errors import UsageError
from attnworks.hf.folder import is_pretrained, write_foreign
from attnworks.hf.open import open_pretrained
from attnworks.models import folder as own
from attnworks.models.build import Model
from attnworks.storage.disk import new_folder


def save(model: Any, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a model of attnworks, or one of Hugging Face, to `folder`, whole or not at all.

    With `overwrite`, an existing model folder is replaced in one step once the new one is safely on disk. A tokenizer
    is not written: call its `save_pretrained` on the same folder. What transformers can load is written as it does.
    """
    if isinstance(model, Model):
        return own.save(model, folder, overwrite=overwrite)
    if not hasattr(model, "save_pretrained"):
        raise UsageError(
            asked=f"save {type(model).__name__}",
            expected="a model of attnworks, or one of Hugging Face",
            got="another model",
            remedy="save its state_dict with safetensors",
        )
    own.check_place(Path(folder), overwrite)
    with new_folder(Path(folder)) as scratch:
        write_foreign(model, scratch)
    return Path(folder)


def load(folder: str | os.PathLike[str]) -> Any:
    """The model saved in `folder`, checked against its manifest; on any doubt an error, and nothing half-loaded.

    A Transformer, Recurrent or PureAttention of attnworks, or a Hugging Face model, reshaped or as it came. The folder
    of a training run gives its best checkpoint. Like `from_pretrained`, this returns a model in evaluation mode; call
    `.train()` to continue training it.
    """
    if is_pretrained(Path(folder)):
        return open_pretrained(str(folder), dtype=None).model
    return own.load(folder)
