"""Layers that lose heads: what is left computes what the whole layer does with the others silenced."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import Slot
from attnworks.hf.head_modules import HeadsIn
from attnworks.hf.heads import hf_layers
from attnworks.hf.open import open_model
from attnworks.hf.standard import to_standard
from attnworks.models import AttentionConfig, TransformerConfig, build
from attnworks.models.anatomy import heads_of
from attnworks.models.decoding import greedy
from attnworks.models.folder import weights_fingerprint
from attnworks.models.multihead import MultiHead
from attnworks.reshape.evaluate import attention_flops
from attnworks.reshape.surgery import keep_heads, keep_heads_by_layer, layers_of, refusal_to_shrink, with_mechanisms
from tests.covering import covering
from tests.helpers import assert_close
from tests.hf.test_heads import grow, read
from tests.model_helpers import change_config, filled, pure_config, the
from tests.reshape.reshape_helpers import load, save
from tests.tiny_models import TINY, inputs, shared

CUTTABLE = tuple(name for name in TINY if not name.startswith("albert"))
OTHERS = ("bert-decoder", "roberta", "distilbert", "gpt2-cross", "opt", "marian", "qwen2", "vit")
MAIN = ("bert", "gpt2", "gpt_neox", "bart", "t5", "llama")
"""One of each kind of module, which loses all heads in every second layer too; what is like one of them is slow."""
BAND = "structured:members=-1..0/first,error=none"

Kept = dict[Slot, list[int]]


def groups(model: nn.Module) -> dict[Slot, tuple[int, int]]:
    """Heads, and heads that share keys and values, of every layer."""
    found = {}
    for slot, part in layers_of(model).items():
        assert part.weights is not None
        W = part.weights()
        found[slot] = len(W.W_O), len(W.W_O) // max(W.groups, 1)
    return found


def some(model: nn.Module) -> Kept:
    """Other groups in every second layer."""
    return {
        slot: [head for head in range(heads) if (head // per + number) % 2] or list(range(per))
        for number, (slot, (heads, per)) in enumerate(groups(model).items())
    }


def none_in_every_second(model: nn.Module) -> Kept:
    return {slot: [] for slot in list(groups(model))[::2]}


def cut(model: Any, kept: Mapping[Slot, Sequence[int]]) -> Any:
    new = copy.deepcopy(model)
    keep_heads_by_layer(new, kept)
    return new


@torch.no_grad()
def silenced(model: Any, kept: Mapping[Slot, Sequence[int]]) -> Any:
    """The model with W_O = 0 in the heads that are not kept."""
    new = copy.deepcopy(model)
    for slot, part in hf_layers(new).items():
        output = the(part.output)
        rows = [head.W_O for head in heads_of(part)]
        if isinstance(output, HeadsIn):
            rows = output.weight.split([len(W_O) for W_O in rows], 1)
        for number, W_O in enumerate(rows):
            if slot in kept and number not in kept[slot]:
                W_O.zero_()
    return new


@pytest.mark.parametrize(
    ("name", "which"),
    [
        pytest.param(
            name, which, marks=() if name in MAIN or (which is some and name in OTHERS) else (pytest.mark.slow,)
        )
        for name in CUTTABLE
        for which in (some, none_in_every_second)
    ],
)
def test_removed_is_silenced(name: str, which: Callable[[nn.Module], Kept], tmp_path: Path) -> None:
    model = shared(name)
    new = cut(model, which(model))
    assert_close(read(new), read(silenced(model, which(model))))
    assert not torch.allclose(read(new), read(model))
    assert sum(p.numel() for p in new.parameters()) < sum(p.numel() for p in model.parameters())
    folder = save(new, tmp_path / "cut")
    again = load(folder)
    assert weights_fingerprint(again) == weights_fingerprint(new)
    assert_close(read(again), read(new))
    assert again.config.attnworks_heads == {**new.config.attnworks_heads}
    assert json.loads((folder / "config.json").read_text())["model_type"].startswith("attnworks-")
    assert "attnworks.open" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", MAIN)
def test_all_heads_stay(name: str) -> None:
    model = shared(name)
    new = cut(model, {slot: list(range(heads)) for slot, (heads, _) in groups(model).items()})
    assert weights_fingerprint(new) == weights_fingerprint(model) and new.config.to_dict() == model.config.to_dict()


@pytest.mark.parametrize("which", [some, none_in_every_second])
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "opt", "bart", "t5"])
def test_writing_with_a_cache(name: str, which: Callable[[nn.Module], Kept]) -> None:
    whole = TINY[name].build(**({"num_decoder_layers": TINY[name].settings["num_layers"]} if name == "t5" else {}))
    model = cut(whole, which(whole))
    given = {key: value for key, value in inputs(model).items() if not key.startswith("decoder")}
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    with_cache, without = (
        model.generate(**given, max_new_tokens=5, do_sample=False, use_cache=cached) for cached in (True, False)
    )
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_gradients(name: str) -> None:
    """Of what is left they are those of the silenced model."""
    model = shared(name)
    kept = some(model)
    pair = cut(model, kept), silenced(model, kept)
    for one in pair:
        one(**inputs(one))[0].square().sum().backward()
    for slot, heads in kept.items():
        left, whole = (graded(one, slot) for one in pair)
        for new, old in enumerate(heads):
            for mine, theirs in zip(left[new], whole[old], strict=True):
                assert_close(mine, theirs)


def graded(model: nn.Module, slot: Slot) -> list[list[Tensor]]:
    """dL/dW of queries, values and output of every head."""
    of_grads = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, grad in zip(of_grads.parameters(), (p.grad for p in model.parameters()), strict=True):
            parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
    return [[head.W_Q, head.W_V, head.W_O] for head in heads_of(layers_of(of_grads)[slot])]


def test_counted() -> None:
    model = shared("bert")
    heads = groups(model)[Slot.parse("enc.0")][0]
    half, none = (attention_flops(cut(model, dict.fromkeys(groups(model), kept)), 11) for kept in ([0], []))
    assert half * heads == attention_flops(model, 11) and none == 0


# Grouped, shared and refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral"])
def test_groups_of_heads(name: str) -> None:
    """Each group keeps as many heads as any other, or goes with its keys and values; else keys are computed for all."""
    model = shared(name)
    heads, per = groups(model)[Slot.parse("dec.0")]
    assert per > 1, "a model with grouped heads"
    one_of_each = list(range(0, heads, per))
    assert_close(
        read(cut(model, {Slot.parse("dec.0"): one_of_each})), read(silenced(model, {Slot.parse("dec.0"): one_of_each}))
    )
    uneven = {Slot.parse("dec.0"): list(range(heads - 1))}
    new = copy.deepcopy(model)
    assert keep_heads_by_layer(new, uneven) == {Slot.parse("dec.0"): "stored"}
    assert_close(read(new), read(silenced(model, uneven)))
    assert layers_of(new)[Slot.parse("dec.0")].groups() == [head // per for head in range(heads - 1)]


def test_layers_that_share_their_weights(tmp_path: Path) -> None:
    """All of them lose the same heads, whichever is named."""
    model = shared("albert")
    new = cut(model, {Slot.parse("enc.1"): [0, 2]})
    assert {part.heads for part in layers_of(new).values()} == {2}
    assert_close(read(new), read(silenced(model, {slot: [0, 2] for slot in layers_of(model)})))
    assert_close(read(load(save(new, tmp_path / "cut"))), read(new))


@pytest.mark.parametrize(
    ("name", "slot", "kept", "told"),
    [
        ("bert", Slot.parse("enc.0"), [1, 0], "heads in another order"),
        ("bert", Slot.parse("enc.7"), [0], "no such layer"),
        ("bert", Slot.parse("enc.0"), [7], "numbers that are not those of its heads"),
        ("bert", Slot.parse("enc.0"), [-1], "numbers that are not those of its heads"),
        ("bert", Slot.parse("enc.0"), [1, 1], "twice the same"),
    ],
)
def test_refused(name: str, slot: Slot, kept: list[int], told: str) -> None:
    with pytest.raises(UsageError) as error:
        keep_heads(shared(name), slot, kept)
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "t5", "mt5"])
def test_what_transformers_can_represent(name: str, tmp_path: Path) -> None:
    """As many heads in every layer: a config without a word of ours, and plain from_pretrained."""
    model = shared(name)
    new = cut(model, {slot: list(range(per)) for slot, (_, per) in groups(model).items()})
    plain = to_standard(new)
    assert plain is not new and not hasattr(plain.config, "attnworks") and not hasattr(plain.config, "attnworks_heads")
    folder = save(plain, tmp_path / "plain")
    opened: Any = type(new).from_pretrained(folder, dtype=torch.float64)
    assert_close(read(opened), read(silenced(model, {s: list(range(per)) for s, (_, per) in groups(model).items()})))
    assert_close(read(load(folder)), read(new))


def test_what_transformers_cannot_represent() -> None:
    bert, t5 = shared("bert"), shared("t5")
    evenly = cut(bert, {slot: [0] for slot in groups(bert)})
    other_heads = cut(t5, {slot: [number % 2] for number, slot in enumerate(groups(t5))})
    some_layers = cut(t5, {Slot.parse("enc.0"): [0]})
    for model in (bert, evenly, other_heads, some_layers):
        assert to_standard(model) is model


# Several changes in a row --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "bart", "t5", "opt"])
def test_cut_and_grown(name: str, tmp_path: Path) -> None:
    """In either order, and once more; T5's positions stay with their heads."""
    model = shared(name)
    slot = next(iter(groups(model)))
    first = cut(model, {slot: [1, 2]})
    grow(first, [slot], silent=True)
    assert_close(read(first), read(silenced(model, {slot: [1, 2]})))
    second = TINY[name].build()
    grow(second, [slot])
    kept = [0, 2, groups(second)[slot][0] - 1]
    cut_after = cut(second, {slot: kept})
    assert_close(read(cut_after), read(silenced(second, {slot: kept})))
    assert_close(read(cut(cut_after, {slot: [2]})), read(silenced(second, {slot: kept[-1:]})))
    for number, one in enumerate((first, cut_after, cut(cut_after, {slot: [2]}), cut(cut_after, {slot: []}))):
        again = load(save(one, tmp_path / str(number)))
        assert weights_fingerprint(again) == weights_fingerprint(one) and torch.equal(read(again), read(one))


