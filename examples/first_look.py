# %% [markdown]
# # A first look: attention alone loses rank, and what saves it
#
# Stack attention layers without anything else, and all tokens become the same vector, doubly exponentially fast
# (Xie 2021, theorem 2.2, as corrected in claim S0.17). Add the skip connection, and they stay apart.

# %%
import re
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import attnworks
from attnworks.exam.linalg.residual import relative_residual
from attnworks.models import AttentionConfig, PureConfig

TOKENS, WIDTH, HEADS, LAYERS = 24, 32, 4, 8
console = Console(width=112, highlight=False, record=True)

# %% [markdown]
# ## One network, four wirings


# %%
def spread_by_layer(*, skip: bool = False, mlp: bool = False, norm: bool = False) -> list[float]:
    """Relative residual of the token vectors after each layer: 1 is far apart, 0 is all the same."""
    attention = AttentionConfig(heads=HEADS, d_k=WIDTH // HEADS, d_v=WIDTH // HEADS, bias=False)
    config = PureConfig(d_e=WIDTH, layers=LAYERS, attention=attention, skip=skip, mlp=mlp, norm=norm)
    network = attnworks.build(config, seed=0).double()
    X = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return [relative_residual(state).item() for state in network.states(X)]


wirings = {
    "attention only": spread_by_layer(),
    "+ MLP": spread_by_layer(mlp=True),
    "+ skip": spread_by_layer(skip=True),
    "+ skip, MLP, norm": spread_by_layer(skip=True, mlp=True, norm=True),
}

# %%
table = Table(box=None, padding=(0, 2))
table.add_column("after layer", justify="right")
for name in wirings:
    table.add_column(name, no_wrap=True, min_width=18)


def bar(value: float) -> str:
    colour = "green" if value > 0.3 else "yellow" if value > 1e-3 else "red"
    number = f"{value:.2f}" if value > 0.01 else f"{value:.0e}"
    return f"[{colour}]{'█' * round(12 * value):<12}[/] {number}"


for layer in range(LAYERS + 1):
    table.add_row(str(layer), *(bar(spread[layer]) for spread in wirings.values()))
console.print("\n[bold]How far apart are the tokens?[/] (1: spread out, 0: all the same vector)\n")
console.print(table)

# %% [markdown]
# ## What a head looks at
#
# Every attention layer shows its tensors to an observer, in any model.

# %%
words = ["Luca", "is", "studying", "in", "Spain", ".", "He", "is", "very", "happy", "."]
config = PureConfig(
    d_e=WIDTH, layers=1, attention=AttentionConfig(heads=HEADS, d_k=8, d_v=8, mechanism=("dense",) * 3 + ("luong-dot",))
)
maps: list[torch.Tensor] = []


def keep_weights(observation: attnworks.models.Observation) -> None:
    maps.append(observation.P[0])


causal = attnworks.attention.Mask(causal=True)
attnworks.build(config, seed=0)(torch.randn(1, len(words), WIDTH), causal, observe=keep_weights)
shades = " ░▒▓█"
console.print("\n[bold]Four heads of an untrained causal layer[/] (a row attends to the words left of it)\n")
for row, word in enumerate(words):
    cells = ["".join(2 * shades[min(4, int(5 * weight))] for weight in P[row]) for P in maps[0]]
    console.print(f"{word:>10}  [cyan]" + "  ".join(cells))

# %% [markdown]
# `python examples/first_look.py docs/first_look.svg` redraws the picture of the README.

# %%
if len(sys.argv) == 2:
    svg = console.export_svg(title="attnworks: a first look")
    without_remote_fonts = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    Path(sys.argv[1]).write_text(without_remote_fonts)
