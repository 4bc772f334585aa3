"""`attnworks.export`: a model as a folder for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnworks.api.subjects import as_subject
from attnworks.core.checks import choice, new_place
from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.models import Transformer
from attnworks.models.ctranslate2 import import_ctranslate2, inexpressible_part, save_ctranslate2
from attnworks.traces.subject import Subject

AnyPath = str | os.PathLike[str]


def _to_safetensors(subject: Subject, out: Path) -> None:
    subject.standard().save(out)


def _to_ctranslate2(subject: Subject, out: Path) -> None:
    model, asked = subject.model, f"export {subject.name} to ctranslate2"
    if subject.vocabularies is None or not isinstance(model, Transformer):
        remedy = "models of Hugging Face are converted by ct2-transformers-converter, a command of ctranslate2"
        raise UsageError(asked, "a translation model of attnworks", f"a {type(model).__name__}", remedy)
    if (reason := inexpressible_part(model, subject.vocabularies)) is not None:
        raise UsageError(asked, "a model that CTranslate2 can express", reason, "export it to safetensors")
    if (dtype := str(next(model.parameters()).dtype).removeprefix("torch.")) != "float32":
        remedy = "CTranslate2 converts weights when it opens a folder: compute_type='int8'"
        raise UsageError(asked, "weights in float32", dtype, remedy)
    import_ctranslate2(asked)
    save_ctranslate2(model, subject.vocabularies, out)


FORMATS: dict[str, Callable[[Subject, Path], None]] = {"safetensors": _to_safetensors, "ctranslate2": _to_ctranslate2}
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
            alone opens it, and refused if transformers cannot represent it. Or "ctranslate2", for a translation model
            of attnworks with dense attention. Heads that were pruned are zeros there.
        out: Folder to write; it must not exist yet. It is written whole or not at all.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        dtype: Type of the weights of a model that is opened from a path. Default: "float32".
        progress: Called with (message, 0, 0) for remarks on the model. Default: silent, they become warnings.

    Returns:
        The path of the folder.

    >>> attnworks.export("runs/half", to="safetensors", out="plain")  # doctest: +SKIP
    >>> attnworks.export("runs/half", to="ctranslate2", out="fast")  # doctest: +SKIP
    """
    choice("format", to, FORMATS)
    new_place(Path(out))
    FORMATS[to](as_subject(subject, tokenizer, dtype=dtype, progress=progress), Path(out))
    return Path(out)
