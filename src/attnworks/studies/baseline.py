"""What can be had without attention: a word-for-word dictionary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from attnworks.text.pair import Pair


def dictionary_translations(train: Sequence[Pair], sentences: Sequence[Sequence[str]]) -> list[list[str]] | None:
    """Each word by the word it is most often aligned to in `train`, or by nothing if that is more frequent.

    None where the pairs carry no alignment. Words never seen stay as they are.
    """
    aligned: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for pair in train:
        if pair.truth is None:
            return None
        partners: defaultdict[int, list[int]] = defaultdict(list)
        for source, target in pair.truth.alignment:
            partners[source].append(target)
        for position, word in enumerate(pair.source):
            aligned[word].update([pair.target[other] for other in partners[position]] or [None])
    best = {word: counts.most_common(1)[0][0] for word, counts in aligned.items()}
    return [[other for word in sentence if (other := best.get(word, word)) is not None] for sentence in sentences]
