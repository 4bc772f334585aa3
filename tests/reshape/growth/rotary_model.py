"""A model of one attention layer with rotary positions, written out, to which columns are added beside its projections.

Its added columns of queries and keys are not rotated with the others, nor normed, but by their own angles; its added
values pass no gate. It can share keys, cap scores, have a window, sinks, gates and a factor, as families of models do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.attention.heads import HeadMatrices, HeadWeights
from attnworks.core.places import Slot
from attnworks.models.anatomy import Part
from attnworks.text.tokens import Batch, TokenRow, count_rarity
from attnworks.traces.layer import LayerHook, LayerTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives.contract import Abilities, Outputs
from attnworks.training.objectives.sentences import FunctionObjective

SLOT = Slot("decoder", 0)
WORDS, D_E, D_K, D_V = 11, 17, 2, 5


@dataclass(frozen=True)
class Layout:
    """How the layer differs from plain attention.

    angles    of the rotary positions of its own columns, which are pairs of neighbours
    groups    keys and values that the heads share
    window    keys that a query sees; all before it, and itself, if it is None
    factor    of the output projection, before it is added to the stream
    """

    heads: int = 2
    groups: int = 2
    angles: tuple[float, ...] = (0.03,)
    biased: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    gated: bool = False
    normed: bool = False
    factor: float = 1.0


class OutputProjection(nn.Module):
    """u = Y W_O + b, and what added values give, which pass no gate."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(layout.heads, D_V, D_E) * (layout.heads * D_V) ** -0.5)

    def forward(self, Y: Tensor, added: Tensor) -> Tensor:
        return torch.einsum("bhiv,hve->bie", Y, self.weight) + added


