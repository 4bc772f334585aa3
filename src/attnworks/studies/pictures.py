"""Attention maps as pictures: one panel per head, with the right words on both axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnworks.core.plotting import need_matplotlib


def draw_heads(trace: dict[str, Any], slot: str, path: Path) -> None:
    """All heads of one attention layer of a traced translation; rows are queries, columns keys.

    Source: in the manner of Conti 2024, figures 11 and 12.
    """
    need_matplotlib(path)
    from matplotlib.figure import Figure

    layer = next(layer for layer in trace["attention"] if layer["slot"] == slot)
    heads, queries, keys = layer["weights"], layer["queries"], layer["keys"]
    columns = min(4, len(heads))
    rows = -(-len(heads) // columns)
    figure = Figure(figsize=(1.2 + columns * (0.5 + 0.2 * len(keys)), 0.8 + rows * (0.5 + 0.2 * len(queries))))
    panels = figure.subplots(rows, columns, squeeze=False)
    image = None
    for number, panel in enumerate(panels.flat):
        if number >= len(heads):
            panel.set_axis_off()
            continue
        image = panel.imshow(heads[number], vmin=0, vmax=1, cmap="viridis")
        panel.set_title(f"{slot}.{number}", fontsize=9)
        panel.set_xticks(range(len(keys)), keys, rotation=90, fontsize=7)
        panel.set_yticks(range(len(queries)), queries if number % columns == 0 else [], fontsize=7)
        panel.tick_params(length=0)
        for side in panel.spines.values():
            side.set_visible(False)
    figure.suptitle(_TITLES[slot.partition(".")[0]], fontsize=10)
    assert image is not None
    figure.tight_layout()
    figure.colorbar(image, ax=panels.ravel().tolist(), shrink=0.6, label="attention weight", pad=0.01)
    figure.savefig(path, dpi=150, bbox_inches="tight")


_TITLES = {
    "enc": "Encoder self-attention: a source word (row) looks at source words",
    "dec": "Decoder self-attention: a word read (row) looks at words before it",
    "cross": "Cross-attention: to write the next word, the decoder (row) looks at source words",
}
