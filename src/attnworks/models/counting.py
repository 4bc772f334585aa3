"""Parameters of a model by part, FLOPs of a layer, and the share of them that is quadratic in length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from attnworks.models.build import skeleton
from attnworks.models.config import ModelConfig

_PART_OF = {
    "source_embedding": "source embedding",
    "target_embedding": "target embedding",
    "output": "output",
    "positions": "positions",
    "attention": "self-attention",
    "cross": "cross-attention",
    "mlp": "feed-forward",
    "encoder": "recurrent encoder",
    "decoder": "recurrent decoder",
    "combine": "attention output",
}


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, without allocating any; a matrix that parts share counts once, under all names."""
    users: dict[nn.Parameter, list[str]] = {}
    for name, parameter in skeleton(config).named_parameters(remove_duplicate=False):
        users.setdefault(parameter, []).append(_part(name))
    parts: dict[str, int] = {}
    for parameter, names in users.items():
        label = " = ".join(dict.fromkeys(names))
        parts[label] = parts.get(label, 0) + parameter.numel()
    return parts


def _part(name: str) -> str:
    pieces = name.split(".")
    if any("norm" in piece for piece in pieces):
        return "norms"
    if pieces[0] in {"encoder", "decoder", "layers"} and pieces[1].isdigit():
        return _PART_OF[pieces[2]]
    return "attention score" if pieces[0] == "attention" else _PART_OF[pieces[0]]


def layer_flops(n: int, d_e: int, d_ff: int | None = None) -> dict[str, int]:
    """FLOPs of an encoder layer over n positions, by part: 8 n d² for projections, 4 n² d, 4 n d m for feed-forward.

    Source: Conti 2024, section 2 (S4.69, S4.70); m = 4 d unless given. A multiplication and an addition count two.
    Holds when: attention is dense and its heads together are as wide as the stream.
    """
    m = 4 * d_e if d_ff is None else d_ff
    return {"projections": 8 * n * d_e**2, "attention": 4 * n**2 * d_e, "feed-forward": 4 * n * d_e * m}


def quadratic_share(n: int, d_e: int, d_ff: int | None = None) -> float:
    """n / (n + 2 d + m): the share of a layer's FLOPs that is quadratic in n; with m = 4 d it is half at n = 6 d.

    Source: S4.69, on when "most of the complexity lies in the self-attention" (Conti 2024, section 2).
    """
    flops = layer_flops(n, d_e, d_ff)
    return flops["attention"] / sum(flops.values())


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The hyper-parameters of a transformer stack, enough to count it in closed form (D13).

    d_attention     heads times width of a head
    d_shared        the width of keys, and of values, if heads share them (multi-query), else d_attention
    gated           three feed-forward matrices instead of two
    biases, norms   whether linear maps have biases, and whether there are layer norms, two to a layer
    """

    vocabulary: int
    layers: int
    d_e: int
    d_ff: int
    d_attention: int
    d_shared: int
    positions: int = 0
    segments: int = 0
    gated: bool = False
    biases: bool = True
    norms: bool = True
    embedding_norm: bool = False
    final_norm: bool = False
    pooler: bool = False

    def count_parameters(self) -> dict[str, int]:
        """Parameters by part; input and output embeddings are one matrix.

        Source: Conti 2024, table 1, worked out in S4.63-S4.68 and D13.
        """
        L, d, a, s, m, b = self.layers, self.d_e, self.d_attention, self.d_shared, self.d_ff, int(self.biases)
        parts = {
            "embedding": self.vocabulary * d,
            "positions": (self.positions + self.segments) * d,
            "self-attention": L * (2 * d * a + 2 * d * s + b * (a + 2 * s + d)),
            "feed-forward": L * ((3 if self.gated else 2) * d * m + b * (m + d)),
            "norms": 2 * d * (2 * L * self.norms + self.embedding_norm + self.final_norm),
            "pooler": (d * d + d) * self.pooler,
        }
        return {part: count for part, count in parts.items() if count}


@dataclass(frozen=True)
class Published:
    """A model of Conti's table 1: the stated number of parameters, and the hyper-parameters to compute it from."""

    title: str
    date: str
    stated: int
    claim: str
    blueprint: Blueprint


def _gpt(vocabulary: int, positions: int, layers: int, d_e: int, **options: Any) -> Blueprint:
    widths: dict[str, Any] = {"d_e": d_e, "d_ff": 4 * d_e, "d_attention": d_e, "d_shared": d_e}
    return Blueprint(vocabulary=vocabulary, positions=positions, layers=layers, **widths, **options)


def _gated(vocabulary: int, layers: int, **widths: Any) -> Blueprint:
    return Blueprint(vocabulary=vocabulary, layers=layers, **widths, gated=True, biases=False, norms=False)


PUBLISHED = {
    "gpt-1": Published("GPT-1", "June 2018", 117_000_000, "S4.63", _gpt(40_478, 512, 12, 768)),
    "bert-large": Published(
        "BERT-large",
        "October 2018",
        340_000_000,
        "S4.64",
        _gpt(30_522, 512, 24, 1024, segments=2, embedding_norm=True, pooler=True),
    ),
    "gpt-2-xl": Published(
        "GPT-2 XL", "February 2019", 1_500_000_000, "S4.65", _gpt(50_257, 1024, 48, 1600, final_norm=True)
    ),
    "gpt-3": Published("GPT-3", "May 2020", 175_000_000_000, "S4.66", _gpt(50_257, 2048, 96, 12_288, final_norm=True)),
    "lamda": Published(
        "LaMDA",
        "January 2022",
        137_000_000_000,
        "S4.67",
        _gated(32_000, layers=64, d_e=8192, d_ff=65_536, d_attention=128 * 128, d_shared=128 * 128),
    ),
    "minerva": Published(
        "Minerva (PaLM)",
        "June 2022",
        540_000_000_000,
        "S4.68",
        _gated(256_000, layers=118, d_e=18_432, d_ff=4 * 18_432, d_attention=48 * 256, d_shared=256),
    ),
}
"""The hyper-parameters of LaMDA and PaLM leave out norms, which their papers do not spell out."""
