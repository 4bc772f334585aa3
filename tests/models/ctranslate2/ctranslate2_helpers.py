"""Small Transformers with random weights that CTranslate2 can express, and sentences of each length for them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.models import Transformer, build
from attnworks.models.ctranslate2 import CTranslate2Engine
from attnworks.models.decoding import Hypothesis, beam
from attnworks.text.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary
from tests.model_helpers import VOCABULARY, attention_config, transformer_config

LONGEST_SOURCE = 9
CASES: dict[str, dict[str, Any]] = {
    "post": {},
    "post with a final norm": {"final_norm": True},
    "pre": {"norm": "pre"},
    "pre without a final norm": {"norm": "pre", "final_norm": False},
    "epsilon": {"norm_eps": 0.1},
    "learned positions": {"positions": "learned", "max_length": 64},
    "positions by number": {"positions": "index"},
    "no positions": {"positions": "none"},
    "another base": {"position_base": 100.0},
    "no bias": {"attention": attention_config(bias=False)},
    "output bias": {"output_bias": True},
    "tied target": {"tie": "target"},
    "tied all": {"tie": "all", "target_vocabulary": None},
    "wide values": {"attention": attention_config(d_k=2, d_v=5)},
    "scale": {"attention": attention_config(scale=0.9)},
    "depths": {"encoder_layers": 1, "decoder_layers": 3},
    "uneven": {
        "slots": {
            "enc.0": attention_config(heads=1),
            "dec.1": attention_config(heads=2, d_k=3, d_v=7),
            "cross.0": attention_config(heads=0),
            "cross.1": attention_config(heads=3, d_k=(1, 4, 2), d_v=(3, 1, 2)),
        }
    },
}
"""Name -> changes of the config of `model_helpers.transformer`."""


def model_of(name: str, seed: int = 1) -> tuple[Transformer, tuple[Vocabulary, Vocabulary]]:
    """The model of a case in float32, and its vocabularies. Its translations depend on the source, and some end."""
    model = build(transformer_config(**CASES[name]), seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(2 * parameter if parameter.dim() > 1 else parameter + 0.3 * noise)
    sizes = model.config.vocabulary, model.config.target_size
    source, target = ([f"w{number}" for number in range(size - len(SPECIALS))] for size in sizes)
    return model, (Vocabulary.train("word", [source]), Vocabulary.train("word", [target]))


def sources(each: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sentences of every length up to LONGEST_SOURCE, <eos> included, and where their tokens are."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((each * (LONGEST_SOURCE - 1), LONGEST_SOURCE), PAD)
    for row, length in enumerate(each * [*range(2, LONGEST_SOURCE + 1)]):
        rows[row, : length - 1] = torch.randint(len(SPECIALS), VOCABULARY, (length - 1,), generator=generator)
        rows[row, length - 1] = EOS
    return rows, rows != PAD


def assert_same_translations(
    model: Transformer, engine: CTranslate2Engine, source: Tensor, real: Tensor | None, **options: Any
) -> list[list[Hypothesis]]:
    """Both engines write the same tokens, with log-probabilities that are equal up to rounding."""
    expected = beam(model, source, real, bos=BOS, eos=EOS, **options)
    found = engine.beam(source, real, **options)
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.finished == other.finished
        assert one.logprob == pytest.approx(other.logprob, rel=1e-3, abs=5e-3)
        assert one.score == pytest.approx(other.score, rel=1e-3, abs=5e-3)
    return found
