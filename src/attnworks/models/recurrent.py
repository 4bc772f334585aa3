"""The recurrent encoder-decoder, with and without attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnworks.attention import Context, Geometry, Mask, MechanismSpec
from attnworks.attention.heads import Scoring
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models.config import RecurrentConfig
from attnworks.models.layers import Dropout, Embedding, OutputLayer
from attnworks.models.multihead import Observation, Observer
from attnworks.models.stepping import RecurrentState

CellState = Tensor | tuple[Tensor, Tensor]


class Recurrent(nn.Module):
    """An LSTM or GRU reads the source; another, started from its last state, writes the target.

    With attention, step t scores the encoder states s_k by the decoder state h_t, takes the context
    c_t = sum_k a_tk s_k, and writes from tanh(W [c_t; h_t]). Without it, h_t alone represents the sentence: the
    bottleneck that attention removes.
    Source: Conti 2024, section 1.1.1 (S4.13-S4.16).
    Departs: the output layer is Luong's tanh(W [c; h]) followed by a projection (S4.16).
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        d_e, d_h = config.d_e, config.d_h
        cell = {"lstm": nn.LSTM, "gru": nn.GRU}[config.cell]
        between = config.dropout if config.layers > 1 else 0.0
        self.source_embedding = Embedding(config.vocabulary, d_e)
        self.target_embedding = Embedding(config.target_size, d_e)
        self.encoder = cell(d_e, d_h, config.layers, batch_first=True, dropout=between)
        self.decoder = cell(d_e, d_h, config.layers, batch_first=True, dropout=between)
        self.attention = self.combine = None
        if config.mechanism is not None:
            self.attention = MechanismSpec.parse(config.mechanism).build(Geometry(1, d_h, d_h))
            self.combine = nn.Linear(2 * d_h, d_h, bias=False)
        self.output = OutputLayer(config.target_size, d_h)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        source: Int[Tensor, "b i"],
        target: Int[Tensor, "b t"],
        source_real: Bool[Tensor, "b i"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b t w"]:
        """Logits. Targets are read from left to right, so that padding at their end changes nothing."""
        return self.logits(self.hidden(source, target, source_real, target_real, observe))

    def hidden(
        self,
        source: Int[Tensor, "b i"],
        target: Int[Tensor, "b t"],
        source_real: Bool[Tensor, "b i"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b t e"]:
        """The input of the output layer: `forward` without the projection to the vocabulary."""
        del target_real
        states, last = self.encode(source, source_real)
        return self.decode(target, states, last, source_real, observe)[0]

    def encode(
        self, source: Int[Tensor, "b i"], real: Bool[Tensor, "b i"] | None = None
    ) -> tuple[Float[Tensor, "b i e"], CellState]:
        """All states s_k (zero at padding) and the state after the last real token."""
        X = self.dropout(self.source_embedding(source))
        if real is None:
            return _run(self.encoder, X)
        if (real[:, 1:] & ~real[:, :-1]).any():
            raise UsageError("a recurrent encoder", "padding at the end", "a token after padding", "pad on the right")
        lengths = real.sum(-1).clamp_min(1).cpu()
        packed, last = _run(self.encoder, pack_padded_sequence(X, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(packed, batch_first=True, total_length=source.shape[1])[0], last

    def decode(
        self,
        target: Int[Tensor, "b t"],
        states: Float[Tensor, "b i e"],
        last: CellState,
        source_real: Bool[Tensor, "b i"] | None = None,
        observe: Observer | None = None,
    ) -> tuple[Float[Tensor, "b t e"], CellState]:
        """The input of the output layer at every target position, and the state of the decoder after the last."""
        H, last = _run(self.decoder, self.dropout(self.target_embedding(target)), last)
        return self.read(H, states, source_real, observe), last

    def read(
        self,
        H: Float[Tensor, "b t e"],
        states: Float[Tensor, "b i e"],
        source_real: Bool[Tensor, "b i"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b t e"]:
        """tanh(W [c_t; h_t]) with attention, h_t without."""
        if self.attention is None or self.combine is None:
            return self.dropout(H)
        attend, Q, K, mask = self.attention, H.unsqueeze(1), states.unsqueeze(1), Mask(source_real)
        Y = attend(Q, K, K, mask).Y
        if observe is not None:
            scoring = Scoring.of([attend], Q.shape[-1], Context())
            weigh = lambda: attend(Q, K, K, mask, weights=True).P  # noqa: E731
            edited = observe(Observation(Slot("cross", 0), H, states, Q, K, K, mask, Y, scoring, weigh))
            Y = Y if edited is None else edited
        return self.dropout(self.combine(torch.cat([Y.squeeze(1), H], -1)).tanh())

    def start(self, source: Int[Tensor, "s i"], real: Bool[Tensor, "s i"] | None = None) -> RecurrentState:
        """The state before the first target token."""
        states, last = self.encode(source, real)
        return RecurrentState((last,) if isinstance(last, Tensor) else last, states, real)

    def step(
        self, tokens: Int[Tensor, "s beams"], state: RecurrentState
    ) -> tuple[Float[Tensor, "s beams w"], RecurrentState]:
        """Logits of the next token of each hypothesis, and the state after these tokens."""
        last = state.last[0] if len(state.last) == 1 else state.last
        H, last = _run(self.decoder, self.dropout(self.target_embedding(tokens.reshape(-1, 1))), last)
        X = self.read(H.reshape(*tokens.shape, -1), state.states, state.real)
        return self.logits(X), replace(state, last=(last,) if isinstance(last, Tensor) else last)

    def logits(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a w"]:
        return self.output(X)


def _run(cell: nn.RNNBase, X: Any, last: Any = None) -> Any:
    """Run a cell. Autocast wants bfloat16, which CPUs without AVX-512 lack: there the cell stays in float32."""
    on_cpu = next(cell.parameters()).device.type == "cpu"
    if on_cpu and torch.is_autocast_enabled("cpu") and torch.backends.cpu.get_cpu_capability() != "AVX512":
        with torch.autocast("cpu", enabled=False):
            return cell(X, last)
    return cell(X, last)
