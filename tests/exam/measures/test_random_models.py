"""Models with random weights do nothing in particular: hardly any of their heads has a role or a structured form."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import attnworks
from attnworks.exam.examination import Examination
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Passage
from attnworks.text.vocabulary import Vocabulary
from tests.tiny_models import transformers

SENTENCES = 40
WIDTH, HEADS, LAYERS = 48, 4, 2
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OWN = {"encoder": (LAYERS, 0), "decoder": (0, LAYERS), "both": (LAYERS, LAYERS)}
"""Layers of the encoder and of the decoder."""
AROUND = {"bert": "<s> $A </s>", "llama": "<s> $A", "t5": "$A </s>"}
DEFAULT, SHARP = 1.0, 3.0
"""Factors of the library's default spread of weights."""
MODELS = [
    *((name, seed, DEFAULT) for name in ("encoder", "decoder") for seed in (0, 1)),
    *((family, 0, DEFAULT) for family in ("bert", "gpt2", "llama", "t5")),
    *((family, 1, SHARP) for family in ("bert", "gpt2", "llama", "t5")),
    *((family, seed, DEFAULT) for family in ("bert", "gpt2", "llama") for seed in (2, 3)),
    *(("both", seed, DEFAULT) for seed in (0, 1)),
]  # fmt: skip


def passages(pairs: bool) -> list[Passage]:
    chosen = grammar_passages(256)[:: 256 // SENTENCES][:SENTENCES]
    if not pairs:
        return list(chosen)
    return [Passage(one.source, other.source) for one, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True)]


def own_model(name: str, seed: int) -> tuple[Any, Any]:
    texts = [passage.source.text.split() for passage in passages(False)]
    vocabulary = Vocabulary.train("word", texts)
    encoder, decoder = OWN[name]
    config = TransformerConfig(
        vocabulary=len(vocabulary), d_e=WIDTH, d_ff=2 * WIDTH, encoder_layers=encoder, decoder_layers=decoder,
        attention=AttentionConfig(heads=HEADS, d_k=WIDTH // HEADS, d_v=WIDTH // HEADS),
    )  # fmt: skip
    return attnworks.build(config, seed=seed), vocabulary


def model_of_transformers(family: str, seed: int, spread: float) -> tuple[Any, Any]:
    words = sorted({word for passage in passages(False) for word in passage.source.text.split()})
    ids = {word: place for place, word in enumerate([*SPECIAL, *words])}
    common = {"vocab_size": len(ids), "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **IDS}
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "initializer_range": 0.02 * spread}
    t5 = {"vocab_size": len(ids), "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH, "num_layers": LAYERS}
    t5 |= {"num_heads": HEADS, "initializer_factor": spread, "decoder_start_token_id": 0, **IDS}
    config, model = {
        "bert": (transformers.BertConfig(**common, **sizes), transformers.BertModel),
        "gpt2": (transformers.GPT2Config(**common, **sizes), transformers.GPT2LMHeadModel),
        "llama": (transformers.LlamaConfig(**common, **sizes, num_key_value_heads=2), transformers.LlamaForCausalLM),
        "t5": (transformers.T5Config(**t5), transformers.T5ForConditionalGeneration),
    }[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = model(config).eval()
    reader = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    reader.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    if family in AROUND:
        ends = [(word, ids[word]) for word in SPECIAL[1:3]]
        reader.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            single=AROUND[family], special_tokens=ends
        )
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return built, transformers.PreTrainedTokenizerFast(tokenizer_object=reader, **named)


def entries(exam: Examination, reading: str) -> Counter[str]:
    return Counter(label for found in exam.readings.of(reading) for row in found.value for label in row)  # pyright: ignore


def test_at_most_one_of_twenty_random_models_has_a_label() -> None:
    labelled = {}
    for name, seed, spread in MODELS:
        model, tokenizer = own_model(name, seed) if name in OWN else model_of_transformers(name, seed, spread)
        texts = passages(pairs=name in ("t5", "both"))
        probe = True if name in ("decoder", "gpt2", "llama") else None  # as without a choice of measures
        exam = attnworks.examine(model, texts, tokenizer=tokenizer, measures=["roles", "structure"], probe=probe)
        counts = {reading: entries(exam, reading) for reading in ("roles.label", "roles.sink", "structure.form")}
        heads = sum(exam.model["heads"].values())
        assert all(count.total() == heads for count in counts.values()), (name, counts)
        if shown := {reading: count for reading, count in counts.items() if set(count) != {"none"}}:
            labelled[name, seed, spread] = shown
    assert len(MODELS) == 20 and len(labelled) <= 1, labelled


@pytest.mark.smoke
def test_a_head_that_is_planted_in_a_random_model_has_its_label() -> None:
    """The same sentences are enough to see it: with queries that are like keys, tokens attend to themselves."""
    model, vocabulary = own_model("encoder", 0)
    attention = model.encoder[0].attention
    with torch.no_grad():
        attention.W_Q[1] = 300 * attention.W_K[1]
    exam = attnworks.examine(model, passages(False), tokenizer=vocabulary, measures=["roles"])
    assert exam["roles.label"].value[0] == ("none", "self", "none", "none")
