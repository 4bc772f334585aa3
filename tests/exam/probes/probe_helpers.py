"""Subjects for probes: tiny models with vocabularies of any size, and small ones that were trained on repeats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from attnworks.hf.subject import HFSubject
from tests.model_helpers import filled
from tests.tiny_models import TINY, transformers

SPECIALS = ("<unk>", "<pad>", "<s>", "</s>", "<t>")
FRAMES = {"none": "$A", "bos": "<s> $A", "both": "<s> $A </s>", "tagged": "<s> <t> $A </s>"}
"""Special tokens around a text."""


def word_tokenizer(words: int | Sequence[str], frame: str = "none") -> Any:
    """These ordinary tokens, or w0 to w{n-1} if a number n is given, after the special ones."""
    tokens = [*SPECIALS, *([f"w{number}" for number in range(words)] if isinstance(words, int) else words)]
    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    around = [(token, SPECIALS.index(token)) for token in ("<s>", "</s>", "<t>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=FRAMES[frame], special_tokens=around)  # pyright: ignore[reportAttributeAccessIssue]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=["<t>"],
    )  # fmt: skip


def tiny_subject(
    name: str, words: int, frame: str = "none", positions: int | None = None, seed: int = 0, **changes: Any
) -> HFSubject:
    """A tiny model in float64 with sharp random weights, as many positions, and a vocabulary of this size."""
    if positions is not None:
        changes["n_positions" if name == "gpt2" else "max_position_embeddings"] = positions
    model = TINY[name].build(vocab_size=len(SPECIALS) + words, pad_token_id=1, **changes)
    return HFSubject(filled(model, seed, spread=0.8), name, word_tokenizer(words, frame))


# Small models that were trained ---------------------------------------------------------------------------------------

WORDS, POSITIONS, LEAD = 35, 64, 7
VOCABULARY = len(SPECIALS) + WORDS
SHORTEST, LONGEST = 5, 32
"""Tokens that are repeated in training."""


def new_model(seed: int) -> Any:
    """Two layers of two heads, with MLPs of 8 neurons."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=POSITIONS, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, bos_token_id=2, eos_token_id=3, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config)


def subject_of(model: Any) -> HFSubject:
    return HFSubject(model.eval(), "trained", word_tokenizer(WORDS))


def repeated(source: torch.Generator, longest: int) -> tuple[Tensor, Tensor]:
    """A batch of `lead x x` of random tokens, of one length each time, and the weight of each prediction.

    Special tokens are drawn like all others: where some are never seen, copying is learned far later.
    """
    period, lead = (int(torch.randint(*ends, (), generator=source)) for ends in ((SHORTEST, longest), (0, LEAD + 1)))
    x = torch.rand(32, VOCABULARY, generator=source).argsort(-1)[:, : period + lead]
    ids = torch.cat([x, x[:, lead:]], 1)
    weight = torch.full(ids[:, 1:].shape, 0.1)
    weight[:, lead + period :] = 1.0
    return ids, weight


def chained(source: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of sentences in which two tokens may follow each token: nothing that was read before matters."""
    ids = [torch.randint(VOCABULARY, (32,), generator=source)]
    for _ in range(31):
        ids.append((3 * ids[-1] + 5 + 7 * torch.randint(2, (32,), generator=source)) % VOCABULARY)
    found = torch.stack(ids, 1)
    return found, torch.ones(found[:, 1:].shape)


def trained(steps: int, *, repeats: bool, seed: int = 0) -> tuple[HFSubject, list[float]]:
    """A model trained on repeats, first short and then longer ones, or on text without any; and its losses."""
    with torch.random.fork_rng():
        model, source = new_model(seed), torch.Generator().manual_seed(seed)
    rate, losses = 4e-3, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        longest = SHORTEST + 2 + int((LONGEST - SHORTEST - 1) * min(1.0, step / (0.6 * steps)))
        ids, weight = repeated(source, longest) if repeats else chained(source)
        logits = model(input_ids=ids).logits[:, :-1]
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(weight.shape)
        loss = (each * weight).mean() / weight.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50, 4 * (steps - step) / steps)
        optimizer.step()
        losses.append(float(loss.detach()))
    return subject_of(model), losses


@cache
def copier() -> HFSubject:
    """A model that continues what was repeated."""
    return trained(500, repeats=True)[0]
