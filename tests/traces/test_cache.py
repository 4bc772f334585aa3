"""attnworks.trace against what a model computes: attention, outputs, residual stream; and not a bit is changed."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import attnworks
from attnworks.core.errors import UsageError
from attnworks.core.places import SHORT_KINDS, Kind, Slot
from attnworks.models import Recurrent, build
from attnworks.text.passages import Passage, Text
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Subject
from tests.exam_helpers import LINES, tiny_folder, tiny_tokenizer
from tests.model_helpers import filled, recurrent_config, transformer
from tests.tiny_models import TINY
from tests.traces.test_adapted import adapted

TEXT, TARGET = LINES[1], LINES[2]
VOCABULARY = Vocabulary.train("word", [line.split() for line in LINES])
SIZES: dict[str, Any] = {"vocabulary": len(VOCABULARY), "target_vocabulary": len(VOCABULARY)}
HUGGING_FACE = ("bert", "gpt2", "llama", "t5", "bart", "gpt_neox")


def hugging_face(name: str, **changes: Any) -> Subject:
    """A tiny model in float64 with its tokenizer."""
    return attnworks.wrap(TINY[name].build(**changes), tiny_tokenizer(TINY[name].build().config.model_type))


def recurrent(mechanism: str | None) -> Recurrent:
    model = filled(build(recurrent_config(mechanism=mechanism, **SIZES))).double().eval()
    assert isinstance(model, Recurrent)
    return model


def subjects(name: str) -> Subject:
    if name in HUGGING_FACE:
        return hugging_face(name)
    if name.startswith("recurrent"):
        return attnworks.wrap(recurrent(name.removeprefix("recurrent ")), VOCABULARY)
    layers: dict[str, Any] = {"encoder": {"decoder_layers": 0}, "decoder": {"encoder_layers": 0}}
    kind = name.removeprefix("own ").removeprefix("adapted ")
    model = transformer(**SIZES, **layers.get(kind, {})).eval()
    return attnworks.wrap(adapted(model, kind) if name.startswith("adapted") else model, VOCABULARY)


OWN = ("own encoder", "own decoder", "own encoder-decoder", "recurrent luong-dot", "recurrent bahdanau-additive")
ADAPTED = ("adapted encoder", "adapted decoder", "adapted encoder-decoder")
EVERY = (*HUGGING_FACE, *OWN, *ADAPTED)


def traced(subject: Subject) -> Any:
    return attnworks.trace(subject, TEXT, target=TARGET if "-" in subject.abilities.kind else None)


def close(got: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol / 100)


@pytest.mark.parametrize("name", EVERY)
def test_weights_are_the_softmax_of_scores_and_outputs_their_means_of_values(name: str) -> None:
    cache = traced(subjects(name))
    assert len(cache) == len(list(cache)) > 0
    for slot, layer in cache.layers.items():
        queries, keys = len(layer.query_tokens), len(layer.key_tokens)
        assert cache[str(slot)] is layer and layer.name == str(slot)
        assert layer.weights.shape == layer.scores.shape == (layer.heads, queries, keys)
        assert layer.Q.shape[:2] == (layer.heads, queries) and layer.K.shape[:2] == (layer.heads, keys)
        assert layer.V.shape[:2] == (layer.heads, keys) and layer.outputs.shape[:2] == (layer.heads, queries)
        close(layer.weights, layer.scores.softmax(-1))
        close(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
        close(layer.outputs, layer.weights @ layer.V)
        if slot.kind == "decoder":
            assert not layer.weights.triu(1).any() and layer.scores.isneginf().triu(1).any()
        for head in range(layer.heads):
            one = cache[f"{slot}.{head}"]
            assert torch.equal(one.weights, layer.weights[head]) and torch.equal(one.Q, layer.Q[head])
            assert one.heads == 1 and one.key_tokens == layer.key_tokens and one.name == f"{slot}.{head}"


@pytest.mark.parametrize("name", EVERY)
def test_tracing_changes_no_bit(name: str) -> None:
    subject = subjects(name)
    target = TARGET if "-" in subject.abilities.kind else None
    before = subject.logits(TEXT, target=target)
    cache: Any = attnworks.trace(subject, TEXT, target=target)
    assert torch.equal(cache.logits, before)
    assert torch.equal(subject.logits(TEXT, target=target), before)
    assert not cache.logits.requires_grad and not any(layer.Q.requires_grad for layer in cache.layers.values())


def run_eager(name: str, cache: Any) -> Any:
    """What transformers itself gives for the same tokens, with eager attention."""
    model = TINY[name].build(attn_implementation="eager")
    tokenizer = tiny_tokenizer(model.config.model_type)
    given = {"input_ids": torch.tensor([tokenizer.convert_tokens_to_ids(cache.tokens)])}
    if cache.target is not None:
        given["decoder_input_ids"] = torch.tensor([tokenizer.convert_tokens_to_ids(cache.target)])
    with torch.no_grad():
        return model(**given, output_attentions=True, output_hidden_states=True)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_what_transformers_gives(name: str, implementation: str) -> None:
    cache = traced(hugging_face(name, attn_implementation=implementation))
    given = run_eager(name, cache)
    rtol = 1e-5 if TINY[name].rotary else 1e-10  # eager attention of these families computes its softmax in float32
    close(cache.logits, given.logits[0], rtol)
    both = cache.target is not None
    kinds: dict[Kind, str] = {"encoder": "encoder_", "decoder": "decoder_", "cross": "cross_"}
    last_kind: Kind = "decoder" if both else next(iter(cache.layers)).kind
    shown: dict[Kind, str] = kinds if both else {last_kind: ""}
    for kind, prefix in shown.items():
        for number, weights in enumerate(getattr(given, f"{prefix}attentions")):
            close(cache[f"{SHORT_KINDS[kind]}.{number}"].weights, weights[0], rtol)
        if kind == "cross":
            continue
        *streams, last = getattr(given, f"{prefix}hidden_states")
        depths = len(cache.residual[kind])
        assert depths == len(streams) + 1
        for depth, stream in enumerate(streams):
            close(cache.residual[kind][depth], stream[0], rtol)
        if kind == last_kind:
            close(cache.hidden, last[0], rtol)


def test_keys_that_heads_share_are_repeated() -> None:
    layer = traced(hugging_face("llama"))["0"]
    assert layer.heads == 6 and layer.K.shape[0] == 6
    assert torch.equal(layer.K[0], layer.K[2]) and torch.equal(layer.V[3], layer.V[5])
    assert not torch.equal(layer.K[2], layer.K[3])
    scale = layer.Q.shape[-1] ** -0.5
    past = torch.ones_like(layer.scores[0], dtype=torch.bool).tril()
    close(layer.scores, (scale * layer.Q @ layer.K.mT).masked_fill(~past, -torch.inf))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_the_stream_of_a_transformer_of_attnworks(kind: str) -> None:
    subject = subjects(f"own {kind}")
    cache, model = traced(subject), subject.model
    assert isinstance(subject, OwnSubject)
    for side in {"encoder", "decoder"} & set(kind.split("-")):
        assert cache.residual[side].shape[0] == 3
    stacks = {}
    handles = [
        block.register_forward_hook(lambda _, __, out, at=(side, number): stacks.update({at: out}))
        for side in ("encoder", "decoder")
        for number, block in enumerate(getattr(model, side))
    ]
    subject.logits(TEXT, target=TARGET if "-" in kind else None)
    for handle in handles:
        handle.remove()
    assert stacks
    for (side, number), out in stacks.items():
        close(cache.residual[side][number + 1], (out[0] if isinstance(out, tuple) else out)[0])
    close(cache.logits, subject.model.logits(cache.hidden.unsqueeze(0))[0].detach())


# Tokens, names, texts ------------------------------------------------------------------------------------------------


def test_tokens_of_each_side() -> None:
    cache = traced(hugging_face("t5"))
    source, target = (*TEXT.split(), "</s>"), ("<pad>", *TARGET.split())
    assert cache.tokens == source and cache.target[: len(target)] == target
    assert cache["enc.1"].query_tokens == cache["enc.1"].key_tokens == source
    assert cache["dec.2"].query_tokens == cache["dec.2"].key_tokens == cache.target
    assert (cache["cross.0.2"].query_tokens, cache["cross.0.2"].key_tokens) == (cache.target, source)
    frame = cache["cross.0.2"].to_frame()
    assert list(frame.columns)[:2] == ["0 the", "1 very"] and frame.index[0] == "0 <pad>"
    assert frame.loc["1 a", "2 tired"] == pytest.approx(cache["cross.0.2"].weights[1, 2].item(), rel=1e-6)


def test_names() -> None:
    cache = traced(hugging_face("bert"))
    assert list(cache) == ["enc.0", "enc.1"] and cache["1"] is cache["enc.1"]
    assert torch.equal(cache["1.2"].weights, cache["enc.1"].weights[2])
    assert "1.2" in cache and "enc.0" in cache and "1.3" not in cache and "dec.0" not in cache and 3 not in cache
    assert repr(cache).startswith("<TraceCache of 13 tokens: 2 layers, 6 heads (enc.0, enc.1)")
    assert "weights [3, 13, 13]" in repr(cache["0"]) and "weights [13, 13]" in repr(cache["0.1"])
    cache = traced(hugging_face("t5"))
    assert "0" not in cache and "0.1" not in cache and "cross.2.1" in cache


@pytest.mark.parametrize(
    ("name", "told"), [("1.3", "enc.1.0 to enc.1.2"), ("nothing", "enc.0.0"), ("*", "6 heads"), ("dec.0", "enc.0.0")]
)
def test_names_that_do_not_exist(name: str, told: str) -> None:
    cache = traced(hugging_face("bert"))
    with pytest.raises(UsageError) as found:
        cache[name]
    assert told in str(found.value) and "\n" not in str(found.value)


def test_a_trace_of_a_model_without_heads_has_none_to_name() -> None:
    who = hugging_face("bert")
    empty, _ = attnworks.prune(who, LINES, heads="*")
    with pytest.raises(UsageError, match="a model with heads to choose, got none"):
        _ = attnworks.trace(empty, TEXT)["0.0"]


def test_terminals_and_notebooks_show_tables() -> None:
    cache = attnworks.trace(hugging_face("bert"), TEXT)
    for found, words in (
        (cache, ["enc.1", "value width", "tired child"]),
        (cache["1"], ["enc.1.2", "largest weight"]),
        (cache["1.2"], ["attends most to", cache.tokens[1]]),
    ):
        out = io.StringIO()
        Console(file=out, width=100).print(found)
        shown = out.getvalue()
        assert all(word in shown for word in words), shown
        assert all(word in found._repr_html_() for word in words) and "<pre" in found._repr_html_()


def test_get_returns_the_default() -> None:
    cache = attnworks.trace(hugging_face("bert"), TEXT)
    assert cache.get("1.2").name == cache.get((1, 2)).name == "enc.1.2" and (1, 2) in cache and (1, 99) not in cache
    assert cache.get("9.9") is None and cache.get("9.9", 3) == 3


@pytest.mark.parametrize("text", [["one", "two"], 3, b"bytes"])
def test_one_text_at_a_time(text: Any) -> None:
    with pytest.raises(UsageError, match=r"expected one text, got (list|int|bytes)"):
        attnworks.trace(hugging_face("bert"), text)
    with pytest.raises(UsageError, match=r"expected one text, got (list|int|bytes)"):
        attnworks.trace(hugging_face("t5"), TEXT, target=text)


def test_a_table_wants_one_head() -> None:
    with pytest.raises(UsageError, match=r"ask for enc\.0\.0"):
        traced(hugging_face("bert"))["0"].to_frame()


def test_paths_models_and_passages() -> None:
    folder = tiny_folder("gpt2")
    by_path = attnworks.trace(folder, TEXT)
    subject = attnworks.open(folder)
    by_model = attnworks.trace(subject.model, TEXT, tokenizer=tiny_tokenizer("gpt2"))
    by_passage = attnworks.trace(str(folder), Passage(Text(TEXT)))
    for cache in (by_model, by_passage):
        assert cache.tokens == by_path.tokens and torch.equal(cache["1"].weights, by_path["1"].weights)
    with pytest.raises(UsageError, match="tokenizer"):
        attnworks.trace(subject.model, TEXT)


def test_long_texts_are_cut_or_refused() -> None:
    subject = hugging_face("bert")
    long = " ".join(["the cat"] * 19)
    with pytest.raises(UsageError, match="at most 37 tokens"):
        attnworks.trace(subject, long)
    assert len(attnworks.trace(subject, long, max_length=11).tokens) == 11
    assert attnworks.trace(subject, long, max_length=11).tokens[-1] == "</s>"
    with pytest.raises(UsageError, match="positions"):
        attnworks.trace(subject, long, max_length=41)
    with pytest.raises(UsageError):
        attnworks.trace(subject, long)  # the subject itself is as it was


@pytest.mark.parametrize("name", ["gpt2", "t5", "own encoder-decoder"])
def test_short_texts(name: str) -> None:
    cache = attnworks.trace(subjects(name), "cat")
    assert all(layer.weights.isfinite().all() for layer in cache.layers.values())
    assert len(cache.tokens) == (1 if name == "gpt2" else 2)


def test_no_text() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        attnworks.trace(hugging_face("gpt2"), "")


def test_a_missing_target_is_written_by_the_model() -> None:
    subject = hugging_face("t5")
    (row,) = subject.write_targets([subject._reader.read(Text(TEXT))])
    cache = attnworks.trace(subject, TEXT)
    assert cache.target == tuple(subject.token(token, "target") for token in row.ids)
    assert cache["dec.0"].weights.shape[-1] == len(row.ids)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UsageError, match="attends"):
        attnworks.trace(attnworks.wrap(recurrent(None), VOCABULARY), TEXT, target=TARGET)


def test_a_model_without_an_output_layer() -> None:
    subject = hugging_face("t5-gated")
    cache = traced(subject)
    assert cache.logits is None and cache.hidden.shape == (len(cache.target), 13)
    with pytest.raises(UsageError, match="output layer"):
        subject.logits(TEXT)


def test_training_mode_is_kept_and_dropout_is_off() -> None:
    model = TINY["bert"].build(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).train()
    subject = attnworks.wrap(model, tiny_tokenizer("bert"))
    first, second = traced(subject), traced(subject)
    assert model.training and torch.equal(first.logits, second.logits)
    assert first[str(Slot("encoder", 0))].weights.equal(second["0"].weights)
