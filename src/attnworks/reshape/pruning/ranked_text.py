"""The text that heads are ranked on: some of the calibration text and, for causal models, repeated random tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from attnworks.core.errors import UsageError
from attnworks.exam.probes.texts import repeated_tokens
from attnworks.text.tokens import TokenRow, count_rarity, exam_batches
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives.language import NextToken

RANKED_TOKENS, MAX_RANKED_TEXTS, MIN_RANKED_TEXTS = 2048, 128, 16
"""Heads are ranked on texts with about RANKED_TOKENS tokens in all, within these numbers of texts."""
WINDOW = 128
"""The largest number of tokens of a text that a causal model is ranked on."""
REPEATS_SHARE = 1 / 8
"""The share of repeated random tokens among the texts that a causal model is ranked on."""
REPEATS_SEED = 2**31
"""Added to the seed, so that other tokens are repeated than in the probes of an examination or a receipt."""
GRADIENT_TOKENS = 256
"""Padded tokens of a batch for gradients: few, as all its activations and logits are in memory at once."""


def ranked_text(text_loss: TextLoss, seed: int) -> TextLoss:
    """The loss on the text that heads are ranked on, in batches for gradients."""
    text = text_loss.text
    if isinstance(text_loss.objective, NextToken):
        text = with_repeats(some_texts(in_windows(text)), text_loss.original, seed)
    else:
        text = some_texts(text)
    return replace(text_loss, text=in_small_batches(text))


def reads_all(text_loss: TextLoss) -> bool:
    """Whether heads are ranked on all of this text."""
    text = text_loss.text
    return _step(in_windows(text) if isinstance(text_loss.objective, NextToken) else text) == 1


def some_texts(text: TokenizedText) -> TokenizedText:
    """Texts of all lengths, evenly chosen in the order of their lengths, with about RANKED_TOKENS tokens."""
    return text.part(slice(None, None, _step(text)))


def _step(text: TokenizedText) -> int:
    """One text of this number is ranked on."""
    lengths = [sum(len(rows[index]) for rows in text.sides) for index in _order(text)]
    fitting = int(RANKED_TOKENS * len(lengths) / sum(lengths))
    wanted = min(max(fitting, MIN_RANKED_TEXTS), MAX_RANKED_TEXTS)
    return max(1, -(-len(lengths) // wanted))


def in_windows(text: TokenizedText) -> TokenizedText:
    """Every text of one side as parts of at most WINDOW tokens and about equal length, which are numbered anew."""
    rows = [part for index in _order(text) for part in _windows(text.sides[0][index])]
    return _of_rows(text, rows)


def with_repeats(text: TokenizedText, subject: Subject, seed: int) -> TokenizedText:
    """The text, and random tokens that are repeated, which a model can only copy: one text in 1 / REPEATS_SHARE.

    They are sequences of the probes, with other tokens. A model for which there are none, as its vocabulary is too
    small or it has too few positions, is ranked on the text alone.
    """
    rows = [text.sides[0][index] for index in _order(text)]
    count = max(1, round(len(rows) * REPEATS_SHARE / (1 - REPEATS_SHARE)))
    try:
        repeats = repeated_tokens(subject, seed=REPEATS_SEED + seed, sequences=count).rows
    except UsageError:
        return text
    return _of_rows(text, [*rows, *repeats])


def in_small_batches(text: TokenizedText) -> TokenizedText:
    """The same texts in batches of about GRADIENT_TOKENS padded tokens, from short to long."""
    chosen = _order(text)
    batches = exam_batches(*([rows[index] for index in chosen] for rows in text.sides), batch_tokens=GRADIENT_TOKENS)
    return replace(text, batches=[[chosen[place] for place in batch] for batch in batches])


def _order(text: TokenizedText) -> list[int]:
    """The rows that are in batches, in their order."""
    return [index for batch in text.batches for index in batch]


def _of_rows(text: TokenizedText, rows: Iterable[TokenRow]) -> TokenizedText:
    """Other rows of one side, in batches from short to long."""
    rows = [*rows]
    numbers, batches = range(len(rows)), exam_batches(rows, batch_tokens=GRADIENT_TOKENS)
    return replace(
        text, sides=(rows,), rarities=(count_rarity(rows),), batches=batches, kept=numbers, passages=len(rows)
    )


def _windows(row: TokenRow) -> list[TokenRow]:
    count = -(-len(row) // WINDOW)
    cuts = [len(row) * number // count for number in range(count + 1)]
    return [TokenRow(row.ids[begin:end], row.special[begin:end], row.word[begin:end]) for begin, end in pairwise(cuts)]