@pytest.mark.parametrize("name", ["bert", "opt", "llama", "t5"])
@pytest.mark.parametrize("kept", [[0, 1], [1], [2], []], ids=str)
def test_cut_after_other_mechanisms(name: str, kept: list[int], tmp_path: Path) -> None:
    """Structured heads have neither queries nor keys where the layer can do without."""
    model = shared(name)
    slot, (heads, per) = next(iter(groups(model).items()))
    given = with_mechanisms(model, {slot: ("dense", BAND, *("dense",) * (heads - 3), BAND)})
    if per > 1:
        kept = [per * group + place for group in kept[: heads // per] for place in range(per) if group < heads // per]
    new = cut(given, {slot: kept})
    assert_close(read(new), read(silenced(given, {slot: kept})))
    again = load(save(new, tmp_path / "cut"))
    assert weights_fingerprint(again) == weights_fingerprint(new)
    assert_close(read(again), read(new))


@pytest.mark.parametrize(
    "heads",
    [{"enc.0": [0, 9]}, {"enc.0": [0, 0]}, {"enc.0": [-1]}, {"enc.0": ["a"]}, {"enc.9": [0]}, {"enc.0": 3}, [1], None],
    ids=str,
)
def test_other_heads_are_not_believed(heads: object, tmp_path: Path) -> None:
    folder = save(cut(shared("bert"), {Slot.parse("enc.0"): [1]}), tmp_path / "cut")
    change_config(folder, attnworks_heads=heads)
    with pytest.raises(AttnworksError) as error:
        load(folder)
    assert "\n" not in str(error.value)


# Own models ----------------------------------------------------------------------------------------------------------


def layer(mechanism: str | tuple[str, ...], d_k: int | tuple[int, ...] = 5, **options: Any) -> AttentionConfig:
    return AttentionConfig(heads=3, d_k=d_k, d_v=4, mechanism=mechanism, **options)


OWN: dict[str, dict[str, AttentionConfig]] = {
    "dense": {},
    "mixed": {"enc.0": layer(("window:window=2", "dense", BAND)), "dec.1": layer((BAND,) * 3)},
    "long": {"enc.0": layer("longformer:window=2"), "enc.1": layer("linformer:length=19,rank=5")},
    "ragged": {"enc.0": layer("dense", (5, 7, 2)), "cross.1": layer("dense", (5, 7, 2))},
    "own parameters": {"enc.1": layer("luong-multiplicative"), "cross.0": layer("bahdanau-additive")},
    "no bias": {"enc.0": layer("dense", bias=False), "dec.0": layer("dense", bias=False, scale=0.3)},
}


def own(slots: dict[str, AttentionConfig]) -> Any:
    config = TransformerConfig(
        vocabulary=23, d_e=14, d_ff=17, attention=layer("dense"), encoder_layers=2, decoder_layers=2, slots=slots,
        dropout=0.0,
    )  # fmt: skip
    return filled(build(config, seed=1).double().eval(), 3)


@torch.no_grad()
def silenced_own(model: Any, kept: Mapping[Slot, Sequence[int]]) -> Any:
    new = copy.deepcopy(model)
    for slot, heads in kept.items():
        attention: Any = layers_of(new)[slot].attention
        for number, rows in enumerate(attention.value_widths.split(attention.W_O, 0)):
            if number not in heads:
                rows.zero_()
    return new


@pytest.mark.parametrize(("name", "kept", "every"), covering([*OWN], [(0, 2), (1,), (2,), ()], [1, 2]), ids=str)
def test_own_models(name: str, kept: tuple[int, ...], every: int, tmp_path: Path) -> None:
    """In every layer, or in every second one."""
    model = own(OWN[name])
    source, target = (torch.randint(4, 23, (2, n), generator=torch.Generator().manual_seed(n)) for n in (11, 7))
    wanted = dict.fromkeys(list(groups(model))[::every], kept)
    new, expected = cut(model, wanted), silenced_own(model, wanted)
    with torch.no_grad():
        assert_close(new(source, target), expected(source, target))
    found, other = (greedy(one, source, None, bos=1, eos=2, max_new_tokens=9) for one in (new, expected))
    assert [one.tokens for one in found] == [one.tokens for one in other]
    again = load(save(new, tmp_path / "cut"))
    assert weights_fingerprint(again) == weights_fingerprint(new) and again.config == new.config


def test_own_models_as_they_were() -> None:
    model = own(OWN["mixed"])
    new = cut(model, {slot: [0, 1, 2] for slot in groups(model)})
    assert weights_fingerprint(new) == weights_fingerprint(model) and new.config == model.config


def test_training_without_heads() -> None:
    """A layer without heads has nothing to train but its bias, and lets gradients by."""
    model = cut(own({}), {Slot.parse("enc.0"): [], Slot.parse("cross.1"): []}).train()
    ids = torch.randint(4, 23, (2, 7))
    model(ids, ids).square().mean().backward()
    attention: Any = layers_of(model)[Slot.parse("enc.0")].attention
    assert isinstance(attention, MultiHead) and attention.W_Q.numel() == attention.W_O.numel() == 0
    assert attention.b_O is not None and attention.b_O.grad is not None and bool(attention.b_O.grad.any())
    assert bool(model.source_embedding.weight.grad.any())


def test_pure_models_are_refused() -> None:
    model = build(pure_config(), seed=0)
    assert "layers are all alike" in str(refusal_to_shrink(model, Slot.parse("enc.0"), [0]))


# Met in use ----------------------------------------------------------------------------------------------------------


def test_numbers_of_heads_that_a_config_refuses(tmp_path: Path) -> None:
    """Llama's hidden size must be a multiple of its heads: 6 of 8 are written in our own way."""
    tokens: dict[str, Any] = {"vocab_size": 23, "num_hidden_layers": 2, "intermediate_size": 17}
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=8, num_key_value_heads=4, **tokens)
    model: Any = filled(transformers.LlamaForCausalLM(config), 3).double().eval()
    new = cut(model, {slot: [0, 1, 2, 3, 6, 7] for slot in groups(model)})
    assert to_standard(new) is new
    ids = {"input_ids": torch.arange(1, 12).unsqueeze(0)}
    with torch.no_grad():
        again = load(save(new, tmp_path / "cut"))
        assert_close(again(**ids).logits, new(**ids).logits)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_one_structured_head_of_each_group(name: str, tmp_path: Path) -> None:
    """Grouped layers never lose queries, also not where one head of each group is left."""
    model = shared(name)
    slot, (heads, per) = next(iter(groups(model).items()))
    given = with_mechanisms(model, {slot: ("dense", BAND, *("dense",) * (heads - 2))})
    kept = [1, *range(per, heads, per)]
    new = cut(given, {slot: kept})
    again = load(save(new, tmp_path / "cut"))
    assert weights_fingerprint(again) == weights_fingerprint(new)
    assert_close(read(again), read(new))
    assert_close(read(cut(new, {slot: [1]})), read(silenced(given, {slot: kept[1:2]})))


def test_rotary_frequencies_stay_exact(tmp_path: Path) -> None:
    model = TINY["llama"].build(dtype=torch.bfloat16)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.float()
    plain: Any = to_standard(cut(model, {slot: list(range(per)) for slot, (_, per) in groups(model).items()}))
    ours = cut(model, {Slot.parse("dec.0"): []})
    opened = open_model(str(save(ours, tmp_path / "cut")), dtype="bfloat16").model
    for one in (plain, opened):
        assert one.model.rotary_emb.inv_freq.dtype == torch.float32 and next(one.parameters()).dtype == torch.bfloat16


def test_global_tokens_beside_heads_that_do_not_look() -> None:
    """A second set of projections has all heads, also of those that attend by position alone."""
    model = own({"enc.0": layer((BAND, "longformer:window=2", "dense"))})
    ids = torch.randint(4, 23, (2, 7), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        whole = model(ids, ids)
        assert_close(
            cut(model, {Slot.parse("enc.0"): [0, 1]})(ids, ids),
            silenced_own(model, {Slot.parse("enc.0"): [0, 1]})(ids, ids),
        )
    assert whole.isfinite().all()
