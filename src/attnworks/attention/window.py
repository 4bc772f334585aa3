"""Window attention: each token sees its neighbours, all of them or every d-th."""

from __future__ import annotations

from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Context
from attnworks.attention.engines.band import attend_window
from attnworks.attention.mask import Mask
from attnworks.attention.patterns import WindowPattern
from attnworks.attention.sparse import Sparse, hidden_keys
from attnworks.core.checks import integer
from attnworks.core.errors import UsageError


@MECHANISMS.register("window")
class WindowAttention(Sparse):
    """Keys at most `window` steps to each side, a step being `dilation` tokens; causal: to the left only.

    `dilation` is one number, or several for the heads to take in turn: (1, 2, 4), written 1/2/4 in a spec. With one
    dilation everywhere only every d-th token is ever reached; mixed dilations fill the gaps (S4.83).

    Source: Conti 2024, section 2.1.1 (S4.82-S4.85, S4.154).
    Departs: `window` counts tokens to each side, where the document's w is the whole width.
    """

    name = "window"

    def __init__(self, *, window: int = 64, dilation: int | str | tuple[int, ...] = 1) -> None:
        super().__init__()
        window = integer(f"{self.name} with window", window, 0, remedy="write for instance window:window=64")
        self.pattern = self.window = WindowPattern(window, read_dilation(self.name, dilation))

    def fast(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, scale: float, context: Context) -> Tensor:
        del context
        return attend_window(Q, K, V, self.window, mask.causal, scale, hidden_keys(mask, len(Q)))

    def edges(self, queries: int, keys: int, heads: int, causal: bool) -> int:
        return sum(window_edges(queries, keys, self.window.window, step, causal) for step in self.window.steps(heads))


def window_edges(queries: int, keys: int, window: int, dilation: int = 1, causal: bool = False) -> int:
    """n (2w + 1) - w (w + 1) in a sequence of n > w tokens, summed over the `dilation` interleaved sequences.

    Source: Conti 2024, section 2.1.1 (S4.82); causal n (w + 1) - w (w + 1) / 2, of which the last `queries` rows count.
    """

    def whole_sequence(n: int) -> int:
        total = 0
        for start in range(min(dilation, n)):
            length = -(-(n - start) // dilation)
            reach = min(window, length - 1)
            hidden = reach * (reach + 1)
            total += length * (reach + 1) - hidden // 2 if causal else length * (2 * reach + 1) - hidden
        return total

    return whole_sequence(keys) - (whole_sequence(keys - queries) if causal else 0)


def read_dilation(name: str, dilation: object) -> tuple[int, ...]:
    """2, "1/2/4" or (1, 2, 4) as a tuple of numbers from 1."""
    parts = dilation.split("/") if isinstance(dilation, str) else dilation
    parts = tuple(parts) if isinstance(parts, list | tuple) else (parts,)
    try:
        numbers = tuple(int(part) for part in parts if not isinstance(part, bool | float))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != len(parts) or not numbers or min(numbers) < 1:
        asked, remedy = f"{name} with dilation={dilation}", f"write for instance {name}:dilation=1/1/2/4"
        raise UsageError(asked, "whole numbers from 1, one for all heads or several", repr(dilation), remedy)
    return numbers
