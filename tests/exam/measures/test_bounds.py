"""The bounds of a traced layer: by slow loops, with padding, and where they say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.heads import HeadWeights, Scoring
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.exam.linalg.residual import composite, residual
from attnworks.exam.measure import MEASURES, MeasureContext, Samples
from attnworks.exam.measures.bounds import Bounds, bounds_refusal
from attnworks.text.tokens import Tokens
from attnworks.traces.layer import LayerTrace
from tests.helpers import assert_close

H, E, K, V, N = 3, 5, 2, 7, 11
LENGTHS = (11, 4, 1)
SETTING = MeasureContext(N)
NAMES = {declared.name for declared in Bounds(SETTING).declares()}


def tokens_of(lengths: tuple[int, ...] = LENGTHS) -> Tokens:
    shape = (len(lengths), max(lengths))
    real = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    nothing = torch.full(shape, -1)
    return Tokens(nothing, real, torch.zeros(shape).bool(), nothing, None, torch.zeros(shape))


def weights_of(seed: int = 0, spread: float = 1.0) -> HeadWeights:
    source = torch.Generator().manual_seed(seed)
    shapes = ((H, E, K), (H, E, K), (H, E, V), (H, V, E), (H, K), (H, K), (H, V), (E,))
    drawn = [spread * torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]
    return HeadWeights(*drawn, groups=H, scale=K**-0.5)


def trace_of(X: Tensor, weights: HeadWeights, tokens: Tokens, mask: Mask | None = None) -> LayerTrace:
    """A layer of self-attention that hides padded keys, and whatever the mask hides."""
    mask = Mask(real=tokens.real) if mask is None else mask
    Q, K, V = (
        X.unsqueeze(1) @ W + (0.0 if b is None else b.unsqueeze(-2))
        for W, b in ((weights.W_Q, weights.b_Q), (weights.W_K, weights.b_K), (weights.W_V, weights.b_V))
    )
    scale = weights.scale or 1.0
    S = scale * Q @ K.mT
    added, allowed = mask.additive(), mask.allowed(X.shape[1], X.shape[1])
    S = S if added is None else S + added
    P = (S if allowed is None else S.masked_fill(~allowed, -torch.inf)).softmax(-1)
    return LayerTrace(
        Slot("encoder", 0), Q, K, V, P @ V, mask, scale, tokens, tokens, X=X, Z=X, weights=weights, bilinear=True
    )


def inputs(seed: int = 1, spread: float = 1.0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return spread * torch.randn(len(LENGTHS), N, E, generator=source, dtype=torch.float64)


def pairs(X: Tensor) -> Tensor:
    return torch.stack([(x - y).norm() for x in X for y in X]).max()


def test_registered_and_declared() -> None:
    assert MEASURES["bounds"] is Bounds and not Bounds.default
    trace = trace_of(inputs(), weights_of(), tokens_of())
    assert set(Bounds(SETTING).layer(trace)) == NAMES


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_by_loops(spread: float) -> None:
    X, W, tokens = inputs(spread=spread), weights_of(), tokens_of()
    trace = trace_of(X, W, tokens)
    got = Bounds(SETTING).layer(trace)
    W_QK, W_VO = W.W_Q @ W.W_K.mT, W.W_V @ W.W_O
    scale = K**-0.5
    for at, n in enumerate(LENGTHS):
        rows = X[at, :n]
        output = sum(trace.Y[at, h, :n] @ W.W_O[h] for h in range(H))
        assert isinstance(output, Tensor)
        diam, bound = pairs(rows), torch.zeros(())
        for A, B in zip(W_QK, W_VO, strict=True):
            reach = torch.linalg.matrix_norm(A, 2) * scale * diam**2 / 4
            bound = bound + torch.linalg.matrix_norm(B, 2) * reach.tanh() * diam
        assert_close(got["bounds.diameter"].values[at], bound)
        assert_close(got["bounds.measured"].values[at], pairs(output))
        R, left = residual(rows), residual(output)
        assert_close(got["bounds.residual"].values[at], composite(left))
        E_ = scale * (R @ W_QK @ R.mT)
        holds = (E_.amax(-1) - E_.amin(-1)).max() <= 4.22929
        assert got["bounds.composite_holds"].values[at] == float(holds)
        assert_close(got["bounds.row_range"].values[at], (E_.amax(-1) - E_.amin(-1)).max())
        beta = max(A.abs().sum(0).max() * composite(B) for A, B in zip(W_QK, W_VO, strict=True))
        assert_close(got["bounds.published"].values[at], 4 * beta * H * scale * composite(R) ** 3)
        converges = 4 * beta * H * scale * composite(R) ** 2 < 1
        assert got["bounds.published_converges"].values[at] == float(converges)
        if n > 1:
            assert_close(got["bounds.ratio"].values[at], bound / pairs(output))
            assert got["bounds.ratio"].values[at] >= 1


def test_one_row_says_nothing() -> None:
    got = Bounds(SETTING).layer(trace_of(inputs(), weights_of(), tokens_of()))
    for name, sample in got.items():
        holds = got["bounds.composite_holds"].values > 0 if name == "bounds.composite" else torch.ones(3).bool()
        assert sample.valid is not None and sample.valid.tolist() == (holds & torch.tensor([1, 1, 0]).bool()).tolist()


@given(st.integers(0, 10_000), st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 4.0]), st.sampled_from([0.1, 1.0, 3.0]))
def test_never_violated(seed: int, spread: float, size: float) -> None:
    for dtype in (torch.float64, torch.float32):
        W = weights_of(seed, size)
        X = (inputs(seed, spread) + 2).to(dtype)
        parts = [
            part.to(dtype) for part in (W.W_Q, W.W_K, W.W_V, W.W_O, W.b_Q, W.b_K, W.b_V, W.b_O) if part is not None
        ]
        got = Bounds(SETTING).layer(trace_of(X, HeadWeights(*parts, groups=H, scale=W.scale), tokens_of()))
        if spread >= 0.1:
            assert (got["bounds.ratio"].values[:2] >= 1 - 1e-4).all()


def test_padding_never_counts() -> None:
    X, W, tokens = inputs(), weights_of(), tokens_of()
    trace = trace_of(X, W, tokens)
    padded = ~tokens.real
    odd = {name: getattr(trace, name).masked_fill(padded[:, None, :, None], 1e6) for name in ("Q", "K", "V", "Y")} | {
        "X": X.masked_fill(padded[..., None], 1e6)
    }
    got, want = (Bounds(SETTING).layer(each) for each in (replace(trace, **odd, Z=odd["X"]), trace))
    assert_same(got, want)


def assert_same(got: Samples, want: Samples) -> None:
    for name, sample in got.items():
        valid = want[name].valid
        assert valid is not None and sample.valid is not None and torch.equal(sample.valid, valid)
        assert_close(sample.values[valid], want[name].values[valid])


def test_output_bias_changes_nothing() -> None:
    W = weights_of()
    trace = trace_of(inputs(), W, tokens_of())
    assert_same(Bounds(SETTING).layer(replace(trace, weights=replace(W, b_O=None))), Bounds(SETTING).layer(trace))


def test_shared_keys() -> None:
    """Two groups of keys and values: weights are repeated for each head, K and V are not."""
    W, tokens = weights_of(), tokens_of()
    assert W.b_K is not None and W.b_V is not None
    shared = replace(
        W, W_K=W.W_K[:1].repeat(H, 1, 1), W_V=W.W_V[:1].repeat(H, 1, 1), b_K=W.b_K[:1].repeat(H, 1),
        b_V=W.b_V[:1].repeat(H, 1), groups=1,
    )  # fmt: skip
    trace = trace_of(inputs(), shared, tokens)
    grouped = replace(trace, K=trace.K[:, :1], V=trace.V[:, :1])
    assert_same(Bounds(SETTING).layer(grouped), Bounds(SETTING).layer(trace))


def test_a_violation_is_a_bug() -> None:
    X, W, tokens = inputs(spread=0.1), weights_of(), tokens_of()
    trace = trace_of(X, W, tokens)
    with pytest.raises(UsageError, match=r"diameter \(D6\) of enc\.0: .* in sentence 0"):
        Bounds(SETTING).layer(replace(trace, Y=100 * trace.Y))


def dense(rows: Tensor) -> Mask:
    return Mask(dense=rows)


def test_why_not() -> None:
    X, W, tokens = inputs(), weights_of(), tokens_of()
    trace = trace_of(X, W, tokens)
    assert bounds_refusal(trace) is None and bounds_refusal(replace(trace, Z=X.clone())) is None
    reasons = {
        "weights of its heads": replace(trace, weights=None),
        "inputs of its queries": replace(trace, Z=None),
        "softmax": replace(trace, scale=None),
        "different sequences": replace(trace, slot=Slot("cross", 0)),
        "learned sink logits": replace(trace, sink=torch.zeros(H), bilinear=False),
        "capped at 30": replace(trace, softcap=30.0, bilinear=False),
        "bias for positions": replace(trace, mask=dense(torch.randn(N, N)), bilinear=False),
        "rotary positions": replace(trace, bilinear=False),
        "1 of its 3 heads": replace(trace, scale=None, scoring=Scoring((1.0, None, 1.0), (True,) * H)),
        "different factors": replace(trace, scale=None, scoring=Scoring((1.0, 2.0, 1.0), (True,) * H)),
        "as with causal attention": replace(trace, mask=Mask(real=tokens.real, causal=True)),
        "not the same for all queries": replace(trace, mask=dense(torch.ones(N, N, dtype=torch.bool).tril())),
    }
    other = replace(trace, Z=X + 1)
    for words, odd in [*reasons.items(), ("different sequences", other)]:
        assert words in str(bounds_refusal(odd))
        for sample in Bounds(SETTING).layer(odd).values():
            assert sample.valid is not None and not sample.valid.any() and sample.values.shape == (len(LENGTHS),)


def test_dense_masks_that_hide_the_same_from_all() -> None:
    """Padding written as an additive mask, and a number added per key: both are alike for all real queries."""
    X, W, tokens = inputs(), weights_of(), tokens_of()
    hidden = torch.zeros(3, 1, N, N, dtype=torch.float64).masked_fill(~tokens.real[:, None, None, :], -torch.inf)
    hidden[~tokens.real.unsqueeze(1)] = 0.0  # padded queries are nobody's business
    per_key = torch.randn(3, 1, 1, N, dtype=torch.float64).expand(3, 1, N, N)
    for added in (hidden, hidden + per_key):
        trace = trace_of(X, W, tokens, dense(added))
        assert bounds_refusal(trace) is None
        ratio = Bounds(SETTING).layer(trace)["bounds.ratio"]
        assert (ratio.values[:2] >= 1).all()
    assert bounds_refusal(trace_of(X, W, tokens, dense(hidden + torch.randn(N, N).double()))) is not None
