"""D9, D13, D14: closed forms of retrieval, counts of parameters, and numerical errors of plain formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnworks.attention.linear import Linear
from attnworks.attention.patterns import WindowPattern
from attnworks.attention.softmax import masked_softmax
from attnworks.core.notation import tolerance
from attnworks.exam.linalg.residual import composite, induced_inf, induced_one
from attnworks.models.counting import PUBLISHED, Blueprint
from attnworks.models.layers import LayerNorm
from attnworks.reshape.growth.solvers import lowrank_fit
from attnworks.theory import retrieval
from attnworks.theory.cases import Draws
from attnworks.theory.contract import HOLDS, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_outputs
from attnworks.theory.sides import Number, at_most, same, stacked


@statement("D9", "derived", HOLDS).says(
    r"Keys with orthonormal means, $q = \beta(k_a + k_b)$: $\alpha_a = e^\beta/(n - 2 + 2e^\beta)$, and $\frac{1}{2} - "
    r"\alpha_a \le \delta$ if and only if $e^\beta \ge (n-2)(1-2\delta)/(4\delta)$. With $\Sigma_i = \alpha I$ the two "
    r"scores differ by $\mathcal N(0, 4\alpha\beta^2)$: the window is $\ln n \ll \beta \ll 1/(2\sqrt\alpha)$. With "
    r"$k_a = \gamma\mu_a$, $\gamma \sim \mathcal N(1, \frac{1}{2})$, one head has "
    r"$\operatorname{tr}\operatorname{Var}(c) = \operatorname{E}[(\sigma(\beta z/\sqrt 2) - \frac{1}{2})^2] \lVert v_a "
    r"- v_b \rVert^2$ for $\beta \gg \ln n$, which tends to $\frac{1}{4}\lVert v_a - v_b \rVert^2$ and lacks $\lVert "
    r"v_a - v_b \rVert^2/(\beta\sqrt\pi)$ or less of it. Of two heads, the first fails with probability $\Phi(\sqrt "
    r"2(\ln(n-1)/\beta - 1)) \to \Phi(-\sqrt 2) = 0.0786$, and $\operatorname{tr}\operatorname{Var}(c) = "
    r"\frac{1}{4}\operatorname{Var}(\sigma(\beta\gamma - \ln(n-1))) \lVert v_a - \bar v \rVert^2$, $\bar v$ being the "
    "mean of all values but $v_a$.",
    compares="largest distance of a formula from attention itself, over what is allowed, and 1",
    note="The variance of two heads and the rate of the limit are new.",
    proof=r"The scores are $\beta$, $\beta$ and 0, so $\frac{1}{2} - \alpha_a = (n-2)/(2(n-2+2e^\beta))$. The noise of "
    r"$k_a^\top q$ has the variance $q^\top\Sigma_a q = 2\alpha\beta^2$, and so has that of $k_b^\top q$. With $k_a = "
    r"\gamma\mu_a$ the scores are $\beta\gamma$ and $\beta$, so that $c = v_b + \sigma(\beta(\gamma-1))(v_a - v_b)$; "
    r"$\frac{1}{4} - \operatorname{Var} = \operatorname{E}[\sigma(sz)(1-\sigma(sz))] \le 1/(s\sqrt{2\pi})$ with $s = "
    r"\beta/\sqrt 2$, as $\sigma(1-\sigma)$ has integral 1. The first of two heads scores $k_a$ $\beta\gamma$ and the "
    r"$n-1$ others 0, so that $\alpha_a = \sigma(\beta\gamma - \ln(n-1))$, and the others share the rest equally; it "
    r"is below $\frac{1}{2}$ where $\gamma < \ln(n-1)/\beta$.",
)
@between(n=(3, 13), beta=(3.0, 60.0), shortfall=(1e-4, 0.4), alpha=(0.0, 1.0))
def closed_forms_of_retrieval(
    draw: Draws, n: int = 5, beta: float = 10.0, shortfall: float = 0.01, alpha: float = 0.01
) -> ClaimResult:
    """How far each formula is from attention itself, over how far it may be: by rounding, or as follows.

    Gamma runs over 2000 quantiles of its distribution. The mean of a function of variation t over them is within
    t / 4000 of its expectation. Other keys move the output of one head by (n - 2) exp(-beta) of the largest distance.
    """
    mu, V = draw.orthonormal(n + 3, n).mT, draw.normal(n, 3)
    gamma, grain = _quantiles(2000), 1 / 4000
    both, first, second = retrieval.two_key_query(mu[0], mu[1], beta), beta * mu[0], beta * mu[1]
    weights = [
        retrieval.attention_weights(mu, retrieval.two_key_query(mu[0], mu[1], strength))[0]
        for strength in (beta, retrieval.least_beta(n, shortfall))
    ]
    spread = 2 * both @ retrieval.even_covariances(mu, alpha)[0] @ both
    # [t n k]: the keys of each quantile of gamma, of which only the first varies
    K = mu.repeat(len(gamma), 1, 1)
    K[:, 0] *= gamma[:, None]
    heads = [retrieval.attention_weights(K, q) for q in (both, first, second)]
    apart, longest = float((V[0] - V[1]).square().sum()), float(torch.cdist(V, V).max())
    one, two = retrieval.one_head_variance(beta, V[0], V[1]), retrieval.two_head_variance(beta, V)
    moved, failing = (n - 2) * math.exp(-beta) * longest, retrieval.two_head_failure(n, beta)
    rounding, failures = tolerance(torch.float64).rtol, float((heads[1][:, 0] < 0.5).double().mean())
    shares = [
        abs(float(weights[0]) - retrieval.two_key_weight(n, beta)) / rounding,
        abs(0.5 - float(weights[1]) - shortfall) / rounding,
        abs(float(spread.sqrt()) / retrieval.gap_deviation(beta, 1.0) - math.sqrt(alpha)) / rounding,
        abs(_variance(heads[0] @ V) - one) / (longest**2 * grain + moved * (2 * math.sqrt(one) + moved)),
        abs(_variance((heads[1] + heads[2]) @ V / 2) - two) / (longest**2 * grain),
        abs(failures - failing) / grain,
        (apart / 4 - one) / (apart / (beta * math.sqrt(math.pi))),
    ]
    figures = {
        "weight of a and of b": retrieval.two_key_weight(n, beta),
        "variance of one head": one,
        "its limit": apart / 4,
        "variance of two heads": two,
        "probability that the first of two heads fails": failing,
    }
    return ClaimResult(at_most(torch.tensor(shares, dtype=torch.float64), 1.0), figures=figures)


def _quantiles(T: int) -> Tensor:
    """Of N(1, 1/2), in the middle of T equal shares."""
    shares = (torch.arange(T, dtype=torch.float64) + 0.5) / T
    return 1 + torch.special.ndtri(shares) / math.sqrt(2)


def _variance(outputs: Tensor) -> float:
    return float(outputs.var(0, correction=0).sum())


@statement("D13", "derived", HOLDS).says(
    "A decoder of vocabulary $V$, context $C$, width $d$, feed-forward width $f$ and $L$ layers has $Vd + Cd + L(4d^2 "
    "+ 4d + 2df + f + d + 4d) + 2d$ parameters, the last $2d$ for its final norm. An encoder has no final norm, and "
    "adds two rows of segments, $2d$ for the norm of its embeddings and $d^2 + d$ for its pooler.",
    compares="parameters of our blueprint (or of torch's layers), and by the formula",
)
@between(V=(1, 50_257), C=(1, 2048), d=(1, 512), f=(1, 2048), L=(1, 5))
def parameters_of_a_stack(draw: Draws, V: int = 101, C: int = 23, d: int = 13, f: int = 29, L: int = 3) -> ClaimResult:
    """The layers are those of torch, without memory; heads do not change the number."""
    of_decoder = Blueprint(
        vocabulary=V, positions=C, layers=L, d_e=d, d_ff=f, d_attention=d, d_shared=d, final_norm=True
    )
    of_encoder = replace(of_decoder, final_norm=False, segments=2, embedding_norm=True, pooler=True)
    with torch.device("meta"):
        stack = nn.ModuleList([nn.TransformerEncoderLayer(d, 1, f) for _ in range(L)])
        decoder = nn.ModuleList([stack, nn.Embedding(V, d), nn.Embedding(C, d), nn.LayerNorm(d)])
        encoder = nn.ModuleList([decoder, nn.Embedding(2, d), nn.Linear(d, d)])
    counted = (sum(p.numel() for p in model.parameters()) for model in (decoder, encoder))
    formula = V * d + C * d + L * (4 * d**2 + 4 * d + 2 * d * f + f + d + 4 * d) + 2 * d
    formulas = (formula, formula + 2 * d + d**2 + d)
    ours = (sum(blueprint.count_parameters().values()) for blueprint in (of_decoder, of_encoder))
    figures = {
        PUBLISHED[name].title: float(sum(PUBLISHED[name].blueprint.count_parameters().values()))
        for name in ("gpt-1", "bert-large", "gpt-2-xl", "gpt-3")
    }
    return ClaimResult(same(stacked(*ours, *counted), stacked(*formulas, *formulas)), figures=figures)


_Trap = tuple[Number, Number]
"""What the plain formula gives, and ours."""


@statement("D14", "derived", HOLDS).says(
    r"Six traps, and what is right: the gradient of a LayerNorm with $\sigma + \epsilon$ is NaN on a constant row "
    "(finite), a fully masked row of a softmax is NaN (zero), the denominators of linear attention with signed "
    r"features vanish (finite outputs), the inverse of $X^\top X$ does not exist for dependent columns (a fit by "
    r"singular values), $\lVert X \rVert_1 \lVert X \rVert_\infty$ without its root grows with the square of $X$ (with "
    r"it, with $\lvert X \rvert$), and a window of an even width $w$ has $w + 1$ keys (we count tokens to each side).",
    compares="what formulas do, plain and ours (1: fails, 0: does not; growth of the norm; keys of a window), and what "
    "is said",
)
@between(n=(2, 11), d=(2, 11), factor=(2, 7))
def traps(draw: Draws, n: int = 5, d: int = 3, factor: int = 3) -> ClaimResult:
    """Left: how many of the first four fail plainly and with our code, then growth of the norm and keys, both ways."""
    failing = (_norm_gradient(n), _masked_row(draw, n), _vanishing_sum(draw, d), _dependent_columns(draw, n, d))
    plain, ours = (torch.stack([torch.as_tensor(trap[side]).double() for trap in failing]) for side in (0, 1))
    grown, keys = _growth(draw.normal(n, d), factor), _window_keys(d)
    return ClaimResult(
        same(
            stacked(plain, ours, *grown, *keys),
            stacked(torch.ones(4), torch.zeros(4), factor**2, factor, 2 * d + 1, 2 * d + 1),
        ),
        figures={"traps that plain formulas fall into": float(plain.sum()), "and ours": float(ours.sum())},
    )


def _bad(T: Tensor) -> Tensor:
    return ~T.isfinite().all()


def _norm_gradient(d: int) -> _Trap:
    """Of a constant row, where sigma = 0 and its root has no derivative."""
    plain, ours = (torch.full((1, d), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    centred = plain - plain.mean(-1, keepdim=True)
    (centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-5)).sum().backward()
    LayerNorm(d, "documented").double()(ours).sum().backward()
    assert plain.grad is not None and ours.grad is not None
    return _bad(plain.grad), _bad(ours.grad)


def _masked_row(draw: Draws, n: int) -> _Trap:
    S, allowed = draw.normal(2, n), torch.tensor([[True], [False]]).expand(2, n)
    plain, ours = S.masked_fill(~allowed, -torch.inf).softmax(-1), masked_softmax(S, allowed)
    return _bad(plain), (ours[1] != 0).any()


def _vanishing_sum(draw: Draws, d: int) -> _Trap:
    """Features that are the inputs themselves, of a key and its opposite: the similarities sum to zero.

    Of whole numbers, so that they do so exactly, in whichever order a machine adds.
    """
    q, k, V = (3 * draw.normal(1, d)).round(), (3 * draw.normal(1, d)).round(), draw.normal(2, d)
    K = torch.cat([k, -k])
    f = q @ K.mT
    return _bad(f @ V / f.sum(-1, keepdim=True)), _bad(mechanism_outputs(Linear(feature=lambda X: X), q, K, V))


def _dependent_columns(draw: Draws, n: int, d: int) -> _Trap:
    """The fit of B = X Z X^T where X has every column twice; whether B is missed by more than rounding."""
    half = draw.normal(n, d)
    X = torch.cat([half, half], -1)
    B = X @ draw.normal(2 * d, 2 * d) @ X.mT
    inverse = torch.linalg.inv_ex(X.mT @ X).inverse
    fits = (inverse @ X.mT @ B @ X @ inverse, lowrank_fit(B, X, 2 * d).Z)
    plain, ours = (~((X @ Z @ X.mT - B).abs().max() < 1e-9 * B.abs().max()) for Z in fits)
    return plain, ours


def _growth(X: Tensor, factor: int) -> _Trap:
    plain, ours = (norm(factor * X) / norm(X) for norm in (lambda X: induced_one(X) * induced_inf(X), composite))
    return plain, ours


def _window_keys(side: int) -> _Trap:
    """Keys of |i - j| <= w / 2 for w = 2 side, and of our window."""
    places = torch.arange(-2 * side, 2 * side + 1)
    return (places.abs() <= side).sum(), WindowPattern(side).table(1, len(places))[0, 2 * side].sum()
