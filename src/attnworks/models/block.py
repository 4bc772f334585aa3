"""One transformer block: attention and feed-forward, each with its residual sum, norm and dropout, or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.models.config import AttentionConfig, NormKind, NormOrder
from attnworks.models.layers import Dropout, FeedForward, LayerNorm
from attnworks.models.multihead import MultiHead, Observer
from attnworks.models.stepping import KeysValues


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """How the parts of a block hang together. The theorems on rank collapse switch them off one by one."""

    skip: bool = True
    norm: NormOrder | None = "post"
    norm_kind: NormKind = "standard"
    norm_eps: float = 1e-5
    dropout: float = 0.0


class Residual(nn.Module):
    """x -> LN(x + f(x)) (post), x + f(LN(x)) (pre), and the same without the sum or without the norm.

    Source: Conti 2024, section 1.2.2 (S4.33): u = LN(x + u').
    """

    def __init__(self, d_e: int, wiring: Wiring) -> None:
        super().__init__()
        self.skip, self.order = wiring.skip, wiring.norm
        self.norm = LayerNorm(d_e, wiring.norm_kind, wiring.norm_eps) if wiring.norm else None
        self.dropout = Dropout(wiring.dropout)

    def forward(self, x: Float[Tensor, "b i e"], part: Callable[[Tensor], Tensor]) -> Float[Tensor, "b i e"]:
        y = self.dropout(part(self.norm(x) if self.norm is not None and self.order == "pre" else x))
        if self.skip:
            y = x + y
        return self.norm(y) if self.norm is not None and self.order == "post" else y


class Block(nn.Module):
    """Self-attention, cross-attention if there is something to look at, and feed-forward, in this order (S4.153)."""

    def __init__(
        self,
        d_e: int,
        wiring: Wiring,
        *,
        self_attention: tuple[str, AttentionConfig],
        cross_attention: tuple[str, AttentionConfig] | None = None,
        d_ff: int | None = None,
    ) -> None:
        super().__init__()
        slot, attention = self_attention
        self.attention = MultiHead(d_e, attention, slot)
        self.attention_residual = Residual(d_e, wiring)
        self.cross = self.cross_residual = None
        if cross_attention is not None:
            slot, attention = cross_attention
            self.cross, self.cross_residual = MultiHead(d_e, attention, slot), Residual(d_e, wiring)
        self.mlp = self.mlp_residual = None
        if d_ff is not None:
            self.mlp, self.mlp_residual = FeedForward(d_e, d_ff, wiring.dropout), Residual(d_e, wiring)

    def forward(
        self,
        X: Float[Tensor, "b i e"],
        mask: Mask | None = None,
        Z: Float[Tensor, "b j e"] | None = None,
        Z_mask: Mask | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b i e"]:
        X = self.attention_residual(X, lambda x: self.attention(x, mask=mask, observe=observe))
        if self.cross is not None and self.cross_residual is not None:
            cross = self.cross
            X = self.cross_residual(X, lambda x: cross(x, Z, mask=Z_mask, observe=observe))
        return X if self.mlp is None or self.mlp_residual is None else self.mlp_residual(X, self.mlp)

    def step(
        self,
        X: Float[Tensor, "n 1 e"],
        own: KeysValues | None,
        memory: KeysValues | None,
        memory_padding: Bool[Tensor, "s j"] | None,
    ) -> tuple[Float[Tensor, "n 1 e"], KeysValues]:
        """One more position of n hypotheses, given the keys and values of those before and of the source.

        The n rows are [sentences beams] flattened; beams of a sentence look at its memory side by side, as if they were
        several queries of one sequence.
        """
        attention, cross = self.attention, self.cross
        grown: list[KeysValues] = []

        def attend_own(x: Tensor) -> Tensor:
            K, V = attention.keys_values(x)
            grown.append(KeysValues(K, V) if own is None else own.append(K, V))
            attended = attention.attend(attention.queries(x), grown[0].K, grown[0].V, Mask(causal=True))
            return attention.output(attended.Y)

        X = self.attention_residual(X, attend_own)
        if cross is not None and self.cross_residual is not None and memory is not None:
            sentences = memory.K.shape[0]

            def attend_memory(x: Tensor) -> Tensor:
                Q = cross.queries(x.reshape(sentences, -1, x.shape[-1]))
                attended = cross.attend(Q, memory.K, memory.V, Mask(memory_padding))
                return cross.output(attended.Y).reshape(x.shape)

            X = self.cross_residual(X, attend_memory)
        return (X if self.mlp is None or self.mlp_residual is None else self.mlp_residual(X, self.mlp)), grown[0]
