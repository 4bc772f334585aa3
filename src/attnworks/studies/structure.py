"""The study of structure in attention: which form each head has, and what is lost if it has nothing else.

Source: Conti 2024, section 3.1 (S4.129-S4.149): one layer with 1 and with 8 heads, their roles, P + E in their place.
Departs: forms are chosen at equal length of description, and what a projection costs is measured in translations.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attnworks.core.errors import FolderError
from attnworks.core.folders import read_file, write_file
from attnworks.exam.examiner import Request
from attnworks.exam.measures.structure import EPS, FAMILIES
from attnworks.exam.run import run_examination
from attnworks.exam.structure.fits import fit
from attnworks.models.decoding.translate import translations
from attnworks.reshape.contract import Bench
from attnworks.reshape.heads import Head, choose_heads
from attnworks.reshape.heal import heal
from attnworks.reshape.progress import Watch, silently
from attnworks.reshape.projection.project import Project, rise_alone, with_forms
from attnworks.reshape.run import Care, judge_on, mean_length
from attnworks.studies.conti import MAPS, RESULTS, train_in, write_maps
from attnworks.text.pair import Pair
from attnworks.text.passages import from_pair
from attnworks.traces.own import own_examinee
from attnworks.traces.subject import Examinee
from attnworks.traces.text import Judge
from attnworks.training.evaluate import translation_scores
from attnworks.training.events import Watcher
from attnworks.training.objectives.choice import choose
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run
from attnworks.training.trained import Trained, open_run

ONE, EIGHT, STRUCTURED = "conti-1h", "conti-8h", "conti-8h-structured"
MODELS = (ONE, EIGHT, STRUCTURED)
SLOT = "enc.0"
LONGEST_SHOWN = 15


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the study does with the trained models.

    sentences    of the test split to translate and to judge by
    heal, rate   steps of training after each projection, and their rate
    """

    sentences: int = 500
    heal: int = 300
    rate: float = 3e-4
    window: int = 2
    eps: float = 0.02
    sparsity: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Projected:
    """The model with some heads in structured forms: loss and BLEU at once, and after healing."""

    heads: tuple[str, ...]
    loss: float
    bleu: float | None
    healed_loss: float
    healed_bleu: float | None


