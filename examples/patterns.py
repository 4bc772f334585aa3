# %% [markdown]
# # Who sees whom: the patterns of sparse attention
#
# Windows, dilated windows, global tokens, random blocks and their unions, after Figures 7-9 of Conti 2024. Each picture
# is one head: a row per query, a square where it sees a key. Below stand the edges that are scored, of all n² pairs,
# and the layers after which every token has heard of every other.

# %%
import re
import sys
from pathlib import Path

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel

from attnworks.attention.bigbird import BigBird
from attnworks.attention.complexity import graph_diameter, spectral_gap
from attnworks.attention.patterns import (
    BlockPattern,
    FullPattern,
    GlobalPattern,
    Pattern,
    RandomPattern,
    WindowPattern,
    picture,
)

TOKENS = 16
console = Console(width=118, highlight=False, record=True)
patterns: dict[str, Pattern] = {
    "full": FullPattern(),
    "window 2": WindowPattern(2),
    "window 2, dilation 2": WindowPattern(2, (2,)),
    "blocks of 4, window 4": BlockPattern(4, 4),
    "global 2": GlobalPattern(2),
    "random 2": RandomPattern(2),
    "Longformer: window 1, global 1": WindowPattern(1) | GlobalPattern(1),
    "BigBird: window, global, random": BigBird(window=1, n_global=2, n_random=2, block=1).pattern,
    "BigBird, blocks of 2": BigBird(window=2, n_global=1, n_random=1, block=2).pattern,
}


# %%
def panel(name: str, pattern: Pattern) -> Panel:
    table = pattern.table(1, TOKENS)[0]
    layers = graph_diameter(table)
    words = f"{int(table.sum())} of {TOKENS**2}; {'never all' if layers is None else f'all after {layers}'}"
    drawn = picture(table).replace("■", "[cyan]■[/]").replace("·", "[dim]·[/]")
    return Panel(f"{drawn}\n\n{words}", title=name, width=38)


console.print(Columns([panel(*item) for item in patterns.items()]))

# %% [markdown]
# Random graphs look like the complete graph to a random walk (S4.79): a few random keys close the spectral gap that a
# window leaves open.

# %%
for name, pattern in (
    ("window 2", WindowPattern(2)),
    ("window 2 and random 2", WindowPattern(2) | RandomPattern(2)),
    ("full", FullPattern()),
):
    print(f"spectral gap at n = 256, {name}: {float(spectral_gap(pattern.table(1, 256)[0])):.3f}")

# %%
if len(sys.argv) > 1:
    svg = console.export_svg(title="attnworks: patterns of attention")
    Path(sys.argv[1]).write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL))
