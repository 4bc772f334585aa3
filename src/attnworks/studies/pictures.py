"""Pictures of attention maps: heads of a layer, structured sets, nearest forms, and the cost of projection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from attnworks.core.plotting import need_matplotlib
from attnworks.theory import structured_sets

_TITLES = {
    "enc": "Encoder self-attention: a source word (row) attends to source words",
    "dec": "Decoder self-attention: a word read (row) attends to words before it",
    "cross": "Cross-attention: to write the next word, the decoder (row) attends to source words",
}
_WEIGHTS: dict[str, Any] = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0}
_COLOURS = {"after": "#d55e00", "healed": "#0072b2"}
_POINTS: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.6}
_LABELS = {
    "after": "at once",
    "healed": "after healing",
    "conti-1h": "one head, trained as usual",
    "conti-8h-structured": "all self-attention structured from the start",
}


def draw_heads(trace: dict[str, Any], slot: str, path: Path) -> None:
    """All heads of one attention layer of a traced translation; rows are queries, columns keys.

    Source: in the manner of Conti 2024, figures 11 and 12.
    """
    layer = next(layer for layer in trace["attention"] if layer["slot"] == slot)
    heads, queries, keys = layer["weights"], layer["queries"], layer["keys"]
    columns = min(4, len(heads))
    rows = -(-len(heads) // columns)
    figure = _new_figure(path, 1.2 + columns * (0.5 + 0.2 * len(keys)), 0.8 + rows * (0.5 + 0.2 * len(queries)))
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(heads) :]:
        panel.set_axis_off()
    for number, (panel, P) in enumerate(zip(panels.flat, heads, strict=False)):
        _show_map(panel, P, f"{slot}.{number}", _WEIGHTS, 9)
        panel.set_xticks(range(len(keys)), keys, rotation=90, fontsize=7)
        panel.set_yticks(range(len(queries)), queries if number % columns == 0 else [], fontsize=7)
    figure.suptitle(_TITLES[slot.partition(".")[0]], fontsize=10)
    figure.tight_layout()
    figure.colorbar(panels[0, 0].images[0], ax=panels.ravel().tolist(), shrink=0.6, label="attention weight", pad=0.01)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def draw_families(path: Path, n: int = 12, seed: int = 0) -> None:
    """A member of each family, and one of Sigma_3 with a sparse error.

    Source: in the manner of Conti 2024, figures 13 to 15.
    """
    draw = torch.Generator().manual_seed(seed)
    blocks = structured_sets.column_blocks(n, structured_sets.blocks_around(n, (3, 8), (5, 4)))
    errors = 0.1 * (2 * torch.rand(n, n, generator=draw) - 1) * (torch.rand(n, n, generator=draw) < 0.1)
    panels = {
        "$\\Sigma_1$: each token itself": structured_sets.identity_map(n),
        "$\\Sigma_2$: a band with dropout": structured_sets.sample_band(n, 2, 2, 0.3, draw),
        "$\\Sigma_3$: tokens 3 and 8, seen from around": blocks,
        "$\\Sigma_3$ with a sparse error": (blocks + errors).clamp(0, 1),
    }
    figure = _new_figure(path, 3.1 * len(panels), 3.3)
    for axis, (title, matrix) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        _show_map(axis, matrix.numpy(), title, _WEIGHTS, 9)
    figure.supylabel("query", fontsize=9)
    figure.supxlabel("key", fontsize=9)
    _save(figure, path)


def draw_forms(heads: list[list[list[float]]], example: dict[str, Any], path: Path) -> None:
    """For each head: its map on one sentence, the nearest structured form, an error of at most eps, and the rest.

    Source: in the manner of Conti 2024, figure 13, for real heads.
    """
    tokens, side = example["tokens"], 0.5 + 0.16 * len(example["tokens"])
    figure = _new_figure(path, 4.2 * side + 1.5, len(heads) * (side + 0.25))
    panels = figure.subplots(len(heads), 4, squeeze=False)
    limits = [_WEIGHTS, _WEIGHTS, _about_zero(0.04), _about_zero(1.0)]
    forms = zip(heads, example["forms"], example["P"], example["E"], strict=True)
    for row, (weights, name, form, error) in enumerate(forms):
        H, P, E = (torch.tensor(part) for part in (weights, form, error))
        left = float((H - P - E).abs().sum() / len(H))
        titles = (f"enc.0.{row}", f"nearest: {name}", "error up to ε", f"left over: {left:.2f} a row")
        for axis, matrix, title, limit in zip(panels[row], (H, P, E, H - P - E), titles, limits, strict=True):
            _show_map(axis, matrix.numpy(), title, limit, 8)
            if row == len(heads) - 1:
                axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
        panels[row][0].set_yticks(range(len(tokens)), tokens, fontsize=6)
    _save(figure, path, dpi=130)


def draw_cost(report: dict[str, Any], path: Path) -> None:
    """BLEU against the number of heads in structured forms, before and after healing; other models as lines."""
    figure = _new_figure(path, 6.4, 3.9)
    axis = figure.subplots()
    counts = range(len(report["projected"]))
    for key, label in (("bleu", "after"), ("healed_bleu", "healed")):
        scores = [row[key] for row in report["projected"]]
        axis.plot(counts, scores, color=_COLOURS[label], label=_LABELS[label], **_POINTS)
    for name, style in (("conti-1h", ":"), ("conti-8h-structured", "--")):
        if name in report["models"]:
            bleu = report["models"][name]["bleu"]
            axis.axhline(bleu, color="#555555", linestyle=style, linewidth=1.1, label=_LABELS[name])
    axis.set_xlabel("encoder heads in structured forms, those first that cost least")
    axis.set_ylabel("BLEU")
    axis.set_xticks(list(counts))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _about_zero(largest: float) -> dict[str, Any]:
    """Colours for numbers of both signs, from -largest to largest."""
    return {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}


def _new_figure(path: Path, width: float, height: float) -> Any:
    need_matplotlib(path)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _show_map(axis: Any, matrix: Any, title: str, colours: dict[str, Any], size: float) -> None:
    """A matrix as an image with a title of this font size, without frame and ticks."""
    axis.imshow(matrix, **colours)
    axis.set_title(title, fontsize=size)
    axis.set(xticks=[], yticks=[])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _save(figure: Any, path: Path, *, dpi: int = 150) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=dpi, bbox_inches="tight")
