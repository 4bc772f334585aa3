"""Conti's experiment: one-layer transformers with 1 and with 8 heads, side by side with the recurrent models.

Source: Conti 2024, section 3.1 (S4.129): word-level vocabulary, 20 epochs, one encoder and one decoder layer.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnworks.core.folders import write_file
from attnworks.models.counting import count_parameters
from attnworks.models.decoding import beam
from attnworks.models.decoding.translate import NOTHING, decode_sentences, translations
from attnworks.text.pair import Pair
from attnworks.text.vocabulary import BOS, EOS
from attnworks.training.evaluate import translation_scores
from attnworks.training.events import Watcher
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run
from attnworks.training.trained import Trained, open_run

DOCUMENTED = ("conti-1h", "conti-8h")
ALL = (*DOCUMENTED, "lstm-plain", "lstm-dot", "lstm-multiplicative", "lstm-additive")
RESULTS, MAPS = "results.json", "maps"
BEAMS = 5


def dictionary_translations(train: Sequence[Pair], sentences: Sequence[Sequence[str]]) -> list[list[str]] | None:
    """Each word by the word it is most often aligned to in `train`, or by nothing if that is more frequent.

    None where the pairs carry no alignment. Words never seen stay as they are.
    """
    aligned: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for pair in train:
        if pair.truth is None:
            return None
        partners: defaultdict[int, list[int]] = defaultdict(list)
        for source, target in pair.truth.alignment:
            partners[source].append(target)
        for position, word in enumerate(pair.source):
            aligned[word].update([pair.target[other] for other in partners[position]] or [None])
    best = {word: counts.most_common(1)[0][0] for word, counts in aligned.items()}
    return [[other for word in sentence if (other := best.get(word, word)) is not None] for sentence in sentences]


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    model: str
    parameters: int
    steps: int
    minutes: float
    loss: float | None
    bleu: float | None
    chrf: float | None


def conti(
    folder: Path,
    recipes: Sequence[Recipe],
    *,
    shown: int = 3,
    watch: Callable[[Run], Watcher] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Train each recipe in folder/PRESET (or continue it), score it on the test split, keep its attention maps.

    `shown` held-out sentences are traced for the pictures. Results so far are written after every model, so that an
    interrupted experiment loses nothing.
    """
    results: list[Result] = []
    for recipe in recipes:
        place = folder / recipe.preset
        run = train_in(place, recipe, watch, should_stop)
        if should_stop():
            break
        trained = open_run(place, device=recipe.device)
        write_maps(folder / MAPS / f"{recipe.preset}.json", trained, run.corpus.test[:shown])
        results.append(_score(run, trained))
        table = {"results": [asdict(result) for result in results], "dictionary_bleu": _dictionary_bleu(run)}
        write_file(folder / RESULTS, (json.dumps(table, indent=2) + "\n").encode())
    return results


def train_in(
    place: Path, recipe: Recipe, watch: Callable[[Run], Watcher] | None, should_stop: Callable[[], bool]
) -> Run:
    """A run by this recipe, begun or gone on with, until it is done or told to stop."""
    run = Run.resume(place) if place.exists() else Run.create(recipe, place)
    run.train([watch(run)] if watch else (), should_stop)
    return run


def _score(run: Run, trained: Trained) -> Result:
    """Beam-5 translations of the whole test split by the best checkpoint."""
    pairs = run.corpus.test
    sentences = [pair.source for pair in pairs]
    written = translations(trained.model, trained.source, trained.target, sentences, beams=BEAMS, device=trained.device)
    scores = translation_scores(written, [pair.target for pair in pairs])
    return Result(
        model=run.recipe.preset,
        parameters=sum(count_parameters(run.model.config).values()),
        steps=run.progress.step,
        minutes=run.progress.seconds / 60,
        loss=run.progress.best_loss,
        bleu=None if scores is None else scores.bleu,
        chrf=None if scores is None else scores.chrf,
    )


def _dictionary_bleu(run: Run) -> float | None:
    """What a word-for-word dictionary reaches on the same sentences, where the corpus knows its alignment."""
    translations = dictionary_translations(run.corpus.train, [pair.source for pair in run.corpus.test])
    if translations is None:
        return None
    scores = translation_scores(translations, [pair.target for pair in run.corpus.test])
    return None if scores is None else scores.bleu


def write_maps(path: Path, trained: Trained, pairs: Sequence[Pair]) -> None:
    """The attention of the model on some sentences and their translations, as `Trained.trace` gives it."""
    traces: list[dict[str, Any]] = []
    for pair in pairs:
        (hypothesis,) = decode_sentences(
            lambda tokens, padding, longest: [
                best[0] for best in beam(trained.model, tokens, padding, bos=BOS, eos=EOS, longest=longest)
            ],
            trained.source,
            [pair.source],
            empty=NOTHING,
            device=trained.device,
        )
        traces.append(trained.trace(pair.source, hypothesis))
    path.parent.mkdir(exist_ok=True)
    write_file(path, json.dumps({"format": 1, "sentences": traces}).encode())
