"""A run: a recipe with its corpus, model and folder.

runs/mine/
  run.json                    the recipe, and the config that the model began with
  source.json, target.json    the vocabularies
  metrics.jsonl               a line for every step, every validation and every growth
  checkpoints/step-00000500   a model folder with the state of the optimizer
  last.json, best.json        the names of the last and the best checkpoint
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention import Mechanism
from attnworks.core.checks import new_place
from attnworks.core.errors import DivergedError, FolderError, UsageError
from attnworks.core.folders import (
    LAST_POINTER,
    best_checkpoint,
    disk_errors,
    new_folder,
    read_pointer,
    read_sealed,
    seal,
    set_aside,
    sha256,
    write_file,
)
from attnworks.core.team import Team
from attnworks.core.tensors import check_device
from attnworks.models import PureConfig, Recurrent, Transformer, build
from attnworks.models.config import config_from_json, config_to_json
from attnworks.models.decoding.translate import translations
from attnworks.models.folder import load_model, read_config, read_manifest
from attnworks.text.corpora import Corpus, corpus_fingerprint, open_corpus
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import read_pairs
from attnworks.text.tokens import BatchOrder, RowPair
from attnworks.text.vocabulary import EOS, Vocabulary
from attnworks.training.averages import average_model, save_average, steps_to_average
from attnworks.training.evaluate import TranslationScores, mean_loss, references, translation_scores
from attnworks.training.events import Averaged, Event, Grown, Metrics, Remark, Saved, Tested, Validated, Watcher
from attnworks.training.first_model import (
    FirstConfig,
    check_goals,
    config_before_presets_changed,
    first_config,
    make_vocabularies,
)
from attnworks.training.fit import CorpusFit, schedule
from attnworks.training.objectives.language import NextTargetToken
from attnworks.training.recipe import Recipe
from attnworks.training.run_folder import (
    MODEL_KEY,
    RECIPE_FILE,
    SOURCE_FILE,
    TARGET_FILE,
    RunProgress,
    delete_checkpoints,
    load_checkpoint,
    load_vocabularies,
    read_first_config,
    read_recipe,
    restore_optimizer,
    resume_point,
    save_checkpoint,
    write_pointers,
)
from attnworks.training.tensorboard import TensorBoard

STOP_FIELDS = ("epochs", "steps", "minutes")


class Run:
    """One training run in its folder."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        corpus: Corpus,
        source: Vocabulary,
        target: Vocabulary,
        team: Team | None = None,
        config: FirstConfig | None = None,
    ) -> None:
        self.folder, self.recipe, self.corpus, self.source, self.target = folder, recipe, corpus, source, target
        self.team = team or Team()
        if config is None:
            config = first_config(recipe).with_vocabulary(len(source), len(target))
        self.first_config = config
        self.model: Transformer | Recurrent = build(config, seed=recipe.seed)
        check_device(recipe.device)
        self.model.to(recipe.device)
        self.train_rows = read_pairs(corpus.train, source, target)
        self.too_long = 0 if recipe.max_length is None else self._leave_out_longer(recipe.max_length)
        self.valid_rows = read_pairs(corpus.valid, source, target)
        order = BatchOrder(self.train_rows, recipe.batch_tokens, recipe.seed)
        self.last_step = _last_step(recipe, order.per_epoch)
        self.fit = CorpusFit(
            model=self.model,
            objective=NextTargetToken(EOS, recipe.smoothing),
            pairs=self.train_rows,
            order=order,
            optimizer=self._adam(),
            learning_rate=schedule(recipe.schedule, recipe.learning_rate, recipe.warmup, self.last_step),
            accumulate=recipe.accumulate,
            clip=recipe.clip,
            seed=recipe.seed,
            device=recipe.device,
            dtype=recipe.dtype,
            team=self.team,
        )
        self.progress = RunProgress()
        self.remarks: list[str] = []

    def _leave_out_longer(self, limit: int) -> int:
        """Leave out training pairs with more tokens on a side, special ones not counted; the number of these pairs."""
        kept = [max(len(source), len(target)) <= limit + 1 for source, target in self.train_rows]
        if not any(kept):
            expected, got = f"training pairs of at most {limit} tokens", "none"
            raise UsageError(f"training with max_length={limit}", expected, got, "choose a larger one")
        self.corpus = replace(self.corpus, train=list(compress(self.corpus.train, kept)))
        self.train_rows = list(compress(self.train_rows, kept))
        return kept.count(False)

    def _adam(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)

    @property
    def has_joint_vocabulary(self) -> bool:
        """Whether both sides have the same vocabulary."""
        return self.source.tokenizer.to_str() == self.target.tokenizer.to_str()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.fit.optimizer

    def replace_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """A new optimizer for the weights that the model has now, with this state by the names of parameters."""
        self.fit.optimizer = self._adam()
        restore_optimizer(self.model, self.optimizer, state)

    @classmethod
    def create(cls, recipe: Recipe, folder: Path, team: Team | None = None, config: FirstConfig | None = None) -> Run:
        """A new run in a new folder, of the preset that the recipe names or of another config."""
        team = team or Team()
        if team.leads:
            remedy = f"choose another --out, or continue with: attnworks train --resume {folder}"
            new_place(folder, "train to", remedy)
        config = first_config(recipe, config)  # refuses unknown names before a corpus is read
        check_goals(recipe, config)
        corpus = _open_corpus(recipe)
        corpus.check_pairs("training")
        source, target = make_vocabularies(recipe, corpus, config)
        config = config.with_vocabulary(len(source), len(target))
        run = cls(folder, recipe, corpus, source, target, team, config)
        run._check_lengths()
        if team.leads:
            with new_folder(folder) as scratch:
                source.save(scratch / SOURCE_FILE)
                target.save(scratch / TARGET_FILE)
                saved = {"recipe": asdict(recipe), "corpus_sha256": _fingerprint(corpus, recipe)}
                saved |= {MODEL_KEY: config_to_json(config)}
                saved |= {name: sha256((scratch / name).read_bytes()) for name in (SOURCE_FILE, TARGET_FILE)}
                (scratch / RECIPE_FILE).write_bytes(seal(saved))
        team.wait()
        return run

    def _check_lengths(self) -> None:
        """Refuse, before anything is written, sentences that are longer than the model can read."""
        limits = [part.max_keys for part in self.model.modules() if isinstance(part, Mechanism) and part.max_keys]
        rows = (*self.train_rows, *self.valid_rows)
        longest = max((max(len(source) + 1, len(target)) for source, target in rows), default=0)
        if limits and longest > min(limits):
            expected = f"attention to {longest} tokens, the longest sentence of the corpus and its end"
            remedy = f"set length={longest} or more in --mechanism"
            raise UsageError(f"train with {self.recipe.mechanism}", expected, f"at most {min(limits)}", remedy)

    @classmethod
    def resume(cls, folder: Path, team: Team | None = None, **changes: object) -> Run:
        """The run in `folder` at its last checkpoint, with the model of that checkpoint, which may be reshaped.

        changes    new values of fields of the recipe; a new limit (epochs, steps, minutes) replaces all old ones
        """
        old, corpus_sha256 = read_recipe(folder)
        stops = {} if changes.keys().isdisjoint(STOP_FIELDS) else dict.fromkeys(STOP_FIELDS)
        recipe = replace(old, **(stops | changes))  # pyright: ignore[reportArgumentType]
        first = read_first_config(folder) or config_before_presets_changed(recipe)
        if "grow_until" in changes:
            check_goals(recipe, first)
        corpus = _open_corpus(recipe)
        if _fingerprint(corpus, recipe) != corpus_sha256:
            expected = f"the corpus {recipe.corpus} as it was"
            raise FolderError(f"resume {folder}", expected, "other sentences", "start a new run")
        with disk_errors(f"resume {folder}", remedy="check that you may read it"):
            last, damaged, remark = resume_point(folder)
        source, target = load_vocabularies(folder)
        config = first.with_vocabulary(len(source), len(target)) if last is None else _config_of(last)
        run = cls(folder, recipe, corpus, source, target, team, replace(config, dropout=recipe.dropout))
        run.first_config = first
        if last is not None:
            run.progress = load_checkpoint(last, run.model, run.optimizer)
        run.remarks = [] if remark is None else [remark]
        if remark is not None and last is not None and run.team.leads:
            for newer in damaged:
                set_aside(newer)
            write_pointers(folder, last, best=run.progress.best_step == run.progress.step)
        if recipe != old and run.team.leads:
            write_file(folder / RECIPE_FILE, seal(read_sealed(folder / RECIPE_FILE) | {"recipe": asdict(recipe)}))
        return run

    def train(
        self,
        watchers: Sequence[Watcher] = (),
        should_stop: Callable[[], bool] = lambda: False,
        grow: Callable[[Run], Grown | None] | None = None,
    ) -> RunProgress:
        """Train until a limit of the recipe is reached or `should_stop` says so, and save a checkpoint.

        grow    called for the growth that the recipe asks for: `attnworks.reshape.grow_in_training`
        """
        assert grow is not None or self.recipe.grow_until is None, "a recipe with grow_until needs the argument grow"
        metrics = Metrics(self.folder, after=self.progress.step) if self.team.leads else None
        board = TensorBoard.where_installed(self.folder, self.progress.step) if self.team.leads else None
        everyone = [watcher for watcher in (metrics, board, *watchers) if watcher is not None]

        def tell(event: Event) -> None:
            if self.team.leads:
                for watcher in everyone:
                    watcher(event)

        for remark in filter(None, [*self.remarks, metrics and metrics.remark]):
            tell(Remark(self.progress.step, remark))
        began = self.progress.step
        saved_at = self.progress.step if read_pointer(self.folder, LAST_POINTER) else -1
        while not self.done() and not self.team.any(should_stop()):
            event = self.fit.train_step(self.progress.step)
            self.progress = replace(self.progress, step=event.step, seconds=self.progress.seconds + event.seconds)
            tell(event)
            if grow is not None and event.step % self.recipe.grow_every == 0 and not self.done():
                started = time.perf_counter()
                grown = grow(self)
                seconds = time.perf_counter() - started
                self.progress = replace(self.progress, seconds=self.progress.seconds + seconds)
                if grown is not None:
                    tell(replace(grown, seconds=seconds))
            if event.step % self.recipe.validate_every == 0:
                self._validate(tell)
                saved_at = event.step
            elif self.recipe.keep_every and event.step % self.recipe.keep_every == 0 and not self.done():
                self._save(tell, best=False)
                saved_at = event.step
        if saved_at != self.progress.step:
            self._validate(tell) if self.done() else self._save(tell, best=False)
        if self.progress.step > began and self.done():
            self._conclude(tell)
        if board is not None:
            board.close()
        return self.progress

    def _conclude(self, tell: Callable[[Event], None]) -> None:
        """Average checkpoints and score the test pairs of an own file, where the recipe asks for it."""
        step, steps = self.progress.step, steps_to_average(self.recipe, self.progress)
        if not self.team.leads:
            return self.team.wait()
        mean = average_model(self.folder, steps) if len(steps) > 1 else None
        if mean is not None:
            loss = self._loss(mean.to(self.recipe.device), self.valid_rows)
            best = self.progress.best_loss is None or loss < self.progress.best_loss
            if best:
                save_average(self.folder, mean, self.optimizer, self.progress)
            tell(Averaged(step, steps, loss, best))
        if self.recipe.test is not None:
            checkpoint = best_checkpoint(self.folder)
            model: Any = self.model if checkpoint is None else load_model(checkpoint).to(self.recipe.device)
            rows = read_pairs(self.corpus.test, self.source, self.target)
            found = self._scores(model, self.corpus.test)
            scores = (None, None, None) if found is None else found
            tell(Tested(step, self._loss(model, rows), *scores))
        self.team.wait()

    def _loss(self, model: nn.Module, rows: Sequence[RowPair]) -> float:
        """Held-out loss, without smoothing."""
        recipe = self.recipe
        return mean_loss(model, NextTargetToken(EOS), rows, batch_tokens=recipe.batch_tokens, device=recipe.device)

    def translate(self, sentences: Sequence[Sequence[str]]) -> list[str]:
        """Greedy translations by the model with its present weights."""
        return translations(self.model, self.source, self.target, sentences, device=self.recipe.device)

    def score(self, split: str = "test", sentences: int | None = None) -> TranslationScores | None:
        """BLEU and chrF on a held-out split, or None without sacrebleu."""
        pairs = {"valid": self.corpus.valid, "test": self.corpus.test}[split][:sentences]
        return self._scores(self.model, pairs)

    def _scores(self, model: Transformer | Recurrent, pairs: Sequence[Passage]) -> TranslationScores | None:
        sources = [pair.words[0] for pair in pairs]
        written = translations(model, self.source, self.target, sources, device=self.recipe.device)
        return translation_scores(written, references(pairs, self.target), own_tokens=not self.target.has_joiners)

    def done(self) -> bool:
        """Whether a limit of the recipe is reached."""
        progress, recipe = self.progress, self.recipe
        late = recipe.minutes is not None and progress.seconds >= 60 * recipe.minutes
        stuck = recipe.patience is not None and progress.validations_since_best >= recipe.patience
        return (self.last_step is not None and progress.step >= self.last_step) or self.team.any(late or stuck)

    def _validate(self, tell: Callable[[Event], None]) -> None:
        """Held-out loss and scores, then a checkpoint. All processes compute the loss, so that all know the best."""
        if not self.valid_rows:
            return self._save(tell, best=False)
        recipe, progress = self.recipe, self.progress
        loss = self._loss(self.model, self.valid_rows)
        if not math.isfinite(loss):
            asked = f"validation after step {progress.step}"
            raise DivergedError(asked, "a finite held-out loss", f"{loss:g}", self.fit.remedy)
        best = progress.best_loss is None or loss < progress.best_loss
        if best:
            self.progress = replace(progress, best_loss=loss, best_step=progress.step, validations_since_best=0)
        else:
            self.progress = replace(progress, validations_since_best=progress.validations_since_best + 1)
        if recipe.average is not None:
            losses = self.progress.losses | {str(progress.step): loss}
            self.progress = replace(self.progress, losses=losses)
            kept = steps_to_average(recipe, self.progress)
            self.progress = replace(self.progress, losses={str(step): losses[str(step)] for step in kept})
        if self.team.leads:
            scores = self.score("valid", recipe.score_sentences) if recipe.score_sentences else None
            bleu, chrf = (None, None) if scores is None else (scores.bleu, scores.chrf)
            perplexity = math.exp(min(loss, 700.0))
            tell(Validated(step=progress.step, loss=loss, perplexity=perplexity, bleu=bleu, chrf=chrf, best=best))
        self._save(tell, best=best)

    def _save(self, tell: Callable[[Event], None], *, best: bool) -> None:
        if self.team.leads:
            folder = save_checkpoint(self.folder, self.model, self.optimizer, self.progress, best=best)
            keep = {*map(int, self.progress.losses), *filter(None, [self.progress.best_step])}
            delete_checkpoints(self.folder, self.recipe.keep_every, keep if self.recipe.average else ())
            tell(Saved(self.progress.step, folder))
        self.team.wait()


