"""A layer with the interface of torch.nn.MultiheadAttention that attends by any registered mechanism.

>>> import torch
>>> from attnworks.nn import MultiheadAttention
>>> layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, dropout=0.0)
>>> layer.self_attn = MultiheadAttention(64, 4, batch_first=True, mechanism="window:window=8")
>>> layer(torch.randn(2, 100, 64)).shape
torch.Size([2, 100, 64])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.attention import Attended, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.torch_masks import mask_of_torch, with_visible_keys
from attnworks.core.checks import integer, number
from attnworks.core.errors import UsageError

_ASKED = "MultiheadAttention"


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with the keyword `mechanism`.

    head_h = A(X W_Q,h + b_Q,h, Z W_K,h + b_K,h, Z W_V,h + b_V,h), output = concat(head_1 ... head_H) W_O + b_O, where A
    is the mechanism; for "dense" A(Q, K, V) = softmax(Q K^T / sqrt(k) + M) V.

    Source: torch.nn.MultiheadAttention; Conti 2024, eq. 7 and 10 (S4.44, S4.57).
    Holds when: for "dense", outputs, weights and gradients are those of torch.
    Departs: a query that may attend to no key has zero weights and gives b_O, where torch gives NaN. `is_causal=True`
    needs no attn_mask. torch's fast path of inference, which knows dense attention alone, is never taken.

    The parameters have the names and shapes of torch's, so that a state dict of the one loads into the other with
    strict=True. A mechanism with parameters of its own (such as linformer) has them in the sub-module `mechanism`;
    load the state dict of a torch layer into such a layer with strict=False, or use `from_torch`.

    embed_dim      int: width of queries and outputs, a multiple of num_heads
    num_heads      int: number of heads, each of width embed_dim / num_heads
    dropout        float, default 0.0: probability to drop an attention weight while training; refused in training for
                   mechanisms whose outputs are not weights times values
    bias           bool, default True: biases in the projections
    add_bias_kv    bool, default False: append one learned key and value to each sequence
    add_zero_attn  bool, default False: append a key and a value of zeros to each sequence
    kdim           int or None, default None: width of keys; None for embed_dim
    vdim           int or None, default None: width of values; None for embed_dim
    batch_first    bool, default False: inputs and outputs are [batch, position, width], not [position, batch, width]
    device         device of the parameters, default None: torch's default device
    dtype          dtype of the parameters, default None: torch's default dtype
    mechanism      str, default "dense": a registered mechanism, with options as in "window:window=64"

    Keys that are appended have no position: mechanisms that go by position (window, longformer, ...) refuse them.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        mechanism: str = "dense",
    ) -> None:
        integer(f"{_ASKED} with embed_dim", embed_dim, 1)
        integer(f"{_ASKED} with num_heads", num_heads, 1, embed_dim)
        number(f"{_ASKED} with dropout", dropout, 0, 1)
        if embed_dim % num_heads:
            raise UsageError(
                f"{_ASKED} with {num_heads} heads", f"a multiple of {num_heads} as embed_dim", str(embed_dim),
                "choose a width that the heads divide",
            )  # fmt: skip
        spec = MechanismSpec.parse(mechanism)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self._qkv_same_embed_dim = False  # torch's encoder layers then leave their fast path, which knows dense alone
        built = spec.build(Geometry(num_heads, self.head_dim, self.head_dim))
        self.mechanism: Mechanism = built.to(device=self.out_proj.weight.device, dtype=self.out_proj.weight.dtype)
        self.spec = spec

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention, mechanism: str = "dense") -> MultiheadAttention:
        """A layer with the weights of a torch layer, copied, in the same mode."""
        if not isinstance(layer, nn.MultiheadAttention):
            raise UsageError("from_torch", "a torch.nn.MultiheadAttention", type(layer).__name__, "pass such a layer")
        weight = layer.out_proj.weight
        new = cls(
            layer.embed_dim,
            layer.num_heads,
            layer.dropout,
            layer.in_proj_bias is not None,
            layer.bias_k is not None,
            layer.add_zero_attn,
            layer.kdim,
            layer.vdim,
            layer.batch_first,
            weight.device,
            weight.dtype,
            mechanism=mechanism,
        )
        new.load_state_dict({**new.state_dict(), **layer.state_dict()})
        return new.train(layer.training)

    def _reset_parameters(self) -> None:
        """The initial values of torch, in the same order of random numbers."""
        for W in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if W is not None:
                nn.init.xavier_uniform_(W)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for b in (self.bias_k, self.bias_v):
            if b is not None:
                nn.init.xavier_normal_(b)

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, mechanism={str(self.spec)!r}"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs, and the weights if they are asked for; arguments and shapes are those of torch.

        key_padding_mask      [batch, keys]: True at keys to ignore, or floats that are added to the scores
        need_weights          return the map P of the mechanism; its rows are weights where `rows_sum_to_one` says so
        attn_mask             [queries, keys] or [batch * heads, queries, keys]: True at pairs to ignore, or floats
        average_attn_weights  the mean of P over the heads; otherwise one P per head
        is_causal             hide later keys. If attn_mask is given too, it alone decides, as the hint adds nothing

        A mask of zeros and -inf is recognised as padding or as causal, for mechanisms that take no other.
        """
        if query.is_nested:
            return self._forward_nested(query, key, value, key_padding_mask, need_weights, attn_mask, is_causal)
        one = query is key and key is value
        self._check_inputs(query, key, value)
        batched = query.dim() == 3
        if not batched:
            query, key, value = (T.unsqueeze(0) for T in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (T.transpose(0, 1) for T in (query, key, value))
        sizes = query.shape[0], self.num_heads, query.shape[1], key.shape[1]
        mask = mask_of_torch(key_padding_mask, attn_mask, is_causal, *sizes)
        Q, K, V = (T.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for T in self._project(query, key, value, one))
        added = K.shape[2] - sizes[3]
        Y, P = self._attend(Q, K, V, with_visible_keys(mask, *sizes[2:], added, Q.device), need_weights)
        Y = Y.transpose(1, 2).flatten(2)
        out = self.out_proj(Y if self.batch_first or not batched else Y.transpose(0, 1).contiguous())
        if P is not None and average_attn_weights:
            P = P.mean(1)
        if not batched:
            return out.squeeze(0), None if P is None else P.squeeze(0)
        return out, P

    def _project(self, query: Tensor, key: Tensor, value: Tensor, one: bool) -> tuple[Tensor, ...]:
        """Q, K and V of all heads [b . e], with the keys and values that are appended."""
        W, b = self.in_proj_weight, self.in_proj_bias
        if one and W is not None:
            Q, K, V = F.linear(query, W, b).chunk(3, -1)
        else:
            Ws = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if W is None else W.chunk(3)
            bs = (None, None, None) if b is None else b.chunk(3)
            Q, K, V = (F.linear(T, W, b) for T, W, b in zip((query, key, value), Ws, bs, strict=True))
        if self.bias_k is not None and self.bias_v is not None:
            K, V = (torch.cat([T, more.to(T.dtype).expand(len(T), 1, -1)], 1)
                    for T, more in ((K, self.bias_k), (V, self.bias_v)))  # fmt: skip
        if self.add_zero_attn:
            K, V = (F.pad(T, (0, 0, 0, 1)) for T in (K, V))
        return Q, K, V

    def _attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, need_weights: bool) -> Attended:
        """The mechanism, with dropped weights in training."""
        drops = self.training and self.dropout > 0
        if drops and not self._weighs_values(Q):
            raise UsageError(
                f"{self.spec} attention with dropout={self.dropout:g} in training",
                "a mechanism whose outputs are weights times values",
                f"{self.spec.name}, whose outputs are not",
                "build the layer with dropout=0.0",
            )
        Y, P = self.mechanism(Q, K, V, mask, weights=need_weights or drops)
        if P is None and (need_weights or drops):
            raise UsageError(
                f"the weights of {self.spec} attention",
                "a mechanism that has weights",
                "none",
                "pass need_weights=False",
            )
        if drops and P is not None:
            P = F.dropout(P, self.dropout)
            Y = P @ V
        return Attended(Y, P if need_weights else None)

    @torch.no_grad()
    def _weighs_values(self, like: Tensor) -> bool:
        """Whether Y = P V with rows of P that sum to one, tried on three positions."""
        if not self.mechanism.rows_sum_to_one:
            return False
        if "_weighs" not in vars(self):
            source = torch.Generator().manual_seed(0)
            shape = (3, 1, self.num_heads, 3, self.head_dim)
            Q, K, V = torch.randn(shape, generator=source).to(like).unbind()
            with torch.random.fork_rng(devices=[]):
                Y, P = self.mechanism(Q, K, V, weights=True)
            close = 1e-4 if like.dtype in (torch.float32, torch.float64) else 0.1
            self._weighs = P is not None and torch.allclose(P @ V, Y, rtol=close, atol=close)
        return self._weighs

    def _forward_nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        need_weights: bool,
        mask: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, None]:
        """Sequences of unequal lengths, as nn.TransformerEncoder gives them to its layers in eval mode."""
        other = query is not key or key is not value or padding is not None or mask is not None
        if other or need_weights or not self.batch_first:
            raise UsageError(
                f"{_ASKED} of nested tensors",
                "self-attention with batch_first=True, need_weights=False and no mask",
                "other inputs",
                "pass padded tensors and key_padding_mask, or build nn.TransformerEncoder(enable_nested_tensor=False)",
            )
        lengths = [len(sequence) for sequence in query.unbind()]
        X, real = query.to_padded_tensor(0.0), Mask.from_lengths(lengths).real
        assert real is not None
        Y = self(X, X, X, ~real.to(X.device), need_weights=False, is_causal=is_causal)[0]
        return torch.nested.as_nested_tensor([row[:length] for row, length in zip(Y, lengths, strict=True)]), None

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        shapes = [list(T.shape) for T in (query, key, value)]
        widths, batch = [self.embed_dim, self.kdim, self.vdim], 0 if self.batch_first else 1
        fits = (
            query.dim() in (2, 3)
            and all(len(shape) == query.dim() for shape in shapes)
            and [shape[-1] for shape in shapes] == widths
            and shapes[1][:-1] == shapes[2][:-1]
            and (query.dim() == 2 or shapes[0][batch] == shapes[1][batch])
        )
        if not fits:
            order = "batch, positions" if self.batch_first else "positions, batch"
            raise UsageError(
                _ASKED,
                f"query, key and value [{order}, width] or [positions, width], of widths {', '.join(map(str, widths))},"
                " one batch, and one length of key and value",
                ", ".join(map(str, shapes)),
                "check batch_first, and the order of the axes",
            )
