"""`attnworks.export`: a model as a folder for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnworks.api.subjects import as_subject
from attnworks.core.checks import choice, new_place
from attnworks.core.display import Progress, silent
from attnworks.traces.subject import Subject

AnyPath = str | os.PathLike[str]


def _to_safetensors(subject: Subject, out: Path) -> None:
    subject.standard().save(out)


FORMATS: dict[str, Callable[[Subject, Path], None]] = {"safetensors": _to_safetensors}
"""Name of a format -> writes the folder of a model, whole or not at all."""


def export(
    subject: Any,
    *,
    to: str,
    out: AnyPath,
    tokenizer: Any = None,
    dtype: str = "float32",
    progress: Progress = silent,
) -> Path:
    """Write a model to a folder that other programs open. Its history of reshapes is not written.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a model of attnworks.
        to: Format of the folder: "safetensors", a plain model folder. A Hugging Face model is written as transformers
            alone opens it, and refused if transformers cannot represent it.
        out: Folder to write; it must not exist yet. It is written whole or not at all.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        dtype: Type of the weights of a model that is opened from a path. Default: "float32".
        progress: Called with (message, 0, 0) for remarks on the model. Default: silent, they become warnings.

    Returns:
        The path of the folder.

    >>> attnworks.export("runs/half", to="safetensors", out="plain")  # doctest: +SKIP
    """
    choice("format", to, FORMATS)
    new_place(Path(out))
    FORMATS[to](as_subject(subject, tokenizer, dtype=dtype, progress=progress), Path(out))
    return Path(out)
