"""Which query sees which key by position alone: windows, global tokens, random blocks, and their unions.

>>> print(picture((WindowPattern(1) | GlobalPattern(1)).table(1, 6)[0]))
■ ■ ■ ■ ■ ■
■ ■ ■ · · ·
■ ■ ■ ■ · ·
■ · ■ ■ ■ ·
■ · · ■ ■ ■
■ · · · ■ ■
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError

_Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pattern:
    """A directed graph on the positions of a sequence, for each head: an edge where a query sees a key."""

    @abstractmethod
    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        """Whether query sees key, for one pair of positions among n."""

    @abstractmethod
    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        """The same for many pairs at once: (head, query, key), index tensors that broadcast together -> booleans."""

    def table(self, heads: int, n: int, *, queries: int | None = None, causal: bool = False) -> Bool[Tensor, "h i j"]:
        """All pairs, for the last `queries` positions of n (all of them by default)."""
        positions = torch.arange(n)
        query = positions[n - (n if queries is None else queries) :, None]
        head = torch.arange(heads)[:, None, None]
        linked = self.links(heads, n, causal)(head, query, positions)
        return (linked & (positions <= query) if causal else linked).expand(heads, len(query), n)

    def __or__(self, other: Pattern) -> Pattern:
        return UnionPattern((self, other))


@dataclass(frozen=True)
class FullPattern(Pattern):
    """Every query sees every key."""

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        return True

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        return lambda head, query, key: (query >= 0) & (key >= 0)


@dataclass(frozen=True)
class WindowPattern(Pattern):
    """Keys at most `window` steps away on each side, a step being `dilation` tokens; heads take dilations in turn.

    Source: Conti 2024, section 2.1.1 (S4.82-S4.84).
    Departs: `window` counts tokens to each side, where the document's w is the whole width.
    """

    window: int
    dilation: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        integer("WindowPattern with window", self.window, 0, remedy="for instance WindowPattern(2)")
        steps = self.dilation if isinstance(self.dilation, tuple) else ()
        if not steps or not all(type(step) is int and step > 0 for step in steps):
            asked, expected = f"WindowPattern with dilation={self.dilation}", "a tuple of whole numbers from 1"
            raise UsageError(asked, expected, repr(self.dilation), "for instance WindowPattern(2, (1, 2))")

    def steps(self, heads: int) -> tuple[int, ...]:
        """The dilation of each head."""
        return tuple(self.dilation[head % len(self.dilation)] for head in range(heads))

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        step = self.steps(head + 1)[head]
        return (key - query) % step == 0 and abs(key - query) <= self.window * step

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        steps = torch.tensor(self.steps(heads), device=device)
        return lambda head, query, key: (
            ((key - query) % steps[head] == 0) & ((key - query).abs() <= self.window * steps[head])
        )


@dataclass(frozen=True)
class BlockPattern(Pattern):
    """A window of whole blocks: the query's own block, and on each side as many blocks as hold `window` tokens.

    Source: Conti 2024, section 2.1.1 (S4.73, S4.76), in blocks as BigBird computes it.
    """

    window: int
    block: int

    def __post_init__(self) -> None:
        integer("BlockPattern with block", self.block, 1, remedy="for instance BlockPattern(4, 4)")
        integer("BlockPattern with window", self.window, 0, remedy="for instance BlockPattern(4, 4)")
        if self.window % self.block:
            asked = f"BlockPattern with window={self.window} and block={self.block}"
            found, whole = f"{self.window / self.block:.2f} blocks", -(-self.window // self.block) * self.block
            raise UsageError(asked, "a window of whole blocks", found, f"choose window={whole}")

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        return abs(query // self.block - key // self.block) <= self.window // self.block

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        reach = self.window // self.block
        return lambda head, query, key: (query // self.block - key // self.block).abs() <= reach


@dataclass(frozen=True)
class GlobalPattern(Pattern):
    """The first `count` tokens see all and are seen by all (S4.78, S4.86)."""

    count: int

    def __post_init__(self) -> None:
        integer("GlobalPattern with count", self.count, 0, remedy="for instance GlobalPattern(1)")

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        return query < self.count or key < self.count

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        return lambda head, query, key: (query < self.count) | (key < self.count)


@dataclass(frozen=True)
class RandomPattern(Pattern):
    """Each block of queries sees `count` whole blocks, drawn without repetition, anew for every head.

    Blocks nearer than `apart` blocks and the `first` blocks are never drawn, so that a union with a window and global
    tokens has no edge twice; a causal graph draws from earlier blocks alone. Where there are fewer, all are taken.
    Draws are hashed from (seed, head, block): a causal graph of a longer sequence begins like that of a shorter one.

    Source: Conti 2024, section 2.1.1 (S4.73, S4.79).
    """

    count: int
    block: int = 1
    seed: int = 0
    apart: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        for option, least in (("count", 0), ("block", 1), ("seed", 0), ("apart", 0), ("first", 0)):
            remedy = "for instance RandomPattern(2, block=4, seed=1)"
            integer(f"RandomPattern with {option}", getattr(self, option), least, remedy=remedy)

    def drawn(self, heads: int, n: int, causal: bool = False) -> np.ndarray:
        """The blocks [h m r] that each block of queries sees; -1 where there are no more."""
        return _drawn(self, heads, n, causal)

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        return key // self.block in self.drawn(head + 1, n, causal)[head, query // self.block]

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        drawn, blocks = torch.as_tensor(self.drawn(heads, n, causal), device=device), -(-n // self.block)
        linked = torch.zeros(heads, blocks, blocks + 1, dtype=torch.bool, device=device)
        linked.scatter_(2, drawn.where(drawn >= 0, blocks), value=True)
        return lambda head, query, key: linked[head, query // self.block, key // self.block]


@dataclass(frozen=True)
class WherePattern(Pattern):
    """Any rule (i, j) -> booleans on index tensors, such as lambda i, j: (i - j).abs() <= 3."""

    rule: Callable[[Tensor, Tensor], Tensor]

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        return bool(self.rule(torch.tensor(query), torch.tensor(key)))

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        return lambda head, query, key: self.rule(query, key)


@dataclass(frozen=True)
class UnionPattern(Pattern):
    """An edge where any of the parts has one."""

    parts: tuple[Pattern, ...]

    def sees(self, head: int, query: int, key: int, n: int, causal: bool = False) -> bool:
        return any(part.sees(head, query, key, n, causal) for part in self.parts)

    def links(self, heads: int, n: int, causal: bool = False, device: torch.device | None = None) -> _Rule:
        rules = [part.links(heads, n, causal, device) for part in self.parts]
        return lambda head, query, key: reduce(or_, [rule(head, query, key) for rule in rules])


def picture(table: Bool[Tensor, "i j"]) -> str:
    """A small graph as text: one line per query, a square per key that it sees (Figures 7-9 of Conti 2024)."""
    return "\n".join(" ".join("■" if seen else "·" for seen in row) for row in table.tolist())


@lru_cache(maxsize=64)
def _drawn(random: RandomPattern, heads: int, n: int, causal: bool) -> np.ndarray:
    """Floyd's sampling, for all heads and blocks at once: turn c of r draws among the first total - r + c + 1.

    A cached tensor would keep the mode (inference or not) of the first call; an array does not.
    """
    whole_blocks, own = n // random.block, np.arange(-(-n // random.block))
    before = np.maximum(own - random.apart - random.first, 0)
    after_start = np.maximum(own + random.apart + 1, random.first)
    after = np.zeros_like(own) if causal else np.maximum(whole_blocks - after_start, 0)
    total = before + after
    chosen = np.full((heads, len(own), random.count), -1)
    for turn in range(random.count):
        top = total - random.count + turn
        numbers = hashed(random.seed, np.arange(heads)[:, None], own, turn)
        draw = (numbers % np.maximum(top + 1, 1).astype(np.uint64)).astype(np.int64)
        taken = (chosen[..., :turn] == draw[..., None]).any(-1)
        every = np.where(turn < total, turn, -1)
        chosen[..., turn] = np.where(total <= random.count, every, np.where(taken, top, draw))
    before, after_start = before[:, None], after_start[:, None]
    shifted = np.where(chosen < before, chosen + random.first, chosen - before + after_start)
    return np.where(chosen < 0, -1, shifted)


def hashed(*parts: int | np.ndarray) -> np.ndarray:
    """Integers below 2^64, one for each combination of the parts (which broadcast), by the finaliser of splitmix64.

    The same parts give the same number on every machine and in every version, which a generator does not promise.
    """
    mixed = np.zeros(1, dtype=np.uint64)
    for part in parts:
        mixed = _finalise(mixed * _STEP + np.asarray(part).astype(np.uint64))
    return mixed


_STEP, _FIRST, _SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _finalise(x: np.ndarray) -> np.ndarray:
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
