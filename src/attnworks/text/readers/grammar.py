"""`grammar` or `grammar:SEED`: the embedded English-Italian corpus, with gold structure. Needs no file and no network.

30,000 training pairs unless bounded, 1,000 for validation and 1,000 for test; its own splits keep lemma combinations
apart. Without SEED the corpus is drawn by the seed of the run.
"""

from __future__ import annotations

from functools import lru_cache

from attnworks.core.errors import UsageError
from attnworks.text import grammar
from attnworks.text.lines import Report
from attnworks.text.pair import Pair
from attnworks.text.passages import Passage, check_number, from_pair
from attnworks.text.readers.contract import CORPORA, Bounds, Splits

TRAINING_PAIRS = 30_000
HELD_OUT_PAIRS = 1_000


@CORPORA.register("grammar")
def embedded(argument: str, bounds: Bounds) -> Splits:
    seed = _seed(argument) if argument else bounds.seed
    train = grammar.pairs(TRAINING_PAIRS if bounds.pairs is None else bounds.pairs, seed, "train")
    valid, test = (list(_held_out(HELD_OUT_PAIRS, seed, split)) for split in ("valid", "test"))
    return Splits(train, valid, test, Report(len(train) + len(valid) + len(test)))


@lru_cache(maxsize=8)
def _held_out(number: int, seed: int, split: str) -> tuple[Pair, ...]:
    """Kept: drawing 1,000 pairs of a small split takes about a second, and a corpus is often opened again."""
    return tuple(grammar.pairs(number, seed, split))


def _seed(argument: str) -> int:
    try:
        return int(argument)
    except ValueError:
        raise UsageError(
            asked=f"corpus 'grammar:{argument}'",
            expected="grammar or grammar:SEED",
            got=f"a seed that is no whole number: {argument!r}",
            remedy="write for example grammar:7",
        ) from None


def grammar_passages(n: int) -> list[Passage]:
    """The default text: the first n test pairs of the grammar, English as source and Italian as target."""
    check_number(n)
    return [from_pair(pair) for pair in grammar.pairs(n, 0, "test")]
