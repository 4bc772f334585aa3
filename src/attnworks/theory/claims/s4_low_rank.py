"""S4: Conti 2024, section 2.1.3 on matrices of low rank, and the start of section 3 (S4.105-S4.120)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.attention import Context, Geometry, Mask
from attnworks.attention.dense import Dense
from attnworks.attention.heads import fold_scores
from attnworks.attention.linformer import Linformer
from attnworks.attention.sketched import Sketched, sketch_error_formula
from attnworks.attention.softmax import scaled_dot
from attnworks.attention.truncated import Truncated, leading
from attnworks.exam.linalg.spectrum import cumulative_energy, numerical_rank, rank_for_energy, singular_values
from attnworks.theory.cases import Draws, filled
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_outputs, mechanism_weights
from attnworks.theory.random_projection import (
    distortion,
    enough_rows,
    equal_tails,
    exact_low_rank,
    published_rows,
    shrunk_map,
    sketch_error,
    tail_exponent,
    union_failure,
)
from attnworks.theory.sides import at_most, both, less, more, same, stacked

# --- spectra ----------------------------------------------------------------------------------------------------------


def _soft_and_sharp(draw: Draws, n: int, softness: float) -> tuple[Tensor, Tensor]:
    """Singular values of a head with small scores, and of one in which every token attends itself."""
    d, V = 2 * n, draw.normal(n, 1)
    Q, K, own = draw.normal(n, d), draw.normal(n, d), draw.orthonormal(d, n).mT
    soft = mechanism_weights(Dense(), Q, K, V, context=Context(scale=softness * d**-0.5))
    sharp = mechanism_weights(Dense(), own, own, V, context=Context(scale=50.0))
    return singular_values(soft), singular_values(sharp)


@statement("S4.105", "§2.1.3", CONDITION).says(
    "The matrix of self-attention is of low rank.",
    correction="Numerically, for heads that are not sharp: a few singular values hold most of the energy. Not exactly: "
    "such a matrix has full rank, as section 3.1 of the document itself reports, and a head in which every token "
    "attends itself is not of low rank in any sense.",
    compares="energy in $n/8$ singular values of a head of small scores, and one half; without: of one where all "
    "attend themselves",
)
@between(n=(11, 31), softness=(0.01, 0.5))
def few_singular_values(draw: Draws, n: int = 23, softness: float = 0.3) -> ClaimResult:
    soft, sharp = _soft_and_sharp(draw, n, softness)
    few, rank = math.ceil(n / 8), numerical_rank(soft)
    of_soft, of_sharp = (cumulative_energy(s)[few - 1] for s in (soft, sharp))
    return ClaimResult(
        more(stacked(of_soft, rank), stacked(0.5, n - 1)),
        without=more(of_sharp, 0.5),
        figures={"singular values": few, "of": n, "rank": float(rank)},
    )


@statement("S4.106", "§2.1.3", CONDITION).says(
    r"$QK^\top$, which is $n \times n$, is reduced to a matrix $n \times k'$ with $k' < n$.",
    correction="By projecting $K$ (and $V$) along the tokens, with a fixed $n$: a longer sequence has no projection.",
    compares="rank of the map, and $k'$; scores for each query, and $k'$ as well; without: tokens of a longer "
    "sequence, and the longest",
)
@between(n=(11, 31), rank=(2, 7), k=(1, 7))
def reduced_scores(draw: Draws, n: int = 23, rank: int = 5, k: int = 3) -> ClaimResult:
    linformer = _linformer(draw, n, rank)
    Q, K, V = draw.normal(3, n, k)
    P = mechanism_weights(linformer, Q, K, V)
    assert linformer.max_keys is not None
    scores = linformer.cost(n, n, Geometry(1, k, k)).edges
    return ClaimResult(
        at_most(stacked(numerical_rank(singular_values(P)), scores / n), rank),
        without=at_most(n + 1, linformer.max_keys),
    )


@statement("S4.107", "§2.1.3", TYPO).says(
    r"The softmax of the rows of an $n \times n$ matrix has complexity $o(n^2)$.",
    correction=r"$\Theta(n^2)$: as many exponentials as entries, so that their number over $n^2$ does not fall.",
    compares="exponentials for $2n$ tokens, and four times those for $n$; corrected: the same, as an equality",
)
@between(n=(2, 10_000))
def exponentials_of_a_softmax(draw: Draws, n: int = 512) -> ClaimResult:
    once, twice = (Dense().cost(size, size, Geometry(1, 1, 1)).edges for size in (n, 2 * n))
    return ClaimResult(less(twice, 4 * once), corrected=same(stacked(twice, once), stacked(4 * once, n * n)))


@statement("S4.108", "§2.1.3", TYPO).says(
    r"$P = \operatorname{softmax}(\frac{QK^\top}{k})$ is the matrix whose singular values are studied.",
    correction=r"The scale is $\frac{1}{\sqrt k}$, as in the paper that made the study.",
    compares=r"weight with scale $1/k$, and of our attention; corrected: with $1/\sqrt k$, and of our attention",
)
@between(n=(2, 13), k=(2, 7))
def scale_of_the_studied_matrix(draw: Draws, n: int = 7, k: int = 5) -> ClaimResult:
    Q, K, V = draw.normal(3, n, k)
    P = mechanism_weights(Dense(), Q, K, V)
    printed, scaled = (scaled_dot(Q, K, scale).softmax(-1) for scale in (1 / k, k**-0.5))
    return ClaimResult(same(printed, P), corrected=same(scaled, P))


@statement("S4.109", "§2.1.3, figure 10", CONDITION).says(
    "The spectrum of $P$ has a long tail in every layer and head.",
    correction="An experiment. True of heads that are not sharp, where 90 % of the energy take fewer than half of the "
    "values; a head in which every token attends itself has an even spectrum.",
    compares="singular values that hold 90 % of the energy, and half of all; without: the same where all attend "
    "themselves",
)
@between(n=(11, 31), softness=(0.01, 0.5))
def long_tail(draw: Draws, n: int = 23, softness: float = 0.3) -> ClaimResult:
    soft, sharp = (float(rank_for_energy(s, 0.9)) for s in _soft_and_sharp(draw, n, softness))
    return ClaimResult(less(soft, n / 2), without=less(sharp, n / 2), figures={"singular values": n})


# --- random projections -----------------------------------------------------------------------------------------------


@statement("S4.110", "§2.1.3, (16)", FALSE, heavy=True).says(
    r"$\Pr(\lVert P\omega^\top - P\omega^\top \rVert < \epsilon \lVert P\omega^\top \rVert) > 1 - o(1)$ for any "
    r"$\omega$, for some $\tilde P$ of low rank.",
    correction=r"The first $P$ should be $\tilde P$. That one exists for a given $\omega$ is true and trivial (S0.21): "
    r"$P\omega^\top\omega / \lVert \omega \rVert^2$ has rank 1 and no error. What fails is the construction $\tilde P "
    r"= P R^\top R$. Its error is relative to $\lVert P \rVert_F \lVert \omega \rVert$, not to $\lVert P\omega "
    r"\rVert$: $E \lVert \tilde P\omega - P\omega \rVert^2 = \frac{\lVert P \rVert_F^2 \lVert \omega \rVert^2 + \lVert "
    r"P\omega \rVert^2}{k}$.",
    compares=r"share of draws with an error below $\epsilon$, and one half; corrected: mean squared relative error, "
    "and its formula (or entry of the map of rank 1 times values, and of attention)",
    note=r"As printed the error is zero, and nothing is said; what is checked is the statement with $\tilde P$.",
)
@between(n=(227, 257), eps=(0.5, 0.66))
def error_of_a_sketch(draw: Draws, n: int = 229, eps: float = 0.5) -> ClaimResult:
    r"""Every token attends itself; $R$ has the $\frac{5 \ln n}{\epsilon^2 - \epsilon^3} < n$ rows of the paper."""
    draws, k = 24, published_rows(n, eps)
    P, w = torch.eye(n, dtype=torch.float64), draw.normal(n, 1)
    errors = sketch_error(P.expand(draws, n, n), w.expand(draws, n, 1), k, draw.generator)
    squares = errors.square()
    return ClaimResult(
        more((errors < eps).double().mean(), 0.5),
        corrected=both(
            same(squares.mean(), sketch_error_formula(P, w, k).square(), slack=6 * float(squares.std()) / draws**0.5),
            same(P @ w @ w.mT / w.square().sum() @ w, P @ w),
        ),
        figures={"rows of the projection": k, "mean error": float(errors.mean())},
    )


@statement("S4.111", "§2.1.3", TYPO).says(
    r"$P = \operatorname{softmax}(A) = \exp(A) D_A^{-1}$ with a diagonal $D_A$.",
    correction=r"$D_A^{-1} \exp(A)$ with the sums of rows. On the right, with the sums of columns, it is a softmax of "
    "columns, as Linformer defines it.",
    compares=r"entry of $\exp(A) D_A^{-1}$, and of softmax; corrected: of $D_A^{-1} \exp(A)$, and of softmax",
)
@between(n=(2, 13))
def normaliser_on_the_left(draw: Draws, n: int = 5) -> ClaimResult:
    A = draw.normal(n, n)
    P, E = A.softmax(-1), A.exp()
    inverse_rows, inverse_columns = (torch.diag(1 / E.sum(axis)) for axis in (1, 0))
    figures = {"difference of the two softmaxes": float((E @ inverse_columns - P).abs().max())}
    return ClaimResult(same(E @ inverse_rows, P), corrected=same(inverse_rows @ E, P), figures=figures)


@statement("S4.112", "§2.1.3", CONDITION).says(
    r"$\tilde P = \exp(A) D_A^{-1} R^\top R$ with $R \in \mathbb R^{k' \times n}$ of i.i.d. entries.",
    correction=r"With entries from $N(0, \frac{1}{k'})$, so that $E R^\top R = I$. Standard normal entries give $k' "
    "I$.",
    compares="mean squared length of a column of $R$, and 1; without: the same with standard normal entries",
)
@between(n=(67, 311), rank=(3, 31))
def variance_of_the_projection(draw: Draws, n: int = 101, rank: int = 7) -> ClaimResult:
    """The squared lengths of the n columns of $R$ have mean 1 and variance $2 / k'$."""
    R = Sketched(rank=rank, seed=int(draw.integers(1, below=2**31))).draw(draw.normal(1, 1, n, 1))
    mean, slack = R.square().sum(0).mean(), 6 * math.sqrt(2 / (rank * n))
    return ClaimResult(same(mean, 1, slack=slack), without=same(rank * mean, 1, slack=slack))


