"""attnworks.nn.MultiheadAttention against torch.nn.MultiheadAttention: state, outputs, weights, gradients, encoders."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks import attention
from attnworks.attention import Mask
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.nn import MultiheadAttention
from tests.helpers import unchecked

B, H, QUERIES, KEYS, E, KDIM, VDIM = 3, 2, 5, 7, 22, 13, 17
LIMITS = {torch.float32: 1e-6, torch.float64: 1e-12}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch-first": {"batch_first": True},
    "no-bias": {"bias": False},
    "kdim-vdim": {"kdim": KDIM, "vdim": VDIM},
    "kdim": {"kdim": KDIM, "batch_first": True, "bias": False},
    "bias-kv": {"add_bias_kv": True},
    "zero-attn": {"add_zero_attn": True, "batch_first": True},
    "both-added": {"add_bias_kv": True, "add_zero_attn": True, "kdim": KDIM, "vdim": VDIM},
}


def pair(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """A torch layer with random weights and biases, and ours with its state dict."""
    theirs = nn.MultiheadAttention(E, H, dtype=dtype, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.15)  # as torch draws them
    ours = MultiheadAttention(E, H, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def inputs(layer: nn.MultiheadAttention, i: int = QUERIES, j: int = KEYS, *, batched: bool = True) -> list[Tensor]:
    """Random query, key and value that fit the layer."""
    found = []
    for n, width in ((i, layer.embed_dim), (j, layer.kdim), (j, layer.vdim)):
        batch = ([B, n] if layer.batch_first else [n, B]) if batched else [n]
        found.append(torch.randn(*batch, width, dtype=layer.out_proj.weight.dtype).requires_grad_())
    return found


def hidden(*shape: int) -> Tensor:
    """True at random pairs; the first key is always seen."""
    found = torch.rand(shape) < 0.4
    found[..., 0] = False
    return found


def added(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype).masked_fill(hidden(*shape), -torch.inf)


Masks = Callable[[int, int, int, torch.dtype], dict[str, Any]]
MASKS: dict[str, Masks] = {
    "none": lambda b, i, j, _: {},
    "bool-2d": lambda b, i, j, _: {"attn_mask": hidden(i, j)},
    "bool-3d": lambda b, i, j, _: {"attn_mask": hidden(b * H, i, j)},
    "float-2d": lambda b, i, j, dtype: {"attn_mask": added(i, j, dtype=dtype)},
    "float-3d": lambda b, i, j, dtype: {"attn_mask": added(b * H, i, j, dtype=dtype)},
    "padding": lambda b, i, j, _: {"key_padding_mask": hidden(b, j)},
    "float-padding": lambda b, i, j, dtype: {"key_padding_mask": added(b, j, dtype=dtype)},
    "zero-inf-padding": lambda b, i, j, dtype: {
        "key_padding_mask": torch.zeros(b, j, dtype=dtype).masked_fill(hidden(b, j), -torch.inf)
    },
    "bool-both": lambda b, i, j, _: {"attn_mask": hidden(i, j), "key_padding_mask": hidden(b, j)},
    "float-both": lambda b, i, j, dtype: {
        "attn_mask": added(b * H, i, j, dtype=dtype),
        "key_padding_mask": added(b, j, dtype=dtype),
    },
    "causal": lambda b, i, j, _: {"attn_mask": torch.ones(i, j).triu(1).bool(), "is_causal": True},
    "float-causal": lambda b, i, j, dtype: {
        "attn_mask": torch.full((i, j), -torch.inf, dtype=dtype).triu(1),
        "is_causal": True,
    },
    "causal-padding": lambda b, i, j, _: {
        "attn_mask": torch.ones(i, j).triu(1).bool(),
        "is_causal": True,
        "key_padding_mask": hidden(b, j),
    },
}


def close(ours: Tensor, theirs: Tensor, what: str) -> None:
    limit = LIMITS[theirs.dtype]
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, what
    difference = float((ours - theirs).detach().abs().max()) if ours.numel() else 0.0
    assert difference <= limit * max(1.0, float(theirs.detach().abs().max())), f"{what}: {difference}"


def compare(theirs: nn.MultiheadAttention, ours: nn.MultiheadAttention, given: list[Tensor], **options: Any) -> None:
    """Outputs, weights, and the gradients of inputs and parameters."""
    found = []
    for layer in (theirs, ours):
        torch.manual_seed(5)
        out, weights = layer(*given, **options)
        loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum()
        if weights is not None:
            loss = loss + (weights * torch.linspace(-1, 1, weights.numel(), dtype=out.dtype).view(weights.shape)).sum()
        leaves = [*dict.fromkeys(given), *layer.parameters()]
        found.append((out, weights, torch.autograd.grad(loss, leaves, materialize_grads=True)))
    (Y, P, gradients), (own_Y, own_P, own_gradients) = found
    close(own_Y, Y, "output")
    assert (P is None) == (own_P is None)
    if P is not None:
        close(own_P, P, "weights")
    names = ["input"] * len(dict.fromkeys(given)) + [name for name, _ in theirs.named_parameters()]
    for name, own, their in zip(names, own_gradients, gradients, strict=True):
        close(own, their, f"gradient of {name}")


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("options", OPTIONS)
def test_dense_equals_torch_under_every_mask(options: str, dtype: torch.dtype) -> None:
    theirs, ours = pair(dtype, **OPTIONS[options])
    for name, masks in MASKS.items():
        size = (KEYS, KEYS) if "causal" in name else (QUERIES, KEYS)
        given, mask = inputs(theirs, *size), masks(B, *size, dtype)
        for need in ({"need_weights": False}, {}, {"average_attn_weights": False}):
            if "add" in str(OPTIONS[options]):
                mask.pop("is_causal", None)  # with the hint torch hides the added keys unless weights are asked for
            compare(theirs, ours, given, **mask, **need)


@pytest.mark.parametrize("options", ["plain", "batch-first", "both-added"])
def test_unbatched_input_equals_torch(options: str) -> None:
    theirs, ours = pair(**OPTIONS[options])
    for masks in MASKS.values():
        mask = masks(1, KEYS, KEYS, torch.float64)
        if "key_padding_mask" in mask:
            mask["key_padding_mask"] = mask["key_padding_mask"][0]
        given = inputs(theirs, KEYS, KEYS, batched=False)
        for need in ({}, {"average_attn_weights": False}):
            compare(theirs, ours, given, **mask, **need)


@pytest.mark.smoke
@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_of_one_tensor_equals_torch(batch_first: bool) -> None:
    theirs, ours = pair(batch_first=batch_first)
    X = inputs(theirs, KEYS, KEYS)[0]
    compare(theirs, ours, [X, X, X])
    compare(theirs, ours, [X, X, X], need_weights=False, key_padding_mask=hidden(B, KEYS))


def test_a_learned_float_mask_gets_the_gradient_of_torch() -> None:
    theirs, ours = pair()
    given, gradients = inputs(theirs, KEYS, KEYS), []
    table = torch.zeros(KEYS, KEYS, dtype=torch.float64).masked_fill(torch.ones(KEYS, KEYS).triu(1).bool(), -torch.inf)
    padding = torch.zeros(B, KEYS, dtype=torch.float64)
    for layer in (theirs, ours):
        learned = [mask.clone().requires_grad_() for mask in (table, padding)]
        out = layer(*given, attn_mask=learned[0], key_padding_mask=learned[1])[0]
        gradients.append(torch.autograd.grad(out.square().sum(), learned))
    for own, their in zip(gradients[1], gradients[0], strict=True):
        assert their.abs().max() > 1e-3
        close(own, their, "gradient of a mask")


@pytest.mark.parametrize("options", OPTIONS)
def test_state_and_first_values_are_those_of_torch(options: str) -> None:
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(E, H, **OPTIONS[options])
    torch.manual_seed(3)
    ours = MultiheadAttention(E, H, **OPTIONS[options])
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours._reset_parameters()


def test_from_torch_wants_a_layer_of_attention() -> None:
    with unchecked(), pytest.raises(UsageError, match=r"expected a torch\.nn\.MultiheadAttention, got Linear"):
        MultiheadAttention.from_torch(nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]


def test_from_torch_copies_weights_options_and_mode() -> None:
    theirs, _ = pair(**OPTIONS["both-added"], dropout=0.2)
    ours = MultiheadAttention.from_torch(theirs.eval())
    compare(theirs, ours, inputs(theirs))
    assert not ours.training and ours.dropout == 0.2
    assert ours.out_proj.weight.data_ptr() != theirs.out_proj.weight.data_ptr()
    own = MultiheadAttention.from_torch(nn.MultiheadAttention(E, H), "linformer:rank=3,length=16")
    assert {"mechanism.E", "mechanism.F"} < set(own.state_dict())


# --- mechanisms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", attention.names())
def test_every_mechanism_runs_and_trains(name: str) -> None:
    spec = {"linformer": "linformer:rank=3,length=16"}.get(name, name)
    layer = MultiheadAttention(E, H, batch_first=True, mechanism=spec)
    X = torch.randn(B, KEYS, E)
    out, weights = layer(X, X, X, average_attn_weights=False)
    assert out.shape == X.shape and weights is not None and weights.shape == (B, H, KEYS, KEYS)
    out.square().sum().backward()
    own = [parameter.grad for parameter in layer.mechanism.parameters()]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in own)
    assert torch.allclose(layer(X, X, X, need_weights=False)[0], out, atol=1e-4) or name == "sketched"


def test_the_mechanism_gets_the_masks_of_torch_turned_round() -> None:
    layer = MultiheadAttention(E, H, batch_first=True, mechanism="linear")
    X, padding = torch.randn(B, KEYS, E), hidden(B, KEYS)
    later = torch.full((KEYS, KEYS), -torch.inf).triu(1)
    W_Q, W_K, W_V = layer.in_proj_weight.chunk(3)
    Q, K, V = ((X @ W.mT).unflatten(-1, (H, -1)).transpose(1, 2) for W in (W_Q, W_K, W_V))
    Y = layer.mechanism(Q, K, V, Mask(~padding, causal=True)).Y
    want = layer.out_proj(Y.transpose(1, 2).flatten(2))
    given: list[dict[str, Any]] = [
        {"key_padding_mask": padding, "attn_mask": later},
        {"key_padding_mask": padding, "attn_mask": later == -torch.inf, "is_causal": True},
        {"key_padding_mask": torch.zeros(B, KEYS).masked_fill(padding, -torch.inf), "is_causal": True},
    ]
    for masks in given:
        assert torch.allclose(layer(X, X, X, **masks, need_weights=False)[0], want, atol=1e-6)


def test_queries_without_keys_give_the_bias_of_the_output() -> None:
    theirs, ours = pair(batch_first=True)
    X, padding = torch.randn(B, KEYS, E, dtype=torch.float64), torch.zeros(B, KEYS, dtype=torch.bool)
    padding[1] = True
    for need in (True, False):
        out, weights = ours(X, X, X, key_padding_mask=padding, need_weights=need)
        assert torch.equal(out[1], ours.out_proj.bias.expand(KEYS, E)) and out.isfinite().all()
        assert weights is None or (weights[1] == 0).all()
    assert theirs(X, X, X, key_padding_mask=padding)[0][1].isnan().all()


# --- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_is_that_of_torch_with_the_same_random_numbers(need_weights: bool) -> None:
    theirs, ours = pair(dropout=0.4)
    given = inputs(theirs)
    compare(theirs, ours, given, need_weights=need_weights)
    assert not torch.equal(ours(*given)[0], ours(*given)[0])
    ours.eval()
    assert torch.equal(ours(*given)[0], ours(*given)[0])


@pytest.mark.parametrize("mechanism", ["linformer:rank=3,length=16", "pooling:values=relu"])
def test_dropout_is_refused_where_outputs_are_not_weights_times_values(mechanism: str) -> None:
    layer = MultiheadAttention(E, H, dropout=0.1, mechanism=mechanism)
    X = torch.randn(KEYS, B, E)
    with pytest.raises(UsageError, match=r"dropout=0.1 in training.*build the layer with dropout=0.0"):
        layer(X, X, X)
    assert layer.eval()(X, X, X)[0].shape == X.shape


@pytest.mark.parametrize("mechanism", ["window:window=1", "linear", "pooling", "structured"])
def test_dropout_works_where_they_are(mechanism: str) -> None:
    layer = MultiheadAttention(E, H, dropout=0.5, mechanism=mechanism)
    X = torch.randn(KEYS, B, E)
    assert not torch.equal(layer(X, X, X, need_weights=False)[0], layer(X, X, X, need_weights=False)[0])


# --- inside the layers of torch ---------------------------------------------------------------------------------------


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(E, H, 29, batch_first=True, dtype=torch.float64, **options).eval()


def windowed(layer: nn.TransformerEncoderLayer, mechanism: str = "window:window=1") -> nn.TransformerEncoderLayer:
    layer = copy.deepcopy(layer)
    layer.self_attn = MultiheadAttention.from_torch(layer.self_attn, mechanism)
    return layer


def band(n: int) -> Tensor:
    """attn_mask of a window of one token to each side."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs() > 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_fast_path_of_torch_does_not_pass_the_mechanism_by(mode: Any) -> None:
    layer, X = encoder_layer(), torch.randn(B, KEYS, E, dtype=torch.float64)
    with mode():
        got, dense, want = windowed(layer)(X), layer(X), layer(X, src_mask=band(KEYS))
    close(got, want, "a window in an encoder layer")
    assert (dense - want).abs().max() > 1e-2


