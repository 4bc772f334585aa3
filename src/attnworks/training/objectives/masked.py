"""Cross-entropy of hidden words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.text.tokens import TextBatch, Tokens
from attnworks.training.objectives.contract import TEXT_OBJECTIVES, Outputs, TextObjective
from attnworks.training.objectives.language import mean_cross_entropy, scores_of

HIDDEN_SHARE = 0.15


@TEXT_OBJECTIVES.register("mlm")
class MaskedToken(TextObjective):
    """L = -1/|C| sum_{t in C} log p(x_t | x with all of C replaced by mask_id); 0 if C is empty.

    C is 15 % of the tokens of the text, one at least, none of special tokens. Which ones depends on the
    seed and the tokens of the sentence alone, so that they are the same in every batch, process and repetition.
    Source: Devlin et al. 2019 (BERT), section 3.1.
    Departs: hidden words are always replaced by mask_id; the source leaves or exchanges two in ten, to train.
    """

    name = "mlm"
    words = "how surprised the model is by hidden words, 15 % of each sentence"

    def __init__(self, mask_id: int, seed: int = 0) -> None:
        self.mask_id, self.seed = mask_id, seed

    def prepare(self, batch: TextBatch) -> TextBatch:
        source = batch.source
        ids = source.ids.masked_fill(self.hidden(source), self.mask_id)
        return TextBatch(replace(source, ids=ids), batch.target)

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        return mean_cross_entropy(scores_of(outputs), batch.source.ids, self.hidden(batch.source))

    def hidden(self, tokens: Tokens) -> Bool[Tensor, "b i"]:
        """The tokens of C; a token of the text that already is mask_id is left alone."""
        of_text = (tokens.real & ~tokens.special & (tokens.ids != self.mask_id)).cpu()
        chosen = torch.zeros_like(of_text)
        for row, (ids, real, candidates) in enumerate(zip(tokens.ids.cpu(), tokens.real.cpu(), of_text, strict=True)):
            places = candidates.nonzero().squeeze(-1)
            draws = np.random.default_rng([self.seed, *ids[real].tolist()]).random(len(places))
            number = min(len(places), max(1, round(HIDDEN_SHARE * len(places))))
            chosen[row, places[torch.from_numpy(draws.argsort()[:number])]] = True
        return chosen.to(tokens.ids.device)
