"""Toy models whose every probability is known, small real models, and decoding without cache or tensors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.models import AttentionConfig, Recurrent, RecurrentConfig, Transformer, TransformerConfig, build
from attnworks.models.decoding import Hypothesis, length_penalty

BOS, EOS = 1, 2
SENTENCES, SOURCE, SOURCE_VOCABULARY, VOCABULARY = 5, 7, 17, 11


@dataclass(frozen=True, eq=False)
class ToyState:
    kind: Tensor
    node: Tensor | None

    @property
    def sentences(self) -> int:
        return len(self.kind)

    def reorder(self, origin: Tensor) -> ToyState:
        assert self.node is not None
        return replace(self, node=self.node.gather(1, origin))

    def keep(self, sentences: Tensor) -> ToyState:
        assert self.node is not None
        return ToyState(self.kind[sentences], self.node[sentences])


class Toy:
    """A tree of scores [kinds nodes vocabulary]: p(y_t | y_<t, x) depends on all of y_<t and on the first source token.

    Node 0 is the empty text; node n with token v is node n * vocabulary + v + 1.
    """

    def __init__(self, scores: Tensor) -> None:
        self.scores, self.vocabulary = scores, scores.shape[-1]

    @classmethod
    def random(cls, kinds: int, vocabulary: int, longest: int, seed: int = 0, spread: float = 1.5) -> Toy:
        """Scores with a random constant in each row, which softmax takes out again."""
        generator = torch.Generator().manual_seed(seed)
        shape = (kinds, sum(vocabulary**depth for depth in range(longest)), vocabulary)
        scores = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
        return cls(scores + torch.randn(*shape[:2], 1, generator=generator, dtype=torch.float64))

    @property
    def source(self) -> Tensor:
        """One sentence of each kind."""
        return torch.arange(len(self.scores))[:, None]

    def start(self, source: Tensor, real: Tensor | None = None) -> ToyState:
        del real
        return ToyState(source[:, 0], None)

    def step(self, tokens: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        node = torch.zeros_like(tokens) if state.node is None else state.node * self.vocabulary + tokens + 1
        return self.scores[state.kind[:, None], node], replace(state, node=node)

    def next_logprobs(self, kind: int, text: tuple[int, ...]) -> list[float]:
        node = 0
        for token in text:
            node = node * self.vocabulary + token + 1
        return self.scores[kind, node].log_softmax(-1).tolist()

    def logprob(self, kind: int, text: tuple[int, ...]) -> float:
        return sum(self.next_logprobs(kind, text[:t])[token] for t, token in enumerate(text))

    def endings(self, kind: int, longest: int, alpha: float, eos: int = EOS) -> list[Hypothesis]:
        """Every text that ends within `longest` tokens, the best first: |V|^n of them, one by one (S4.10)."""
        others = [token for token in range(self.vocabulary) if token != eos]
        texts = (text for length in range(longest) for text in itertools.product(others, repeat=length))
        found = [self._ended(kind, text, alpha, eos) for text in texts]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)

    def _ended(self, kind: int, text: tuple[int, ...], alpha: float, eos: int) -> Hypothesis:
        logprob = self.logprob(kind, (*text, eos))
        return Hypothesis(text, logprob, logprob / length_penalty(len(text) + 1, alpha), True)


def beam_by_lists(
    toy: Toy, kind: int, *, beams: int, longest: int, alpha: float, n_best: int, eos: int = EOS
) -> list[Hypothesis]:
    """Beam search as its docstring says it, with lists, full distributions and no early stop."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Hypothesis] = []
    for length in range(1, longest + 1):
        extensions = [
            (logprob + gained, (*text, token))
            for logprob, text in alive
            for token, gained in enumerate(toy.next_logprobs(kind, text))
        ]
        extensions.sort(key=lambda one: -one[0])
        ended = [one for one in extensions[:beams] if one[1][-1] == eos]
        penalty = length_penalty(length, alpha)
        finished += [Hypothesis(text[:-1], logprob, logprob / penalty, True) for logprob, text in ended]
        alive = [one for one in extensions if one[1][-1] != eos][:beams]
        if beams == 1 and ended:
            break
    finished.sort(key=lambda hypothesis: -hypothesis.score)
    cut = [Hypothesis(text, logprob, logprob / length_penalty(longest, alpha), False) for logprob, text in alive]
    return (finished + cut)[:n_best]