def test_dense_in_an_encoder_layer_gives_what_torch_gives() -> None:
    layer, X = encoder_layer(norm_first=True), torch.randn(B, KEYS, E, dtype=torch.float64)
    padding = torch.arange(KEYS).expand(B, KEYS) > 4
    with torch.no_grad():
        close(windowed(layer, "dense")(X), layer(X), "no mask")
        got, want = (one(X, src_key_padding_mask=padding) for one in (windowed(layer, "dense"), layer))
        close(got[:, :5], want[:, :5], "padding")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stack_with_padding_in_eval_mode(when: str) -> None:
    """nn.TransformerEncoder turns padded input into nested tensors, if its first layer had torch's attention once."""
    layer, X = encoder_layer(), torch.randn(B, KEYS, E, dtype=torch.float64)
    lengths = torch.tensor([7, 4, 5])
    padding = torch.arange(KEYS) >= lengths[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack = nn.TransformerEncoder(windowed(layer) if when == "before" else layer, 2).eval()
        plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    if when == "after":
        for one in stack.layers:
            assert isinstance(one, nn.TransformerEncoderLayer)
            one.self_attn = MultiheadAttention.from_torch(one.self_attn, "window:window=1")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = stack(X, src_key_padding_mask=padding)
        for row, length in enumerate(lengths.tolist()):  # alone: torch gives NaN where a token sees nothing
            want = plain(X[row : row + 1, :length], mask=band(length))[0]
            close(got[row, :length], want, f"sentence {row}")


def test_a_decoder_layer_of_windows_and_dense_cross_attention() -> None:
    layer = nn.TransformerDecoderLayer(E, H, 29, batch_first=True, dtype=torch.float64).eval()
    ours = copy.deepcopy(layer)
    ours.self_attn = MultiheadAttention.from_torch(layer.self_attn, "window:window=1")
    ours.multihead_attn = MultiheadAttention.from_torch(layer.multihead_attn)
    X, Z = (torch.randn(B, n, E, dtype=torch.float64) for n in (KEYS, QUERIES))
    later = nn.Transformer.generate_square_subsequent_mask(KEYS, dtype=torch.float64)
    with torch.no_grad():
        got = ours(X, Z, tgt_mask=later, tgt_is_causal=True)
        want = layer(X, Z, tgt_mask=later.masked_fill(band(KEYS), -torch.inf))
    close(got, want, "decoder layer")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_in_one_line() -> None:
    X = torch.randn(KEYS, B, E)
    layer = MultiheadAttention(E, H)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("a multiple of 3 as embed_dim", lambda: MultiheadAttention(E, 3)),
        ("a whole number from 1", lambda: MultiheadAttention(E, 0)),
        ("a number from 0 to 1", lambda: MultiheadAttention(E, H, dropout=1.5)),
        ("positions, batch, width", lambda: layer(X, X[..., 1:], X)),
        ("positions, batch, width", lambda: layer(X, X[:, 1:], X[:, 1:])),
        ("attn_mask: expected shape", lambda: layer(X, X, X, attn_mask=hidden(KEYS, 3))),
        ("key_padding_mask: expected shape", lambda: layer(X, X, X, key_padding_mask=hidden(KEYS, B))),
        ("booleans", lambda: layer(X, X, X, key_padding_mask=hidden(B, KEYS).int())),
        ("as many keys as queries", lambda: layer(X, X[1:], X[1:], is_causal=True)),
        ("queries and keys of one sequence",
         lambda: MultiheadAttention(E, H, add_bias_kv=True, mechanism="window")(X, X, X)),
    ]  # fmt: skip
    for words, call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert words in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UnknownNameError, match="did you mean 'window'"):
        MultiheadAttention(E, H, mechanism="windw")


def test_weights_that_a_mechanism_does_not_give_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, X = MultiheadAttention(E, H), torch.randn(KEYS, B, E)
    attend = layer.mechanism.attend
    monkeypatch.setattr(layer.mechanism, "attend", lambda *given: attend(*given)._replace(P=None))
    with pytest.raises(UsageError, match="pass need_weights=False"):
        layer(X, X, X)
    assert layer(X, X, X, need_weights=False)[1] is None
