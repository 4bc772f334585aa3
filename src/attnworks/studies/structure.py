"""The study of structure in attention: which form is nearest to each head, and what replacing heads by forms costs.

Source: Conti 2024, section 3.1 (S4.129-S4.149): one layer with 1 and with 8 heads, their roles, P + E in their place.
Departs: forms are compared at equal description length, and the cost of a projection is measured in translations.
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

from attnworks.core.display import Progress, silent
from attnworks.core.errors import FolderError
from attnworks.core.folders import read_file, write_file
from attnworks.core.places import HeadId, Slot, select_heads
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.measures.structure import FAMILY_DESCRIPTIONS, FORGIVEN_ERROR
from attnworks.exam.structure.fits import fit
from attnworks.models.decoding.translate import translations
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.heal import heal
from attnworks.reshape.projection.project import Project, rise_alone, with_forms
from attnworks.reshape.run import ReshapeSettings, mean_length, text_loss_on
from attnworks.studies.conti import MAPS_FOLDER, RESULTS_FILE, train_or_resume, write_maps
from attnworks.text.passages import Passage
from attnworks.traces.loss import TextLoss
from attnworks.traces.own import OwnSubject
from attnworks.training.evaluate import translation_scores
from attnworks.training.events import Watcher
from attnworks.training.objectives import choose_objective
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run

ONE_HEAD, EIGHT_HEADS, STRUCTURED_HEADS = "conti-1h", "conti-8h", "conti-8h-structured"
STUDIED_PRESETS = (ONE_HEAD, EIGHT_HEADS, STRUCTURED_HEADS)
STUDIED_SLOT = Slot("encoder", 0)
MAX_SHOWN_WORDS = 15


@dataclass(frozen=True, kw_only=True)
class StructureSettings:
    """What the study does with the trained models.

    sentences                   of the test split to translate and to evaluate on
    heal, heal_learning_rate    steps of training after each projection, and their learning rate
    """

    sentences: int = 500
    heal: int = 300
    heal_learning_rate: float = 3e-4
    window: int = 2
    eps: float = 0.02
    sparsity: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class ProjectedResult:
    """The model with some heads in structured forms: loss and BLEU at once, and after healing."""

    heads: tuple[str, ...]
    loss: float
    bleu: float | None
    healed_loss: float
    healed_bleu: float | None


def run_structure(
    folder: Path,
    recipes: dict[str, Recipe],
    settings: StructureSettings,
    *,
    watch_run: Callable[[Run], Watcher] | None = None,
    tell: Progress = silent,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train the models, find the role and form of their heads, and project the heads one after the other.

    Results are saved after each part. An interrupted study continues: runs resume, and saved results are not repeated.
    """
    report = _begun(folder, settings, recipes)
    for name, recipe in recipes.items():
        run = train_or_resume(folder / name, recipe, watch_run, should_stop)
        if should_stop():
            return report
        if name not in report["models"]:
            tell(f"scoring {name}", 0, 1)
            subject = OwnSubject.open(str(folder / name), device=recipe.device)
            write_maps(folder / MAPS_FOLDER / f"{name}.json", subject, [_shown(run)])
            report["models"][name] = {"bleu": _bleu(run, subject, settings), "heads": _named(run, subject, settings)}
            _keep(folder, report)
    run = Run.resume(folder / EIGHT_HEADS)
    subject = OwnSubject.open(str(folder / EIGHT_HEADS), device=run.recipe.device)
    if "example" not in report:
        report["example"] = _example(folder)
    _project_all(folder, report, run, subject, settings, tell, should_stop)
    return report


def count_forms(report: dict[str, Any], model: str) -> dict[str, int]:
    """The number of heads of a model by their nearest structured form."""
    return dict(Counter(head["form"] for head in report["models"][model]["heads"]).most_common())


def _begun(folder: Path, settings: StructureSettings, recipes: dict[str, Recipe]) -> dict[str, Any]:
    path = folder / RESULTS_FILE
    asked = {"settings": asdict(settings), "recipes": {name: _told(recipe) for name, recipe in recipes.items()}}
    if not path.exists():
        begun = {**asked, "models": {}, "alone": {}, "projected": []}
        _keep(folder, begun)
        return begun
    report = json.loads(read_file(path))
    for part, options in asked.items():
        if report.get(part) != options:
            raise FolderError(f"the study in {folder}", f"the same {part}", "others", "choose another --out")
    return report


def _told(recipe: Recipe) -> dict[str, Any]:
    """A recipe without its device and threads."""
    return {name: value for name, value in asdict(recipe).items() if name not in ("device", "threads")}


def _keep(folder: Path, report: dict[str, Any]) -> None:
    write_file(folder / RESULTS_FILE, (json.dumps(report, indent=2) + "\n").encode())


