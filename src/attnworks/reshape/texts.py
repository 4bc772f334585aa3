"""Split text into sentences for calibration and healing, and held-out sentences for evaluation.

For a language model, consecutive texts are joined into passages before they are split, so that a passage is wholly for
calibration or wholly for evaluation (`attnworks.text.passage_size`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from attnworks.core.errors import UsageError
from attnworks.text.corpora import corpus_fingerprint, open_corpus
from attnworks.text.passage_size import PassageSize
from attnworks.text.passages import Passage, from_file
from attnworks.text.sources import as_passages
from attnworks.text.tokenizers import TextReader
from attnworks.traces.text import TokenizedText

T = TypeVar("T")
CALIBRATION_PAIRS, HELD_OUT_SENTENCES = 10_000, 256
"""Training pairs to learn from, and test pairs to evaluate on."""
HELD_OUT_TOKENS = 6144
"""Tokens of the passages that a language model is evaluated on."""
MIN_PASSAGES = 8
"""Passages are shorter where that is needed to hold out this number of them."""
HELD_OUT_EVERY = 4
"""Of texts without a split of their own, every fourth is held out."""


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Passages to learn from, and passages to evaluate on.

    about               where they came from, so that they can be found again
    learn_numbers       the number of each passage to learn from among the texts that were given; None for a corpus,
                        and for texts that were joined
    held_out_numbers    likewise
    texts               the number of texts that were given
    """

    learn: Sequence[Passage]
    held_out: Sequence[Passage]
    about: dict[str, Any]
    learn_numbers: Sequence[int] | None = None
    held_out_numbers: Sequence[int] | None = None
    texts: int | None = None

    @property
    def passage_tokens(self) -> int | None:
        """The most tokens of a passage, if texts were joined into passages."""
        return self.about.get("passage_tokens")

    def calibration(self, sentences: int, tokens: int) -> Sequence[Passage]:
        """Some of the passages to learn from: the first sentences, or passages from everywhere if texts were joined."""
        if self.passage_tokens is None:
            return self.learn[:sentences]
        return _spread(self.learn, max(MIN_PASSAGES, tokens // self.passage_tokens))


def split_corpus(
    spec: str,
    *,
    pairs: int = CALIBRATION_PAIRS,
    held_out: int | None = None,
    seed: int = 0,
    passage_size: PassageSize | None = None,
) -> TextSplit:
    """Training pairs to learn from, test pairs (or those for validation) to evaluate on."""
    corpus = open_corpus(spec, pairs=pairs, seed=seed)
    learn, test = corpus.train, [*corpus.test, *corpus.valid]
    if passage_size is not None:
        passage_size = passage_size.fitted(learn, MIN_PASSAGES).fitted(test, MIN_PASSAGES)
        learn, test = passage_size.join(learn), passage_size.join(test)
    sizes = _sizes(pairs, held_out, passage_size)
    about = {"corpus": spec, **sizes, "seed": seed, "sha256": corpus_fingerprint(corpus)}
    return _checked(TextSplit(learn, _some(test, sizes), about))


def split_passages(
    passages: Sequence[Passage],
    about: dict[str, Any],
    *,
    pairs: int = CALIBRATION_PAIRS,
    held_out: int | None = None,
    passage_size: PassageSize | None = None,
) -> TextSplit:
    """Every fourth passage is held out; of those that read the same, one is taken."""
    distinct = {passage.source.text: number for number, passage in enumerate(passages)}
    chosen: Sequence[Passage] = [passages[number] for number in distinct.values()]
    if passage_size is not None:
        chosen = chosen[: pairs * HELD_OUT_EVERY // (HELD_OUT_EVERY - 1)]
        passage_size = passage_size.fitted(chosen, MIN_PASSAGES * HELD_OUT_EVERY)
        chosen = passage_size.join(chosen)
    sizes = _sizes(pairs, held_out, passage_size)
    learn, test = _apart(chosen)
    split = TextSplit(learn[:pairs], _some(test, sizes), {**about, **sizes}, texts=len(passages))
    if passage_size is None:
        learned, held = _apart([*distinct.values()])
        split = replace(split, learn_numbers=learned, held_out_numbers=held)
    return _checked(split)


def split_file(
    path: Path, *, pairs: int = CALIBRATION_PAIRS, held_out: int | None = None, passage_size: PassageSize | None = None
) -> TextSplit:
    """Lines of a file, every fourth held out; at most `pairs` to learn from and `held_out` others."""
    digest = hashlib.sha256()
    passages, _ = from_file(path, digest)
    about = {"file": str(path.resolve()), "sha256": digest.hexdigest()}
    return split_passages(passages, about, pairs=pairs, held_out=held_out, passage_size=passage_size)


def split_texts(
    texts: Sequence[str] | Sequence[Passage],
    *,
    pairs: int = CALIBRATION_PAIRS,
    held_out: int | None = None,
    passage_size: PassageSize | None = None,
) -> TextSplit:
    """Texts in memory, every fourth held out."""
    given = as_passages(texts)
    return split_passages(given, {"texts": len(given)}, pairs=pairs, held_out=held_out, passage_size=passage_size)


def text_facts(calibration: TokenizedText, held_out: TokenizedText) -> dict[str, Any]:
    """What a receipt says about the texts that a model read."""
    both = {"calibration": calibration, "held-out": held_out}
    return {
        "calibration": len(calibration.kept),
        "calibration_tokens": calibration.tokens,
        "evaluation": len(held_out.kept),
        "evaluation_tokens": held_out.tokens,
        "written": held_out.written,
        "split": [f"{name} text: {text.split_note}" for name, text in both.items() if text.split_note is not None],
    }


def texts_of_receipt(about: dict[str, Any], reader: TextReader | None = None) -> TextSplit:
    """Read the texts of a receipt again; an error if they have changed.

    reader    of the model that reads them, for texts that were joined
    """
    sizes = {"pairs": about.get("pairs"), "held_out": about.get("held_out")}
    name, texts, tokens = about.get("corpus") or about.get("file"), None, about.get("passage_tokens")
    passage_size = PassageSize.of(reader, tokens) if reader is not None and type(tokens) is int else None
    if isinstance(name, str) and all(type(size) is int for size in sizes.values()):
        if "file" in about:
            texts = split_file(Path(name), **sizes, passage_size=passage_size)  # pyright: ignore[reportArgumentType]
        elif type(about.get("seed")) is int:
            texts = split_corpus(name, **sizes, seed=about["seed"], passage_size=passage_size)  # pyright: ignore[reportArgumentType]
    if texts is None or texts.about["sha256"] != about.get("sha256"):
        got = "texts that were given in Python" if texts is None else f"{name}, which changed"
        expected = "a corpus by name or a file, as they were"
        raise UsageError("the same text again", expected, got, "reshape anew with text of your own")
    return texts


def _sizes(pairs: int, held_out: int | None, passage_size: PassageSize | None) -> dict[str, int]:
    """What a receipt says of the sizes of a text."""
    if passage_size is None:
        return {"pairs": pairs, "held_out": HELD_OUT_SENTENCES if held_out is None else held_out}
    passages = max(MIN_PASSAGES, HELD_OUT_TOKENS // passage_size.tokens) if held_out is None else held_out
    return {"pairs": pairs, "held_out": passages, "passage_tokens": passage_size.tokens}


def _some(held_out: Sequence[Passage], sizes: dict[str, int]) -> Sequence[Passage]:
    """The first sentences, or passages from everywhere."""
    most = sizes["held_out"]
    return _spread(held_out, most) if "passage_tokens" in sizes else held_out[:most]


def _spread(passages: Sequence[Passage], count: int) -> Sequence[Passage]:
    """This number of them, from all parts of a text; all if there are fewer."""
    count = min(count, len(passages))
    return [passages[len(passages) * number // count] for number in range(count)]


def _apart(items: Sequence[T]) -> tuple[list[T], Sequence[T]]:
    """All but every fourth, and every fourth."""
    learn = [*items]
    del learn[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return learn, items[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]


def _checked(texts: TextSplit) -> TextSplit:
    if not texts.learn or not texts.held_out:
        got = f"{len(texts.learn)} to fit the change on and {len(texts.held_out)} to evaluate it on"
        raise UsageError("the text", f"at least {HELD_OUT_EVERY} different sentences", got, "give more text")
    return texts
