"""`attnworks.apply`: a reshape of any kind, measured before and after; and the history of reshapes."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnworks.api.subjects import as_subject
from attnworks.core.checks import new_place
from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.contract import Reshape
from attnworks.reshape.history import ModelFolder, check_history, receipts_of, write_outcome
from attnworks.reshape.receipt import History, Receipt
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.texts import (
    CALIBRATION_PAIRS,
    TextSplit,
    split_corpus,
    split_file,
    split_texts,
)
from attnworks.text.passage_size import PassageSize
from attnworks.text.sources import DEFAULT_CORPUS, PROSE_CORPUS, Texts, is_corpus, text_file
from attnworks.traces.subject import Subject, is_run, open_subject
from attnworks.training.objectives.language import NextToken
from attnworks.training.run_folder import read_recipe

if TYPE_CHECKING:
    from attnworks.training.objectives.sentences import LossFunction

AnyPath = str | os.PathLike[str]


def apply(
    subject: Any,
    reshape: Reshape,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    heal: int = 0,
    heal_by: str = "objective",
    learning_rate: float | None = None,
    objective: str | LossFunction | None = None,
    pairs: int = CALIBRATION_PAIRS,
    sentences: int | None = None,
    batch_tokens: int = 2048,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    out: AnyPath | None = None,
    progress: Progress = silent,
) -> tuple[Subject, Receipt]:
    """Apply a reshape, also one of your own, and measure what it did. `prune`, `grow`, `swap`, `project` call this.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a Transformer of attnworks. It stays as it is.
        reshape: The options of a reshape: an instance of a subclass of `attnworks.reshape.Reshape`.
        texts: A list of texts, a text file (of both, every fourth text is held out for evaluation), or a corpus such
            as "grammar". Default: None, the corpus that a run was trained on, or "grammar", or "pydoc" for a language
            model, which reads texts joined into passages.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        heal: Training steps after the change, to recover quality. Default: 0.
        heal_by: What healing minimises: "objective", or "distil", the distance to the activations of the old model
            after every block. Default: "objective".
        learning_rate: Learning rate while healing. Default: None, 3e-4, and 5e-5 for Hugging Face models.
        objective: Loss to evaluate by: "lm", "mlm", "seq2seq", "embedding", "labels:FILE", or a function.
            Default: None, the one that fits the model.
        pairs: Read at most this number of texts for calibration and healing. Default: 10,000.
        sentences: Evaluate on at most this number of held-out sentences; for a language model, of passages of up to 512
            tokens. Default: None, 256 sentences, or passages of about 6,144 tokens in all.
        batch_tokens: Tokens per batch, padding included. Default: 2048.
        seed: Random seed. The same seed gives the same model and receipt. Default: 0.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        out: Folder to write the new model to, with its receipt and the model before. It must not exist yet, and
            `subject` must have been opened from a path. If nothing was changed, it is not written.
            Default: None, do not write it.
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        The new `Subject` and the `Receipt`: the loss predicted, measured on held-out text, and measured after healing.
    """
    if out is not None:
        new_place(Path(out))
    settings = ReshapeSettings(objective, heal, learning_rate, batch_tokens, seed, heal_by)
    opened = as_subject(subject, tokenizer, device=device, dtype=dtype, progress=progress)
    reshape.check(opened.model)  # before text is read, which may take long
    place = None if out is None else _place(opened, changed=isinstance(subject, Subject))
    split = read_split(opened, texts, pairs=pairs, sentences=sentences, seed=seed, objective=objective)
    model, receipt = run_reshape(reshape, opened, split, settings, progress)
    new = opened.with_model(model)
    new.folder = None
    if out is not None and place is not None and not receipt.nothing_changed:
        write_outcome(copy.deepcopy(model).to("cpu"), receipt, place, Path(out))
        new.folder = Path(out)
    return new, receipt


def _place(subject: Subject, *, changed: bool) -> ModelFolder:
    """Where a subject is on disk, with a history that is whole.

    changed    whether the model may have been changed since it was opened, so that it is compared with the folder
    """
    if subject.folder is None:
        got, remedy = "a model in memory", "open it from a folder, or leave out= away and use Subject.save"
        raise UsageError("out=", "a model that was opened from a folder, whose history is kept", got, remedy)
    place = ModelFolder.of(str(subject.folder))
    check_history(place)
    if not changed:
        return place
    stored = open_subject(str(subject.folder), dtype=_dtype_name(subject)).model
    if weights_fingerprint(stored) != weights_fingerprint(copy.deepcopy(subject.model).to("cpu")):
        got, remedy = "one that was changed in memory", "save it with Subject.save, and open that folder"
        raise UsageError("out=", f"the model in {subject.folder}, whose history is kept", got, remedy)
    return place


def _dtype_name(subject: Subject) -> str:
    return str(next(subject.model.parameters()).dtype).removeprefix("torch.")


def read_split(
    subject: Subject,
    texts: Texts,
    *,
    pairs: int,
    sentences: int | None,
    seed: int,
    objective: str | LossFunction | None = None,
) -> TextSplit:
    """Texts to calibrate on and others to evaluate on; by default the corpus that a run was trained on.

    A language model reads prose by default. Texts are joined into passages for it, unless it is evaluated by another
    objective than the next token.
    """
    writes = subject.abilities.kind == "decoder" and subject.abilities.vocabulary
    joins = writes and objective in (None, NextToken.name) and subject.source is not None
    passage_size = PassageSize.of(subject.source) if joins and subject.source is not None else None
    if texts is None and subject.folder is not None and is_run(subject.folder):
        recipe, _ = read_recipe(subject.folder)
        pairs = min(pairs, recipe.pairs or pairs)
        return split_corpus(recipe.corpus, pairs=pairs, held_out=sentences, seed=recipe.seed, passage_size=passage_size)
    if texts is None:
        texts = PROSE_CORPUS if writes and subject.vocabularies is None else DEFAULT_CORPUS
    if isinstance(texts, str) and is_corpus(texts):
        return split_corpus(texts, pairs=pairs, held_out=sentences, seed=seed, passage_size=passage_size)
    if isinstance(texts, str | os.PathLike):
        return split_file(text_file(texts), pairs=pairs, held_out=sentences, passage_size=passage_size)
    return split_texts(texts, pairs=pairs, held_out=sentences, passage_size=passage_size)


def history(path: AnyPath) -> History:
    """The receipts of all reshapes of a model, first to last.

    Args:
        path: A run or model folder, or the id of a Hugging Face model in the local cache.

    Returns:
        A list of `Receipt`, which is empty for a model that was never reshaped.

    >>> attnworks.history("runs/half")  # doctest: +SKIP
    """
    if not isinstance(path, str | os.PathLike):
        remedy = "its receipts were returned with it; out= writes a folder with a history"
        raise UsageError("history", "a folder, or the id of a model", f"a {type(path).__name__} in memory", remedy)
    return History(receipts_of(str(path)), str(path))
