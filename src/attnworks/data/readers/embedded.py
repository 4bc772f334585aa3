"""`grammar` or `grammar:SEED`: the embedded English-Italian corpus, with gold structure. Needs no file and no network.

30,000 training pairs unless bounded, 1,000 for validation and 1,000 for test; its own splits keep lemma combinations
apart. Without SEED the corpus is drawn by the seed of the run.
"""

from __future__ import annotations

from attnworks.data import grammar
from attnworks.data.readers.contract import CORPORA, Bounds, Splits
from attnworks.data.readers.report import Report
from attnworks.errors import UsageError

TRAINING_PAIRS = 30_000
HELD_OUT_PAIRS = 1_000


@CORPORA.register("grammar")
def embedded(argument: str, bounds: Bounds) -> Splits:
    seed = _seed(argument) if argument else bounds.seed
    train = grammar.pairs(TRAINING_PAIRS if bounds.pairs is None else bounds.pairs, seed, "train")
    valid = grammar.pairs(HELD_OUT_PAIRS, seed, "valid")
    test = grammar.pairs(HELD_OUT_PAIRS, seed, "test")
    return Splits(train, valid, test, Report(len(train) + len(valid) + len(test)))


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
