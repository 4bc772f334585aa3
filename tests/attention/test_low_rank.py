"""Linformer, sketched and truncated attention: formulas, sharing, laws of error, and any length of sequence."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnworks.attention import AttentionCost, Context, Geometry, Mask, MechanismSpec
from attnworks.attention.dense import Dense
from attnworks.attention.linformer import Linformer, Sharing
from attnworks.attention.sketched import Sketched
from attnworks.attention.truncated import Truncated
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.models import Transformer, load_model, save_model
from attnworks.models import build as build_model
from attnworks.models.counting import count_parameters
from tests.helpers import B, H, assert_close, build, qkv, unchecked
from tests.model_helpers import attention_config, pure_config, tokens, transformer_config

GEOMETRY = Geometry(H, 11, 13)
REAL = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()


def linformer(share: Sharing = "heads", rank: int = 3, length: int = 17) -> Linformer:
    mechanism = build(f"linformer:rank={rank},length={length},share={share}", GEOMETRY)
    assert isinstance(mechanism, Linformer)
    return mechanism


# --- Linformer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["none", "heads", "keys-values", "layers"])
def test_linformer_is_softmax_over_projected_keys(share: Sharing) -> None:
    """softmax(Q (E K)^T / sqrt(k)) F V (S4.117, where the document prints 1/k)."""
    mechanism = linformer(share)
    Q, K, V = qkv()
    E, L = mechanism.E[..., :7], (mechanism.E if mechanism.F is None else mechanism.F)[..., :7]
    A = (Q @ (E @ K).mT / math.sqrt(11)).softmax(-1)
    got = mechanism(Q, K, V, weights=True)
    assert_close(got.Y, A @ L @ V)
    assert_close(got.P, A @ L)
    assert_close(mechanism(Q, K, V).Y, F.scaled_dot_product_attention(Q, E @ K, L @ V))


def test_the_map_of_linformer_has_low_rank_and_is_not_stochastic() -> None:
    P = linformer()(*qkv(i=7), weights=True).P
    assert P is not None
    assert (torch.linalg.matrix_rank(P) == 3).all()
    assert (P < 0).any() and (P.sum(-1) - 1).abs().min() > 1e-3


def test_linformer_with_the_identity_is_dense() -> None:
    mechanism = linformer("keys-values", rank=7, length=7)
    mechanism.load_state_dict({"E": torch.eye(7)[None]})
    assert_close(mechanism(*qkv()).Y, Dense()(*qkv()).Y)


def test_linformer_depends_on_the_order_of_keys() -> None:
    """S4.118: unlike dense attention, it is not equivariant."""
    Q, K, V = qkv()
    turned = linformer()(Q, K.roll(1, 2), V.roll(1, 2)).Y
    assert (turned - linformer()(Q, K, V).Y).abs().max() > 0.1


def test_which_matrices_are_shared() -> None:
    shapes = {share: [tuple(p.shape) for p in linformer(share).parameters()] for share in Sharing.__args__}
    assert shapes == {
        "none": [(2, 3, 17), (2, 3, 17)],
        "heads": [(1, 3, 17), (1, 3, 17)],
        "keys-values": [(1, 3, 17)],
        "layers": [(1, 3, 17)],
    }


def test_every_head_uses_its_own_matrices() -> None:
    both = linformer("none")
    Q, K, V = qkv()
    want = both(Q, K, V, weights=True)
    for head in range(H):
        single = Linformer(rank=3, length=17).double()
        single.load_state_dict({name: p[head : head + 1] for name, p in both.state_dict().items()})
        one = slice(head, head + 1)
        got = single(Q[:, one], K[:, one], V[:, one], weights=True)
        assert_close(got.Y, want.Y[:, one])
        assert_close(got.P, want.P[:, one])


def test_entries_start_with_variance_one_over_rank() -> None:
    mechanism = Linformer(rank=128, length=1024)
    for parameter in mechanism.parameters():
        assert float(parameter.detach().var()) * 128 == pytest.approx(1, abs=0.02)
    assert mechanism.F is not None and not torch.equal(mechanism.E, mechanism.F)


@pytest.mark.parametrize("name", ["linformer:rank=3,length=17", "truncated:rank=2"])
@pytest.mark.parametrize("weights", [False, True])
def test_a_sentence_gives_the_same_however_far_it_is_padded(name: str, weights: bool) -> None:
    mechanism = build(name, GEOMETRY)
    Q, K, V = qkv(b=1, i=5, j=5)
    want = mechanism(Q, K, V, weights=weights)
    for length in (7, 11, 17):
        padded = [F.pad(T, (0, 0, 0, length - 5), value=1e3) for T in (Q, K, V)]
        got = mechanism(*padded, Mask((torch.arange(length) < 5)[None]), weights=weights)
        assert_close(got.Y[:, :, :5], want.Y)
        if weights:
            assert_close(got.P[:, :, :5, :5], want.P)


def test_linformer_refuses_more_keys_than_it_was_built_for() -> None:
    linformer(length=7)(*qkv(j=7))
    for refuse in (linformer(length=7), linformer(length=7).reference):
        with pytest.raises(UsageError) as caught:
            refuse(*qkv(j=11), Mask(), Context())
        assert str(caught.value) == (
            "linformer attention to 11 keys: expected at most 7, the length that E and F were built for, got 11; "
            "cut the sequence, or build and train with linformer:length=11"
        )


@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(dense=torch.ones(7, 7).bool())], ids=["causal", "dense"])
@pytest.mark.parametrize("name", ["linformer", "truncated"])
def test_masks_that_would_leak_are_refused(name: str, mask: Mask) -> None:
    with pytest.raises(
        UsageError, match=rf"^{name} attention with a (causal|dense) mask: expected only masks of the kind real"
    ):
        build(name, GEOMETRY)(*qkv(i=7), mask)


@pytest.mark.usefixtures("compiling")
def test_linformer_compiles_in_one_piece() -> None:
    mechanism = Linformer(heads=2, rank=3, length=17)
    inputs = [torch.randn(3, 2, n, width, requires_grad=True) for n, width in ((5, 11), (7, 11), (7, 13))]
    compiled = torch.compile(mechanism, fullgraph=True, backend="eager")
    for mask in (None, Mask(torch.arange(7)[None] < torch.tensor([[3], [7], [0]]))):
        outputs = [run(*inputs, mask).Y for run in (compiled, mechanism)]
        gradients = (torch.autograd.grad(Y.square().sum(), inputs) for Y in outputs)
        for one, other in (outputs, *zip(*gradients, strict=True)):
            torch.testing.assert_close(one, other)


class Largest(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for T in out if isinstance(out, tuple) else (out,):
            self.numel = max(self.numel, T.numel() if isinstance(T, Tensor) else 0)
        return out


def test_the_gradient_of_a_shared_matrix_needs_no_table_per_head() -> None:
    mechanism = Linformer(rank=5, length=101)
    inputs = qkv(4, 2, 3, 101, 2, 2, torch.float32, grad=True)
    with Largest() as largest:
        mechanism(*inputs).Y.sum().backward()
    assert largest.numel < 4 * 2 * 5 * 101


# --- one matrix for all layers ----------------------------------------------------------------------------------------

SHARED = "linformer:rank=3,length=29,share=layers"


def projections(model: nn.Module) -> list[nn.Parameter]:
    return [layer.E for layer in model.modules() if isinstance(layer, Linformer)]


def translator(share: str = "layers", **changes: object) -> Transformer:
    """Linformer wherever nothing is causal, dense attention in the decoder itself."""
    low = attention_config(mechanism=f"linformer:rank=3,length=29,share={share}")
    config = transformer_config(attention=low, slots={f"dec.{layer}": attention_config() for layer in range(2)})
    return build_model(replace(config, **changes), seed=3)  # pyright: ignore[reportArgumentType]


def run(model: Transformer) -> Tensor:
    return model(tokens(17, 3, 7), tokens(19, 3, 5), REAL)


@pytest.mark.parametrize(("share", "distinct"), [("layers", 1), ("keys-values", 4), ("heads", 4)])
def test_layers_of_a_model_share_if_asked_to(share: str, distinct: int) -> None:
    model = translator(share)
    assert len(projections(model)) == 4 and len({id(E) for E in projections(model)}) == distinct
    run(model).square().sum().backward()
    assert all(E.grad is not None and E.grad.abs().max() > 0 for E in projections(model))


def test_pure_networks_and_single_heads_share_too() -> None:
    model = build_model(pure_config(layers=3, attention=attention_config(mechanism=("dense", SHARED, SHARED))))
    assert len({id(E) for E in projections(model)}) == 1
    # Another spec is another matrix; the order of its options is no difference.
    slots = {
        "enc.0": attention_config(mechanism="linformer:share=layers,length=29,rank=3"),
        "enc.1": attention_config(mechanism="linformer:share=layers,length=31,rank=3"),
    }
    shared = transformer_config().with_mechanism(SHARED)
    model = build_model(replace(shared, slots={**shared.slots, **slots}))
    first, other, *rest = projections(model)
    assert other is not first and all(E is first for E in rest)


def test_a_shared_matrix_counts_once() -> None:
    shared, apart = (count_parameters(translator(share).config) for share in ("layers", "keys-values"))
    assert shared["self-attention = cross-attention"] == 3 * 29
    assert sum(apart.values()) - sum(shared.values()) == 3 * 3 * 29
    assert sum(shared.values()) == sum(p.numel() for p in translator().parameters())
    config = pure_config(attention=attention_config(mechanism=SHARED))
    assert set(count_parameters(config)) == {"self-attention"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_shared_matrix_is_saved_once_and_comes_back_shared(tmp_path: Path, dtype: torch.dtype) -> None:
    model = translator().to(dtype).eval()
    loaded = cast(Transformer, load_model(save_model(model, tmp_path / "model")))
    assert len({id(E) for E in projections(loaded)}) == 1
    assert torch.equal(projections(loaded)[0], projections(model)[0])
    assert torch.equal(run(loaded), run(model))


def test_sharing_survives_copies_and_conversions() -> None:
    model = translator()
    for moved in (copy.deepcopy(model), copy.deepcopy(model).double(), copy.deepcopy(model).to("cpu").half().float()):
        assert len({id(E) for E in projections(moved)}) == 1
        assert projections(moved)[0] is not projections(model)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(model).square().mean().backward()
    optimizer.step()
    assert len({id(E) for E in projections(model)}) == 1


def test_decoding_step_by_step_looks_at_the_source_through_linformer() -> None:
    model = translator().double().eval()
    source, target = tokens(17, 3, 7), tokens(19, 3, 5)
    want, state = model(source, target, REAL), model.start(source, REAL)
    for position in range(5):
        scores, state = model.step(target[:, position : position + 1], state)
        assert_close(scores[:, 0], want[:, position])


# --- sketched ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [3, 11])
@pytest.mark.parametrize("mask", [Mask(), Mask(REAL[:1])], ids=["none", "padding"])
def test_the_error_of_a_sketch_follows_its_law(rank: int, mask: Mask) -> None:
    """D8: the mean square over many draws, within four standard errors."""
    torch.manual_seed(7)
    Q, K, V = qkv(b=1, h=1)
    sketched, draws = Sketched(rank=rank), 1201
    Y, P = Dense()(Q, K, V, mask, weights=True)
    assert P is not None
    if mask.real is not None:
        V = V.masked_fill(~mask.real[:, None, :, None], 0.0)
    squares = torch.stack([(sketched(Q, K, V, mask).Y - Y).square().sum() for _ in range(draws)]) / Y.square().sum()
    deviation = float(squares.std()) / draws**0.5
    want = float(sketched.expected_error(P, V).square())
    assert float(squares.mean()) == pytest.approx(want, abs=4 * deviation)
    assert deviation < 0.06 * want


@pytest.mark.parametrize(
    "mask",
    [Mask(REAL[:1]), Mask(causal=True), Mask(dense=torch.eye(5, 7).bool() | (torch.arange(7) > 4))],
    ids=["padding", "causal", "dense"],
)
def test_the_mean_of_sketches_is_dense(mask: Mask) -> None:
    """Masks do not bias it: what a query may see is projected, and only then weighed."""
    torch.manual_seed(7)
    inputs, sketched, draws = qkv(b=1), Sketched(rank=17), 701
    drawn = torch.stack([sketched(*inputs, mask).Y for _ in range(draws)])
    off = (drawn.mean(0) - Dense()(*inputs, mask).Y).abs() / (drawn.std(0) / draws**0.5)
    assert off.max() < 4.5


@pytest.mark.parametrize(("i", "j"), [(150, 150), (150, 211), (64, 64), (3, 131), (1, 67)])
@pytest.mark.parametrize("padded", [False, True])
def test_causal_sketches_of_many_chunks(i: int, j: int, padded: bool) -> None:
    real = torch.ones(B, j, dtype=torch.bool)
    real[1, :5] = real[2, j // 2 :] = False
    mask, inputs = Mask(real if padded else None, causal=True), qkv(i=i, j=j, grad=True)
    sketched = Sketched(rank=5, seed=3)
    chunked, table = sketched(*inputs, mask), sketched(*inputs, mask, weights=True)
    assert_close(chunked.Y, table.Y)
    G = torch.randn_like(chunked.Y)
    for ours, theirs in zip(*(torch.autograd.grad((T.Y * G).sum(), inputs) for T in (chunked, table)), strict=True):
        assert_close(ours, theirs)


def test_a_seed_repeats_the_draw_and_leaves_torchs_numbers_alone() -> None:
    inputs = qkv()
    before = torch.get_rng_state()
    first, again, other = (Sketched(rank=5, seed=seed)(*inputs).Y for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_every_call_draws_anew() -> None:
    inputs, sketched = qkv(), Sketched(rank=5)
    torch.manual_seed(3)
    first, second = sketched(*inputs).Y, sketched(*inputs).Y
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(sketched(*inputs).Y, first)


# --- truncated --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [7, 8, 32])
def test_enough_rank_is_dense(rank: int) -> None:
    inputs = qkv(i=7)
    assert_close(Truncated(rank=rank)(*inputs).Y, Dense()(*inputs).Y)
    got, want = Truncated(rank=rank)(*inputs, Mask(REAL)).Y, Dense()(*inputs, Mask(REAL)).Y
    real = REAL[:, None, :, None]
    assert_close(got, want * real)
    assert (got.masked_select(~real) == 0).all()


def test_truncated_is_the_nearest_map_of_its_rank() -> None:
    Q, K, V = qkv(i=7)
    P = Dense()(Q, K, V, weights=True).P
    for rank in (1, 3, 5):
        Y, P_r = Truncated(rank=rank)(Q, K, V, weights=True)
        assert P_r is not None and P is not None
        assert_close((P - P_r).square().sum((-2, -1)), torch.linalg.svdvals(P)[..., rank:].square().sum(-1))
        assert (torch.linalg.matrix_rank(P_r) == rank).all()
        assert_close(Y, P_r @ V)


def test_real_tokens_are_cut_without_padded_queries() -> None:
    """A padded query is a row that the nearest matrix must not care about."""
    Q, K, V = qkv(i=7)
    want = Truncated(rank=2)(Q, K, V, Mask(REAL)).Y
    noisy = torch.where(REAL[:, None, :, None], Q, 5 * torch.randn_like(Q))
    assert_close(Truncated(rank=2)(noisy, K, V, Mask(REAL)).Y, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("spread", [0.0, 1e3])
def test_truncated_stays_finite_at_ties(dtype: torch.dtype, spread: float) -> None:
    """Uniform maps have rank one, saturated ones equal singular values."""
    inputs = qkv(i=7, dtype=dtype, spread=spread, grad=True)
    Y = Truncated(rank=3)(*inputs).Y
    for T in (Y, *torch.autograd.grad(Y.sum(), inputs)):
        assert T.isfinite().all() and T.abs().max() < 1e4


def test_truncated_refuses_other_sequences() -> None:
    with pytest.raises(UsageError, match=r"^truncated attention from one sequence to another: "):
        Truncated()(*qkv(i=5, j=7))


# --- options and cost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "option", "value", "least", "example"),
    [
        ("linformer", "rank", "0", 1, 64),
        ("linformer", "rank", "2.5", 1, 64),
        ("linformer", "length", "0", 1, 512),
        ("sketched", "rank", "0", 1, 64),
        ("sketched", "seed", "-1", 0, 1),
        ("truncated", "rank", "0", 1, 16),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, option: str, value: str, least: int, example: int) -> None:
    with unchecked(), pytest.raises(UsageError) as caught:
        MechanismSpec.parse(f"{name}:{option}={value}").build(GEOMETRY)
    assert str(caught.value) == (
        f"{name} with {option}={value}: expected a whole number from {least}, got {value}; "
        f"write for instance {name}:{option}={example}"
    )


def test_an_unknown_way_to_share_lists_the_known() -> None:
    with unchecked(), pytest.raises(UnknownNameError) as caught:
        MechanismSpec.parse("linformer:share=all").build(GEOMETRY)
    assert str(caught.value) == (
        "linformer with share 'all': expected one of heads, keys-values, layers, none, got an unknown name; "
        "choose a name from that list"
    )


@pytest.mark.parametrize("name", ["linformer:rank=3,length=17", "sketched:rank=3,seed=1"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    mechanism = build(name, GEOMETRY)
    with FlopCounterMode(display=False) as counter:
        mechanism(*qkv(b=1))
    declared = mechanism.cost(5, 7, GEOMETRY)
    # torch leaves out its fused kernel, which scores the edges and weighs the values.
    assert declared.flops - 2 * declared.edges * (11 + 13) == counter.get_total_flops()


def test_costs_in_numbers() -> None:
    geometry = Geometry(2, 11, 13)
    assert linformer().cost(5, 7, geometry) == AttentionCost(
        edges=30, flops=2 * 2 * 3 * 12 * 24, bytes=8 * (3 * 24 + 5 * 14)
    )
    # Linear: twice the length, twice the cost but for what does not grow.
    short, long = (linformer().cost(n, n, geometry) for n in (1000, 2000))
    assert (long.edges, long.flops) == (2 * short.edges, 2 * short.flops)
    assert Truncated().cost(7, 7, geometry).flops > Dense().cost(7, 7, geometry).flops
    assert Sketched(rank=3).cost(5, 7, geometry).edges == Dense().cost(5, 7, geometry).edges
