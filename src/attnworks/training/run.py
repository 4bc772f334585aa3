"""A run: a recipe, its corpus, model and folder, trained until it is done or told to stop.

runs/mine/
  run.json                    the recipe
  source.json, target.json    the vocabularies
  metrics.jsonl               a line for every step, every validation and every growth
  checkpoints/step-00000500   a model folder plus the state of the optimiser
  last.json, best.json        which checkpoint is which
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from attnworks.attention import Mechanism
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import disk_errors, new_folder, set_aside, write_file
from attnworks.core.sealed import BEST, LAST, point, pointed_at, read_sealed, seal, sha256
from attnworks.core.team import Team
from attnworks.core.tensors import check_device
from attnworks.models import PureConfig, Recurrent, RecurrentConfig, Transformer, TransformerConfig, build, preset
from attnworks.models.config import config_from_json
from attnworks.models.decoding.translate import translations
from attnworks.models.folder import read_config, read_manifest
from attnworks.text.batches import BatchOrder, encode
from attnworks.text.corpora import Corpus, corpus_fingerprint, open_corpus
from attnworks.text.vocabulary import Vocabulary
from attnworks.training.evaluate import Scores, mean_loss, translation_scores
from attnworks.training.events import Event, Grown, Metrics, Remark, Saved, Validated, Watcher
from attnworks.training.loop import DivergedError, Loop, schedule
from attnworks.training.objectives.seq2seq import Seq2Seq
from attnworks.training.recipe import Recipe
from attnworks.training.run_folder import (
    RECIPE,
    SOURCE,
    TARGET,
    Progress,
    forget_others,
    load_checkpoint,
    load_vocabularies,
    read_recipe,
    restore_optimiser,
    resume_point,
    save_checkpoint,
)

LIMITS = ("epochs", "steps", "minutes")


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
        config: TransformerConfig | RecurrentConfig | None = None,
    ) -> None:
        self.folder, self.recipe, self.corpus, self.source, self.target = folder, recipe, corpus, source, target
        self.team = team or Team()
        config = model_config(recipe, source, target) if config is None else config
        self.model: Transformer | Recurrent = build(config, seed=recipe.seed)
        check_device(recipe.device)
        self.model.to(recipe.device)
        self.optimiser = self._adam()
        self.examples = encode(corpus.train, source, target)
        self.valid = encode(corpus.valid, source, target)
        order = BatchOrder(self.examples, recipe.batch_tokens, recipe.seed)
        self.last_step = _last_step(recipe, order.per_epoch)
        self.loop = Loop(
            self.model,
            Seq2Seq(recipe.smoothing),
            self.examples,
            order,
            self.optimiser,
            schedule(recipe.schedule, recipe.learning_rate, recipe.warmup, self.last_step),
            accumulate=recipe.accumulate,
            clip=recipe.clip,
            seed=recipe.seed,
            device=recipe.device,
            dtype=recipe.dtype,
            team=self.team,
        )
        self.progress = Progress()
        self.remarks: list[str] = []

    def _adam(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)

    def go_on_with(self, state: dict[str, Tensor]) -> None:
        """A new optimiser for the weights that the model has now, which remembers this of them."""
        self.loop.optimiser = self.optimiser = self._adam()
        restore_optimiser(self.model, self.optimiser, state)

    @classmethod
    def create(cls, recipe: Recipe, folder: Path, team: Team | None = None) -> Run:
        """A new run in a new folder."""
        team = team or Team()
        with disk_errors(f"train to {folder}", remedy="choose another --out"):
            taken = team.leads and folder.exists()
        if taken:
            raise FolderError(
                asked=f"train to {folder}",
                expected="a place where nothing is",
                got="an existing file or folder",
                remedy=f"choose another --out, or continue with: attnworks train --resume {folder}",
            )
        _with_options(preset(recipe.preset), recipe)  # refuses unknown names before a corpus is read
        _check_goals(recipe)
        corpus = open_corpus(recipe.corpus, pairs=recipe.pairs, seed=recipe.seed)
        source, target = _vocabularies(recipe, corpus)
        run = cls(folder, recipe, corpus, source, target, team)
        run._check_lengths()
        if team.leads:
            with new_folder(folder) as scratch:
                source.save(scratch / SOURCE)
                target.save(scratch / TARGET)
                saved = {"recipe": asdict(recipe), "corpus_sha256": corpus_fingerprint(corpus)}
                saved |= {name: sha256((scratch / name).read_bytes()) for name in (SOURCE, TARGET)}
                (scratch / RECIPE).write_bytes(seal(saved))
        team.wait()
        return run

    def _check_lengths(self) -> None:
        """Refuse, before anything is written, sentences that are longer than the model can read."""
        limits = [part.longest for part in self.model.modules() if isinstance(part, Mechanism) and part.longest]
        if not limits:
            return
        examples = (*self.examples, *self.valid)
        longest = max(max(len(example.source), len(example.target)) for example in examples)
        if longest + 1 > min(limits):
            raise UsageError(
                asked=f"train with {self.recipe.mechanism}",
                expected=f"attention to {longest + 1} tokens, the longest sentence of the corpus and its end",
                got=f"at most {min(limits)}",
                remedy=f"set length={longest + 1} or more in --mechanism",
            )

    @classmethod
    def resume(cls, folder: Path, team: Team | None = None, **changes: object) -> Run:
        """The run in `folder`, where its last checkpoint left it, with the model that is there: it may be reshaped.

        `changes` replace fields of its recipe from now on; a new place to stop replaces all old ones.
        """
        old, corpus_sha256 = read_recipe(folder)
        stops = {} if changes.keys().isdisjoint(LIMITS) else dict.fromkeys(LIMITS)
        recipe = replace(old, **(stops | changes))  # pyright: ignore[reportArgumentType]
        if "grow_until" in changes:
            _check_goals(recipe)
        corpus = open_corpus(recipe.corpus, pairs=recipe.pairs, seed=recipe.seed)
        if corpus_fingerprint(corpus) != corpus_sha256:
            raise FolderError(
                asked=f"resume {folder}",
                expected=f"the corpus it was started with, {recipe.corpus}",
                got="other sentences under that name",
                remedy="put the old corpus back, or start a new run",
            )
        with disk_errors(f"resume {folder}", remedy="check that you may read it"):
            last, damaged, remark = resume_point(folder)
        config = None if last is None else _config_of(last, recipe)
        run = cls(folder, recipe, corpus, *load_vocabularies(folder), team, config)
        if last is not None:
            run.progress = load_checkpoint(last, run.model, run.optimiser)
        run.remarks = [] if remark is None else [remark]
        if remark is not None and last is not None and run.team.leads:
            for newer in damaged:
                set_aside(newer)
            for pointer in (BEST, LAST) if run.progress.best_step == run.progress.step else (LAST,):
                point(folder, pointer, last)
        if recipe != old and run.team.leads:
            write_file(folder / RECIPE, seal(read_sealed(folder / RECIPE) | {"recipe": asdict(recipe)}))
        return run

    def train(
        self,
        watchers: Sequence[Watcher] = (),
        should_stop: Callable[[], bool] = lambda: False,
        grow: Callable[[Run], Grown | None] | None = None,
    ) -> Progress:
        """Step until the recipe says enough or `should_stop` does; either way a checkpoint is left.

        grow    how the model grows, if the recipe says that it should: `attnworks.reshape.grow_in_training`
        """
        assert grow is not None or self.recipe.grow_until is None, "a recipe that grows needs to be told how"
        metrics = Metrics(self.folder, after=self.progress.step) if self.team.leads else None
        everyone = [watcher for watcher in (metrics, *watchers) if watcher is not None]

        def tell(event: Event) -> None:
            if self.team.leads:
                for watcher in everyone:
                    watcher(event)

        remarks = [*self.remarks, metrics.remark if metrics is not None else None]
        for remark in filter(None, remarks):
            tell(Remark(self.progress.step, remark))
        saved_at = self.progress.step if pointed_at(self.folder, LAST) else -1
        while not self.done() and not self.team.any(should_stop()):
            event = self.loop.step(self.progress.step)
            self.progress = replace(self.progress, step=event.step, seconds=self.progress.seconds + event.seconds)
            tell(event)
            if grow is not None and event.step % self.recipe.grow_every == 0 and not self.done():
                began = time.perf_counter()
                grown = grow(self)
                seconds = time.perf_counter() - began
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
        return self.progress

    def translate(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Greedy translations by the model as it is now."""
        return translations(self.model, self.source, self.target, sentences, device=self.recipe.device)

    def score(self, split: str = "test", sentences: int | None = None) -> Scores | None:
        """BLEU and chrF on a held-out split, or None without sacrebleu."""
        pairs = {"valid": self.corpus.valid, "test": self.corpus.test}[split][:sentences]
        return translation_scores(self.translate([pair.source for pair in pairs]), [pair.target for pair in pairs])

    def done(self) -> bool:
        """Whether the recipe says enough."""
        progress, recipe = self.progress, self.recipe
        late = recipe.minutes is not None and progress.seconds >= 60 * recipe.minutes
        stuck = recipe.patience is not None and progress.validations_since_best >= recipe.patience
        return (self.last_step is not None and progress.step >= self.last_step) or self.team.any(late or stuck)

    def _validate(self, tell: Callable[[Event], None]) -> None:
        """Held-out loss and scores, then a checkpoint. All processes compute the loss, so that all know the best."""
        if not self.valid:
            return self._save(tell, best=False)
        recipe, progress = self.recipe, self.progress
        loss = mean_loss(self.model, Seq2Seq(), self.valid, batch_tokens=recipe.batch_tokens, device=recipe.device)
        if not math.isfinite(loss):
            raise DivergedError(
                asked=f"validation after step {progress.step}",
                expected="a finite held-out loss",
                got=f"{loss:g}",
                remedy="resume from the last checkpoint with a lower --lr, a longer --warmup or a smaller --clip",
            )
        best = progress.best_loss is None or loss < progress.best_loss
        self.progress = replace(
            progress,
            best_loss=loss if best else progress.best_loss,
            best_step=progress.step if best else progress.best_step,
            validations_since_best=0 if best else progress.validations_since_best + 1,
        )
        if self.team.leads:
            scores = self.score("valid", recipe.score_sentences) if recipe.score_sentences else None
            bleu, chrf = (None, None) if scores is None else (scores.bleu, scores.chrf)
            perplexity = math.exp(min(loss, 700.0))
            tell(Validated(step=progress.step, loss=loss, perplexity=perplexity, bleu=bleu, chrf=chrf, best=best))
        self._save(tell, best=best)

    def _save(self, tell: Callable[[Event], None], *, best: bool) -> None:
        if self.team.leads:
            folder = save_checkpoint(self.folder, self.model, self.optimiser, self.progress, best=best)
            forget_others(self.folder, self.recipe.keep_every)
            tell(Saved(self.progress.step, folder))
        self.team.wait()


