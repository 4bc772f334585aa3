"""Tiny models of many layouts, and columns to add to their layers; what several tests of added columns share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices
from attnworks.hf.added_columns import add_columns
from attnworks.hf.anatomy import layout_of
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.linear import LinearMap, matrix_of
from attnworks.hf.tiny import TinyModel, tiny_model
from tests.model_helpers import the

KEYS, VALUES, NEW_K, NEW_V = 3, 2, 7, 5
"""Columns of keys for head 0, of values for head 1, and the widths of a new head."""
LAYOUTS = {
    "bert": "separate projections",
    "gpt2": "fused, in a Conv1D",
    "gpt_neox": "woven and rotary",
    "llama": "grouped and rotary",
    "gemma2": "capped scores and a window",
    "gpt_oss": "sink logits",
    "t5": "a bias for positions, and cross-attention",
    "bart": "cross-attention",
    "opt": "queries that are scaled before attention",
    "qwen3": "norms of queries and keys",
    "olmo2": "norms over all heads",
    "qwen3_next": "a gate, in a projection with the queries",
    "deepseek_v3": "latent keys and values, of which the cache keeps the latents",
    "gemma3n_text": "values with a norm",
    "doge": "a mask for each head, and values that are mixed by position",
}


class Grown(NamedTuple):
    """A tiny model with a layer to grow."""

    model: Any
    inputs: dict[str, Any]
    layout: AttentionLayout

    @property
    def attention(self) -> Any:
        return self.model.get_submodule(self.layout.path)

    def run(self) -> Tensor:
        with torch.no_grad():
            return self.model(**self.inputs)[0]

    def projections(self) -> tuple[str, str, str, str]:
        """The paths of those of queries, keys and values, and of the output."""

        def role(name: Any) -> str:
            found = [source.path for source in self.layout.sources if name in source.roles and not source.is_parameter]
            return found[-1]  # of the two that latent keys have, the one with the values

        value = role("value")
        keys = [source.path for source in self.layout.sources if "key" in source.roles and not source.is_parameter]
        return role("query"), value if value in keys else keys[0], value, the(self.layout.output_path)

    def maps(self) -> list[LinearMap]:
        return [the(matrix_of(self.model.get_submodule(path))) for path in self.projections()]

    def heads(
        self,
        keys: Sequence[int],
        values: Sequence[int],
        *,
        bias: bool = True,
        draw: Callable[..., Tensor] | None = None,
    ) -> list[HeadMatrices]:
        """Random heads of these widths."""
        (e, f, g), d = [linear.weight.shape[0] for linear in self.maps()[:3]], self.maps()[3].weight.shape[1]
        make = draw or random(self.maps()[0].weight.dtype)
        return [
            HeadMatrices(
                *(make(e, k), make(f, k), make(g, v), make(v, d)),
                *((make(k), make(k), make(v)) if bias else (None, None, None)),
            )
            for k, v in zip(keys, values, strict=True)
        ]

    def nothing(self, *, bias: bool = True) -> list[HeadMatrices]:
        """The heads of the layer as far as they are looked at: none of their own columns."""
        zero = [0] * self.layout.heads
        return self.heads(zero, zero, bias=bias)

    def add(self, heads: Sequence[HeadMatrices], *, bias: bool = True) -> None:
        add_columns(self.model, self.layout, self.layout.slots[0], heads, self.nothing(bias=bias))

    def some(self) -> list[HeadMatrices]:
        """Columns of keys for head 0, of values for head 1, and a new head."""
        n = self.layout.heads
        return self.heads([KEYS, *[0] * (n - 1), NEW_K], [0, VALUES, *[0] * (n - 2), NEW_V])


def random(dtype: torch.dtype, seed: int = 5) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


def grown(model_type: str, kind: str = "", number: int = -1) -> Grown:
    """A tiny model of this type, and its last layer, or that with another number, of all or of one kind."""
    tiny = _built(model_type)
    layers = [layout for layout in layout_of(tiny.model).layers if kind in ("", layout.slots[0].kind)]
    return Grown(copy.deepcopy(tiny.model), tiny.inputs, layers[number])


@cache
def _built(model_type: str) -> TinyModel:
    tiny = tiny_model(model_type)
    the(tiny.model).eval()
    return tiny


def reads(model: nn.Module, paths: Sequence[str]) -> tuple[dict[str, Tensor], list[Any]]:
    """The inputs of these projections in the next pass, and the hooks to remove."""
    found: dict[str, Tensor] = {}

    def remember(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            X = args[0]
            found[path] = X.squeeze(1) if X.dim() == 4 else X

        return hook

    return found, [model.get_submodule(path).register_forward_pre_hook(remember(path)) for path in paths]


def applied(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    return X @ W if b is None else X @ W + b
