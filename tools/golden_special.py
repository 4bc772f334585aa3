"""Inputs of the recorded commands, and what is recorded although no command shows it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import struct
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from golden_clean import Cleaner
from golden_launch import SOURCE, ended, start

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
T5_SPECIAL = ("<pad>", "</s>", "<unk>", "<s>", "<mask>")
WORDS = [
    "cat", "dog", "child", "bird", "friend", "house", "apple", "garden", "book", "sea", "the", "a", "sees", "wants",
    "loves", "reads", "in", "of", "and", "it", "is", "tired", "very", "red", ".",
]  # fmt: skip
LINES = [
    "the cat sees a bird .",
    "the very tired child reads a book in the garden .",
    "a friend of the dog wants the red apple and it is tired .",
    "the sea loves it .",
    "it is very red .",
    "the bird sees the bird .",
    "a child and a friend wants the house .",
]
PARSES = [
    [("the", "DET", 2), ("cat", "NOUN", 3), ("sees", "VERB", 0), ("it", "PRON", 3), (".", "PUNCT", 3)],
    [("it", "PRON", 4), ("is", "AUX", 4), ("very", "ADV", 4), ("tired", "ADJ", 0), (".", "PUNCT", 4)],
]
WHO = {"Luca": "Luca", "Maria": "Maria", "the cat": "il gatto", "my friend": "il mio amico", "she": "lei"}
DOES = {"sees": "vede", "eats": "mangia", "wants": "vuole"}
WHAT = {"bread": "pane", "the red apple": "la mela rossa", "a house in Spain": "una casa in Spagna"}
PAIRS = [(f"{a} {b} {c} .", f"{WHO[a]} {DOES[b]} {WHAT[c]} .") for a, b, c in product(WHO, DOES, WHAT)]

_BERT = {
    "vocab_size": 53, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 23,
    "max_position_embeddings": 37, "pad_token_id": 1,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", _BERT),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 53, "n_embd": 15, "n_layer": 2, "n_head": 3, "n_inner": 23, "n_positions": 37}
        | {"bos_token_id": 0, "eos_token_id": 0, "scale_attn_by_inverse_layer_idx": True},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 53, "d_model": 13, "d_kv": 5, "d_ff": 23, "num_layers": 2, "num_decoder_layers": 3}
        | {"num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
        | {"decoder_start_token_id": 0},
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        _BERT | {"hidden_size": 30, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6}
        | {"attention_bias": True},
    ),
}  # fmt: skip


# --- inputs ---


def make_inputs(work: Path) -> dict[str, Any]:
    """Texts, corpora and tiny models of Hugging Face with random weights, the same each time."""

    def write(name: str, lines: list[str]) -> None:
        (work / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    write("lines.txt", LINES)
    write("more.txt", LINES * 3)
    write("sides.txt", [f"{line}\t{other}" for line, other in zip(LINES, LINES[1:] + LINES[:1], strict=True)])
    write("pairs.tsv", ["\t".join(pair) for pair in PAIRS])
    write("english.txt", [pair[0] for pair in PAIRS])
    write("italian.txt", [pair[1] for pair in PAIRS])
    rows = [
        [f"{at}\t{word}\t{word}\t{tag}\t_\t_\t{head}\t_\t_\t_" for at, (word, tag, head) in enumerate(parse, 1)]
        for parse in PARSES
    ]
    write("parses.conllu", [line for parse in rows for line in (*parse, "")])
    catalogs = work / "catalogs" / "it" / "LC_MESSAGES"
    catalogs.mkdir(parents=True)
    (catalogs / "golden.mo").write_bytes(_catalog(dict(PAIRS)))
    for name in MODELS:
        _save_model(name, work / name)
    return {}


def _catalog(messages: dict[str, str]) -> bytes:
    """A .mo file: magic, version, count, two tables of (length, offset), the texts."""
    entries = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    texts = [text.encode() for column in zip(*entries, strict=True) for text in column]
    count, at, table = len(entries), 28 + 8 * len(texts), b""
    for text in texts:
        table += struct.pack("<II", len(text), at)
        at += len(text) + 1
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 28 + 8 * len(texts))
    return head + table + b"".join(text + b"\0" for text in texts)


def _save_model(name: str, folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    transformers.utils.logging.disable_progress_bar()
    model_name, config_name, settings = MODELS[name]
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model.eval().save_pretrained(folder)
    words = [*(T5_SPECIAL if name == "t5" else SPECIAL), *WORDS]
    tokenizer: Any = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = {"bert": "<s> $A </s>", "t5": "$A </s>"}.get(name)
    if around is not None:
        ends = [(word, words.index(word)) for word in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=ends)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    named |= {"mask_token": "<mask>"} if name == "bert" else {}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


# --- what no command shows ---


def batches(work: Path) -> dict[str, Any]:
    """Which pairs are in the batch of each step, and the hash of the training pairs, of every kind of corpus."""
    from attnworks.text.corpora import corpus_fingerprint, open_corpus
    from attnworks.text.tokenizers import read_pairs
    from attnworks.text.tokens import BatchOrder
    from attnworks.text.vocabulary import Vocabulary

    os.chdir(work)
    found: dict[str, Any] = {}
    for spec in ("grammar", "tsv:pairs.tsv", "text:english.txt,italian.txt", "gettext:catalogs"):
        corpus = open_corpus(spec)
        train = corpus.train[:2000]
        source = Vocabulary.train("word", [pair.words[0] for pair in train], 32000)
        target = Vocabulary.train("bpe", [pair.words[1] for pair in train], 300)
        order = BatchOrder(read_pairs(train, source, target), 120, seed=3)
        sizes = [len(corpus.train), len(corpus.valid), len(corpus.test)]
        rows = [order.rows(step) for step in range(200)]
        found[spec] = {"fingerprint": corpus_fingerprint(corpus), "sizes": sizes, "rows": rows}
    return found


CHANGES: list[dict[str, Any]] = [
    {},
    {"cut": ["enc.0.1", "enc.1.2"]},
    {"project": {"enc.0.0": "previous", "enc.1.1": "auto"}},
    {"swap": {"enc.1": "window:window=1"}},
    {"cut": ["enc.0.0"], "project": {"enc.1.0": "first"}, "swap": {"enc.1": "linear"}},
    {"cut": ["nowhere"]},
]


def served(model: str) -> Callable[[Path], dict[str, Any]]:
    """The page of a model that is served, and the answers to some questions."""

    def ask(work: Path) -> dict[str, Any]:
        logs = work.parent / f"serving-{model}"
        clean = Cleaner({str(work): "<work>", str(SOURCE.parent): "<checkout>"})
        arguments = ["serve", model, "--text", LINES[0], "--max-length", "23", "--threads", "1"]
        child = start(arguments, work, logs)
        try:
            address = _address(logs.with_suffix(".out"))
            answers: dict[str, Any] = {"page": clean.page(_sent(address, "GET", "")[1])}
            for kind in ("look", "examine"):
                for text in (LINES[1], LINES[3]):
                    for changes in CHANGES:
                        body = json.dumps({"text": text, "changes": changes})
                        status, answer = _sent(address, "POST", f"api/{kind}", body)
                        answers[f"{kind} {text} {json.dumps(changes)}"] = [status, clean.output(answer)]
            answers["no question"] = _sent(address, "POST", "api/look", "{}")
        finally:
            os.kill(child, signal.SIGTERM)
            done = ended(child, logs)
        return answers | {"exit": done.code}

    return ask


def _address(printed: Path) -> str:
    for _ in range(1200):
        if printed.exists() and (found := re.search(r"http://\S+", printed.read_text())):
            return found[0]
        time.sleep(0.1)
    raise TimeoutError("the server did not say where it serves")


def _sent(address: str, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=120)
    connection.request(method, parts.path + path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
