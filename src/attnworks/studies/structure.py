"""The study of structure in attention: which form is nearest to each head, and what replacing heads by forms costs.

Source: Conti 2024, section 3.1 (S4.129-S4.149): one layer with 1 and with 8 heads, their roles, P + E in their place.
Departs: forms are compared at equal description length, and the cost of a projection is measured in translations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attnworks.core.display import Progress, counted, silent
from attnworks.core.errors import FolderError
from attnworks.core.folders import read_file
from attnworks.core.json_records import parse
from attnworks.core.places import HeadId, Slot
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.measures.structure import FAMILY_DESCRIPTIONS, FORGIVEN_ERROR
from attnworks.exam.structure.fits import fit
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.heal import heal
from attnworks.reshape.projection.project import Project, rise_alone, with_forms
from attnworks.reshape.run import ReshapeSettings, mean_length, text_loss_on
from attnworks.studies.conti import MAPS_FOLDER, prepare_folder, read_maps, score_test, train_or_resume, write_maps
from attnworks.studies.pictures import draw_cost, draw_families, draw_forms, draw_heads
from attnworks.studies.results import RESULTS_FILE, StudyResults, write_results
from attnworks.text.passages import Passage
from attnworks.traces.own import OwnSubject
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


class StructureResults(dict[str, Any], StudyResults):
    """Settings and recipes, the models with their heads, what each form costs alone, and what several cost."""

    def to_json(self) -> dict[str, Any]:
        return dict(self)

    def draw(self, folder: Path) -> None:
        home = folder / MAPS_FOLDER
        traces = {name: read_maps(home / f"{name}.json")[0] for name in (ONE_HEAD, EIGHT_HEADS)}
        for name, trace in traces.items():
            draw_heads(trace, str(STUDIED_SLOT), home / f"{name}.png")
        draw_forms(_studied(traces[EIGHT_HEADS])["weights"], self["example"], home / "forms.png")
        draw_families(home / "families.png")
        if all(row["bleu"] is not None for row in self["projected"]):
            draw_cost(self, home / "cost.png")


def structure_recipes(**settings: Any) -> dict[str, Recipe]:
    """The recipe of each model of the study, with these settings of training."""
    mechanisms = {ONE_HEAD: None, EIGHT_HEADS: None, STRUCTURED_HEADS: "structured"}
    return {
        name: Recipe.for_preset(name.removesuffix("-structured"), mechanism=mechanism, schedule="cosine", **settings)
        for name, mechanism in mechanisms.items()
    }


def run_structure(
    folder: Path,
    recipes: dict[str, Recipe],
    settings: StructureSettings,
    *,
    progress: Progress = silent,
    should_stop: Callable[[], bool] = lambda: False,
) -> StructureResults:
    """Train the models, find the role and form of their heads, and project the heads one after the other.

    Results are saved after each part. An interrupted study continues: runs resume, and saved results are not repeated.
    """
    prepare_folder(folder, STUDIED_PRESETS)
    report = _read_or_begin(folder, settings, recipes)
    for name, recipe in recipes.items():
        run = train_or_resume(folder / name, recipe, progress, should_stop)
        if should_stop():
            return report
        if name not in report["models"]:
            progress(f"scoring {name}", 0, 1)
            subject = OwnSubject.open(str(folder / name), device=recipe.device)
            write_maps(folder / MAPS_FOLDER / f"{name}.json", subject, [_shown(run)])
            bleu = _bleu(run, subject, settings)
            report["models"][name] = {"bleu": bleu, "heads": _roles_and_forms(run, subject, settings)}
            write_results(folder, report)
    run = Run.resume(folder / EIGHT_HEADS)
    subject = OwnSubject.open(str(folder / EIGHT_HEADS), device=run.recipe.device)
    if "example" not in report:
        report["example"] = _example(folder)
    _project_all(folder, report, run, subject, settings, progress, should_stop)
    return report


def count_forms(report: dict[str, Any], model: str) -> dict[str, int]:
    """The number of heads of a model by their nearest structured form."""
    return dict(Counter(head["form"] for head in report["models"][model]["heads"]).most_common())


def _read_or_begin(folder: Path, settings: StructureSettings, recipes: dict[str, Recipe]) -> StructureResults:
    """The saved report of a study with the same settings and recipes (on any device), or a new one."""
    shown = {name: _without_machine(recipe) for name, recipe in recipes.items()}
    asked = {"settings": asdict(settings), "recipes": shown}
    if not (folder / RESULTS_FILE).exists():
        report = StructureResults(**asked, models={}, alone={}, projected=[])
        write_results(folder, report)
        return report
    report = StructureResults(json.loads(read_file(folder / RESULTS_FILE)))
    report["recipes"] = {
        name: _without_machine(parse(Recipe, saved, name)) for name, saved in report["recipes"].items()
    }
    for part, options in asked.items():
        if report.get(part) != options:
            raise FolderError(f"the study in {folder}", f"the same {part}", "others", "choose another --out")
    return report


def _without_machine(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide the results; those that an older version does not have are the defaults."""
    return {name: value for name, value in asdict(recipe).items() if name not in ("device", "threads")}


