"""S2: CS224N attention exploration on averages of two values by one head and by two heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.theory import retrieval
from attnworks.theory.cases import Draws
from attnworks.theory.claims.s2_copying import STANDARD_ERRORS, orthonormal_means
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.sides import at_least, at_most, same, stacked


@statement("S2.8", "1 (b) ii", TYPO).says(
    r"$q = \beta(k_a + k_b)$ gives $\alpha_a = \alpha_b = e^\beta / ((\alpha - 2) + 2e^\beta) \approx \frac{1}{2}$ for "
    r"$\beta \gg 0$.",
    correction=r"$(n-2)$, not $(\alpha-2)$, and only for orthonormal keys. $\frac{1}{2} - \alpha_a \le \delta$ if and "
    r"only if $e^\beta \ge (n-2)(1-2\delta)/(4\delta)$.",
    compares=r"weight of $a$, and the printed formula; corrected: and that with $n$ (or $\frac{1}{2} - \delta$, at the "
    r"least $\beta$)",
)
@between(n=(3, 13), beta=(0.0, 12.0), shortfall=(1e-4, 0.4))
def average_of_two_values(draw: Draws, n: int = 5, beta: float = 3.0, shortfall: float = 0.01) -> ClaimResult:
    """The alpha of the denominator is read as the weight itself. The second weight is that at the least beta."""
    K = orthonormal_means(draw, n)
    weights = [
        retrieval.attention_weights(K, retrieval.two_key_query(K[0], K[1], strength))[0]
        for strength in (beta, retrieval.least_beta(n, shortfall))
    ]
    printed = math.exp(beta) / (weights[0] - 2 + 2 * math.exp(beta))
    figures = {"least beta for this shortfall": retrieval.least_beta(n, shortfall)}
    expected = torch.tensor([retrieval.two_key_weight(n, beta), 0.5 - shortfall], dtype=torch.float64)
    return ClaimResult(same(weights[0], printed), corrected=same(torch.stack(weights), expected), figures=figures)


@statement("S2.9", "1 (b) ii", TYPO).says(
    r"$k_a^\top q = k_b^\top q \Rightarrow k_i^\top q$ as the condition for $\alpha_a = \alpha_b = \frac{1}{2}$ "
    "(printed twice)",
    correction=r"$k_a^\top q = k_b^\top q \gg k_i^\top q$. With a gap $\Delta$ to all others, $\frac{1}{2} - \alpha_a "
    r"\le (n-2) e^{-\Delta} / 4$.",
    compares="weight of $a$ if all keys score alike, and one half; corrected: what it lacks of one half at a gap "
    r"$\Delta$, and its bound",
    note="The bound is ours: with r = the sum of exp(-gap) over the others, 1/2 - 1/(2 + r) is at most r/4.",
)
@between(n=(3, 13), d=(2, 11), gap=(0.0, 20.0))
def equal_scores_of_two_keys(draw: Draws, n: int = 5, d: int = 7, gap: float = 5.0) -> ClaimResult:
    """The statement has no condition on the other keys: the query gives all keys the same score."""
    others, q = draw.normal(n - 2), draw.normal(d)
    S = torch.cat([(others.max() + gap).expand(2), others])
    K = draw.normal(n, d)
    K += torch.outer(S - K @ q, q / q.square().sum())
    alike = K - torch.outer(K @ q, q / q.square().sum())
    shortfall = 0.5 - retrieval.attention_weights(K, q)[:2]
    return ClaimResult(
        same(retrieval.attention_weights(alike, q)[:2], 0.5), corrected=at_most(shortfall, (n - 2) * math.exp(-gap) / 4)
    )


@statement("S2.10", "1 (c)", TYPO).says(
    r"$k_i \sim \mathcal N(m_i, \Sigma_i)$ with $\Sigma_i^\top \Sigma_i = 0$ ($i \neq j$), $\lVert m_i \rVert = 1$, "
    r"and $\Sigma_i = \alpha I$",
    correction=r"The means are orthogonal, $m_i^\top m_j = 0$ for $i \neq j$, so that $q = \beta(m_a + m_b)$ scores "
    "all other means 0.",
    compares=r"entry of $\Sigma_i^\top\Sigma_i$, and zero; corrected: score of another mean, and zero",
)
@between(n=(3, 13), alpha=(0.001, 1.0), beta=(0.1, 50.0))
def orthogonal_means(draw: Draws, n: int = 5, alpha: float = 0.01, beta: float = 10.0) -> ClaimResult:
    mu = orthonormal_means(draw, n)
    Sigma = retrieval.even_covariances(mu, alpha)
    return ClaimResult(
        same(Sigma.mT @ Sigma, 0.0),
        corrected=same(mu[2:] @ retrieval.two_key_query(mu[0], mu[1], beta), torch.zeros(n - 2)),
    )


@statement("S2.11", "1 (c) i", FALSE, heavy=True).says(
    r"$k_a = m_a + \Sigma_a x = m_a + \alpha I x$ for $k_a \sim \mathcal N(m_a, \alpha I)$",
    correction=r"$k = m + \Sigma^{1/2} x$ with standard deviation $\sqrt\alpha$, not $\alpha$: for $q = \beta(m_a + "
    r"m_b)$ that of $k_a^\top q - k_b^\top q$ is $2\beta\sqrt\alpha$.",
    compares=r"standard deviation of $k_a^\top q - k_b^\top q$ in draws as printed, and $2\beta\sqrt\alpha$; "
    r"corrected: in draws with $\Sigma^{1/2}$",
)
@between(n=(2, 7), T=(500, 2000), alpha=(1e-6, 0.5), beta=(0.1, 50.0))
def keys_around_their_means(
    draw: Draws, n: int = 3, T: int = 1000, alpha: float = 0.01, beta: float = 10.0
) -> ClaimResult:
    """A factor of Sigma instead of its root has the covariance Sigma^2."""
    mu = orthonormal_means(draw, n)
    Sigma, q = retrieval.even_covariances(mu, alpha), retrieval.two_key_query(mu[0], mu[1], beta)
    printed, rooted = (
        _gaps(retrieval.sample_keys(mu, covariance, T, draw.generator), q).std()
        for covariance in (Sigma @ Sigma, Sigma)
    )
    expected = retrieval.gap_deviation(beta, alpha)
    slack = STANDARD_ERRORS * expected / math.sqrt(2 * T)
    return ClaimResult(same(printed, expected, slack=slack), corrected=same(rooted, expected, slack=slack))


def _gaps(K: Tensor, q: Tensor) -> Tensor:
    """Score of a less score of b, in every draw."""
    return (K[:, 0] - K[:, 1]) @ q


@statement("S2.12", "1 (c) i", TYPO).says(
    r"$k_a^\top q = \beta \cdot m_b$, $k_b^\top q = \beta \cdot m_a$, $k_i^\top q = 0$",
    correction=r"Both are numbers, and about $\beta$: $\beta m_a^\top(m_a + m_b) = \beta$.",
    compares="score of $m_a$ (or $m_b$), and a coordinate of the printed vector; corrected: score of a mean, and "
    r"$\beta$ (or 0)",
)
@between(n=(3, 13), beta=(0.1, 50.0))
def scores_of_two_means(draw: Draws, n: int = 5, beta: float = 10.0) -> ClaimResult:
    mu = orthonormal_means(draw, n)
    S = mu @ retrieval.two_key_query(mu[0], mu[1], beta)
    expected = beta * (torch.arange(n) < 2).double()
    return ClaimResult(same(S[:2, None], beta * mu[[1, 0]]), corrected=same(S, expected))


@statement("S2.13", "1 (c) i", CONDITION, heavy=True).says(
    r"$q = (m_a + m_b)\beta$, $\beta \gg 0$, gives $\alpha_a \approx \alpha_b \approx \frac{1}{2}$ for keys with "
    r"$\Sigma_i = \alpha I$.",
    correction=r"In the window $\ln n \ll \beta \ll 1/(2\sqrt\alpha)$, as $k_a^\top q - k_b^\top q \sim \mathcal N(0, "
    r"4\alpha\beta^2)$. With $t = 2\beta\sqrt\alpha$ the root mean square of $\alpha_a - \frac{1}{2}$ is at most $t/4 "
    r"+ (n-2)e^{t^2 - \beta}$.",
    compares=r"mean square of $\alpha_a - \frac{1}{2}$ in draws, and its bound; without: in draws with "
    r"$2\beta\sqrt\alpha = 4$",
    note="The bound is ours.",
)
@between(n=(2, 11), T=(500, 2000), above=(3.0, 20.0), deviation=(0.01, 0.3))
def average_in_the_window(
    draw: Draws, n: int = 5, T: int = 1000, above: float = 5.0, deviation: float = 0.1
) -> ClaimResult:
    """Beta is ln n + above, and alpha gives the gap of scores this deviation; without the condition, a deviation of 4.

    The logistic function has slope 1/4 or less, and the others take no more than sum_i exp(S_i - S_a), where
    S_i - S_a + beta is normal with variance t^2.
    """
    mu, V, beta = orthonormal_means(draw, n), draw.normal(n, 3), math.log(n) + above
    bound = deviation / 4 + (n - 2) * math.exp(deviation**2 - beta)

    def squares(t: float) -> Tensor:
        Sigma = retrieval.even_covariances(mu, (t / (2 * beta)) ** 2)
        return (retrieval.simulate_retrieval(mu, Sigma, V, beta, T, generator=draw.generator).one[:, 0] - 0.5).square()

    inside, outside = squares(deviation), squares(4.0)
    low, high = retrieval.beta_window(n, (deviation / (2 * beta)) ** 2)
    figures = {
        "window from": low,
        "window to": high,
        "beta": beta,
        "deviation of the weight inside": float(inside.mean().sqrt()),
        "deviation of the weight outside": float(outside.mean().sqrt()),
    }
    return ClaimResult(
        at_most(inside.mean(), bound**2, slack=STANDARD_ERRORS * _standard_error(inside)),
        without=at_most(outside.mean(), bound**2, slack=STANDARD_ERRORS * _standard_error(outside)),
        figures=figures,
    )


def _standard_error(x: Tensor) -> float:
    """Of the mean."""
    return float(x.std()) / math.sqrt(len(x))


@statement("S2.14", "1 (c) ii", HOLDS, heavy=True).says(
    r"Under the condition of high variance, $k_a^\top q \approx k_b^\top q$ does not hold.",
    correction=r"The assumption, left out, is $\Sigma_a = \alpha I + \frac{1}{2} m_a m_a^\top$: $k_a \approx \gamma "
    r"m_a$ with $\gamma \sim \mathcal N(1, \frac{1}{2})$, so that two scores with mean $\beta$ differ by $\beta/\sqrt "
    "2$ or more (standard deviation).",
    compares=r"standard deviation of $k_a^\top q - k_b^\top q$ in draws, and $\beta/\sqrt 2$",
)
@between(n=(2, 7), T=(500, 2000), alpha=(0.0, 0.1), beta=(0.1, 50.0))
def scores_of_a_stretched_key(
    draw: Draws, n: int = 3, T: int = 1000, alpha: float = 1e-4, beta: float = 10.0
) -> ClaimResult:
    mu = orthonormal_means(draw, n)
    K = retrieval.sample_keys(mu, retrieval.stretched_covariances(mu, alpha), T, draw.generator)
    apart = _gaps(K, retrieval.two_key_query(mu[0], mu[1], beta)).std()
    moments = retrieval.logistic_moments(0.0, beta / math.sqrt(2))
    figures = {
        "deviation of the weight of a beside b": math.sqrt(moments.variance),
        "deviation of the gap with even variance": retrieval.gap_deviation(beta, alpha),
    }
    slack = STANDARD_ERRORS * float(apart) / math.sqrt(2 * T)
    return ClaimResult(at_least(apart, beta / math.sqrt(2), slack=slack), figures=figures)


@statement("S2.15", "1 (c) ii", CONDITION, heavy=True).says(
    r"$c = \alpha_a v_a + \alpha_b v_b + \sum_{i \neq a,b} \epsilon_i v_i$ with $\alpha_a + \alpha_b \approx 1$",
    correction=r"For $\beta \gg \ln n$ and $k_b$ near its mean: $1 - \alpha_a - \alpha_b \le (n-2)e^{-\beta}$ however "
    "$k_a$ is stretched.",
    compares=r"weight of all keys but $a$ and $b$, and $(n-2)e^{-\beta}$; without: the weight with only "
    r"$\frac{1}{2}\ln n$ for $\beta$",
    note="The bound is ours.",
)
@between(n=(3, 13), T=(100, 500), beta=(3.0, 20.0))
def the_rest_is_small(draw: Draws, n: int = 5, T: int = 200, beta: float = 8.0) -> ClaimResult:
    """Without the condition, beta is half of ln n."""
    mu, V = orthonormal_means(draw, n), draw.normal(n, 3)
    Sigma = retrieval.stretched_covariances(mu, 0.0)
    rest, rest_below = (
        retrieval.simulate_retrieval(mu, Sigma, V, strength, T, generator=draw.generator).one[:, 2:].sum(-1)
        for strength in (beta, math.log(n) / 2)
    )
    bound = (n - 2) * math.exp(-beta)
    return ClaimResult(at_most(rest, bound), without=at_most(rest_below, bound))


@statement("S2.16", "1 (c) ii, ① and ②", FALSE).says(
    r"$\alpha_a = e^\beta/(e^\beta + e^{-\beta}) = 1/(1+e^\beta)$ and $\alpha_b = e^{-\beta}/(e^\beta + e^{-\beta}) = "
    r"1/(1+e^{-\beta})$",
    correction=r"$\alpha_a = 1/(1+e^{-2\beta})$ and $\alpha_b = 1/(1+e^{2\beta})$: the sign is wrong, and a 2 is "
    r"missing. For scores $\beta$ and $\delta\beta$: $\alpha_a = 1/(1+e^{(\delta-1)\beta})$.",
    compares="weight of one of two keys with opposite scores, and as printed; corrected: and by the right formula",
)
@between(beta=(0.01, 10.0), delta=(-3.0, 3.0))
def weights_of_two_opposite_scores(draw: Draws, beta: float = 1.0, delta: float = 0.5) -> ClaimResult:
    """The keys are one unit vector, times 1 and -1, and times 1 and delta."""
    unit = draw.orthonormal(3, 1).mT
    opposite = retrieval.attention_weights(torch.cat([unit, -unit]), beta * unit[0])
    unequal = retrieval.attention_weights(torch.cat([unit, delta * unit]), beta * unit[0])
    printed = stacked(1 / (1 + math.exp(beta)), 1 / (1 + math.exp(-beta)))
    right = stacked(*(retrieval.two_way(*pair) for pair in ((beta, -beta), (-beta, beta), (beta, delta * beta))))
    return ClaimResult(same(opposite, printed), corrected=same(stacked(opposite, unequal[0]), right))


@statement("S2.17", "1 (c) ii", FALSE, heavy=True).says(
    r"If $\beta$ has a high variance (such as 0.1 to 2), then $\alpha_a, \alpha_b \approx 1.0$ or $0.1$.",
    correction=r"It is $\gamma$ that varies: $\alpha_a = \sigma(\beta(\gamma - 1))$ tends to a coin with values 0 and "
    r"1 as $\beta \to \infty$. For $\beta \gg \ln n$, $\operatorname{tr}\operatorname{Var}(c) = "
    r"\operatorname{E}[(\sigma(\beta z/\sqrt 2) - \frac{1}{2})^2] \lVert v_a - v_b \rVert^2 \to \frac{1}{4} \lVert v_a "
    r"- v_b \rVert^2$ with $z \sim \mathcal N(0, 1)$.",
    compares=r"distance of $\alpha_a$ from the nearer of 1.0 and 0.1, and half of their last digit; corrected: "
    "variance of $c$ in draws, and by the formula",
)
@between(n=(2, 7), T=(500, 2000), beta=(3.0, 50.0))
def variance_of_one_head(draw: Draws, n: int = 5, T: int = 1000, beta: float = 10.0) -> ClaimResult:
    """As printed, to its one decimal: 0.05 or nearer to 1.0 or 0.1, for beta from 0.1 to 2 in the middle part of ①.

    Other keys move c by no more than (n-2) exp(-beta) times the largest distance of values, and the root of the
    variance by no more than that.
    """
    weights = stacked(*(retrieval.two_way(strength, -strength) for strength in (0.1, 0.5, 1.0, 2.0)))
    off = torch.minimum((weights - 1.0).abs(), (weights - 0.1).abs())
    mu, V = orthonormal_means(draw, n), draw.normal(n, 3)
    Sigma = retrieval.stretched_covariances(mu, 0.0)
    drawn = retrieval.simulate_retrieval(mu, Sigma, V, beta, T, generator=draw.generator)
    squares = (drawn.by_one - drawn.by_one.mean(0)).square().sum(-1)
    expected = retrieval.one_head_variance(beta, V[0], V[1])
    moved = (n - 2) * math.exp(-beta) * float(torch.cdist(V, V).max())
    slack = STANDARD_ERRORS * _standard_error(squares) + moved * (2 * math.sqrt(expected) + moved)
    figures = {
        "largest it can be, a quarter of the squared distance": float((V[0] - V[1]).square().sum()) / 4,
        "least weight of a for beta from 0.1 to 2": float(weights.min()),
    }
    return ClaimResult(at_most(off, 0.05), corrected=same(squares.mean(), expected, slack=slack), figures=figures)


@statement("S2.18", "1 (d) i", FALSE).says(
    r"$q_1 = \mu_a$ and $q_2 = \mu_b$ give $c_1 = v_a$ and $c_2 = v_b$.",
    correction=r"Scores of 1 against 0 give $\alpha_a = e/(e + n - 1)$. Needed are $q_1 = \beta\mu_a$ and $q_2 = "
    r"\beta\mu_b$ with $\beta \gg \ln n$: $\alpha_a = e^\beta/(e^\beta + n - 1)$.",
    compares=r"coordinate of $c_1$, and of $v_a$; corrected: weight of $a$, without or with $\beta$, and by the "
    "formula",
    note=r"The text has Hu and Hb, which are read as $\mu_a$ and $\mu_b$.",
)
@between(n=(2, 13), v=(2, 11), beta=(0.1, 50.0))
def heads_without_strength(draw: Draws, n: int = 5, v: int = 3, beta: float = 10.0) -> ClaimResult:
    mu, V = orthonormal_means(draw, n), draw.normal(n, v)
    weights = torch.stack([retrieval.attention_weights(mu, strength * mu[0]) for strength in (1.0, beta)])
    expected = torch.tensor([math.e / (math.e + n - 1), retrieval.one_key_weight(n, beta)], dtype=torch.float64)
    figures = {"weight without beta": float(weights[0, 0]), "weight with beta": float(weights[1, 0])}
    return ClaimResult(same(weights[0] @ V, V[0]), corrected=same(weights[:, 0], expected), figures=figures)


@statement("S2.19", "1 (d) ii", FALSE).says(
    r"$\alpha_a = \beta/(\beta + 0 + \dots + 0) = 1$ for $k_a^\top q_1 = \beta$, and $\alpha_b = 1/(1 + 0 + \dots + 0) "
    r"= 1$ for $k_b^\top q_2 = 1$",
    correction=r"The exponential is missing: $e^\beta/(e^\beta + (n-1)e^0)$; and $q_2$ must carry $\beta$ too.",
    compares=r"weight of $a$ (or $b$) with the printed queries, and 1; corrected: with $\beta$ in both, and by the "
    "formula",
)
@between(n=(2, 13), beta=(0.1, 50.0))
def weights_without_exponential(draw: Draws, n: int = 5, beta: float = 10.0) -> ClaimResult:
    """The weight of b, whose query has no beta, is not one at any beta."""
    mu = orthonormal_means(draw, n)
    weights = torch.stack([retrieval.attention_weights(mu, beta * mu[0])[0], retrieval.attention_weights(mu, mu[1])[1]])
    both = torch.stack([retrieval.attention_weights(mu, beta * mu[head])[head] for head in (0, 1)])
    return ClaimResult(same(weights, 1.0), corrected=same(both, retrieval.one_key_weight(n, beta)))


@statement("S2.20", "1 (d) ii", CONDITION, heavy=True).says(
    r"Two heads give $c = \frac{1}{2}(v_a + v_b)$, also where $k_a$ varies.",
    correction=r"For $\beta \gg \ln n$ wherever $k_a = \gamma\mu_a$ is not short: if $\gamma \ge \frac{1}{2}$, then "
    r"$\lVert c - \frac{1}{2}(v_a + v_b) \rVert \le (n-1)e^{-\beta/2} \max_{i,j} \lVert v_i - v_j \rVert$. Two heads "
    r"remove most of the variance, not all: head 1 fails where $\gamma < \ln(n-1)/\beta$, with a probability that "
    r"tends to $\Phi(-\sqrt 2) = 0.0786$ as $\beta \to \infty$.",
    compares=r"distance of $c$ from $\frac{1}{2}(v_a + v_b)$ in draws with $\gamma \ge \frac{1}{2}$, and its bound; "
    "without: in those where head 1 fails",
)
@between(n=(2, 7), T=(500, 2000), beta=(20.0, 60.0))
def average_by_two_heads(draw: Draws, n: int = 5, T: int = 1000, beta: float = 30.0) -> ClaimResult:
    """With the condition, the draws with gamma of one half or more; without it, those in which head 1 fails."""
    mu, V = orthonormal_means(draw, n), draw.normal(n, 3)
    Sigma = retrieval.stretched_covariances(mu, 0.0)
    drawn = retrieval.simulate_retrieval(mu, Sigma, V, beta, T, generator=draw.generator)
    error = (drawn.by_two - (V[0] + V[1]) / 2).norm(dim=-1)
    gamma = (drawn.first[:, 0] / drawn.first[:, 1]).log() / beta
    bound = (n - 1) * math.exp(-beta / 2) * torch.cdist(V, V).max()
    failing = drawn.first[:, 0] < 0.5
    figures = {
        "share of draws in which head 1 fails": float(failing.double().mean()),
        "probability of that": retrieval.two_head_failure(n, beta),
        "variance of one head": retrieval.one_head_variance(beta, V[0], V[1]),
        "variance of two heads": retrieval.two_head_variance(beta, V),
        "variance of two heads, drawn": float(drawn.by_two.var(0).sum()),
    }
    return ClaimResult(at_most(error[gamma >= 0.5], bound), without=at_most(error[failing], bound), figures=figures)
