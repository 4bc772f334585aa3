"""Loading a model from a folder, whoever's it was first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnworks.models import folder as own
from attnworks.models.reshaped_folder import is_reshaped


def load(folder: str | os.PathLike[str]) -> Any:
    """The model saved in `folder`, checked against its manifest; on any doubt an error, and nothing half-loaded.

    A Transformer, Recurrent or PureAttention of attnworks, or a Hugging Face model that was reshaped. The folder of a
    training run gives its best checkpoint. Like `from_pretrained`, this returns a model in evaluation mode; call
    `.train()` to go on training it.
    """
    if is_reshaped(Path(folder)):
        from attnworks.models.foreign import open_pretrained

        return open_pretrained(str(folder), dtype=None).model
    return own.load(folder)
