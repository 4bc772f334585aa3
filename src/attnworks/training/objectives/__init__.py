"""Objectives: losses for examining, healing and training models, and the choice of one that fits a model."""

from __future__ import annotations

from collections.abc import Mapping

from attnworks.core.errors import UsageError
from attnworks.training.objectives.contract import OBJECTIVES, Abilities, Objective
from attnworks.training.objectives.language import MaskedToken, NextTargetToken, NextToken
from attnworks.training.objectives.sentences import (
    ClassLabels,
    FunctionObjective,
    LossFunction,
    SentenceEmbedding,
    read_labels,
)

DEFAULT_ORDER = (NextTargetToken.name, NextToken.name, MaskedToken.name, SentenceEmbedding.name)
"""The default objective of a model is the first of these that fits it. Labels are never a default."""

KIND_OF_MODEL = {NextTargetToken.name: "encoder-decoder", NextToken.name: "decoder", MaskedToken.name: "encoder"}
"""Objectives that predict tokens, and the kind of model that each needs."""


def choose_objective(
    asked: str | LossFunction | None,
    abilities: Abilities,
    *,
    seed: int = 0,
    sentences: int | None = None,
    class_names: Mapping[int, str] | None = None,
) -> Objective:
    """The objective of a name ("lm", "mlm", "seq2seq", "embedding", "labels:FILE") or function, or the model's default.

    The default is seq2seq for an encoder-decoder, lm for a decoder, mlm for an encoder with a mask token, and embedding
    for a model without logits over a vocabulary.

    sentences      number of sentences of the corpus, which the number of labels must equal
    class_names    class -> name, as id2label of Hugging Face's configurations
    """
    if asked is None:
        asked = next(name for name in DEFAULT_ORDER if objective_refusal(name, abilities) is None)
    if not isinstance(asked, str):
        return FunctionObjective(asked)
    name, _, argument = asked.partition(":")
    kind = OBJECTIVES[name]
    if reason := objective_refusal(name, abilities):
        fitting = [f"{known}:FILE" if known == ClassLabels.name else known for known in fitting_objectives(abilities)]
        expected = f"{', '.join(fitting)} or a function of your own"
        raise UsageError(f"objective {name!r}", expected, reason, f"choose {fitting[0]!r}")
    if name == ClassLabels.name and not argument:
        raise UsageError(f"objective {asked!r}", "a file with one label per line", "no file", "write labels:FILE")
    if name != ClassLabels.name and argument:
        raise UsageError(f"objective {asked!r}", "the name alone", repr(argument), f"write {name}")
    if name == MaskedToken.name:
        assert abilities.mask_id is not None
        return MaskedToken(abilities.mask_id, seed)
    if name == NextTargetToken.name:
        return NextTargetToken(abilities.end_id)
    if name == ClassLabels.name:
        return ClassLabels(read_labels(argument, abilities.classes or 0, class_names, sentences))
    return SentenceEmbedding(seed) if name == SentenceEmbedding.name else kind()


def fitting_objectives(abilities: Abilities) -> list[str]:
    """The names of all objectives that fit this model, the default first."""
    names = [*DEFAULT_ORDER, *(name for name in OBJECTIVES if name not in DEFAULT_ORDER)]
    return [name for name in names if objective_refusal(name, abilities) is None]


def objective_refusal(name: str, abilities: Abilities) -> str | None:
    """Why the objective does not fit this model; None if it does."""
    kind = f"{'an' if abilities.kind.startswith('e') else 'a'} {abilities.kind}"
    if name in KIND_OF_MODEL and abilities.kind != KIND_OF_MODEL[name]:
        return f"{kind}, where {KIND_OF_MODEL[name]} is needed"
    if name in KIND_OF_MODEL and not abilities.vocabulary:
        return f"{kind} without logits over a vocabulary"
    if name == MaskedToken.name and abilities.mask_id is None:
        return f"{kind} without a token for hidden words"
    if name == ClassLabels.name and (abilities.classes or 0) < 2:
        return f"{kind} that does not score two or more classes"
    return None
