"""Blocks found by evidence, against what is known of families and of blocks written here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.core.places import Kind
from attnworks.hf.evidence.cut_graph import cut_pass
from attnworks.hf.evidence.inputs import probe_run
from attnworks.hf.evidence.layers import attention_layouts
from attnworks.hf.evidence.stream_sums import NO_SUM
from attnworks.hf.evidence.streams import block_layouts
from attnworks.hf.layout import BlockLayout
from attnworks.hf.tiny import tiny_model
from tests.model_helpers import filled, randn
from tests.tiny_models import LAYERS, TINY, inputs, shared

BERT_SELF = "self attention.output.dense attention.output.LayerNorm attention.self"
BERT_CROSS = "cross crossattention.output.dense crossattention.output.LayerNorm crossattention.self"
BERT_MLP = "mlp output.dense output.LayerNorm"
BERT = [("encoder", "encoder.layer.{}", "post", BERT_SELF, BERT_MLP)]
ALBERT_SELF = "self attention.dense attention.LayerNorm attention"
ALBERT_PATH = "encoder.albert_layer_groups.{}.albert_layers.{}"
ALBERT = [("encoder", ALBERT_PATH, "post", ALBERT_SELF, "mlp ffn_output full_layer_layer_norm")]
DISTILBERT_SELF = "self attention sa_layer_norm attention"
DISTILBERT = [("encoder", "transformer.layer.{}", "post", DISTILBERT_SELF, "mlp ffn output_layer_norm")]
GPT2_SELF, GPT2_MLP = "self attn ln_1 attn", "mlp mlp ln_2"
GPT2 = [("decoder", "h.{}", "pre", GPT2_SELF, GPT2_MLP)]
GPT2_CROSS = [("decoder", "h.{}", "pre", GPT2_SELF, "cross crossattention ln_cross_attn crossattention", GPT2_MLP)]
LLAMA_MLP = "mlp mlp post_attention_layernorm"
LLAMA = [("decoder", "layers.{}", "pre", "self self_attn input_layernorm self_attn", LLAMA_MLP)]
NEOX = [("decoder", "layers.{}", "pre", "self attention input_layernorm attention", LLAMA_MLP)]
BART_SELF, BART_MLP = "self self_attn self_attn_layer_norm self_attn", "mlp fc2 final_layer_norm"
BART_CROSS = "cross encoder_attn encoder_attn_layer_norm encoder_attn"
BART = [
    ("encoder", "encoder.layers.{}", "post", BART_SELF, BART_MLP),
    ("decoder", "decoder.layers.{}", "post", BART_SELF, BART_CROSS, BART_MLP),
]
MBART = [(kind, path, "pre", *parts) for kind, path, _, *parts in BART]
OPT = [("decoder", "decoder.layers.{}", "pre", BART_SELF, BART_MLP)]
OPT_POST = [("decoder", "decoder.layers.{}", "post", BART_SELF, BART_MLP)]
T5_SELF = "self layer.0.SelfAttention layer.0.layer_norm layer.0.SelfAttention"
T5_CROSS = "cross layer.1.EncDecAttention layer.1.layer_norm layer.1.EncDecAttention"
T5_MLP = "mlp layer.{0}.DenseReluDense layer.{0}.layer_norm"
T5 = [
    ("encoder", "encoder.block.{}", "pre", T5_SELF, T5_MLP.format(1)),
    ("decoder", "decoder.block.{}", "pre", T5_SELF, T5_CROSS, T5_MLP.format(2)),
]
VIT = [("encoder", "layers.{}", "pre", "self attention layernorm_before attention", "mlp mlp layernorm_after")]
FAMILIES: dict[str, list[tuple[str, ...]]] = {
    "albert": ALBERT,
    "albert-groups": ALBERT,
    "bart": BART,
    "bert": BERT,
    "bert-chunked": BERT,
    "bert-decoder": [("decoder", "encoder.layer.{}", "post", BERT_SELF, BERT_CROSS, BERT_MLP)],
    "camembert": BERT,
    "distilbert": DISTILBERT,
    "electra": BERT,
    "gpt2": GPT2,
    "gpt2-cross": GPT2_CROSS,
    "gpt_neox": NEOX,
    "gpt_neox-serial": NEOX,
    "llama": LLAMA,
    "m2m_100": MBART,
    "marian": BART,
    "mbart": MBART,
    "mistral": LLAMA,
    "mt5": T5,
    "opt": OPT,
    "opt-post": OPT_POST,
    "qwen2": LLAMA,
    "roberta": BERT,
    "t5": T5,
    "t5-gated": T5,
    "vit": VIT,
    "xlm-roberta": BERT,
}
"""Model -> for each stack its kind, the paths of its blocks in its body, their order, and their parts."""
ALBERT_ITEMS = {"albert": [(0, 0)] * 5, "albert-groups": [(0, 0), (0, 1)] * 3 + [(1, 0), (1, 1)] * 2}


def blocks_of(model: Any, run: Callable[[], object] | None = None) -> tuple[BlockLayout, ...]:
    run = probe_run(model) if run is None else run
    with cut_pass(model, run) as cut:
        kinds: dict[str, Kind] = {layer.path: layer.slots[0].kind for layer in attention_layouts(model, cut)}
    return block_layouts(model, run, kinds)


def described(block: BlockLayout) -> tuple[str | None, ...]:
    """Kind, path, order, and for each part its role, branch, norm and attention."""
    parts: list[str] = []
    for part in block.parts:
        names = [name.removeprefix(f"{block.path}.") for name in (part.branch, part.norm, part.attention) if name]
        parts.append(" ".join([part.role, *names]))
    return (block.kind, block.path, block.order, *parts)


@pytest.mark.parametrize("name", TINY)
def test_families(name: str) -> None:
    model = shared(name)
    blocks = blocks_of(model)
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    expected = []
    for kind, path, *others in FAMILIES[name]:
        count = LAYERS + 1 if kind == "decoder" and len(FAMILIES[name]) == 2 else LAYERS
        items = ALBERT_ITEMS.get(name, [(number,) for number in range(count)])
        expected += [(kind, prefix + path.format(*item), *others) for item in items]
    assert [described(block) for block in blocks] == expected
    layers = [[block.layer for block in blocks if block.kind == kind] for kind in ("encoder", "decoder")]
    assert all(numbers == list(range(len(numbers))) for numbers in layers)
    steps = [0] * 2 if name == "gpt_neox" else list(range(len(blocks[0].parts)))
    assert [part.step for part in blocks[0].parts] == steps and blocks[0].parallel is (name == "gpt_neox")
    assert {(block.problem, block.mixer) for block in blocks} == {(None, None)}
    assert {(part.factor, part.bias) for block in blocks for part in block.parts} == {(1.0, None)}


@pytest.mark.parametrize("name", ["bert-chunked", "gpt2", "t5"])
def test_batches_with_padding(name: str) -> None:
    model = shared(name)
    found = blocks_of(model, lambda: model(**inputs(model)))
    assert found == blocks_of(model)


def test_the_model_is_left_as_it_was() -> None:
    model = TINY["gpt2"].build()
    state = {name: parameter.clone() for name, parameter in model.named_parameters()}
    blocks_of(model)
    assert all(torch.equal(parameter, state[name]) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


SANDWICH = [
    *("pre", "self post_attention_layernorm input_layernorm self_attn"),
    "mlp post_feedforward_layernorm pre_feedforward_layernorm",
]
PARALLEL = ["pre", "self self_attn input_layernorm self_attn", "mlp mlp input_layernorm"]
HYBRID = ["pre", "self self_attn input_layernorm self_attn", "mlp feed_forward pre_ff_layernorm"]
MIXED = ["pre", "mixer mamba input_layernorm", "mlp feed_forward pre_ff_layernorm"]
OTHERS: dict[str, list[list[str]]] = {
    "cohere": [PARALLEL] * 2,
    "falcon_h1": [["pre", "mixer mamba input_layernorm", *HYBRID[1:]]] * 2,
    "fnet": [["post", "mixer fourier.self fourier.output.LayerNorm", BERT_MLP]] * 2,
    "gemma2": [SANDWICH] * 2,
    "jamba": [MIXED, HYBRID],
    "mamba": [["pre", "mixer mixer norm"]] * 2,
    "olmo2": [["None", "self post_attention_layernorm self_attn", "mlp post_feedforward_layernorm"]] * 2,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_families(name: str) -> None:
    tiny = tiny_model(name)
    blocks = blocks_of(tiny.model, lambda: tiny.model(**tiny.inputs))
    assert [[str(text) for text in described(block)[2:]] for block in blocks] == OTHERS[name]
    mixers = {"fnet": "FNetBasicFourierTransform", "jamba": "JambaMambaMixer", "mamba": "MambaMixer"}
    assert blocks[0].mixer == mixers.get(name)
    if name == "falcon_h1":
        assert [part.step for part in blocks[0].parts] == [0, 0, 1]


def test_attention_reads_all_parts_of_earlier_steps() -> None:
    """The experts of LongCat Flash are added at the end of the block, past its second attention layer."""
    tiny = tiny_model("longcat_flash")
    block, _ = blocks_of(tiny.model, lambda: tiny.model(**tiny.inputs))
    parts = [(part.step, part.role, part.branch.removeprefix(f"{block.path}.")) for part in block.parts]
    assert parts[:2] == [(0, "self", "self_attn.0"), (1, "mlp", "mlps.0")]
    assert parts[2:] == [(2, "mlp", "mlp"), (2, "self", "self_attn.1"), (3, "mlp", "mlps.1")]


def test_blocks_that_run_without_gradients() -> None:
    tiny = tiny_model("hrm_text")
    blocks = blocks_of(tiny.model, lambda: tiny.model(**tiny.inputs))
    assert len(blocks) == 16 and {block.problem for block in blocks} == {None} and torch.is_grad_enabled()


def test_several_streams_are_a_problem() -> None:
    tiny = tiny_model("deepseek_v4")
    blocks = blocks_of(tiny.model, lambda: tiny.model(**tiny.inputs))
    assert {block.problem for block in blocks} == {"it carries several streams at once"}


WIDTH, D_FF, TOKENS, DEPTH = 13, 17, 7, 3


class Attention(nn.Module):
    """Every token reads itself and the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        V = self.value(x)
        return self.out(V + V.roll(1, -2)), None


