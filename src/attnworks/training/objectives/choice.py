"""Which objective judges the heads of a model."""

from __future__ import annotations

from collections.abc import Mapping

from attnworks.core.errors import UsageError
from attnworks.training.objectives.contract import TEXT_OBJECTIVES, Abilities, TextObjective
from attnworks.training.objectives.language import MaskedToken, NextTargetToken, NextToken
from attnworks.training.objectives.sentences import (
    ClassLabels,
    OwnCallable,
    OwnFunction,
    SentenceEmbedding,
    read_labels,
)

BY_DEFAULT = (NextTargetToken.name, NextToken.name, MaskedToken.name, SentenceEmbedding.name)
"""The first that fits is taken; labels only if asked for."""

READERS = {NextTargetToken.name: "encoder-decoder", NextToken.name: "decoder", MaskedToken.name: "encoder"}
"""Objectives of words, and the kind of model that each is of."""


def choose(
    asked: str | OwnFunction | None,
    abilities: Abilities,
    *,
    seed: int = 0,
    sentences: int | None = None,
    class_names: Mapping[int, str] | None = None,
) -> TextObjective:
    """The objective of this name ("lm", "mlm", "seq2seq", "embedding", "labels:FILE") or function; by default that of
    the model: seq2seq for an encoder and decoder, lm for a decoder, mlm for an encoder that knows hidden words, and
    embedding for what has no scores over a vocabulary.

    sentences      of the corpus, as many as there have to be labels
    class_names    class -> name, as id2label of Hugging Face's configurations
    """
    if asked is None:
        asked = next(name for name in BY_DEFAULT if why_not(name, abilities) is None)
    if not isinstance(asked, str):
        return OwnCallable(asked)
    name, _, argument = asked.partition(":")
    kind = TEXT_OBJECTIVES[name]
    reason = why_not(name, abilities)
    if reason is not None:
        fitting = [f"{known}:FILE" if known == ClassLabels.name else known for known in that_fit(abilities)]
        raise UsageError(
            asked=f"objective {name!r}",
            expected=f"one that fits the model: {', '.join(fitting)}, or a function of your own",
            got=reason,
            remedy=f"choose {fitting[0]!r}",
        )
    if bool(argument) != (name == ClassLabels.name):
        raise UsageError(
            asked=f"objective {asked!r}",
            expected="a file with one label per line" if name == ClassLabels.name else "the name alone",
            got=repr(argument) if argument else "no file",
            remedy="write labels:FILE" if name == ClassLabels.name else f"write {name}",
        )
    if name == MaskedToken.name:
        assert abilities.mask_id is not None
        return MaskedToken(abilities.mask_id, seed)
    if name == NextTargetToken.name:
        return NextTargetToken(abilities.end_id)
    if name == ClassLabels.name:
        return ClassLabels(read_labels(argument, abilities.classes or 0, class_names, sentences))
    return SentenceEmbedding(seed) if name == SentenceEmbedding.name else kind()


def that_fit(abilities: Abilities) -> list[str]:
    """The names of all objectives that this model can be asked, the default first."""
    names = [*BY_DEFAULT, *(name for name in TEXT_OBJECTIVES if name not in BY_DEFAULT)]
    return [name for name in names if why_not(name, abilities) is None]


def why_not(name: str, abilities: Abilities) -> str | None:
    """What this model is, or lacks, so that the objective says nothing of it; None if it fits."""
    kind = f"{'an' if abilities.kind.startswith('e') else 'a'} {abilities.kind}"
    if name in READERS and abilities.kind != READERS[name]:
        return f"{kind}, where {READERS[name]} is asked for"
    if name in READERS and not abilities.vocabulary:
        return f"{kind} without scores over a vocabulary"
    if name == MaskedToken.name and abilities.mask_id is None:
        return f"{kind} without a token for hidden words"
    if name == ClassLabels.name and (abilities.classes or 0) < 2:
        return f"{kind} that does not score two or more classes"
    return None
