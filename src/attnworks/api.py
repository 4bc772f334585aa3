"""The public functions that put several packages together: examine a model, save and load any model.

Measures and reshapes are imported when an examination starts, so that saving and loading do not wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnworks.core.errors import UsageError
from attnworks.core.folders import new_folder
from attnworks.hf.folder import is_hf_folder, save_hf
from attnworks.hf.open import open_model
from attnworks.models import folder as own
from attnworks.models.build import Model
from attnworks.text.passages import Passage, Text, from_texts
from attnworks.traces.text import EXAM_BATCH_TOKENS

if TYPE_CHECKING:
    from attnworks.exam.examination import Examination
    from attnworks.reshape.receipt import Receipt
    from attnworks.training.objectives.sentences import LossFunction

DEFAULT_SENTENCES = 256


def examine(
    model: Any,
    tokenizer: Any = None,
    texts: Sequence[str] | Sequence[Passage] | None = None,
    *,
    measures: Sequence[str] | str | None = None,
    objective: str | LossFunction | None = None,
    without: Collection[str] = (),
    pin: Sequence[str] | None = None,
    max_tokens: int | None = None,
    batch_tokens: int = EXAM_BATCH_TOKENS,
    seed: int = 0,
    name: str | None = None,
    receipts: Sequence[Receipt] | None = None,
) -> Examination:
    """What every head of a model does, on texts (by default the embedded corpus).

    model      a path, a Hugging Face model, or one of attnworks; with its tokenizer, or vocabulary, beside it
    measures   names of measures; None for the default set, ["all"] for everything
    objective  "lm", "mlm", "seq2seq", "embedding", "labels:FILE", or a function of your own, for importance
    without    parts to run without: "skip", "mlp", "norm"
    pin        sentences whose attention maps are kept for display; None for one of the texts, of 32 tokens or fewer
    receipts   of the reshapes that made a model in memory, first to last, so that `attnworks.compare_exams` can match
               its heads to those of the original; None for those in the folder, if `model` is a path
    """
    from attnworks.exam.examiner import ExamSettings, run_examination
    from attnworks.reshape.history import receipts_of
    from attnworks.text.grammar import grammar_passages
    from attnworks.traces.subject import wrap

    subject = wrap(model, tokenizer, name, max_tokens)
    if receipts is None:
        receipts = receipts_of(str(model)) if isinstance(model, str | Path) else ()
    if texts is None:
        passages, spec = grammar_passages(DEFAULT_SENTENCES), "grammar"
    else:
        passages, spec = _as_passages(texts), "texts"
    measures = measures.split(",") if isinstance(measures, str) else measures
    pinned = None if pin is None else tuple(pin)
    request = ExamSettings(measures, objective, tuple(without), pinned, batch_tokens, seed)
    return run_examination(subject, passages, request, about={"name": spec}, receipts=receipts)


def _as_passages(texts: Sequence[str] | Sequence[Passage]) -> list[Passage]:
    if isinstance(texts, str):
        raise UsageError("texts", "a list of them", "a single string", "put it into a list: [text]")
    passages = [text if isinstance(text, Passage) else Passage(Text(text)) for text in texts if text != ""]
    return passages or from_texts([])[0]


def save(model: Any, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a model of attnworks, or one of Hugging Face, to `folder`, whole or not at all.

    With `overwrite`, an existing model folder is replaced in one step once the new one is safely on disk. A tokenizer
    is not written: call its `save_pretrained` on the same folder. What transformers can load is written as it does.
    """
    if isinstance(model, Model):
        return own.save_model(model, folder, overwrite=overwrite)
    if not hasattr(model, "save_pretrained"):
        raise UsageError(
            f"save {type(model).__name__}", "one of attnworks or Hugging Face", "another model", "save its state_dict"
        )
    own.check_model_place(Path(folder), overwrite)
    with new_folder(Path(folder)) as scratch:
        save_hf(model, scratch)
    return Path(folder)


def load(folder: str | os.PathLike[str]) -> Any:
    """The model saved in `folder`, checked against its manifest; on any doubt an error, and nothing half-loaded.

    A Transformer, Recurrent or PureAttention of attnworks, or a Hugging Face model, reshaped or as it came. The folder
    of a training run gives its best checkpoint. Like `from_pretrained`, this returns a model in evaluation mode; call
    `.train()` to continue training it.
    """
    if is_hf_folder(Path(folder)):
        return open_model(str(folder), dtype=None).model
    return own.load_model(folder)