class Parts(nn.Module):
    """The parts of a block, which its subclasses put together."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ln_1, self.ln_2 = Attention(), nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, D_FF), nn.GELU(), nn.Linear(D_FF, WIDTH))
        self.extra, self.dropout = nn.Parameter(torch.zeros(WIDTH)), nn.Dropout(0.5)

    def attend(self, x: Tensor) -> Tensor:
        return self.dropout(self.attn(x)[0])


class Scaled(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.25 * self.attend(self.ln_1(x))
        return x + self.mlp(self.ln_2(x)) * -3


class Biased(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.ln_2(x + self.attend(x) + self.extra)


class TwoMLPs(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        read = self.ln_2(x)
        return x + (self.other(read) + self.mlp(read))


class Pieces(Parts):
    """The MLP runs on two pieces of the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return torch.cat([piece + self.mlp(self.ln_2(piece)) for piece in (x[:, :3], x[:, 3:])], 1)


class Ahead(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(self.ln_1(x.flip(-2)))


class MultipliedStream(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + self.attend(self.ln_1(x))


class NormedStream(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_1(x)
        return x + self.attend(x)


class BothNorms(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return self.ln_2(x + self.mlp(x))


class TwiceTheSame(Parts):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.mlp(self.mlp(x)) + self.mlp(x)


class Gated(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(x) * torch.sigmoid(self.mlp(x))


class Channelwise(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(x) * self.extra


class NoSkip(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attend(x))


class Wider(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.attend(x)], -2)


class Model(nn.Module):
    def __init__(self, block: type[Parts]) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def own_blocks(block: type[Parts], dtype: torch.dtype = torch.float64) -> tuple[BlockLayout, ...]:
    model = filled(Model(block)).to(dtype).eval()
    kinds: dict[str, Kind] = {f"layers.{number}.attn": "decoder" for number in range(DEPTH)}
    return block_layouts(model, lambda: model(randn(1, TOKENS, WIDTH, dtype=dtype)), kinds)


PROVEN: dict[type[Parts], list[str]] = {
    Scaled: ["pre", "0 self attn ln_1 0.25", "1 mlp mlp ln_2 -3.0"],
    Biased: ["post", "0 self attn ln_2 1.0 extra"],
    TwoMLPs: ["pre", "0 self attn ln_1 1.0", "1 mlp other ln_2 1.0", "1 mlp mlp ln_2 1.0"],
    Pieces: ["pre", "0 self attn ln_1 1.0", "1 mlp mlp ln_2 1.0"],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", PROVEN)
def test_own_blocks(block: type[Parts], dtype: torch.dtype) -> None:
    blocks = own_blocks(block, dtype)
    assert [found.problem for found in blocks] == [None] * DEPTH
    for found in blocks:
        parts = []
        for part in found.parts:
            names = [part.branch, part.norm, part.bias and part.bias]
            branch, norm, *bias = (name.removeprefix(f"{found.path}.") for name in names if name)
            parts.append(" ".join([str(part.step), part.role, branch, norm, str(part.factor), *bias]))
        assert [found.order, *parts] == PROVEN[block]


PROBLEMS: dict[type[Parts], str] = {
    MultipliedStream: "it multiplies the stream by 0.5",
    NormedStream: "ln_1 changes the stream before a part is added",
    BothNorms: "it has norms of parts and norms of sums",
    TwiceTheSame: "mlp runs several times",
    Gated: NO_SUM,
    Channelwise: "attn is multiplied by a factor for each channel",
    NoSkip: NO_SUM,
    Wider: "its output has another shape than its input",
}


@pytest.mark.parametrize("block", PROBLEMS)
def test_problems(block: type[Parts]) -> None:
    if block is Wider:
        assert own_blocks(block)[0].problem == PROBLEMS[block]
    else:
        assert {found.problem for found in own_blocks(block)} == {PROBLEMS[block]}


def test_kinds_without_attention() -> None:
    for block, kind in ((Scaled, "decoder"), (Ahead, "encoder")):
        model = filled(Model(block)).double().eval()
        blocks = block_layouts(model, lambda model=model: model(randn(1, TOKENS, WIDTH)), {})
        assert {(found.kind, found.mixer, found.parts[0].role) for found in blocks} == {(kind, "Attention", "mixer")}


def test_lists_without_mixing_are_no_blocks() -> None:
    class Rows(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(x)

    model = filled(Model(Rows)).double()
    assert block_layouts(model, lambda: model(randn(1, TOKENS, WIDTH)), {}) == ()


def test_a_block_that_differs_from_the_first_is_looked_into() -> None:
    class Flagged(Parts):
        serial = True

        def forward(self, x: Tensor) -> Tensor:
            y = x + self.attend(self.ln_1(x))
            return y + self.mlp(self.ln_2(y if self.serial else x))

    model = filled(Model(Flagged)).double()
    vars(model.layers[1])["serial"] = False
    kinds: dict[str, Kind] = {f"layers.{number}.attn": "decoder" for number in range(DEPTH)}
    blocks = block_layouts(model, lambda: model(randn(1, TOKENS, WIDTH)), kinds)
    assert [found.parallel for found in blocks] == [False, True, False]
