"""`attnworks.train`: train a model on pairs of texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from attnworks.core.errors import UsageError
from attnworks.core.team import Team
from attnworks.models import RecurrentConfig, TransformerConfig
from attnworks.models import preset as preset_config
from attnworks.models.config import NormOrder, PositionKind
from attnworks.text.vocabulary import VocabularyKind
from attnworks.traces.subject import Subject, open_subject
from attnworks.training.events import Watcher
from attnworks.training.fit import ScheduleKind
from attnworks.training.recipe import Recipe
from attnworks.training.run import STOP_FIELDS, Run

AnyPath = str | os.PathLike[str]
DEFAULT_EPOCHS = 20.0
CUSTOM = "custom"
"""The name, in the recipe, of a model that is not a preset."""
_SIZES = ("d_model", "num_layers", "num_heads", "d_ff", "norm", "positions")
_SETTINGS = tuple(name for name in Recipe.__dataclass_fields__ if name != "preset")
_FIXED = {
    *_SIZES, "corpus", "pairs", "valid", "test", "max_length", "mechanism", "vocabulary", "vocabulary_size",
    "joint_vocabulary", "batch_tokens", "accumulate", "seed",
}  # fmt: skip
"""Settings that a run cannot change when it is resumed: they decide which steps were made before."""


def train(
    preset: str | None = None,
    corpus: str | None = None,
    *,
    out: AnyPath | None = None,
    resume: AnyPath | None = None,
    pairs: int | None = None,
    valid: str | None = None,
    test: str | None = None,
    max_length: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    config: TransformerConfig | RecurrentConfig | None = None,
    d_model: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    d_ff: int | None = None,
    norm: NormOrder | None = None,
    positions: PositionKind | None = None,
    mechanism: str | None = None,
    vocabulary: VocabularyKind | None = None,
    vocabulary_size: int | None = None,
    joint_vocabulary: bool | None = None,
    batch_tokens: int | None = None,
    accumulate: int | None = None,
    learning_rate: float | None = None,
    schedule: ScheduleKind | None = None,
    warmup: int | None = None,
    smoothing: float | None = None,
    dropout: float | None = None,
    clip: float | None = None,
    validate_every: int | None = None,
    score_sentences: int | None = None,
    keep_every: int | None = None,
    patience: int | None = None,
    average: str | None = None,
    grow_until: str | None = None,
    grow_every: int | None = None,
    grow_by: int | None = None,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    threads: int | None = None,
    seed: int | None = None,
    watchers: Sequence[Watcher] = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[Run], None] = lambda run: None,
    team: Team | None = None,
) -> Subject:
    """Train a model on pairs of texts, or continue training one.

    Every setting is None by default: a new run takes the value named below, and a resumed run keeps its own. Some
    values are "the preset's": docs/training.md lists them for every preset, with the measurements behind them. A
    resumed run takes new settings too, except those that decide which steps were made before: the model, `corpus`,
    `pairs`, `vocabulary`, `vocabulary_size`, `joint_vocabulary`, `batch_tokens`, `accumulate` and `seed`.

    Args:
        preset: Name of the model: "tiny", "small", "base", "conti-1h", "conti-8h", "lstm-plain", "lstm-dot",
            "lstm-multiplicative" or "lstm-additive". Default: None, with `resume` or `config`.
        corpus: Pairs to train on: "grammar", "tsv:FILE", "text:SRC,TGT", "gettext:DIR" or "opus_books".
            Default: "grammar".
        out: Folder of the new run; it must not exist yet. Default: None, with `resume`.
        resume: Folder of a run to continue, exactly where it stopped. Default: None, start a new one.
        pairs: Train on at most this number of pairs. Default: all.
        valid: Corpus of a file for validation, as a whole: "tsv:FILE" or "text:SRC,TGT". Pairs whose source is also in
            training are counted. Default: 5 % of the corpus, at most 2,000 pairs.
        test: Corpus of a file for test, as a whole; the best weights are scored on it at the end. Default: 5 % of the
            corpus, which are left out of training and not scored.
        max_length: Leave out training pairs with more tokens than this on a side. Default: leave out none.
        epochs: Stop after this number of passes over the corpus. Default: 20, unless `steps` or `minutes` is given.
        steps: Stop after this number of optimizer steps. Default: no limit.
        minutes: Stop after this number of minutes of training in total, with those before `resume`. Default: no limit.
        config: A TransformerConfig or RecurrentConfig instead of a preset; the corpus replaces its vocabulary sizes.
            Default: None, the preset's.
        d_model: Width of embeddings and of the residual stream. Default: the preset's.
        num_layers: Layers of the encoder, and of the decoder. Default: the preset's.
        num_heads: Heads of every attention layer; they share `d_model`. Default: the preset's.
        d_ff: Hidden width of the feed-forward layers. Default: the preset's, or 4 `d_model` if that is given.
        norm: Layer norm before each part ("pre") or after each residual sum ("post"). Default: the preset's.
        positions: "sinusoid", "learned", "index", "normalised-index" or "none". Default: the preset's.
        mechanism: Attention of every layer that supports it, for example "window:window=16". Default: the preset's.
        vocabulary: Split text into whole words ("word") or byte pairs ("bpe"). Default: the preset's.
        vocabulary_size: Largest number of different tokens on each side. Default: the preset's.
        joint_vocabulary: One vocabulary and one embedding matrix for source, target and output (True), or one
            vocabulary for each side (False). Default: the preset's.
        batch_tokens: Tokens on the larger padded side of a batch. Default: the preset's.
        accumulate: Batches per optimizer step. Default: 1.
        learning_rate: Peak learning rate. Default: the preset's.
        schedule: Schedule of the learning rate: "warmup", "cosine" or "constant". Default: "warmup".
        warmup: Steps until the peak learning rate. Default: the preset's.
        smoothing: Label smoothing. Default: 0.1.
        dropout: Dropout probability. Default: 0.1.
        clip: Clip gradients to this norm. Default: 1.0.
        validate_every: Steps between validations, each of which saves a checkpoint. Default: 500.
        score_sentences: Held-out sentences to translate at each validation, for BLEU and chrF. Default: 200.
        keep_every: Steps between checkpoints that are never deleted. Default: keep the best and the last.
        patience: Stop after this number of validations without a better loss. Default: do not.
        average: Average the weights of the last or best N validated checkpoints at the end: "last:5" or "best:5". The
            mean becomes the best checkpoint if its held-out loss is lower. Default: do not.
        grow_until: Grow heads up to these sizes where it lowers the loss: "d_k=64,d_v=32,heads=8". Default: do not.
        grow_every: Steps between attempts to grow. Default: 500.
        grow_by: Columns to add each time, in total. Default: an eighth of what is missing.
        device: Device to compute on: "cpu", "cuda", "cuda:1" or "mps". Default: "cpu".
        dtype: Number type of the activations: "float32" or "bfloat16". Default: "float32".
        threads: Number of CPU threads. Default: torch's choice. The same number gives the same weights.
        seed: Random seed of weights, order and dropout. Default: 0.
        watchers: Functions that are called with every event (`attnworks.training.events`): a step, a validation, a
            growth. Default: none.
        should_stop: Called before every step; True stops training after a checkpoint. Default: never.
        on_start: Called with the `Run` before its first step. Default: nothing.
        team: Processes that train together under torchrun. Default: None, this process alone.

    Returns:
        The `Subject` with the best checkpoint; `subject.folder` is the folder of the run.

    >>> run = attnworks.train("tiny", steps=200, out="runs/quick")  # doctest: +SKIP
    >>> attnworks.translate(run, ["The chair is new."])  # doctest: +SKIP
    """
    arguments = locals()
    settings = {name: arguments[name] for name in _SETTINGS if arguments[name] is not None}
    sizes = {name: arguments[name] for name in _SIZES if arguments[name] is not None}
    if resume is not None and preset is None and out is None and config is None:
        run = _resumed(Path(resume), settings | sizes, team)
    elif resume is None and (preset is None) != (config is None) and out is not None:
        if config is not None and sizes:
            remedy = "set it in the config, with dataclasses.replace"
            raise UsageError(f"train a config with {next(iter(sizes))}", "the config alone", "both", remedy)
        if preset is not None:
            config = preset_config(preset, **sizes)
        limits = {} if settings.keys() & set(STOP_FIELDS) else {"epochs": DEFAULT_EPOCHS}
        recipe = Recipe.for_preset(CUSTOM if preset is None else preset, **limits, **settings)
        if threads is not None:
            torch.set_num_threads(threads)
        run = Run.create(recipe, Path(out), team, config)
    else:
        got = ", ".join(name for name in ("preset", "config", "out", "resume") if arguments[name] is not None)
        remedy = 'for instance train("tiny", out="runs/quick", steps=200)'
        raise UsageError("train", "preset and out, or resume", got or "neither", remedy)
    grow = None
    if run.recipe.grow_until is not None:
        from attnworks.reshape.growth.in_training import grow_in_training as grow
    on_start(run)
    run.train(watchers, should_stop, grow)
    return open_subject(str(run.folder), device=run.recipe.device)


def _resumed(folder: Path, settings: dict[str, Any], team: Team | None) -> Run:
    if fixed := sorted(_FIXED & settings.keys()):
        asked, expected = f"resume {folder} with another {fixed[0]}", "the settings of the steps made so far"
        raise UsageError(asked, expected, repr(settings[fixed[0]]), "leave it out, or start a new run")
    run = Run.resume(folder, team, **settings)
    if run.recipe.threads is not None:
        torch.set_num_threads(run.recipe.threads)
    return run