def _config_of(checkpoint: Path, recipe: Recipe) -> TransformerConfig | RecurrentConfig:
    """The config of a checkpoint, which may be that of a reshaped model, with the recipe's dropout."""
    with disk_errors(f"load {checkpoint}", remedy="check that you may read it"):
        config = config_from_json(read_config(checkpoint, read_manifest(checkpoint)))
    assert not isinstance(config, PureConfig)
    return replace(config, dropout=recipe.dropout)


def model_config(recipe: Recipe, source: Vocabulary, target: Vocabulary) -> TransformerConfig | RecurrentConfig:
    """The preset with the corpus's vocabularies and the recipe's dropout and mechanism."""
    return _with_options(preset(recipe.preset).with_vocabulary(len(source), len(target)), recipe)


def _with_options(config: TransformerConfig | RecurrentConfig, recipe: Recipe) -> TransformerConfig | RecurrentConfig:
    """A config with the recipe's dropout and mechanism."""
    config = replace(config, dropout=recipe.dropout)
    if recipe.mechanism is None:
        return config
    if isinstance(config, RecurrentConfig):
        return replace(config, mechanism=recipe.mechanism)
    return config.with_mechanism(recipe.mechanism)


def _check_goals(recipe: Recipe) -> None:
    """Refuse, before anything is written, growth that cannot be."""
    if recipe.grow_until is None:
        return
    config = preset(recipe.preset)
    if not isinstance(config, TransformerConfig):
        raise UsageError(
            asked=f"train {recipe.preset} until {recipe.grow_until}",
            expected="a transformer, whose heads can grow",
            got="a recurrent model",
            remedy="choose tiny, conti-1h, conti-8h or base",
        )
    widths = config.attention.geometry
    for name, goal in recipe.goals().items():
        if goal <= getattr(widths, name):
            raise UsageError(
                asked=f"train {recipe.preset} until {name}={goal}",
                expected=f"more than the {getattr(widths, name)} that it starts with",
                got=str(goal),
                remedy=f"choose a larger {name}, or a narrower preset",
            )


def _vocabularies(recipe: Recipe, corpus: Corpus) -> tuple[Vocabulary, Vocabulary]:
    """One for each side, or one for both if the model shares its embeddings."""
    sources, targets = [pair.source for pair in corpus.train], [pair.target for pair in corpus.train]
    config = preset(recipe.preset)
    if isinstance(config, TransformerConfig) and config.tie == "all":
        joint = Vocabulary.train(recipe.vocabulary, [*sources, *targets], recipe.vocabulary_size)
        return joint, joint
    size = recipe.vocabulary_size
    return Vocabulary.train(recipe.vocabulary, sources, size), Vocabulary.train(recipe.vocabulary, targets, size)


def _last_step(recipe: Recipe, batches_per_epoch: int) -> int | None:
    limits = [] if recipe.steps is None else [recipe.steps]
    if recipe.epochs is not None:
        limits.append(max(1, math.ceil(recipe.epochs * batches_per_epoch / recipe.accumulate)))
    return min(limits, default=None)