class RotaryAttention(nn.Module):
    """The layer; `added` are heads whose columns stand behind its own."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        h, g = layout.heads, layout.groups
        self.layout, self.scale = layout, D_K**-0.5
        self.W_Q, self.W_K, self.W_V = (
            nn.Parameter(torch.randn(n, D_E, k) * D_E**-0.5) for n, k in ((h, D_K), (g, D_K), (g, D_V))
        )
        biases = [nn.Parameter(torch.randn(n, D_K)) for n in (h, g)] if layout.biased else (None, None)
        self.b_Q, self.b_K = biases
        self.gate = nn.Parameter(torch.randn(D_E, h * D_V) * D_E**-0.5) if layout.gated else None
        self.sink = nn.Parameter(torch.randn(h)) if layout.sinks else None
        self.output = OutputProjection(layout)
        self.added = [head.each(lambda tensor: tensor.detach().double()) for head in self._own_columns(slice(0))]

    def _own_columns(self, some: slice) -> list[HeadMatrices]:
        """Some of the own columns of every head."""
        repeat = self.layout.heads // self.layout.groups
        W_K, W_V = (W.repeat_interleave(repeat, 0) for W in (self.W_K, self.W_V))
        b_K = None if self.b_K is None else self.b_K.repeat_interleave(repeat, 0)
        return [
            HeadMatrices(
                self.W_Q[head, :, some], W_K[head, :, some], W_V[head, :, some], self.output.weight[head, some],
                None if self.b_Q is None else self.b_Q[head, some], None if b_K is None else b_K[head, some],
            )
            for head in range(self.layout.heads)
        ]  # fmt: skip

    def weights(self) -> HeadWeights:
        """Own columns, and added ones behind them."""
        heads = list(zip(self._own_columns(slice(None)), self.added, strict=True))
        keys = tuple(D_K + more.W_Q.shape[1] for _, more in heads)
        values = tuple(D_V + more.W_V.shape[1] for _, more in heads)

        def joined(name: str, wide: int, axis: int = -1) -> Tensor:
            parts = (torch.cat([getattr(own, name), getattr(more, name)], axis) for own, more in heads)
            flat = [part.movedim(axis, -1) for part in parts]
            return torch.stack([F.pad(part, (0, wide - part.shape[-1])) for part in flat]).movedim(-1, axis)

        k, v, biased = max(keys), max(values), self.layout.biased
        return HeadWeights(
            W_Q=joined("W_Q", k),
            W_K=joined("W_K", k),
            W_V=joined("W_V", v),
            W_O=joined("W_O", v, -2),
            b_Q=joined("b_Q", k) if biased else None,
            b_K=joined("b_K", k) if biased else None,
            b_V=None,
            b_O=None,
            groups=self.layout.groups,
            scale=self.scale,
            key_widths=keys,
            value_widths=values,
            turns=torch.stack([F.pad(_turns(more), (D_K, k - D_K - more.W_Q.shape[1])) for more in self.added]),
        )

    def forward(self, X: Tensor, real: Tensor, batch: Batch | None, hook: LayerHook | None) -> Tensor:
        layout = self.layout
        repeat, n = layout.heads // layout.groups, X.shape[1]
        Q, K = (_linear(X, W, b) for W, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K)))
        if layout.normed:
            Q, K = (F.rms_norm(T, T.shape[-1:]) for T in (Q, K))
        angles = [angle for angle in layout.angles for _ in range(2)]
        Q, K = (turned(T, angles) if angles else T for T in (Q, K))
        V = _linear(X, self.W_V, None)
        K, V = (T.repeat_interleave(repeat, 1) for T in (K, V))
        Q, K, V = (_wider(T, self._added(X, at)) for T, at in ((Q, 0), (K, 1), (V, 2)))
        S = self.scale * Q @ K.mT
        S = S if layout.softcap is None else layout.softcap * (S / layout.softcap).tanh()
        behind = torch.arange(n)[:, None] - torch.arange(n)
        seen = (behind >= 0) & (behind < (layout.window or n)) & real[:, None, None, :]
        S = S.masked_fill(~seen, torch.finfo(S.dtype).min)
        if self.sink is not None:
            S = torch.cat([S, self.sink[:, None, None].expand(*S.shape[:-1], 1)], -1)
        P = S.softmax(-1)[..., :n]
        Y = P @ V
        if hook is not None and batch is not None:
            sides, mask = batch.sides("decoder"), Mask(real, dense=seen)
            trace = LayerTrace(
                SLOT, Q, K, V, Y, mask, self.scale, *sides, X=X, Z=X, weights=self.weights(), sink=self.sink,
                softcap=layout.softcap,
            )  # fmt: skip
            edited = hook.attention(trace)
            Y = Y if edited is None else edited
        own, rest = Y[..., :D_V], Y[..., D_V:]
        if self.gate is not None:
            own = own * (X @ self.gate).sigmoid().unflatten(-1, (layout.heads, D_V)).transpose(1, 2)
        added = sum(
            (rest[:, head, :, : len(one.W_O)] @ one.W_O for head, one in enumerate(self.added)), torch.zeros_like(X)
        )
        return layout.factor * self.output(own, added)

    def _added(self, X: Tensor, at: int) -> Tensor:
        """Added columns of queries (0), keys (1) or values (2): [b h n p], narrower heads padded with zeros."""
        columns = []
        for head in self.added:
            weight, bias = ((head.W_Q, head.b_Q), (head.W_K, head.b_K), (head.W_V, head.b_V))[at]
            own = X @ weight
            own = own if bias is None else own + bias
            columns.append(turned(own, _turns(head).tolist()) if at < 2 else own)
        wide = max(own.shape[-1] for own in columns)
        return torch.stack([F.pad(own, (0, wide - own.shape[-1])) for own in columns], 1)


def _turns(head: HeadMatrices) -> Tensor:
    return head.W_Q.new_zeros(head.W_Q.shape[1]) if head.turns is None else head.turns


def _linear(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    T = torch.einsum("bne,hek->bhnk", X, W)
    return T if b is None else T + b[:, None]


def _wider(own: Tensor, more: Tensor) -> Tensor:
    return torch.cat([own, more], -1)


def turned(T: Tensor, angles: Sequence[float]) -> Tensor:
    """Rows [... n k] whose columns with an angle are rotated in pairs: (x, y) -> (x cos - y sin, x sin + y cos)."""
    found, column = T.clone(), 0
    while column < T.shape[-1]:
        if not angles[column]:
            column += 1
            continue
        phase = angles[column] * torch.arange(T.shape[-2], dtype=T.dtype)
        x, y = T[..., column], T[..., column + 1]
        found[..., column], found[..., column + 1] = (
            x * phase.cos() - y * phase.sin(),
            x * phase.sin() + y * phase.cos(),
        )
        column += 2
    return found


class RotaryModel(nn.Module):
    """x + u, with x the embedding of the word and u the output of the layer, then logits of the next word."""

    def __init__(self, layout: Layout | None = None, seed: int = 0) -> None:
        super().__init__()
        self.layout = layout or Layout()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Parameter(torch.randn(WORDS, D_E))
            self.attention = RotaryAttention(self.layout)
            self.head = nn.Parameter(torch.randn(D_E, WORDS) * D_E**-0.5)
        self.double()

    def forward(
        self, ids: Tensor, real: Tensor | None = None, batch: Batch | None = None, hook: LayerHook | None = None
    ) -> tuple[Tensor, Tensor]:
        X = self.embedding[ids]
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        hidden = X + self.attention(X, real, batch, hook)
        return hidden, hidden @ self.head


class RotarySubject(Subject):
    """A rotary model that runs on batches."""

    name = "rotary"
    abilities = Abilities("decoder", True)

    def __init__(self, model: RotaryModel) -> None:
        self.model = model

    def _run(self, batch: Batch, hook: LayerHook | None, *, logits: bool) -> Outputs:
        return Outputs(*self.model(batch.source.ids, batch.source.real, batch, hook))

    def _set_model(self, model: nn.Module) -> None:
        self.model = model

    def _set_tokenizer(self, tokenizer: Any, max_length: int | None) -> None:
        raise NotImplementedError


def part_of(model: RotaryModel) -> Part:
    attention = model.attention
    shares = None
    if model.layout.groups < model.layout.heads:
        shares = tuple(torch.arange(model.layout.heads).unflatten(0, (model.layout.groups, -1)).tolist())
    return Part(
        "self", attention, None, attention, attention.weights, attention.output, shares, turned=any(model.layout.angles)
    )


@torch.no_grad()
def put_rotary_heads(model: Any, slot: Slot, heads: Sequence[HeadMatrices]) -> None:
    """What is beyond the own columns becomes the added ones."""
    assert slot == SLOT
    model.attention.added = [
        HeadMatrices(
            head.W_Q[:, D_K:], head.W_K[:, D_K:], head.W_V[:, D_V:], head.W_O[D_V:],
            None if head.b_Q is None else head.b_Q[D_K:], None if head.b_K is None else head.b_K[D_K:],
            turns=None if head.turns is None else head.turns[D_K:],
        )
        for head in heads
    ]  # fmt: skip


def rotary_layers(model: Any) -> dict[Slot, Part]:
    return {SLOT: part_of(model)}


@contextmanager
def growing_rotary() -> Iterator[None]:
    """Within this context rotary models can grow."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("survey", "apply", "grow"):
            patch.setattr(f"attnworks.reshape.growth.{module}.layers_of", rotary_layers)
        patch.setattr("attnworks.reshape.growth.survey.refusal_to_grow", lambda model, slot: None)
        patch.setattr("attnworks.reshape.growth.apply.put_heads", put_rotary_heads)
        yield


