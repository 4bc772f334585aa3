"""A model that grows while it is trained, where growing pays."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnworks.core.display import silent
from attnworks.models import TransformerConfig
from attnworks.models.anatomy import heads_of
from attnworks.reshape.evaluate import parameter_count
from attnworks.reshape.growth.apply import GrowthPlace, GrowthStep, grow_in_place, stretched_state
from attnworks.reshape.growth.grow import describe_changes, plan_step, survey_growth
from attnworks.reshape.growth.methods import METHODS
from attnworks.reshape.growth.places import NoBottleneckError, Spot, spread
from attnworks.reshape.growth.score import GrowthKind
from attnworks.reshape.run import ReshapeSettings, text_loss_on
from attnworks.reshape.surgery import layers_of
from attnworks.traces.own import OwnSubject
from attnworks.training.events import Grown
from attnworks.training.objectives import choose_objective
from attnworks.training.run import Run
from attnworks.training.run_folder import optimizer_tensors

EXPECTED_GROWTHS = 8
"""About the number of growths after which the goals are reached, if all of them lower the loss."""
SURVEY_SENTENCES = 1024
"""Sentences of the corpus on which each growth is decided, drawn anew each time."""
KIND_OF_GOAL: dict[str, GrowthKind] = {"d_k": "keys", "d_v": "values", "heads": "heads"}


class _Found(NamedTuple):
    steps: Sequence[GrowthStep]
    done: dict[str, str]
    fall: float = 0.0
    reason: str | None = None
    left_out: Mapping[str, str] = {}


def grow_in_training(run: Run) -> Grown | None:
    """Add widths where they lower the loss, up to the goals of the recipe; None once these are reached.

    The first process decides for all. The optimizer keeps its state for the weights that were there.
    """
    missing = _missing(run)
    if not any(missing.values()):
        return None
    found = run.team.gather(_find(run, missing) if run.team.leads else None)[0]
    assert found is not None
    if found.steps:
        old, state = copy.deepcopy(run.model), optimizer_tensors(run.model, run.optimizer)
        grow_in_place(run.model, found.steps)
        run.replace_optimizer_state(stretched_state(state, old, run.model))
    size, left_out = parameter_count(run.model), dict(found.left_out)
    return Grown(run.progress.step, found.done, size, found.fall, found.reason, left_out=left_out)


def _missing(run: Run) -> dict[Spot, int]:
    """Columns and heads that the goals still need."""
    missing: dict[Spot, int] = {}
    for slot, part in layers_of(run.model).items():
        heads = heads_of(part)
        for name, goal in run.recipe.goals().items():
            sizes = {None: len(heads)}
            if name != "heads":
                sizes = {at: (head.W_Q if name == "d_k" else head.W_V).shape[1] for at, head in enumerate(heads)}
            for head, size in sizes.items():
                missing[Spot(GrowthPlace(slot, head), KIND_OF_GOAL[name])] = max(0, goal - size)
    return missing


def _find(run: Run, missing: dict[Spot, int]) -> _Found:
    recipe, pairs = run.recipe, run.corpus.train
    subject = OwnSubject(run.model, str(run.folder), (run.source, run.target))
    drawn = np.random.default_rng([recipe.seed, run.progress.step]).permutation(len(pairs))[:SURVEY_SENTENCES]
    objective = choose_objective(None, subject.abilities, seed=recipe.seed)
    text_loss = text_loss_on(subject, objective, [pairs[number] for number in drawn], ReshapeSettings())
    kinds: list[GrowthKind] = [KIND_OF_GOAL[name] for name in recipe.goals()]
    try:
        survey = survey_growth(text_loss, silent, kinds)
        widths = spread(survey, kinds, _each_time(run), missing)
        planned = plan_step(survey, METHODS["fisher"], widths, recipe.seed)
    except NoBottleneckError as error:
        return _Found((), {}, reason=error.got)
    grown = {spot: width for spot, width in widths.items() if spot not in planned.left_out}
    left_out = {str(spot): reason for spot, reason in planned.left_out.items()}
    return _Found(planned.steps, describe_changes(survey, grown), planned.fall, left_out=left_out)


def _each_time(run: Run) -> int:
    """Widths to add, a head counting as many as it has keys and values; one head at least, where heads may grow."""
    recipe, config = run.recipe, run.first_config
    assert isinstance(config, TransformerConfig)
    total, least = 0, 1
    for slot in config.slot_names():
        heads, d_k, d_v = config.slot(slot).geometry
        for name, goal in recipe.goals().items():
            each = {"d_k": (goal - d_k) * heads, "d_v": (goal - d_v) * heads, "heads": (goal - heads) * (d_k + d_v)}
            total += max(0, each[name])
            least = max(least, d_k + d_v) if name == "heads" else least
    return max(least, math.ceil(total / EXPECTED_GROWTHS) if recipe.grow_by is None else recipe.grow_by)
