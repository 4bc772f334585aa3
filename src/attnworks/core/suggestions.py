"""What to write instead of a name or an argument that is not there, also for those who know another tool."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_NAMES = {
    "attnworks.open(path)": "load load_model from_pretrained AutoModel HookedTransformer TransformerBridge read_exam",
    "attnworks.trace(model, text)": "run_with_cache get_attention get_attentions attentions ActivationCache",
    "attnworks.examine(model, texts)": "analyze analyse inspect measure evaluate attribute interpret pipeline",
    "attnworks.view(model)": "visualize visualise show plot head_view model_view neuron_view",
    "attnworks.prune(model, texts, keep=...)": "cut prune_heads remove_heads",
    "with attnworks.open(path).edit(off=...)": "run_with_hooks hooks add_hook ablate ablation intervene patch edit",
    "the method save of a Subject or an Examination": "save save_pretrained save_model",
    "attnworks.nn.MultiheadAttention": "MultiheadAttention MultiHeadAttention",
    "the command attnworks bench": "bench benchmark",
    "the command attnworks experiment": "experiment experiments",
    "the command attnworks demo": "demo",
}
"""What to write -> names in other tools, and names of commands."""
_INSTEAD = {name: here for here, names in _NAMES.items() for name in names.split()}

_ON_A_SUBJECT = {
    "attnworks.trace(subject, text)": "run_with_cache attentions",
    "attnworks.trace(subject, text).tokens": "to_tokens to_str_tokens tokenize encode",
    "subject.logits(text)": "forward __call__",
    "subject.edit(off=...)": "run_with_hooks hooks add_hook add_perma_hook ablate prune_heads",
    "attnworks.prune(subject, texts, keep=...)": "prune",
    "attnworks.examine(subject, texts)": "examine",
    "attnworks.view(subject)": "view plot show",
    "subject.save(folder)": "save_pretrained",
    "subject.model.config": "cfg",
}
_INSTEAD_ON_A_SUBJECT = {name: here for here, names in _ON_A_SUBJECT.items() for name in names.split()}

_ARGUMENTS = {
    "amount": "keep",
    "batch_size": "batch_tokens",
    "fraction": "keep",
    "gradient_accumulation_steps": "accumulate",
    "max_new_tokens": "max_length",
    "mechanism": "to",
    "mechanisms": "to",
    "model": "subject",
    "output_dir": "out",
    "ratio": "keep",
    "sentence": "text",
    "vocab": "tokenizer",
    "vocab_size": "vocabulary_size",
    "vocabulary": "tokenizer",
}
"""Arguments of other tools -> those of functions here."""


def name_instead(name: str, known: Collection[str]) -> str:
    """What to write instead of `attnworks.name`.

    >>> name_instead("run_with_cache", ["examine", "trace"]), name_instead("exmaine", ["examine", "trace"])
    ('use attnworks.trace(model, text)', "did you mean 'examine'?")
    """
    if name in _INSTEAD:
        return f"use {_INSTEAD[name]}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(known))}"


def subject_name_instead(name: str, known: Iterable[str], of_the_model: Collection[str]) -> str:
    """What to write instead of `subject.name`."""
    if name in _INSTEAD_ON_A_SUBJECT:
        return f"use {_INSTEAD_ON_A_SUBJECT[name]}"
    public = sorted(word for word in known if not word.startswith("_"))
    close = difflib.get_close_matches(name, public, n=1)
    if name in of_the_model:
        return f"use subject.model.{name}"
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(public)}"


def argument_instead(name: str, known: Collection[str]) -> str:
    """What to write instead of an argument that a function does not have.

    >>> argument_instead("lr", ["out", "learning_rate"]), argument_instead("amount", ["out", "keep"])
    ("did you mean 'learning_rate'?", "did you mean 'keep'?")
    """
    shared = [argument for argument in known if _words(name) < _words(argument) or _words(argument) < _words(name)]
    contained = difflib.get_close_matches(name, shared, n=1, cutoff=0.0)
    close = difflib.get_close_matches(name, known, n=1)
    found = [*arguments_meant(name, known), *contained, *close]
    return f"did you mean {found[0]!r}?" if found else f"it has {', '.join(known)}"


def arguments_meant(name: str, known: Iterable[str]) -> list[str]:
    """The arguments whose words begin with these letters, and what an argument of another tool is called here."""
    initials = [argument for argument in known if name == "".join(word[:1] for word in argument.split("_"))]
    return [*initials, *(argument for argument in known if argument == _ARGUMENTS.get(name))]


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in name.split("_")}