def losses(outputs: Outputs, batch: Batch) -> Tensor:
    """The mean cross-entropy of the next word of every sentence."""
    assert outputs.logits is not None
    ids, real = batch.source.ids, batch.source.real
    each = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    each = each.view(len(ids), -1) * real[:, 1:]
    return each.sum(1) / real[:, 1:].sum(1)


def text_loss_of(model: RotaryModel, ids: Tensor, lengths: Sequence[int] | None = None, batch: int = 64) -> TextLoss:
    """The loss on these sentences, the first tokens of each."""
    lengths = [ids.shape[1]] * len(ids) if lengths is None else lengths
    rows = [
        TokenRow(tuple(row[:length]), (False,) * length, tuple(range(length)))
        for row, length in zip(ids.tolist(), lengths, strict=True)
    ]
    text = TokenizedText(
        sides=(rows,), pads=(0,), rarities=(count_rarity(rows),),
        batches=[part.tolist() for part in torch.arange(len(rows)).split(batch)], kept=range(len(rows)),
        passages=len(rows), written=0,
    )  # fmt: skip
    return TextLoss(RotarySubject(model), FunctionObjective(losses), text)


def copying(size: int, distance: int, seed: int, length: int = 23, noise: float = 0.1) -> Tensor:
    """Sentences [b n] in which a word is that `distance` before it, or any word with this probability."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (size, length), generator=generator)
    free = torch.rand(size, length, generator=generator) < noise
    for n in range(distance, length):
        ids[:, n] = torch.where(free[:, n], ids[:, n], ids[:, n - distance])
    return ids


def trained(model: RotaryModel, distance: int, steps: int = 300, rate: float = 1e-2, seed: int = 1) -> RotaryModel:
    """After these steps of Adam on sentences that copy; added columns are trained too."""
    columns = [tensor for head in model.attention.added for tensor in head.weights if tensor is not None]
    for tensor in columns:
        tensor.requires_grad_()
    optimizer = torch.optim.Adam([*model.parameters(), *columns], rate)
    for step in range(steps):
        ids = copying(64, distance, seed * 100_003 + step)
        _, logits = model(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for tensor in columns:
        tensor.requires_grad_(False)
    return model