@statement("S4.113", "§2.1.3, lemma 2.1", HOLDS).says(
    r"For $0 < \varepsilon < 1$, $m$ points of $\mathbb R^N$ and $n > \frac{8 \ln m}{\varepsilon^2}$ some linear $f: "
    r"\mathbb R^N \to \mathbb R^n$ has $(1 - \varepsilon) \lVert u - v \rVert^2 \le \lVert f(u) - f(v) \rVert^2 \le (1 "
    r"+ \varepsilon) \lVert u - v \rVert^2$ for all pairs.",
    correction=r"For all $\varepsilon$: a normal map scaled by $s = "
    r"\frac{2\varepsilon}{\ln(\frac{1+\varepsilon}{1-\varepsilon})}$ has equal tails with an exponent of at least "
    r"$\frac{\varepsilon^2}{2}$, and fails some of the $\frac{m(m-1)}{2}$ pairs with a probability of at most "
    r"$\frac{m-1}{m} < 1$. The constant of textbooks is $\frac{4 \ln m}{\varepsilon^2/2 - \varepsilon^3/3}$.",
    compares=r"chance that some pair fails, and its bound by the exponent; that bound, and $\frac{m-1}{m}$ as well",
)
@between(m=(2, 1_000_000), eps=(0.05, 0.99))
def johnson_lindenstrauss(draw: Draws, m: int = 100, eps: float = 0.9) -> ClaimResult:
    k, s = enough_rows(m, eps), equal_tails(eps)
    failure, exponent = union_failure(m, k, eps, s), tail_exponent(eps, s)
    by_exponent, points = m * (m - 1) * math.exp(-k * exponent / 2), draw.normal(5, 7)
    return ClaimResult(
        at_most(stacked(failure, by_exponent), stacked(by_exponent, (m - 1) / m)),
        figures={
            "dimensions": k,
            "exponent over half of the square of epsilon": 2 * exponent / eps**2,
            "bound of failure, scaled": failure,
            "bound of failure, not scaled": union_failure(m, k, eps),
            "largest change among 5 points": float(distortion(points, shrunk_map(k, 7, eps, draw.generator))),
        },
    )