def _config_of(checkpoint: Path) -> FirstConfig:
    """The config of a checkpoint, which may be that of a reshaped model."""
    with disk_errors(f"load {checkpoint}", remedy="check that you may read it"):
        config = config_from_json(read_config(checkpoint, read_manifest(checkpoint)))
    assert not isinstance(config, PureConfig)
    return config


def _open_corpus(recipe: Recipe) -> Corpus:
    return open_corpus(recipe.corpus, pairs=recipe.pairs, seed=recipe.seed, valid=recipe.valid, test=recipe.test)


def _fingerprint(corpus: Corpus, recipe: Recipe) -> str:
    """A hash of the training pairs, and of those of own files that are held out."""
    held = [part for part, own in ((corpus.valid, recipe.valid), (corpus.test, recipe.test)) if own is not None]
    hashes = [corpus_fingerprint(replace(corpus, train=part)) for part in (corpus.train, *held)]
    return hashes[0] if len(hashes) == 1 else sha256(" ".join(hashes).encode())


def _last_step(recipe: Recipe, batches_per_epoch: int) -> int | None:
    limits = [] if recipe.steps is None else [recipe.steps]
    if recipe.epochs is not None:
        limits.append(max(1, math.ceil(recipe.epochs * batches_per_epoch / recipe.accumulate)))
    return min(limits, default=None)
