"""Conti's experiment: one-layer transformers with 1 and with 8 heads, side by side with the recurrent models.

Source: Conti 2024, section 3.1 (S4.129): word-level vocabulary, 20 epochs, one encoder and one decoder layer.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from attnworks.core.checks import own_folder
from attnworks.core.display import Progress, silent
from attnworks.core.folders import read_file, write_file
from attnworks.models.build import PRESETS, preset
from attnworks.models.counting import count_parameters
from attnworks.models.decoding import Hypothesis, beam
from attnworks.models.decoding.translate import EMPTY_HYPOTHESIS, decode_sentences, trace_translation, translations
from attnworks.studies.pictures import draw_heads
from attnworks.studies.results import RESULTS_FILE, StudyResults, write_results
from attnworks.text.passages import Passage
from attnworks.text.vocabulary import BOS, EOS
from attnworks.text.words import written
from attnworks.traces.own import OwnSubject
from attnworks.training.evaluate import TranslationScores, references, translation_scores
from attnworks.training.events import Event, Remark, StepDone, Validated, Watcher
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run

DOCUMENTED_PRESETS = ("conti-1h", "conti-8h")
ALL_PRESETS = (*DOCUMENTED_PRESETS, "lstm-plain", "lstm-dot", "lstm-multiplicative", "lstm-additive")
MAPS_FOLDER = "maps"
NUM_BEAMS = 5


def dictionary_translations(train: Sequence[Passage], sentences: Sequence[Sequence[str]]) -> list[str] | None:
    """Translate word for word: each word becomes the word that it is most often aligned to in `train`.

    A word that is more often without a partner is left out. Unknown words stay as they are. None if the pairs have no
    alignment.
    """
    aligned: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for pair in train:
        if pair.truth is None:
            return None
        partners: defaultdict[int, list[int]] = defaultdict(list)
        for source, target in pair.truth.alignment:
            partners[source].append(target)
        assert pair.target is not None
        spelled = pair.target.spelled
        for position, word in enumerate(pair.words[0]):
            aligned[word].update([spelled[other] for other in partners[position]] or [None])
    best = {word: counts.most_common(1)[0][0] for word, counts in aligned.items()}
    found = ([other for word in sentence if (other := best.get(word, word)) is not None] for sentence in sentences)
    return [*map(written, found)]


@dataclass(frozen=True)
class ContiResult:
    """The scores of one trained model."""

    model: str
    parameters: int
    steps: int
    minutes: float
    loss: float | None
    bleu: float | None
    chrf: float | None


class ContiResults(list[ContiResult], StudyResults):
    """The scores of several models, and BLEU of a word-for-word dictionary; None if the corpus has no alignment."""

    def __init__(self, results: Iterable[ContiResult] = (), dictionary_bleu: float | None = None) -> None:
        super().__init__(results)
        self.dictionary_bleu = dictionary_bleu

    def to_json(self) -> dict[str, Any]:
        return {"results": [asdict(result) for result in self], "dictionary_bleu": self.dictionary_bleu}

    def draw(self, folder: Path) -> None:
        """One picture per model, sentence and attention layer."""
        home = folder / MAPS_FOLDER
        for name in (result.model for result in self):
            for number, trace in enumerate(read_maps(home / f"{name}.json")):
                for slot in (layer["slot"] for layer in trace["attention"]):
                    draw_heads(trace, slot, home / f"{name}-sentence{number}-{slot}.png")


def run_conti(
    folder: Path,
    recipes: Sequence[Recipe],
    *,
    shown: int = 3,
    progress: Progress = silent,
    should_stop: Callable[[], bool] = lambda: False,
) -> ContiResults:
    """Train each recipe in folder/PRESET (or resume it), score it on the test split, save its attention maps.

    shown    test sentences whose attention maps are saved

    Results are written after every model, so that an interrupted experiment loses nothing.
    """
    for recipe in recipes:
        preset(recipe.preset)
    prepare_folder(folder, PRESETS)
    results = ContiResults()
    for recipe in recipes:
        place = folder / recipe.preset
        run = train_or_resume(place, recipe, progress, should_stop)
        if should_stop():
            break
        subject = OwnSubject.open(str(place), device=recipe.device)
        write_maps(folder / MAPS_FOLDER / f"{recipe.preset}.json", subject, run.corpus.test[:shown])
        results.append(_score(run, subject))
        results.dictionary_bleu = _dictionary_bleu(run)
        write_results(folder, results.to_json())
    return results


def prepare_folder(folder: Path, models: Iterable[str]) -> None:
    """Create the folder of a study that trains these models; an error for one that holds something else."""
    own_folder(folder, "the experiment", {*models, MAPS_FOLDER, RESULTS_FILE})
    folder.mkdir(parents=True, exist_ok=True)


def train_or_resume(place: Path, recipe: Recipe, progress: Progress, should_stop: Callable[[], bool]) -> Run:
    """Create or resume the run of this recipe, and train until it is done or `should_stop` says so."""
    run = Run.resume(place) if place.exists() else Run.create(recipe, place)
    if run.corpus.report.bad:
        progress(run.corpus.report.summary(), 0, 0)
    run.train([_progress_watcher(run, progress)], should_stop)
    return run


def _progress_watcher(run: Run, progress: Progress) -> Watcher:
    """Report steps of a run, or its seconds where its time ends before its steps; losses and remarks as messages."""
    name, minutes = run.folder.name, run.recipe.minutes

    def watch(event: Event) -> None:
        if isinstance(event, StepDone):
            limits = [] if run.last_step is None else [(event.step, run.last_step)]
            limits += [] if minutes is None else [(round(run.progress.seconds), math.ceil(60 * minutes))]
            done, total = max(limits, key=lambda limit: limit[0] / limit[1], default=(event.step, event.step + 1))
            progress(f"training {name}", min(done, total), total)
        elif isinstance(event, Validated):
            bleu = "" if event.bleu is None else f", BLEU {event.bleu:.1f}"
            progress(f"{name}, step {event.step:,}: held-out loss {event.loss:.3f}{bleu}", 0, 0)
        elif isinstance(event, Remark):
            progress(event.text, 0, 0)

    return watch


def _score(run: Run, subject: OwnSubject) -> ContiResult:
    """The scores of the best checkpoint on the whole test split, translated by beam search."""
    scores = score_test(run, subject, beams=NUM_BEAMS)
    return ContiResult(
        model=run.recipe.preset,
        parameters=sum(count_parameters(run.model.config).values()),
        steps=run.progress.step,
        minutes=run.progress.seconds / 60,
        loss=run.progress.best_loss,
        bleu=None if scores is None else scores.bleu,
        chrf=None if scores is None else scores.chrf,
    )


def score_test(
    run: Run, subject: OwnSubject, *, sentences: int | None = None, beams: int = 1
) -> TranslationScores | None:
    """The scores of a model on the first sentences of the test split of a run; None without sacrebleu."""
    pairs = run.corpus.test[:sentences]
    sources = [pair.words[0] for pair in pairs]
    made = translations(subject.model, *subject.vocabularies, sources, beams=beams, device=subject.device)
    return translation_scores(made, references(pairs, run.target), own_tokens=not run.target.has_joiners)


def _dictionary_bleu(run: Run) -> float | None:
    """BLEU of a word-for-word dictionary on the same sentences; None if the corpus has no alignment."""
    made = dictionary_translations(run.corpus.train, [pair.words[0] for pair in run.corpus.test])
    gold = [pair.target.written for pair in run.corpus.test if pair.target is not None]
    scores = None if made is None else translation_scores(made, gold)
    return None if scores is None else scores.bleu


def write_maps(path: Path, subject: OwnSubject, pairs: Sequence[Passage]) -> None:
    """The attention of the model on some sentences and their translations, as `trace_translation` gives it."""
    model, vocabularies = subject.model, subject.vocabularies

    def decode(tokens: Tensor, real: Tensor | None, max_new_tokens: int) -> list[Hypothesis]:
        found = beam(model, tokens, real, bos=BOS, eos=EOS, max_new_tokens=max_new_tokens)
        return [hypotheses[0] for hypotheses in found]

    traces: list[dict[str, Any]] = []
    for words in (pair.words[0] for pair in pairs):
        (hypothesis,) = decode_sentences(
            decode, vocabularies[0], [words], empty=EMPTY_HYPOTHESIS, device=subject.device
        )
        traces.append(trace_translation(model, *vocabularies, words, hypothesis))
    path.parent.mkdir(exist_ok=True)
    write_file(path, json.dumps({"format": 1, "sentences": traces}).encode())


def read_maps(path: Path) -> list[dict[str, Any]]:
    """The sentences of a file that `write_maps` wrote."""
    return json.loads(read_file(path))["sentences"]
