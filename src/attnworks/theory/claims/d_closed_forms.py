"""D9: closed forms for the exercises of CS224N."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from attnworks.core.notation import tolerance
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, statement
from attnworks.theory.retrieval import (
    attention_weights,
    even_covariances,
    gap_deviation,
    least_beta,
    one_head_variance,
    two_head_failure,
    two_head_variance,
    two_key_query,
    two_key_weight,
)
from attnworks.theory.sides import at_most


@statement(
    "D9",
    where="derived",
    says=r"Keys with orthonormal means, $q = \beta(k_a + k_b)$: $\alpha_a = e^\beta/(n - 2 + 2e^\beta)$, and "
    r"$\frac{1}{2} - \alpha_a \le \delta$ if and only if $e^\beta \ge (n-2)(1-2\delta)/(4\delta)$. With $\Sigma_i = "
    r"\alpha I$ the two scores differ by $\mathcal N(0, 4\alpha\beta^2)$: the window is $\ln n \ll \beta \ll "
    r"1/(2\sqrt\alpha)$. With $k_a = \gamma\mu_a$, $\gamma \sim \mathcal N(1, \frac{1}{2})$, one head has "
    r"$\operatorname{tr}\operatorname{Var}(c) = \operatorname{E}[(\sigma(\beta z/\sqrt 2) - \frac{1}{2})^2] "
    r"\lVert v_a - v_b \rVert^2$ for $\beta \gg \ln n$, which tends to $\frac{1}{4}\lVert v_a - v_b \rVert^2$ and "
    r"lacks $\lVert v_a - v_b \rVert^2/(\beta\sqrt\pi)$ or less of it. Of two heads, the first fails with probability "
    r"$\Phi(\sqrt 2(\ln(n-1)/\beta - 1)) \to \Phi(-\sqrt 2) = 0.0786$, and $\operatorname{tr}\operatorname{Var}(c) = "
    r"\frac{1}{4}\operatorname{Var}(\sigma(\beta\gamma - \ln(n-1))) \lVert v_a - \bar v \rVert^2$, $\bar v$ being the "
    r"mean of all values but $v_a$.",
    verdict=Verdict.HOLDS,
    compares="largest distance of a formula from attention itself, over what is allowed, and 1",
    proof=r"The scores are $\beta$, $\beta$ and 0, so $\frac{1}{2} - \alpha_a = (n-2)/(2(n-2+2e^\beta))$. The noise of "
    r"$k_a^\top q$ has the variance $q^\top\Sigma_a q = 2\alpha\beta^2$, and so has that of $k_b^\top q$. With $k_a = "
    r"\gamma\mu_a$ the scores are $\beta\gamma$ and $\beta$, so that $c = v_b + \sigma(\beta(\gamma-1))(v_a - v_b)$; "
    r"$\frac{1}{4} - \operatorname{Var} = \operatorname{E}[\sigma(sz)(1-\sigma(sz))] \le 1/(s\sqrt{2\pi})$ with "
    r"$s = \beta/\sqrt 2$, as $\sigma(1-\sigma)$ has integral 1. The first of two heads scores $k_a$ "
    r"$\beta\gamma$ and the $n-1$ others 0, so that $\alpha_a = \sigma(\beta\gamma - \ln(n-1))$, and the others "
    r"share the rest equally; it is below $\frac{1}{2}$ where $\gamma < \ln(n-1)/\beta$.",
    note="The variance of two heads and the rate of the limit are new.",
)
def closed_forms_of_retrieval(
    draw: Draw,
    n: Annotated[int, Between(3, 13)] = 5,
    beta: Annotated[float, Between(3.0, 60.0)] = 10.0,
    shortfall: Annotated[float, Between(1e-4, 0.4)] = 0.01,
    alpha: Annotated[float, Between(0.0, 1.0)] = 0.01,
) -> Finding:
    """How far each formula is from attention itself, over how far it may be: by rounding, or as follows.

    Gamma runs over 2000 quantiles of its distribution. The mean of a function of variation t over them is within
    t / 4000 of its expectation. Other keys move the output of one head by (n - 2) exp(-beta) of the largest distance.
    """
    mu, V = draw.orthonormal(n + 3, n).mT, draw.normal(n, 3)
    gamma, grain = _quantiles(2000), 1 / 4000
    both, first, second = two_key_query(mu[0], mu[1], beta), beta * mu[0], beta * mu[1]
    weights = [
        attention_weights(mu, two_key_query(mu[0], mu[1], strength))[0] for strength in (beta, least_beta(n, shortfall))
    ]
    spread = 2 * both @ even_covariances(mu, alpha)[0] @ both
    K = mu.repeat(len(gamma), 1, 1)
    K[:, 0] *= gamma[:, None]
    heads = [attention_weights(K, q) for q in (both, first, second)]
    apart, longest = float((V[0] - V[1]).square().sum()), float(torch.cdist(V, V).max())
    one, two = one_head_variance(beta, V[0], V[1]), two_head_variance(beta, V)
    moved, failing = (n - 2) * math.exp(-beta) * longest, two_head_failure(n, beta)
    rounding, failures = tolerance(torch.float64).rtol, float((heads[1][:, 0] < 0.5).double().mean())
    shares = [
        abs(float(weights[0]) - two_key_weight(n, beta)) / rounding,
        abs(0.5 - float(weights[1]) - shortfall) / rounding,
        abs(float(spread.sqrt()) / gap_deviation(beta, 1.0) - math.sqrt(alpha)) / rounding,
        abs(_variance(heads[0] @ V) - one) / (longest**2 * grain + moved * (2 * math.sqrt(one) + moved)),
        abs(_variance((heads[1] + heads[2]) @ V / 2) - two) / (longest**2 * grain),
        abs(failures - failing) / grain,
        (apart / 4 - one) / (apart / (beta * math.sqrt(math.pi))),
    ]
    figures = {
        "weight of a and of b": two_key_weight(n, beta),
        "variance of one head": one,
        "its limit": apart / 4,
        "variance of two heads": two,
        "probability that the first of two heads fails": failing,
    }
    return Finding(at_most(torch.tensor(shares, dtype=torch.float64), 1.0), figures=figures)


def _quantiles(T: int) -> Tensor:
    """Of N(1, 1/2), in the middle of T equal shares."""
    shares = (torch.arange(T, dtype=torch.float64) + 0.5) / T
    return 1 + torch.special.ndtri(shares) / math.sqrt(2)


def _variance(outputs: Tensor) -> float:
    return float(outputs.var(0, correction=0).sum())