class Uncached:
    """The same model, reading all it wrote again at every step."""

    def __init__(self, model: Transformer | Recurrent) -> None:
        self.model = model

    def start(self, source: Tensor, real: Tensor | None = None) -> UncachedState:
        return UncachedState(source, real, None)

    def step(self, tokens: Tensor, state: UncachedState) -> tuple[Tensor, UncachedState]:
        sentences, beams = tokens.shape
        written = tokens.unsqueeze(-1)
        if state.written is not None:
            written = torch.cat([state.written, written], -1)
        source, real = (
            None if part is None else part.repeat_interleave(beams, 0) for part in (state.source, state.real)
        )
        assert source is not None
        scores = self.model(source, written.flatten(0, 1), real)[:, -1]
        return scores.view(sentences, beams, -1), replace(state, written=written)


@dataclass(frozen=True, eq=False)
class UncachedState:
    source: Tensor
    real: Tensor | None
    written: Tensor | None

    @property
    def sentences(self) -> int:
        return len(self.source)

    def reorder(self, origin: Tensor) -> UncachedState:
        assert self.written is not None
        return replace(self, written=torch.stack([row[index] for row, index in zip(self.written, origin, strict=True)]))

    def keep(self, sentences: Tensor) -> UncachedState:
        assert self.written is not None
        real = None if self.real is None else self.real[sentences]
        return UncachedState(self.source[sentences], real, self.written[sentences])


def transformer(seed: int = 5, **changes: Any) -> Transformer:
    settings: dict[str, Any] = {
        "vocabulary": SOURCE_VOCABULARY,
        "target_vocabulary": VOCABULARY,
        "d_e": 14,
        "d_ff": 13,
        "attention": AttentionConfig(heads=3, d_k=5, d_v=2),
        "encoder_layers": 1,
        "decoder_layers": 2,
    }
    return _filled(build(TransformerConfig(**(settings | changes))), seed)


def recurrent(seed: int = 1, **changes: Any) -> Recurrent:
    settings: dict[str, Any] = {
        "vocabulary": SOURCE_VOCABULARY,
        "target_vocabulary": VOCABULARY,
        "d_e": 7,
        "d_h": 5,
    }
    return _filled(build(RecurrentConfig(**(settings | changes))), seed)


def _filled(model: Any, seed: int) -> Any:
    """Random weights everywhere, float64, evaluation mode."""
    assert isinstance(model, nn.Module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model.eval()


def sources() -> tuple[Tensor, Tensor]:
    """Sentences of 7, 3, 5, 1 and 6 tokens, and where these are."""
    tokens = torch.randint(SOURCE_VOCABULARY, (SENTENCES, SOURCE), generator=torch.Generator().manual_seed(5))
    return tokens, torch.arange(SOURCE) < torch.tensor([7, 3, 5, 1, 6])[:, None]


MODELS = {
    "post-norm": lambda: transformer(29),
    "pre-norm": lambda: transformer(5, norm="pre"),
    "tied": lambda: transformer(14, tie="all", vocabulary=VOCABULARY),
    "learned positions": lambda: transformer(31, positions="learned", max_length=23, tie="target"),
    "lstm-plain": lambda: recurrent(1),
    "lstm-dot": lambda: recurrent(12, mechanism="luong-dot"),
    "lstm-multiplicative": lambda: recurrent(11, mechanism="luong-multiplicative"),
    "lstm-additive": lambda: recurrent(5, mechanism="bahdanau-additive"),
    "gru of two layers": lambda: recurrent(27, cell="gru", layers=2, mechanism="luong-dot"),
}
"""With seeds that make sentences end at different times, so that some leave the batch before others."""


def same(got: list[Hypothesis], expected: list[Hypothesis]) -> None:
    """Equal texts in the same order, numbers to 1e-10."""
    assert [(h.tokens, h.finished) for h in got] == [(h.tokens, h.finished) for h in expected]
    for one, other in zip(got, expected, strict=True):
        assert abs(one.logprob - other.logprob) < 1e-10
        assert abs(one.score - other.score) < 1e-10
