"""The texts of probes: random tokens that are repeated, and a needle that is copied from a text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from jaxtyping import Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Text
from attnworks.text.tokenizers import TextReader
from attnworks.text.tokens import NO_WORD, Batch, TokenRow, collate
from attnworks.traces.subject import Subject

PERIOD, SEQUENCES, LONGEST_LEAD = 50, 16, 7
"""Tokens that are repeated, sequences, and the most random tokens before the first copy."""
PERIOD_CHANGES = (-2, -1, 1, 2)
"""What is added to the period in sequences 0, 1, 2, 3, and in these numbers again."""
NEEDLE, CONTEXT, NEEDLES = 8, 160, 8
"""Tokens of a needle, tokens of the text around it, and texts."""
MIN_PERIOD, MIN_ORDINARY_TOKENS = 4, 8
PROBE_BATCH_TOKENS, LOGITS_AT_ONCE = 640, 2**25
"""Tokens of a batch, and fewer where the table of logits would have more numbers: it takes most memory."""


@dataclass(frozen=True, eq=False)
class ProbeText:
    """Sequences in which some tokens are copied from `distance` tokens before.

    copies      begin and end of the copy in each sequence
    originals   begin and end of what was copied
    words       the size of the vocabulary; 0 if it is not known
    """

    rows: tuple[TokenRow, ...]
    copies: tuple[slice, ...]
    originals: tuple[slice, ...]
    pad: int
    words: int = 0

    def batches(self) -> list[tuple[Batch, slice]]:
        """Consecutive sequences of about PROBE_BATCH_TOKENS tokens or fewer, and which they are."""
        tokens = min(PROBE_BATCH_TOKENS, LOGITS_AT_ONCE // max(self.words, 1))
        size = max(1, tokens // max(map(len, self.rows)))
        parts = [slice(start, start + size) for start in range(0, len(self.rows), size)]
        return [(Batch(collate(self.rows[part], self.pad)), part) for part in parts]

    def original_of(self, part: slice, tokens: int, ahead: int = 0) -> Int[Tensor, "b i"]:
        """The place that each token of a copy was copied from, `ahead` of it; -1 at all other tokens.

        Places behind the original are left out.
        """
        found = torch.full((len(self.rows[part]), tokens), NO_WORD)
        for row, (copied, original) in enumerate(zip(self.copies[part], self.originals[part], strict=True)):
            number = copied.stop - copied.start - ahead
            found[row, copied.start : copied.start + number] = torch.arange(number) + original.start + ahead
        return found


def repeated_tokens(subject: Subject, *, seed: int = 0, period: int = PERIOD, sequences: int = SEQUENCES) -> ProbeText:
    """Random tokens x, without a token twice, then x again: [specials] lead x x [specials].

    The lead of each sequence has other random tokens, from none to LONGEST_LEAD, so that copies are shifted against the
    positions of the model. x has one or two tokens more or less than `period`, so that a head that attends at one
    distance finds the same token in a quarter of the sequences only. All are shorter where the vocabulary or the
    positions of the model ask for it.
    Source: Olsson et al. 2022, with a lead and several periods; no token occurs twice in a copy.
    """
    if subject.abilities.kind == "encoder-decoder":
        raise UsageError(f"probes of {subject.name}", "a model with one stack of layers", "two", "use --no-probe")
    ordinary, (before, after) = _ordinary(subject), _frame(subject)
    positions = (subject.max_length or 2**31) - len(before) - len(after)
    longest = period + PERIOD_CHANGES[-1]
    lead = max(0, min(LONGEST_LEAD, positions - 2 * longest, len(ordinary) - longest))
    longest = min(longest, (positions - lead) // 2, len(ordinary) - lead)
    if longest < MIN_PERIOD:
        expected = f"{2 * MIN_PERIOD} positions for text"
        raise UsageError(f"probes of {subject.name}", expected, f"{positions}", "use --no-probe")
    source = torch.Generator().manual_seed(seed)
    rows, copies, originals = [], [], []
    for sequence in range(sequences):
        change = PERIOD_CHANGES[sequence % len(PERIOD_CHANGES)] - PERIOD_CHANGES[-1]
        ahead, own = sequence % (lead + 1), max(MIN_PERIOD, longest + change)
        drawn = [ordinary[at] for at in torch.randperm(len(ordinary), generator=source)[: own + ahead].tolist()]
        begin = len(before) + ahead
        rows.append(_row(before, [*drawn, *drawn[ahead:]], after))
        originals.append(slice(begin, begin + own))
        copies.append(slice(begin + own, begin + 2 * own))
    return ProbeText(tuple(rows), tuple(copies), tuple(originals), _pad(subject), _words(subject))


def copied_needles(
    subject: Subject, *, seed: int = 0, context: int = CONTEXT, texts: int = NEEDLES
) -> ProbeText | None:
    """Sentences with a needle of random tokens at some place, which the end of the text copies.

    The text is the embedded corpus, read by the tokenizer of the model. None where the positions of the model have no
    place for a text of four needles.
    Source: Wu et al. 2024 (retrieval heads), with random tokens as needle.
    """
    ordinary, (before, after) = _ordinary(subject), _frame(subject)
    positions = (subject.max_length or 2**31) - len(before) - len(after)
    number = min(NEEDLE, len(ordinary) // 2)
    context = min(context, positions - 2 * number)
    if context < 2 * number:
        return None
    source = torch.Generator().manual_seed(seed)
    reader, (known, _) = _reader(subject), subject.vocabulary_sizes
    read = (reader.read(Text(passage.source.text)).text_ids for passage in grammar_passages(context))
    sentences = [token for ids in read for token in ids if known is None or token < known] or ordinary
    rows, copies, originals = [], [], []
    for _ in range(texts):
        start, place = (int(torch.randint(high, (), generator=source)) for high in (len(sentences), context - number))
        around = list(islice(cycle(sentences), start, start + context))
        others = sorted({*ordinary} - {*around})
        pool = others if len(others) >= number else ordinary
        needle = [pool[at] for at in torch.randperm(len(pool), generator=source)[:number].tolist()]
        rows.append(_row(before, [*around[:place], *needle, *around[place:], *needle], after))
        originals.append(slice(len(before) + place, len(before) + place + number))
        end = len(before) + context + 2 * number
        copies.append(slice(end - number, end))
    return ProbeText(tuple(rows), tuple(copies), tuple(originals), _pad(subject), _words(subject))


def _row(before: Sequence[int], ids: Sequence[int], after: Sequence[int]) -> TokenRow:
    special = (*[True] * len(before), *[False] * len(ids), *[True] * len(after))
    return TokenRow((*before, *ids, *after), special, (NO_WORD,) * len(special))


def _ordinary(subject: Subject) -> list[int]:
    """The ids of the tokens of text that the model knows."""
    size, _ = subject.vocabulary_sizes
    found = [token for token in _reader(subject).ordinary_ids() if size is None or token < size]
    if len(found) < MIN_ORDINARY_TOKENS:
        expected = f"a vocabulary of {MIN_ORDINARY_TOKENS} tokens or more"
        raise UsageError(f"probes of {subject.name}", expected, str(len(found)), "use --no-probe")
    return found


def _frame(subject: Subject) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that the tokenizer writes before and after a text; none where it marks all of it special."""
    row = _reader(subject).read(Text(subject.example_text or "The animal was tired ."))
    places = [place for place, special in enumerate(row.special) if not special]
    return (row.ids[: places[0]], row.ids[places[-1] + 1 :]) if places else ((), ())


def _pad(subject: Subject) -> int:
    return _reader(subject).pad_id


def _words(subject: Subject) -> int:
    return max((size for size in subject.vocabulary_sizes if size is not None), default=0)


def _reader(subject: Subject) -> TextReader:
    """The reader of the model, which cuts what is too long for it."""
    reader = copy.copy(subject.source)
    if reader is None:
        raise UsageError(f"probes of {subject.name}", "a tokenizer", "none", "use --no-probe")
    if reader.max_tokens is None:
        reader.cut_to(subject.max_length)
    return reader