def structure(
    folder: Path,
    recipes: dict[str, Recipe],
    settings: Settings,
    *,
    watch_run: Callable[[Run], Watcher] | None = None,
    watch: Watch = silently,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train the models, name their heads, project them one after the other; results are kept as they come.

    An interrupted study continues where it was: runs resume, and rows of the table that are there are not made again.
    """
    report = _begun(folder, settings, recipes)
    for name, recipe in recipes.items():
        run = train_in(folder / name, recipe, watch_run, should_stop)
        if should_stop():
            return report
        if name not in report["models"]:
            watch(f"scoring {name}", 0, 1)
            trained = open_run(folder / name, device=recipe.device)
            write_maps(folder / MAPS / f"{name}.json", trained, [_shown(run)])
            report["models"][name] = {"bleu": _bleu(run, trained, settings), "heads": _named(run, trained, settings)}
            _keep(folder, report)
    run = Run.resume(folder / EIGHT)
    trained = open_run(folder / EIGHT, device=run.recipe.device)
    if "example" not in report:
        report["example"] = _example(folder)
    _project_all(folder, report, run, trained, settings, watch, should_stop)
    return report


def families(report: dict[str, Any], model: str) -> dict[str, int]:
    """How many heads of a model each structured form is closest to."""
    return dict(Counter(head["form"] for head in report["models"][model]["heads"]).most_common())


def _begun(folder: Path, settings: Settings, recipes: dict[str, Recipe]) -> dict[str, Any]:
    path = folder / RESULTS
    asked = {"settings": asdict(settings), "recipes": {name: _told(recipe) for name, recipe in recipes.items()}}
    if not path.exists():
        begun = {**asked, "models": {}, "alone": {}, "projected": []}
        _keep(folder, begun)
        return begun
    report = json.loads(read_file(path))
    for part, options in asked.items():
        if report.get(part) != options:
            raise FolderError(
                asked=f"the study in {folder}",
                expected=f"the {part} it was begun with",
                got="others",
                remedy="give the same options, or choose another --out",
            )
    return report


def _told(recipe: Recipe) -> dict[str, Any]:
    """A recipe without where it runs."""
    return {name: value for name, value in asdict(recipe).items() if name not in ("device", "threads")}


def _keep(folder: Path, report: dict[str, Any]) -> None:
    write_file(folder / RESULTS, (json.dumps(report, indent=2) + "\n").encode())


def _bleu(run: Run, trained: Trained, settings: Settings, model: Any = None) -> float | None:
    pairs = run.corpus.test[: settings.sentences]
    model = trained.model if model is None else model
    sentences = [pair.source for pair in pairs]
    written = translations(model, trained.source, trained.target, sentences, device=trained.device)
    scores = translation_scores(written, [pair.target for pair in pairs])
    return None if scores is None else scores.bleu


def _shown(run: Run) -> Pair:
    """Of the first test sentences the longest that is still easy to look at."""
    return max(run.corpus.test[:50], key=lambda pair: len(pair.source) if len(pair.source) <= LONGEST_SHOWN else 0)


def _named(run: Run, trained: Trained, settings: Settings) -> list[dict[str, Any]]:
    """Role and closest form of every encoder head, over the test split; none from too few or too long sentences."""
    passages = [from_pair(pair) for pair in run.corpus.test[: settings.sentences]]
    request = Request(measures=("roles", "structure"), seed=settings.seed)
    readings = run_examination(_examinee(trained), passages, request).readings
    columns = {
        "role": "roles.label", "score": "roles.score", "form": "structure.closest", "distance": "structure.distance",
    }  # fmt: skip
    found = {column: readings.of(name) for column, name in columns.items()}
    rows = {column: next((one.value[0] for one in of if one.kind == "encoder"), None) for column, of in found.items()}
    nothing = {"role": "none", "score": None, "form": "none", "distance": None}
    plain = {column: _plain(row) for column, row in rows.items() if row is not None}
    return [
        {"head": f"{SLOT}.{head}", **nothing, **{column: values[head] for column, values in plain.items()}}
        for head in range(len(readings["roles.offset@encoder"].value[0]))
    ]


def _plain(row: torch.Tensor | tuple[str, ...]) -> list[Any]:
    """What is no number becomes None."""
    if isinstance(row, tuple):
        return list(row)
    return [value if math.isfinite(value) else None for value in row.tolist()]


def _example(folder: Path) -> dict[str, Any]:
    """Each head on one sentence beside its nearest form and the error of at most eps, as in figure 13."""
    trace = json.loads(read_file(folder / MAPS / f"{EIGHT}.json"))["sentences"][0]
    layer = next(layer for layer in trace["attention"] if layer["slot"] == SLOT)
    H = torch.tensor(layer["weights"])
    found = fit(H, [family for family in FAMILIES if family != "zero"], eps=EPS)
    names = found.names.tolist()
    return {
        "tokens": layer["queries"],
        "forms": names,
        "P": [found.form(name)[head].tolist() for head, name in enumerate(names)],
        "E": [found.remainder(name)[head].tolist() for head, name in enumerate(names)],
    }


def _project_all(
    folder: Path,
    report: dict[str, Any],
    run: Run,
    trained: Trained,
    settings: Settings,
    watch: Watch,
    should_stop: Callable[[], bool],
) -> None:
    """No head, then one, ... then all, those first whose form alone costs least."""
    examinee = _examinee(trained)
    care = Care(steps=settings.heal, rate=settings.rate, seed=settings.seed)
    objective = choose(None, examinee.subject.abilities)
    learn = [from_pair(pair) for pair in run.corpus.train]
    test = [from_pair(pair) for pair in run.corpus.test[: settings.sentences]]
    looked_at, held_out, healing = (
        judge_on(examinee, objective, passages, care) for passages in (learn[: Project.looks_at], test, learn)
    )
    project = Project(heads="*", window=settings.window, eps=settings.eps, sparsity=settings.sparsity)
    bench = Bench(examinee, looked_at, mean_length(held_out.text), watch)
    heads = choose_heads(f"{SLOT}.*", {SLOT: trained.model.config.slot(SLOT).heads})  # pyright: ignore[reportAttributeAccessIssue]
    fitted = project.fit(bench, heads)
    if not report["alone"]:
        rises = rise_alone(bench, fitted)
        report["alone"] = {_name(head): {"form": str(fitted[head]), "rise": rises[head]} for head in heads}
        _keep(folder, report)
    order = sorted(heads, key=lambda head: report["alone"][_name(head)]["rise"])
    for count in range(len(report["projected"]), len(order) + 1):
        if should_stop():
            return
        chosen = order[:count]
        model = with_forms(trained.model, {head: fitted[head] for head in chosen})
        row = _heal_and_score(run, trained, model, chosen, held_out, healing, settings, watch)
        report["projected"].append(asdict(row))
        _keep(folder, report)


def _heal_and_score(
    run: Run,
    trained: Trained,
    model: Any,
    heads: Sequence[Head],
    held_out: Judge,
    healing: Judge,
    settings: Settings,
    watch: Watch,
) -> Projected:
    subject = _examinee(trained, model).subject
    watch(f"{len(heads)} heads projected", 0, 1)
    loss, bleu = held_out.mean(subject), _bleu(run, trained, settings, model)
    heal(healing, subject, steps=settings.heal, rate=settings.rate, seed=settings.seed, watch=watch)
    return Projected(tuple(map(_name, heads)), loss, bleu, held_out.mean(subject), _bleu(run, trained, settings, model))


def _examinee(trained: Trained, model: Any = None) -> Examinee:
    model = trained.model if model is None else model
    return own_examinee(model, (trained.source, trained.target), str(trained.folder))


def _name(head: Head) -> str:
    return f"{head[0]}.{head[1]}"
