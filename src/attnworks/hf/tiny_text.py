"""A tokenizer for tiny models, made in code, and short texts of its words."""

from __future__ import annotations

from typing import Any

from attnworks.hf import quiet
from attnworks.hf.tiny_config import configs_in, special_ids

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "fish",
    "child",
    "woman",
    "man",
    "house",
    "tree",
    "river",
    "stone",
    "cloud",
    "book",
    "chair",
    "sees",
    "hears",
    "knows",
    "likes",
    "finds",
    "follows",
    "takes",
    "gives",
    "and",
    "but",
    "that",
    "because",
    "while",
    "with",
    "under",
    "over",
    "near",
    "old",
    "new",
    "small",
    "red",
    ".",
    ",",
    "?",
]
TEXTS = (
    "the old cat sees a small bird near the river and the tree .",
    "a dog follows the child because the child likes the dog .",
    "the woman knows that the man likes the red house and the old tree , but the child likes the river .",
    "while the bird hears the dog , the fish finds a stone under the river .",
    "the man takes the book and the woman takes the chair near the house .",
    "a new cloud over the river , and the bird knows that .",
    "the child gives the dog a stone because the dog likes the child with the red book .",
    "the cat finds the fish under the chair , but the fish sees the cat .",
)
"""Texts of different lengths, so that batches are padded. The longest are longer than the attention windows of tiny
models, but no padding is farther from the text than a window: eager attention gives NaN there in float64."""
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"}


def word_ids(config: Any) -> list[int]:
    """The token ids that mean nothing special to a model with this config; the first four are for special tokens."""
    special, size = special_ids(config), vocabulary_size(config)
    return [number for number in range(4, size) if number not in special]


def vocabulary_size(config: Any) -> int:
    """The number of token ids; 100 in a model whose config does not say it."""
    sizes = [size for part in configs_in(config) if isinstance(size := vars(part).get("vocab_size"), int) and size > 4]
    return min(sizes, default=100)


def tiny_tokenizer(model: Any) -> Any:
    """A fast tokenizer that cuts at blanks, with a token for every id of the model's vocabulary.

    Special tokens have the ids that the config of the model says, others are free ones. An encoder, or the encoder
    before a decoder, gets a start and an end around each text.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    config, size = model.config, vocabulary_size(model.config)
    token_of = dict(zip(word_ids(config), WORDS, strict=False))
    free = [number for number in range(size) if number not in token_of and number not in special_ids(config)]
    specials: dict[str, str] = {}
    for name, token in SPECIAL.items():
        number = _own_id(config, f"{name}_id", size)
        number = free.pop(0) if number is None else number
        specials[name] = token_of.setdefault(number, token)
    vocabulary = {token_of.get(number, f"[{number}]"): number for number in range(size)}
    reader = Tokenizer(WordLevel(vocabulary, unk_token=specials["unk_token"]))
    reader.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    if getattr(config, "is_encoder_decoder", False) or not model.can_generate():
        start, end = specials["bos_token"], specials["eos_token"]
        reader.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            single=f"{start} $A {end}", special_tokens=[(token, vocabulary[token]) for token in {start, end}]
        )
    with quiet():
        return PreTrainedTokenizerFast(tokenizer_object=reader, **specials)


def _own_id(config: Any, name: str, size: int) -> int | None:
    """The id of a special token that the config, or one in it, says; the first, if it says several."""
    for part in configs_in(config):
        value = vars(part).get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and 0 <= value < size:
            return value
    return None
