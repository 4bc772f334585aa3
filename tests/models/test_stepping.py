"""Writing one token at a time gives what a whole target gives, whatever becomes of the hypotheses in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.models import Recurrent, Transformer, build
from tests.model_helpers import (
    BATCH,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    attention_config,
    close,
    filled,
    recurrent_config,
    tokens,
    transformer,
)

BEAMS = 2
PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7, [True] + [False] * 6])
SOURCE_TOKENS = tokens(VOCABULARY, BATCH, SOURCE)
WRITTEN = tokens(TARGET_VOCABULARY, BATCH, BEAMS, TARGET, seed=1)
MIXED = attention_config(mechanism=("dense", "luong-multiplicative", "bahdanau-additive"))


def recurrent(**changes: Any) -> Recurrent:
    return filled(build(recurrent_config(**changes))).double()


MODELS: dict[str, Transformer | Recurrent] = {
    "post": transformer(),
    "pre": transformer(norm="pre", positions="learned"),
    "mixed heads": transformer(attention=MIXED),
    "lstm": recurrent(layers=2),
    "gru with attention": recurrent(cell="gru", mechanism="luong-multiplicative"),
    "lstm with attention": recurrent(mechanism="bahdanau-additive"),
}


def at_once(model: Transformer | Recurrent, written: Tensor, source: Tensor, real: Tensor | None) -> Tensor:
    """Scores [s beams t vocabulary], each hypothesis a row of its own batch."""
    beams = written.shape[1]
    repeated = None if real is None else real.repeat_interleave(beams, 0)
    return model(source.repeat_interleave(beams, 0), written.flatten(0, 1), repeated).unflatten(0, (-1, beams))


@pytest.mark.parametrize("real", [None, PADDING])
@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_the_whole(name: str, real: Tensor | None) -> None:
    model = MODELS[name]
    expected = at_once(model, WRITTEN, SOURCE_TOKENS, real)
    state: Any = model.start(SOURCE_TOKENS, real)
    assert state.sentences == BATCH
    for t in range(TARGET):
        scores, state = model.step(WRITTEN[:, :, t], repeated(state) if t == 0 else state)
        close(scores, expected[:, :, t])


def repeated(state: Any) -> Any:
    """The first step goes from one hypothesis of each sentence to all beams."""
    return state.reorder(torch.zeros(BATCH, BEAMS, dtype=torch.long))


@pytest.mark.parametrize("name", MODELS)
def test_reordered_hypotheses_go_on_from_where_they_came(name: str) -> None:
    model = MODELS[name]
    state: Any = repeated(model.start(SOURCE_TOKENS, PADDING))
    written = WRITTEN.clone()
    origins = [torch.tensor([[1, 0], [1, 1], [0, 0]]), torch.tensor([[0, 0], [1, 0], [1, 1]])]
    for t in range(3):
        scores, state = model.step(written[:, :, t], state)
        close(scores, at_once(model, written[:, :, : t + 1], SOURCE_TOKENS, PADDING)[:, :, t])
        if t < 2:
            state = state.reorder(origins[t])
            written = written.take_along_dim(origins[t][..., None], 1)
            written[:, :, t + 1] = WRITTEN[:, :, t + 1]


@pytest.mark.parametrize("name", MODELS)
def test_kept_sentences_go_on_alone(name: str) -> None:
    model, kept = MODELS[name], torch.tensor([2, 0])
    state: Any = model.step(WRITTEN[:, :, 0], repeated(model.start(SOURCE_TOKENS, PADDING)))[1]
    state = state.keep(kept)
    assert state.sentences == 2
    scores, _ = model.step(WRITTEN[kept, :, 1], state)
    close(scores, at_once(model, WRITTEN[kept, :, :2], SOURCE_TOKENS[kept], PADDING[kept])[:, :, 1])


def test_a_language_model_starts_from_nothing() -> None:
    model = transformer(encoder_layers=0)
    state = model.start(sentences=BATCH)
    expected = model(target=WRITTEN[:, 0])
    for t in range(TARGET):
        scores, state = model.step(WRITTEN[:, :1, t], state)
        close(scores[:, 0], expected[:, t])


def test_what_cannot_be_started() -> None:
    with pytest.raises(UsageError, match="expected source tokens, got none"):
        transformer().start()
    with pytest.raises(UsageError, match="no source tokens, since there is no encoder"):
        transformer(encoder_layers=0).start(SOURCE_TOKENS)
    with pytest.raises(UsageError, match="normalised-index, whose codes change with every token"):
        transformer(positions="normalised-index").start(SOURCE_TOKENS)
