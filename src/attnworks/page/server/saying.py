"""What a model says about a sentence, in a few words with their probabilities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.page.server.inspect import Read
from attnworks.traces.subject import Examinee
from attnworks.training.objectives.contract import Outputs

SHOWN = 5


class Output(NamedTuple):
    text: str
    probability: float | None


class Said(NamedTuple):
    """What the outputs are, in words, and the outputs, the most probable first."""

    words: str
    outputs: list[Output]


def say(examinee: Examinee, read: Read, outputs: Outputs) -> Said:
    """The translation, the next token, the hidden word or the class: what the model is made to say."""
    able, written = examinee.subject.abilities, read.written
    if written is not None:
        if written.words is None:
            return Said("the model gives no words, only vectors; its decoder reads the sentence itself", [])
        probability = None if written.logprob is None else math.exp(written.logprob)
        return Said("what the model writes for it", [Output(written.text, probability)])
    if outputs.scores is None:
        return Said("the model gives no words, only vectors", [])
    if able.classes is not None:
        return _classes(getattr(examinee.subject.model, "config", None), outputs.scores[0])
    if able.kind == "decoder":
        return Said("the most probable next tokens", _spelled(examinee, outputs.scores[0, -1]))
    ids = read.text.sides[0][0].ids
    if able.mask_id is None:
        return Said("the model has no token for a hidden word, which it could fill in", [])
    if able.mask_id not in ids:
        hidden = examinee.spell[0](able.mask_id)
        return Said(f"put {hidden} in place of a word to see what the model would fill in", [])
    return Said(
        "what the model would fill in for the first hidden word",
        _spelled(examinee, outputs.scores[0, ids.index(able.mask_id)]),
    )


def _classes(config: Any, scores: Float[Tensor, " c"]) -> Said:
    """A single class is a score, not a choice; classes that do not exclude one another have chances of their own."""
    named = getattr(config, "id2label", None) or {}
    if len(scores) == 1:
        return Said("the score", [Output(f"{named.get(0, 0)}: {float(scores[0]):.4g}", None)])
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    chances = scores.double().sigmoid() if several else scores.double().softmax(-1)
    return Said("the most probable classes", [Output(str(named.get(at, at)), p) for at, p in _largest(chances)])


def moved(before: Float[Tensor, "b i e"], after: Float[Tensor, "b i e"]) -> float:
    """|X' - X| / |X| of the last stream."""
    wide = torch.promote_types(before.dtype, torch.float32)
    X = before.to(wide)
    return float((after.to(wide) - X).norm() / X.norm().clamp_min(torch.finfo(wide).tiny))


def _spelled(examinee: Examinee, scores: Float[Tensor, " w"]) -> list[Output]:
    spell: Any = examinee.spell[0]
    return [Output(spell(token), p) for token, p in _largest(scores.double().softmax(-1))]


def _largest(chances: Float[Tensor, " w"]) -> list[tuple[int, float]]:
    p, places = chances.topk(min(SHOWN, len(chances)))
    return list(zip(places.tolist(), p.tolist(), strict=True))