def _bleu(run: Run, subject: OwnSubject, settings: StructureSettings) -> float | None:
    scores = score_test(run, subject, sentences=settings.sentences)
    return None if scores is None else scores.bleu


def _shown(run: Run) -> Passage:
    """The longest of the first 50 test sentences that has at most MAX_SHOWN_WORDS words."""

    def words(pair: Passage) -> int:
        count = len(pair.words[0])
        return count if count <= MAX_SHOWN_WORDS else 0

    return max(run.corpus.test[:50], key=words)


def _roles_and_forms(run: Run, subject: OwnSubject, settings: StructureSettings) -> list[dict[str, Any]]:
    """The role and nearest form of every encoder head on the test split; "none" of too few or too long sentences."""
    passages = run.corpus.test[: settings.sentences]
    exam_settings = ExamSettings(measures=("roles", "structure"), seed=settings.seed)
    readings = run_examination(subject, passages, exam_settings).readings
    nothing: dict[str, Any] = {"role": "none", "score": None, "form": "none", "distance": None}
    names = ("roles.label", "roles.score", "structure.closest", "structure.distance")
    count = len(readings["roles.offset@encoder"].value[0])
    heads = [{"head": f"{STUDIED_SLOT}.{head}", **nothing} for head in range(count)]
    for column, name in zip(nothing, names, strict=True):
        for reading in (found for found in readings.of(name) if found.kind == "encoder"):
            for row, value in zip(heads, reading.to_json()["value"][0], strict=True):
                row[column] = value
    return heads


def _example(folder: Path) -> dict[str, Any]:
    """Each head on one sentence with its nearest form and an error of at most eps, as in figure 13."""
    layer = _studied(read_maps(folder / MAPS_FOLDER / f"{EIGHT_HEADS}.json")[0])
    H = torch.tensor(layer["weights"])
    found = fit(H, [family for family in FAMILY_DESCRIPTIONS if family != "zero"], eps=FORGIVEN_ERROR)
    names = found.names.tolist()
    return {
        "tokens": layer["queries"],
        "forms": names,
        "P": [found.form(name)[head].tolist() for head, name in enumerate(names)],
        "E": [found.remainder(name)[head].tolist() for head, name in enumerate(names)],
    }


def _studied(trace: dict[str, Any]) -> dict[str, Any]:
    """The attention of the studied layer in a trace."""
    return next(layer for layer in trace["attention"] if layer["slot"] == str(STUDIED_SLOT))


def _project_all(
    folder: Path,
    report: dict[str, Any],
    run: Run,
    subject: OwnSubject,
    settings: StructureSettings,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> None:
    """Project no head, then one, ... then all, in the order of what the form of each alone costs."""
    objective = choose_objective(None, subject.abilities)
    train, test = run.corpus.train, run.corpus.test[: settings.sentences]
    calibration, held_out, healing = (
        text_loss_on(subject, objective, passages, ReshapeSettings())
        for passages in (train[: Project.calibration_sentences], test, train)
    )
    project = Project(heads="*", window=settings.window, eps=settings.eps, sparsity=settings.sparsity)
    context = ReshapeContext(subject, calibration, mean_length(held_out.text), progress)
    heads = [HeadId(STUDIED_SLOT, head) for head in range(subject.model.config.slot(STUDIED_SLOT).heads)]  # pyright: ignore[reportAttributeAccessIssue]
    fitted = project.fit(context, heads)
    if not report["alone"]:
        rises = rise_alone(context, fitted)
        report["alone"] = {str(head): {"form": str(fitted[head]), "rise": rises[head]} for head in heads}
        write_results(folder, report)
    order = sorted(heads, key=lambda head: report["alone"][str(head)]["rise"])
    for count in range(len(report["projected"]), len(order) + 1):
        if should_stop():
            return
        chosen = order[:count]
        progress(f"{counted(count, 'head')} projected", 0, 1)
        new = subject.with_model(with_forms(subject.model, {head: fitted[head] for head in chosen}))
        row = {"heads": [*map(str, chosen)], "loss": held_out.mean(new), "bleu": _bleu(run, new, settings)}
        heal(healing, new, steps=settings.heal, rate=settings.heal_learning_rate, seed=settings.seed, tell=progress)
        row |= {"healed_loss": held_out.mean(new), "healed_bleu": _bleu(run, new, settings)}
        report["projected"].append(row)
        write_results(folder, report)
