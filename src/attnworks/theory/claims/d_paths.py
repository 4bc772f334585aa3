"""D1-D4: paths by length, biases, the composite norm, and rows of least residual."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnworks.exam.linalg.residual import NORMS, best_row, composite, quasi_norm_constant, residual_norm
from attnworks.theory.cases import Draws
from attnworks.theory.contract import HOLDS, ClaimResult, between, statement
from attnworks.theory.networks import drawn_network, row_and_column
from attnworks.theory.sides import at_most, same, stacked
from attnworks.traces.paths import Hop, PathStep, forward_rounding, paths_by_length


@statement("D1", "derived", HOLDS).says(
    r"All paths of each length, exactly, in $\frac{L(L+1)}{2}$ applications of a layer. Freeze $P_h^{(l)}$ from the "
    r"real forward pass, with $S_l(Z) = \sum_h P_h^{(l)}ZW_h^{(l)}$. Start with $C_0 = X$ and $C_j = 0$; for $l = 1, "
    r"\dots, L$ and $j = l, \dots, 1$ let $C_j \leftarrow C_j + S_l(C_{j-1})$. Then $C_j$ is the sum over all paths of "
    r"length $j$, and $\sum_j C_j$ the output. Biases $\mathbf 1b_l^\top$ enter $C_1$ at layer $l$. The $C_j$ are the "
    r"coefficients of the polynomial $\prod_l(I + tS_l)X$ in $t$.",
    compares="entry of $C_j$ (or of a sum of them), and of all its paths taken singly (or of the output); applications "
    "of a layer, and their number",
    proof="By induction: after layer $l$, $C_j$ is the sum over all ways to take $j$ of the first $l$ layers. Such a "
    "path either skips layer $l$, or is one of length $j - 1$ put through $S_l$; as $j$ falls, $C_{j-1}$ is still that "
    "of before. Layer $l$ is applied $l$ times.",
)
@between(n=(1, 7), e=(1, 7), heads=(1, 3), layers=(1, 4), t=(-2.0, 2.0))
def paths_of_each_length(
    draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3, t: float = 0.7
) -> ClaimResult:
    """Every path by itself; then the network with biases at t times its weights; then the count of applications."""
    plain = drawn_network(draw, e=e, heads=heads, layers=layers, skip=True, bias=False)
    X = draw.normal(n, e)
    run = plain.run(X)
    C = paths_by_length(X.unsqueeze(0), plain.steps(run.maps)).squeeze(1)
    singly = torch.zeros_like(C)
    for path in plain.paths(X, run.maps):
        singly[path.length] += path.term
    biased = drawn_network(draw, e=e, heads=heads, layers=layers, skip=True)
    biased_run = biased.run(X)
    steps = biased.steps(biased_run.maps)
    D = paths_by_length(X.unsqueeze(0), steps).squeeze(1)
    # [lengths 1 1], against C [lengths n e]
    powers = t ** torch.arange(layers + 1, dtype=torch.float64)[:, None, None]
    at_t = paths_by_length(X.unsqueeze(0), [_times(step, t) for step in steps]).sum(0)[0]
    applied = sum(len(paths_by_length(X.unsqueeze(0), steps[:done])) for done in range(layers))
    return ClaimResult(
        same(
            stacked(C, C.sum(0), D.sum(0), (powers * D).sum(0), applied),
            stacked(singly, run.exit, biased_run.exit, at_t, layers * (layers + 1) / 2),
        ),
        figures={
            "paths": (heads + 1) ** layers,
            "applications of a layer": applied,
            "error of the sum over lengths": float((D.sum(0) - biased_run.exit).abs().max()),
            "rounding of a forward pass": forward_rounding(
                torch.float64, layers, max(float(Z.abs().max()) for Z in biased_run.states)
            ),
        },
    )


def _times(step: PathStep, t: float) -> PathStep:
    """The step with t times what its attention writes."""
    (hop,) = step.branches
    assert isinstance(hop, Hop) and hop.b_O is not None
    return PathStep((replace(hop, W_O=t * hop.W_O, b_O=t * hop.b_O),), skip=step.skip)


@statement("D2", "derived", HOLDS).says(
    r"All biases come out as one row $b^\top = \sum_l b_l^\top\prod_{m>l}(\sum_h W_h^{(m)} [+ I \text{ with skip}])$, "
    r"$b_l = b_{\mathrm{out},l} + \sum_h W_{O,h}^\top b_{V,h}$, whatever the input.",
    compares="entry of what all paths leave of the output, and of $b$",
    proof=r"$P_h\mathbf 1 = \mathbf 1$, so that layer $m$ takes $\mathbf 1b^\top$ to $\mathbf 1b^\top\sum_h "
    "W_h^{(m)}$, and to that plus itself with skip.",
)
@between(n=(1, 7), e=(1, 7), heads=(1, 3), layers=(1, 4), skip=(0, 1), spread=(0.01, 10.0))
def one_row_of_bias(
    draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3, skip: int = 1, spread: float = 1.0
) -> ClaimResult:
    """Two inputs: what their paths leave of the output is the same row."""
    network = drawn_network(draw, e=e, heads=heads, layers=layers, skip=bool(skip))
    b = network.bias
    inputs = [draw.normal(n, e), draw.normal(n, e, scale=spread)]
    runs = [network.run(X) for X in inputs]
    left = torch.stack([run.exit - network.sum_of_paths(X, run.maps) for X, run in zip(inputs, runs, strict=True)])
    return ClaimResult(same(left, b))


@statement("D3", "derived", HOLDS).says(
    r"$\lVert A + B\rVert_{1,\infty} \le K_{m,n}(\lVert A\rVert_{1,\infty} + \lVert B\rVert_{1,\infty})$ for $m \times "
    r"n$ matrices, $K_{m,n} = \frac{1}{2}((mn)^{1/4} + (mn)^{-1/4})$, with equality for $A = s\mathbf 1e_1^\top$, $B = "
    r"e_1\mathbf 1^\top$ of equal size.",
    compares=r"largest ratio of $\lVert A + B\rVert_{1,\infty}$ to its bound (or of the bound to it, where it is "
    "attained), and 1",
    proof=r"Write $\lVert A\rVert_1 = \alpha p$, $\lVert A\rVert_\infty = \alpha/p$, $\lVert B\rVert_1 = \beta q$, "
    r"$\lVert B\rVert_\infty = \beta/q$ with $p^2, q^2 \in [1/n, m]$. Then $\lVert A + B\rVert_{1,\infty}^2 \le "
    r"(\alpha p + \beta q)(\alpha/p + \beta/q) = \alpha^2 + \beta^2 + \alpha\beta(p/q + q/p)$, where $p/q + q/p \le t "
    r"+ 1/t$ with $t = \sqrt{mn}$, and $\alpha^2 + \beta^2 + \alpha\beta(t + 1/t) \le \frac{1}{4}(\alpha + \beta)^2(2 "
    r"+ t + 1/t) = K_{m,n}^2(\alpha + \beta)^2$.",
)
@between(m=(1, 13), n=(2, 13), filled=(0.1, 1.0))
def composite_quasi_norm(draw: Draws, m: int = 5, n: int = 7, filled: float = 0.4) -> ClaimResult:
    """Sums with many zeros come nearest; the pair of a column and a row attains it, and its inverse ratio as well."""
    A, B = (draw.normal(17, m, n) * (draw.uniform(17, m, n) < filled) for _ in range(2))
    A[0, 0, 0] = 1.0
    allowed = quasi_norm_constant(m, n) * (composite(A) + composite(B))
    column, row = row_and_column(m, n)
    attained = composite(column + row) / (quasi_norm_constant(m, n) * (composite(column) + composite(row)))
    some = allowed > 0
    shares = torch.cat([composite(A + B)[some] / allowed[some], torch.stack([attained, 1 / attained])])
    return ClaimResult(at_most(shares, 1.0), figures={"tightest random ratio": float(shares[:-2].max())})


@statement("D4", "derived", HOLDS, heavy=True).says(
    r"Minimisers of $\lVert X - \mathbf 1x^\top\rVert$. Frobenius and every unitarily invariant norm: the mean. "
    r"Induced 1 and entrywise $L_1$: the median of each column. Entrywise maximum: the midrange. Induced $\infty$: the "
    r"linear program $\min t$, $\sum_j u_{ij} \le t$, $-u_{ij} \le X_{ij} - x_j \le u_{ij}$. Composite: "
    r"$\min_x\sqrt{fg} = \min_{\lambda>0}\min_x\frac{1}{2}(\lambda f + g/\lambda)$, a linear program for each "
    r"$\lambda$.",
    compares="largest ratio of the norm from the minimiser to that from another row, and 1",
    proof=r"With $\Pi = I - \frac{1}{n}\mathbf 1\mathbf 1^\top$, a projection, $\Pi(X - \mathbf 1x^\top) = \Pi X$ for "
    r"all $x$, and $\lVert\Pi M\rVert \le \lVert M\rVert$. Sums of absolute values of a column are least at its "
    r"median, their maximum at its midrange. $\sqrt{fg} \le \frac{1}{2}(\lambda f + g/\lambda)$, with equality for "
    r"$\lambda = \sqrt{g/f}$.",
)
@between(n=(2, 7), e=(1, 5), spread=(0.01, 10.0))
def rows_of_least_residual(draw: Draws, n: int = 5, e: int = 3, spread: float = 0.3) -> ClaimResult:
    """No row near the minimiser, nor that of another norm, does better."""
    X = draw.normal(n, e) ** 3
    minimisers = {name: best_row(X, name) for name in NORMS}
    cases = [(NORMS[name], x) for name, x in minimisers.items()]
    # the nuclear norm, unitarily invariant as well, and the sum of all entries
    cases.append((lambda M: torch.linalg.svdvals(M).sum(-1), minimisers["frobenius"]))
    cases.append((lambda M: M.abs().sum((-2, -1)), minimisers["one"]))
    shares = []
    for norm, x in cases:
        centres = [other for other in minimisers.values() if other is not x]
        others = torch.stack([*centres, *(x + draw.normal(17, e, scale=spread))])
        shares.append(norm(X - x) / norm(X - others.unsqueeze(1)))
    return ClaimResult(
        at_most(torch.cat(shares), 1.0, slack=LINEAR_PROGRAM_SLACK),
        figures={f"least, {name}": float(residual_norm(X, name)) for name in ("inf", "composite")},
    )


LINEAR_PROGRAM_SLACK = 1e-6
"""Linear programs are solved to 1e-7 of the largest entry."""
