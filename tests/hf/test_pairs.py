"""Pairs of texts in one sequence: models compute what they compute when transformers is called with both texts."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from tokenizers import processors
from torch import Tensor

import attnworks
from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage, Text
from attnworks.traces.subject import Subject, wrap
from tests.exam_helpers import LINES, TINY, tiny_tokenizer

PAIRS = [Passage(Text(one), Text(other)) for one, other in zip(LINES, reversed(LINES), strict=True)]
ENCODERS = ["bert", "albert", "electra", "distilbert", "camembert"]
"""With types of tokens, without them, and with one type alone."""


def pair_tokenizer(*, types: bool = True) -> Any:
    tokenizer = tiny_tokenizer("bert")
    ends = [(word, tokenizer.convert_tokens_to_ids(word)) for word in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ends
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"][:: 1 if types else 2]
    return tokenizer


def subject(name: str, tokenizer: Any) -> Subject:
    """CamemBERT and RoBERTa have one type of tokens, and an error for a second one."""
    changes: dict[str, Any] = {"type_vocab_size": 1} if name == "camembert" else {}
    return wrap(TINY[name].build(**changes), tokenizer)


def by_transformers(who: Subject, tokenizer: Any, texts: list[tuple[str, ...]], **options: Any) -> Tensor:
    """The last hidden states of transformers alone, for a batch that the tokenizer pads."""
    read = tokenizer(*map(list, zip(*texts, strict=True)), padding=True, return_tensors="pt", **options)
    model: Any = who.model
    body = model.base_model
    takes = signature(body.forward).parameters
    with torch.no_grad():
        return body(**{key: value for key, value in read.items() if key in takes})[0]


def hidden_of(who: Subject, passages: list[Passage]) -> list[Tensor]:
    """The hidden states of each passage, in their order."""
    text = who.read(passages, batch_tokens=4096)
    batch, rows = text.batch(0)
    assert len(batch) == len(passages)
    with torch.no_grad():
        hidden = who.run(batch).hidden
    return [hidden[place] for place in rows.argsort()]


@pytest.mark.parametrize("name", ENCODERS)
def test_a_batch_of_pairs_has_the_outputs_of_transformers(name: str) -> None:
    tokenizer = pair_tokenizer()
    who = subject(name, tokenizer).with_joined_pairs()
    given = {"return_token_type_ids": name != "camembert"}
    texts = [(pair.source.text, pair.target.text) for pair in PAIRS if pair.target is not None]
    expected = by_transformers(who, tokenizer, texts, **given)
    for own, right, text in zip(hidden_of(who, PAIRS), expected, texts, strict=True):
        real = len(tokenizer(*text)["input_ids"])
        torch.testing.assert_close(own[:real], right[:real], rtol=1e-9, atol=1e-9)


def test_types_of_tokens_count() -> None:
    """Without them BERT gives other numbers."""
    typed, plain = (subject("bert", pair_tokenizer(types=types)).with_joined_pairs() for types in (True, False))
    for one, other in zip(hidden_of(typed, PAIRS), hidden_of(plain, PAIRS), strict=True):
        assert not torch.allclose(one, other)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_without_a_separator_reads_two_lines(name: str) -> None:
    tokenizer = tiny_tokenizer(name)
    who = subject(name, tokenizer).with_joined_pairs()
    for own, pair in zip(hidden_of(who, PAIRS), PAIRS, strict=True):
        assert pair.target is not None
        (right,) = by_transformers(who, tokenizer, [(f"{pair.source.text}\n{pair.target.text}",)])
        torch.testing.assert_close(own[: len(right)], right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_without_joining_only_sources_are_read_and_no_types_are_given(name: str) -> None:
    tokenizer = pair_tokenizer() if name == "bert" else tiny_tokenizer(name)
    who = subject(name, tokenizer)
    sources = [Passage(pair.source) for pair in PAIRS]
    seen: list[dict[str, Any]] = []
    who.model.register_forward_pre_hook(lambda _, __, given: seen.append(given), with_kwargs=True)
    body: Any = who.model
    body.base_model.register_forward_pre_hook(lambda _, __, given: seen.append(given), with_kwargs=True)
    for one, other in zip(hidden_of(who, PAIRS), hidden_of(who, sources), strict=True):
        assert torch.equal(one, other)
    assert seen and all("token_type_ids" not in given for given in seen)
    assert "joined_pairs" not in who.read(PAIRS, batch_tokens=99).about()


def test_the_target_that_one_stack_is_given_is_read_in_the_same_sequence() -> None:
    tokenizer = pair_tokenizer()
    who = subject("bert", tokenizer)
    read = tokenizer(LINES[0], LINES[1], return_tensors="pt")
    with torch.no_grad():
        model: Any = who.model
        expected = model(**read).logits[0]
    assert torch.equal(who.logits(LINES[0], target=LINES[1]), expected)
    cache = attnworks.trace(who, LINES[0], target=LINES[1])
    assert cache["0.1"].key_tokens == tuple(tokenizer.convert_ids_to_tokens(read["input_ids"][0]))
    assert cache.logits is not None and torch.equal(cache.logits, expected)
    assert attnworks.trace(who, LINES[0]).tokens == ("<s>", *LINES[0].split(), "</s>")


def test_pairs_are_counted_and_cut() -> None:
    who = subject("bert", pair_tokenizer()).with_joined_pairs()
    assert who.read(PAIRS, batch_tokens=99).about()["joined_pairs"] == len(PAIRS)
    assert who.cut_to(9).read(PAIRS, batch_tokens=99).longest == 9


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="one stack"):
        subject("bart", tiny_tokenizer("bart")).with_joined_pairs()
    with pytest.raises(UsageError, match="two texts in every passage"):
        subject("bert", pair_tokenizer()).with_joined_pairs().read([Passage(Text(LINES[0]))], batch_tokens=99)