statement("S4.114", "§2.1.3", TYPO).not_computed(
    'The "JR lemma".', why_not="a slip in a name", correction="The lemma of Johnson and Lindenstrauss: JL."
)


@statement("S4.115", "§2.1.3", FALSE).says(
    '"So far we proved" that $P$ can be approximated in low-rank terms.',
    correction="Nothing was proved, and the proof cited is not valid (S4.110). A head in which every token attends "
    "itself has no good approximation of low rank. The output has one that is exact: $P V V^+$, of rank at most $d_v$.",
    compares=r"relative error of the best rank $n/4$ where all attend themselves, and $\epsilon$; corrected: $P V V^+ "
    "V$, and $P V$",
)
@between(n=(11, 31), d_v=(1, 7), eps=(0.01, 0.8))
def no_low_rank_for_all(draw: Draws, n: int = 23, d_v: int = 3, eps: float = 0.5) -> ClaimResult:
    r"""The best of rank $n/4$ has the relative error $\sqrt{3/4}$, for $P = I$."""
    P, V = torch.eye(n, dtype=torch.float64), draw.normal(n, d_v)
    missing = torch.linalg.matrix_norm(P - leading(P, n // 4)) / torch.linalg.matrix_norm(P)
    head = draw.stochastic(n, n)
    figures = {"rank": n // 4, "of": n}
    return ClaimResult(at_most(missing, eps), corrected=same(exact_low_rank(head, V) @ V, head @ V), figures=figures)


@statement("S4.116", "§2.1.3", HOLDS).says(
    "To approximate the weights by singular values would be much heavier.",
    correction="It takes a decomposition for each head and layer, of about $22n^3$ FLOPs: alone more than the $4n^2d$ "
    r"of full attention wherever $n > \frac{2d}{11}$.",
    compares="FLOPs of the decomposition and its use, and of full attention",
)
@between(n=(31, 10_000), d=(1, 128), rank=(1, 64))
def decomposing_costs_more(draw: Draws, n: int = 512, d: int = 64, rank: int = 16) -> ClaimResult:
    geometry = Geometry(1, d, d)
    truncated, dense = (kind.cost(n, n, geometry).flops for kind in (Truncated(rank=rank), Dense()))
    return ClaimResult(more(truncated - dense, dense), figures={"times the FLOPs of full attention": truncated / dense})


# --- Linformer --------------------------------------------------------------------------------------------------------


def _linformer(draw: Draws, n: int, rank: int) -> Linformer:
    return filled(draw, lambda: Linformer(rank=rank, length=n))


@statement("S4.117", "§2.1.3, (17)", TYPO).says(
    r"$\operatorname{head} = \operatorname{softmax}(\frac{Q(EK)^\top}{k}) \cdot FV$, of $n \times k'$ and $k' \times "
    "d$.",
    correction=r"The scale is $\frac{1}{\sqrt k}$; $E, F \in \mathbb R^{k' \times n}$, and $FV$ is $k' \times k$, the "
    "width of the head. The rows of the first factor sum to one, those of its product with $F$ do not.",
    compares=r"entry of the head with scale $1/k$, and of ours; corrected: with $1/\sqrt k$, and of ours",
)
@between(n=(2, 13), rank=(2, 7), k=(2, 7))
def linformer_head(draw: Draws, n: int = 11, rank: int = 5, k: int = 3) -> ClaimResult:
    linformer = _linformer(draw, n, rank)
    Q, K, V = draw.normal(3, n, k)
    assert linformer.F is not None
    E, F = linformer.E[0], linformer.F[0]
    printed, scaled = (scaled_dot(Q, E @ K, scale).softmax(-1) @ (F @ V) for scale in (1 / k, k**-0.5))
    attended, sums = mechanism_outputs(linformer, Q, K, V), mechanism_weights(linformer, Q, K, V).sum(-1)
    return ClaimResult(
        same(printed, attended),
        corrected=same(scaled, attended),
        figures={"least sum of a row": float(sums.min()), "largest sum of a row": float(sums.max())},
    )


@statement("S4.118", "§2.1.3", HOLDS).says(
    "A small projected dimension $k'$ reduces memory and space.",
    correction="To $O(nk')$. In return $n$ is fixed, permuted tokens do not give permuted outputs, and there is no "
    "plain causal mask.",
    compares="scores that are kept for each head, and those of full attention",
)
@between(n=(11, 31), rank=(2, 7), k=(1, 7))
def memory_of_linformer(draw: Draws, n: int = 23, rank: int = 5, k: int = 3) -> ClaimResult:
    linformer, geometry, order = _linformer(draw, n, rank), Geometry(1, k, k), draw.permutation(n)
    Q, K, V = draw.normal(3, n, k)
    few, all_pairs = (kind.cost(n, n, geometry).edges for kind in (linformer, Dense()))
    figures = {}
    for name, kind in (("linformer", linformer), ("full attention", Dense())):
        change = mechanism_outputs(kind, Q[order], K[order], V[order]) - mechanism_outputs(kind, Q, K, V)[order]
        figures[f"change of {name} by an order of tokens"] = float(change.abs().max())
    return ClaimResult(less(few, all_pairs), figures=figures)


# --- section 3 --------------------------------------------------------------------------------------------------------


@statement("S4.119", "§3", HOLDS).says(
    r"$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}(\frac{QK^\top}{\sqrt k}) V$",
    correction=r"It contradicts (5), (6) and (17), which print $\frac 1k$.",
    compares="entry of our attention, and of the formula in loops",
)
@between(n=(2, 13), k=(1, 7), v=(1, 7))
def scaled_attention(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    Q, K, V = draw.normal(n, k), draw.normal(n, k), draw.normal(n, v)
    by_loops = Dense().reference(Q[None, None], K[None, None], V[None, None], Mask(), Context()).Y[0, 0]
    return ClaimResult(same(mechanism_outputs(Dense(), Q, K, V), by_loops))


@statement("S4.120", "§3", TYPO).says(
    r"$QK^\top = W_q X (W_k X)^\top$",
    correction=r"$X W_q (X W_k)^\top$ for tokens in rows.",
    compares=r"score $W_q X (W_k X)^\top$, and of folded weights; corrected: $X W_q (X W_k)^\top$, and of folded "
    "weights",
)
@between(n=(2, 13))
def side_of_the_weights(draw: Draws, n: int = 5) -> ClaimResult:
    """All three matrices are square, for else the printed product does not exist or is not n by n."""
    X, W_q, W_k = draw.normal(3, n, n)
    scores = X @ fold_scores(W_q[None], W_k[None])[0] @ X.mT
    return ClaimResult(same((W_q @ X) @ (W_k @ X).mT, scores), corrected=same((X @ W_q) @ (X @ W_k).mT, scores))