def _bleu(run: Run, subject: OwnSubject, settings: StructureSettings) -> float | None:
    pairs = run.corpus.test[: settings.sentences]
    sentences = [pair.words[0] for pair in pairs]
    written = translations(subject.model, *subject.vocabularies, sentences, device=subject.device)
    scores = translation_scores(written, [pair.words[1] for pair in pairs])
    return None if scores is None else scores.bleu


def _shown(run: Run) -> Passage:
    """Of the first 50 test sentences the longest with at most MAX_SHOWN_WORDS words."""
    return max(
        run.corpus.test[:50], key=lambda pair: len(pair.words[0]) if len(pair.words[0]) <= MAX_SHOWN_WORDS else 0
    )


def _named(run: Run, subject: OwnSubject, settings: StructureSettings) -> list[dict[str, Any]]:
    """The role and nearest form of every encoder head on the test split; "none" of too few or too long sentences."""
    passages = run.corpus.test[: settings.sentences]
    request = ExamSettings(measures=("roles", "structure"), seed=settings.seed)
    readings = run_examination(subject, passages, request).readings
    columns = {
        "role": "roles.label", "score": "roles.score", "form": "structure.closest", "distance": "structure.distance",
    }  # fmt: skip
    found = {column: readings.of(name) for column, name in columns.items()}
    rows = {column: next((one.value[0] for one in of if one.kind == "encoder"), None) for column, of in found.items()}
    nothing = {"role": "none", "score": None, "form": "none", "distance": None}
    plain = {column: _plain(row) for column, row in rows.items() if row is not None}
    return [
        {"head": f"{STUDIED_SLOT}.{head}", **nothing, **{column: values[head] for column, values in plain.items()}}
        for head in range(len(readings["roles.offset@encoder"].value[0]))
    ]


def _plain(row: torch.Tensor | tuple[str, ...]) -> list[Any]:
    """Values for JSON: a number that is not finite becomes None."""
    if isinstance(row, tuple):
        return list(row)
    return [value if math.isfinite(value) else None for value in row.tolist()]


def _example(folder: Path) -> dict[str, Any]:
    """Each head on one sentence with its nearest form and an error of at most eps, as in figure 13."""
    trace = json.loads(read_file(folder / MAPS_FOLDER / f"{EIGHT_HEADS}.json"))["sentences"][0]
    layer = next(layer for layer in trace["attention"] if layer["slot"] == str(STUDIED_SLOT))
    H = torch.tensor(layer["weights"])
    found = fit(H, [family for family in FAMILY_DESCRIPTIONS if family != "zero"], eps=FORGIVEN_ERROR)
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
    subject: OwnSubject,
    settings: StructureSettings,
    tell: Progress,
    should_stop: Callable[[], bool],
) -> None:
    """Project no head, then one, ... then all, in the order of what the form of each alone costs."""
    care = ReshapeSettings(steps=settings.heal, learning_rate=settings.heal_learning_rate, seed=settings.seed)
    objective = choose_objective(None, subject.abilities)
    learn = run.corpus.train
    test = run.corpus.test[: settings.sentences]
    calibration, held_out, healing = (
        text_loss_on(subject, objective, passages, care)
        for passages in (learn[: Project.calibration_sentences], test, learn)
    )
    project = Project(heads="*", window=settings.window, eps=settings.eps, sparsity=settings.sparsity)
    context = ReshapeContext(subject, calibration, mean_length(held_out.text), tell)
    heads = select_heads(f"{STUDIED_SLOT}.*", {STUDIED_SLOT: subject.model.config.slot(STUDIED_SLOT).heads})  # pyright: ignore[reportAttributeAccessIssue]
    fitted = project.fit(context, heads)
    if not report["alone"]:
        rises = rise_alone(context, fitted)
        report["alone"] = {str(head): {"form": str(fitted[head]), "rise": rises[head]} for head in heads}
        _keep(folder, report)
    order = sorted(heads, key=lambda head: report["alone"][str(head)]["rise"])
    for count in range(len(report["projected"]), len(order) + 1):
        if should_stop():
            return
        chosen = order[:count]
        model = with_forms(subject.model, {head: fitted[head] for head in chosen})
        row = _heal_and_score(run, subject.with_model(model), chosen, held_out, healing, settings, tell)
        report["projected"].append(asdict(row))
        _keep(folder, report)


def _heal_and_score(
    run: Run,
    subject: OwnSubject,
    heads: Sequence[HeadId],
    held_out: TextLoss,
    healing: TextLoss,
    settings: StructureSettings,
    tell: Progress,
) -> ProjectedResult:
    tell(f"{len(heads)} heads projected", 0, 1)
    loss, bleu = held_out.mean(subject), _bleu(run, subject, settings)
    heal(healing, subject, steps=settings.heal, rate=settings.heal_learning_rate, seed=settings.seed, tell=tell)
    return ProjectedResult(tuple(map(str, heads)), loss, bleu, held_out.mean(subject), _bleu(run, subject, settings))
