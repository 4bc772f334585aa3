"""The text that heads are ranked on: some of the calibration text and, for causal models, repeated random tokens."""

from __future__ import annotations

from collections.abc import Sequence
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
REPEATS_SHARE = 1 / 4
"""The share of repeated random tokens among the texts that a causal model is ranked on."""
REPEATS_SEED = 2**31
"""Added to the seed, so that other tokens are repeated than in the probes of an examination or a receipt."""
GRADIENT_TOKENS = 256
"""Padded tokens of a batch for gradients: few, as all its activations and logits are in memory at once."""


def ranked_text(text_loss: TextLoss, seed: int, times: int = 1) -> tuple[TextLoss, bool]:
    """The loss on the text that heads are ranked on, in batches for gradients, and whether that is all of the text.

    times    how many times as much text as usual
    """
    text = text_loss.text
    if isinstance(text_loss.objective, NextToken):
        rows = sorted((part for index in _order(text) for part in windows(text.sides[0][index])), key=len)
        step = _step([len(row) for row in rows], times)
        text = _of_rows(text, with_repeats(rows[::step], text_loss.original, seed))
    else:
        step = _step([sum(len(rows[index]) for rows in text.sides) for index in _order(text)], times)
        text = in_small_batches(text.part(slice(None, None, step)))
    return replace(text_loss, text=text), step == 1


def _step(lengths: Sequence[int], times: int) -> int:
    """How far apart the texts are that are chosen, in the order of their lengths, so that RANKED_TOKENS are read."""
    fitting = int(RANKED_TOKENS * len(lengths) / sum(lengths))
    wanted = times * min(max(fitting, MIN_RANKED_TEXTS), MAX_RANKED_TEXTS)
    return max(1, -(-len(lengths) // wanted))


def windows(row: TokenRow) -> list[TokenRow]:
    """A text as parts of at most WINDOW tokens and about equal length, each with the special tokens at its ends."""
    text = [place for place, special in enumerate(row.special) if not special] or range(len(row))
    before, after = range(text[0]), range(text[-1] + 1, len(row))
    tokens, limit = text[-1] + 1 - text[0], max(1, WINDOW - len(before) - len(after))
    count = -(-tokens // limit)
    cuts = [text[0] + tokens * number // count for number in range(count + 1)]
    return [_part(row, [*before, *range(*span), *after]) for span in pairwise(cuts)]


def _part(row: TokenRow, kept: Sequence[int]) -> TokenRow:
    ids, word = (tuple(of[place] for place in kept) for of in (row.ids, row.word))
    return TokenRow(ids, tuple(row.special[place] for place in kept), word)


def with_repeats(rows: Sequence[TokenRow], subject: Subject, seed: int) -> list[TokenRow]:
    """The rows, and random tokens that are repeated, which a model can only copy: one row in 1 / REPEATS_SHARE.

    They are sequences of the probes, with other tokens. A model for which there are none, as its vocabulary is too
    small or it has too few positions, is ranked on the rows alone.
    """
    count = max(1, round(len(rows) * REPEATS_SHARE / (1 - REPEATS_SHARE)))
    try:
        repeats = repeated_tokens(subject, seed=REPEATS_SEED + seed, sequences=count).rows
    except UsageError:
        repeats = ()
    return [*rows, *repeats]


def in_small_batches(text: TokenizedText) -> TokenizedText:
    """The same texts in batches of about GRADIENT_TOKENS padded tokens, from short to long."""
    chosen = _order(text)
    batches = exam_batches(*([rows[index] for index in chosen] for rows in text.sides), batch_tokens=GRADIENT_TOKENS)
    return replace(text, batches=[[chosen[place] for place in batch] for batch in batches])


def _order(text: TokenizedText) -> list[int]:
    """The rows that are in batches, in their order."""
    return [index for batch in text.batches for index in batch]


def _of_rows(text: TokenizedText, rows: Sequence[TokenRow]) -> TokenizedText:
    """Other rows of one side, in batches for gradients, from short to long."""
    numbers, batches = range(len(rows)), exam_batches(rows, batch_tokens=GRADIENT_TOKENS)
    return replace(
        text, sides=(rows,), rarities=(count_rarity(rows),), batches=batches, kept=numbers, passages=len(rows)
    )
