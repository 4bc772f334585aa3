"""S4: Conti 2024 on the transformer block (S4.31-S4.37, S4.39-S4.45, S4.51-S4.53, S4.156, S4.159)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Context, Mask
from attnworks.attention.dense import Dense
from attnworks.attention.softmax import entropy
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, MultiHead, PureConfig, build
from attnworks.models.block import Block, Wiring
from attnworks.models.layers import FeedForward, LayerNorm
from attnworks.theory.cases import Draws, filled
from attnworks.theory.claims.s3_heads import drawn_layer, maps_and_outputs
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.sides import at_most, more, same

_NORM_EPS = 1e-6


@statement("S4.31", "§1.2.2", TYPO).says(
    r"$Q^{(h)}(x_i) = W_{h,q}^\top x_i$, $K^{(h)}(x_i) = W_{h,k}^\top x_i$, $V^{(h)}(x_i) = W_{h,v}^\top x_i$ with "
    r"$W_{h,q}, W_{h,k}, W_{h,v} \in \mathbb R^{d \times k}$, and $\alpha^{(h)}_{i,j} = "
    r"\operatorname{softmax}_j(Q^{(h)}(x_i) \cdot K^{(h)}(x_j)^\top / \sqrt k)$",
    correction=r"These are columns, so that $Q(x_i) \cdot K(x_j)^\top$ is a $k \times k$ matrix. A number is "
    r"$Q(x_i)^\top K(x_j) / \sqrt k$; for rows, $X W_q (X W_k)^\top / \sqrt k$.",
    compares=r"entries of $Q(x_i) \cdot K(x_j)^\top$, and of a score; corrected: weight by $Q(x_i)^\top K(x_j)$, and "
    "by our layer",
)
@between(n=(1, 13), heads=(1, 5), k=(2, 7))
def scores_of_columns(draw: Draws, n: int = 5, heads: int = 3, k: int = 7) -> ClaimResult:
    X, layer = draw.normal(1, n, heads * k), _attention(draw, heads, k)
    W_q, W_k, _, _ = layer.head_first()
    columns = X[0].T
    Q, K = W_q.mT @ columns, W_k.mT @ columns
    one_pair = Q[0, :, :1] @ K[0, :, :1].T
    alpha = (Q.mT @ K / math.sqrt(k)).softmax(-1)
    return ClaimResult(same(one_pair.numel(), 1), corrected=same(alpha, maps_and_outputs(layer, X[0])[0]))


@statement("S4.32", "§1.2.2", HOLDS).says(
    r"$u'_i = \sum_{h=1}^H W_{c,h}^\top \sum_{j=1}^n \alpha^{(h)}_{i,j} V^{(h)}(x_j)$ with $W_{c,h} \in \mathbb R^{k "
    r"\times d}$",
    correction="The same as torch.nn.MultiheadAttention without biases.",
    compares="entry of the sum over heads, and of PyTorch's multi-head attention",
)
@between(n=(1, 13), heads=(1, 5), k=(1, 7))
def sum_over_heads(draw: Draws, n: int = 5, heads: int = 3, k: int = 7) -> ClaimResult:
    X, layer = draw.normal(1, n, heads * k), _attention(draw, heads, k)
    _, _, W_v, W_c = layer.head_first()
    inner = torch.einsum("hij,hvj->hvi", maps_and_outputs(layer, X[0])[0], W_v.mT @ X[0].T)
    by_columns = (W_c.mT @ inner).sum(0).T
    return ClaimResult(same(torch.stack([by_columns, layer(X)[0]]), _by_torch(layer, X[0])))


@statement("S4.33", "§1.2.2", TYPO).says(
    r"$u_i = \operatorname{LayerNorm}(x_i + u'_i; \gamma_1, \beta_1)$ and $z_i = \operatorname{LayerNorm}(u_i + z'_i; "
    r"\gamma_2, \beta_2)$, with $\gamma_1, \beta_1 \in \mathbb R^d$ beside both",
    correction=r"$\gamma_2, \beta_2 \in \mathbb R^d$ beside the second: it has parameters of its own. Norms follow the "
    "sums, as in 2017.",
    compares=r"entry with $\gamma_1, \beta_1$ in both norms, and of our block; corrected: with $\gamma_2, \beta_2$ in "
    "the second, and of our block",
)
@between(n=(1, 13), heads=(1, 5), k=(1, 7), m=(1, 13))
def norms_of_their_own(draw: Draws, n: int = 5, heads: int = 3, k: int = 2, m: int = 11) -> ClaimResult:
    X, block = draw.normal(1, n, heads * k), _block(draw, heads, k, m)
    first, mlp, second = block.attention_residual.norm, block.mlp, block.mlp_residual
    assert first is not None and mlp is not None and second is not None and second.norm is not None
    u = first(X + block.attention(X))
    before_norm, Z = u + mlp(u), block(X)
    return ClaimResult(same(first(before_norm), Z), corrected=same(second.norm(before_norm), Z))


@statement("S4.34", "§1.2.2 and §1.2.4", TYPO).says(
    r"$z'_i = W_2^\top \operatorname{ReLU}(W_1^\top u_i + b_1) + b_2$ with $W_1 \in \mathbb R^{d \times m}$, $W_2 \in "
    r"\mathbb R^{m \times d}$ and $b_1, b_2 \in \mathbb R$",
    correction=r"$b_1 \in \mathbb R^m$ and $b_2 \in \mathbb R^d$.",
    compares="entry if $b_2$ were one number, and of our output at $u = 0$; corrected: entries of $b_1$ and $b_2$, and "
    "$m$ and $d$",
)
@between(d=(2, 17), m=(2, 17))
def biases_of_the_feed_forward(draw: Draws, d: int = 5, m: int = 7) -> ClaimResult:
    """Of u = 0 and a b_1 below 0 the output is b_2: if that were a single number, all entries would be the same."""
    mlp = filled(draw, lambda: FeedForward(d, m))
    mlp.b_1.copy_(-mlp.b_1.abs())
    at_zero = mlp(torch.zeros(d, dtype=torch.float64))
    one_number = at_zero.mean().expand(d)
    sizes = torch.tensor([mlp.b_1.numel(), mlp.b_2.numel()])
    return ClaimResult(same(one_number, at_zero), corrected=same(sizes, torch.tensor([m, d])))


@statement("S4.35", "§1.2.2, (2)", CONDITION).says(
    r"$\operatorname{LayerNorm}(z; \gamma, \beta) = \gamma \frac{z - \mu_z}{\sigma_z + \epsilon} + \beta$ with "
    r"$\epsilon$ such as $10^{-6}$",
    correction=r"A valid definition, $\gamma$ acting entry by entry, but not PyTorch's $\gamma \frac{z - "
    r"\mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$. They differ by at most $\lvert \gamma \frac{z - \mu}{\sigma} \rvert "
    r"\max(\epsilon / \sigma, \epsilon / (2 \sigma^2))$, so they agree where $\sigma^2$ is far above $\epsilon$, and "
    "not on rows of small numbers. On constant rows the gradient of the printed form is NaN (a root at 0).",
    compares="difference from PyTorch's norm, and its bound; without: printed norm of a row of spread 0.001, and "
    "PyTorch's",
)
@between(n=(1, 13), d=(2, 17), scale=(0.1, 1e3))
def layer_norm(draw: Draws, n: int = 5, d: int = 7, scale: float = 1.0) -> ClaimResult:
    z = draw.normal(n, d, scale=scale)
    documented = filled(draw, lambda: LayerNorm(d, "documented", _NORM_EPS))
    torchs = LayerNorm(d, eps=_NORM_EPS).double().requires_grad_(False)
    torchs.load_state_dict(documented.state_dict())
    sigma, centred = z.std(-1, unbiased=False, keepdim=True), z - z.mean(-1, keepdim=True)
    bound = (documented.gamma * centred / sigma).abs() * torch.maximum(_NORM_EPS / sigma, _NORM_EPS / (2 * sigma**2))
    apart, small = (documented(z) - torchs(z)).abs(), centred / sigma * 1e-3
    normed = _printed_norm(small), F.layer_norm(small, (d,), eps=_NORM_EPS)
    spread, torchs_spread = (float(rows.std(-1, unbiased=False).mean()) for rows in normed)
    constant = torch.zeros(1, d, dtype=torch.float64, requires_grad=True)
    (_printed_norm(constant) * draw.normal(d)).sum().backward()
    assert constant.grad is not None
    figures = {
        "largest share of the bound on their difference": float((apart / bound).max()),
        "spread of rows of spread 0.001 afterwards, printed": spread,
        "spread of rows of spread 0.001 afterwards, PyTorch": torchs_spread,
        "entries of the gradient on a constant row that are NaN": float(constant.grad.isnan().sum()),
    }
    return ClaimResult(at_most(apart, bound), without=same(documented(small), torchs(small)), figures=figures)


@statement("S4.36", "§1.2.2", TYPO).says(
    r"$\mu_z = \frac 1k \sum_{i=1}^k z_i$ and $\sigma_z = \sqrt{\frac 1k \sum_{i=1}^k (z_i - \mu_z)^2}$",
    correction="Both run over the $d$ entries of a row of the model, not over the width $k$ of a head; the variance is "
    "the biased one.",
    compares="entry of the norm over the first $k$, and of ours; corrected: of the norm over all $d$, and of ours",
)
@between(n=(1, 13), k=(1, 7), more_entries=(1, 7))
def mean_over_the_model_width(draw: Draws, n: int = 5, k: int = 4, more_entries: int = 4) -> ClaimResult:
    z, d = draw.normal(n, k + more_entries), k + more_entries
    norm = LayerNorm(d, "documented", _NORM_EPS).double().requires_grad_(False)
    return ClaimResult(same(_printed_norm(z, k), norm(z)), corrected=same(_printed_norm(z, d), norm(z)))


@statement("S4.37", "§1.2.2 and §1.2.4", TYPO).says(
    r"The encoder is $f_{\theta_L} \circ \ldots \circ f_{\theta_1}(X)$, and later $f_{\theta_1} \circ \ldots \circ "
    r"f_{\theta_1}(X)$.",
    correction=r"The first form, $f_{\theta_L} \circ \ldots \circ f_{\theta_1}$: every block has parameters of its "
    "own.",
    compares="entry with the first block repeated, and of our encoder; corrected: with the blocks in turn, and of our "
    "encoder",
)
@between(layers=(2, 5), n=(1, 13), heads=(1, 5))
def stack_of_blocks(draw: Draws, layers: int = 3, n: int = 5, heads: int = 2) -> ClaimResult:
    attention = AttentionConfig(heads=heads, d_k=3, d_v=3, bias=False)
    config = PureConfig(d_e=7, layers=layers, attention=attention, skip=True, mlp=True, norm=True, d_ff=11)
    encoder, X = filled(draw, lambda: build(config)), draw.normal(1, n, 7)
    repeated = in_turn = X
    for block in encoder.layers:
        repeated, in_turn = encoder.layers[0](repeated), block(in_turn)
    return ClaimResult(same(repeated, encoder(X)), corrected=same(in_turn, encoder(X)))


@statement("S4.39", "§1.2.2", TYPO).says(
    r"$W_q, W_k, W_v \in \mathbb R^{d \times d}$ are split into submatrices of dimension $(n, k)$.",
    correction="$(d, k)$: columns are split, rows are not. The heads side by side are the product with the whole "
    "matrix.",
    compares="rows of a submatrix, and tokens $n$; corrected: query by the whole matrix, and by the head",
)
@between(heads=(1, 5), k=(1, 7), longer=(1, 7))
def blocks_of_columns(draw: Draws, heads: int = 3, k: int = 2, longer: int = 1) -> ClaimResult:
    """A sentence with more tokens than the model has features."""
    d = heads * k
    n = d + longer
    X, layer = draw.normal(1, n, d), _attention(draw, heads, k)
    W = torch.cat([*layer.head_first()[0]], 1)
    shape = torch.tensor(W.split(k, 1)[0].shape)
    # [n heads*k] -> [heads n k]
    joint = (X[0] @ W).unflatten(-1, (heads, k)).transpose(0, 1)
    return ClaimResult(same(shape, torch.tensor([n, k])), corrected=same(joint, layer.queries(X)[0]))


@statement("S4.40", "§1.2.2, (3)", TYPO).says(
    r"$W_{1,v} = W_v[:, :d_k], \ldots, W_{d/k,v} = W_k[:, d - d_k : d]$",
    correction="$W_{d/k,v} = W_v[:, d - d_k : d]$; and $d_k = k$.",
    compares="value by columns of $W_k$, and of our last head; corrected: by columns of $W_v$, and of our last head",
)
@between(n=(1, 13), heads=(1, 5), k=(1, 7))
def last_block_of_values(draw: Draws, n: int = 5, heads: int = 3, k: int = 2) -> ClaimResult:
    X, layer, d = draw.normal(1, n, heads * k), _attention(draw, heads, k), heads * k
    W_k, W_v = (torch.cat([*W], 1) for W in layer.head_first()[1:3])
    V = layer.keys_values(X)[1][0, -1]
    return ClaimResult(same(X[0] @ W_k[:, d - k : d], V), corrected=same(X[0] @ W_v[:, d - k : d], V))


@statement("S4.41", "§1.2.2, (4)", TYPO).says(
    r"$Q^{(h)}(x_i) = W_{h,a}^\top x_i$ and $K^{(h)}(x_i) = W_{h,k}^\top x_i$",
    correction=r"$Q^{(h)}(x_i) = W_{h,q}^\top x_i$, as in the block definition (S4.31). No $W_{h,a}$ is defined.",
    compares="query by the nearer of the two other matrices $W_{h,k}$ and $W_{h,v}$, and ours; corrected: entry of "
    r"$W_{h,q}^\top x_i$ or $W_{h,k}^\top x_i$, and of our query or key",
)
@between(n=(1, 13), heads=(1, 5), k=(1, 7))
def queries_and_keys(draw: Draws, n: int = 5, heads: int = 3, k: int = 2) -> ClaimResult:
    """An index a other than q leaves W_k and W_v, and neither gives the queries."""
    X, layer = draw.normal(1, n, heads * k), _attention(draw, heads, k)
    W_q, W_k, W_v, _ = layer.head_first()
    Q, K = layer.queries(X)[0], layer.keys_values(X)[0][0]
    by_others = [same((W.mT @ X[0].T).mT, Q) for W in (W_k, W_v)]
    by_columns = torch.stack([W_q.mT @ X[0].T, W_k.mT @ X[0].T]).mT
    return ClaimResult(min(by_others, key=lambda sides: sides.excess), corrected=same(by_columns, torch.stack([Q, K])))


@statement("S4.42", "§1.2.2, (5) and (6)", TYPO).says(
    r"$\operatorname{Attention}(Q^{(h)}, K^{(h)}, V^{(h)}) = \operatorname{softmax}(Q^{(h)} (K^{(h)})^\top / k) "
    "V^{(h)}$",
    correction=r"Divided by $\sqrt k$, as in the block definition, §1.2.3, (10) and §3. Divided by $k$, scores have "
    "variance $1/k$, and attention is nearly uniform.",
    compares="output with scale $1/k$, and of PyTorch's attention; corrected: our output, and PyTorch's",
)
@between(n=(2, 128), k=(2, 64), v=(1, 13))
def scale_of_scores(draw: Draws, n: int = 128, k: int = 64, v: int = 5) -> ClaimResult:
    Q, K, V = (draw.normal(1, 1, n, width) for width in (k, k, v))
    scales = {"1/k": 1 / k, "1/sqrt(k)": k**-0.5, "1": 1.0}
    attended = {name: Dense()(Q, K, V, context=Context(scale=scale), weights=True) for name, scale in scales.items()}
    figures = {"entropy of uniform attention": math.log(n)}
    for name, (_, P) in attended.items():
        assert P is not None
        figures[f"mean entropy of rows with scale {name}"] = float(entropy(P).mean())
    by_torch = F.scaled_dot_product_attention(Q, K, V)
    return ClaimResult(same(attended["1/k"].Y, by_torch), corrected=same(Dense()(Q, K, V).Y, by_torch), figures=figures)


@statement("S4.43", "§1.2.2", FALSE).says(
    'Each $W_{i,q}, W_{i,k}, W_{i,v}$ is of dimension $(n, k)$, so that it is "looking" at the whole sentence.',
    correction="The dimension is $(d, k)$, and the conclusion is wrong with it: a projection reads $k$ features of one "
    "token, and no other token. The whole sentence comes in with the softmax.",
    compares="change of a query when all other tokens change, and 0; corrected: rows of $W_{i,q}$, and $d$",
)
@between(n=(2, 13), heads=(1, 5), k=(1, 7))
def projections_look_at_one_token(draw: Draws, n: int = 5, heads: int = 3, k: int = 2) -> ClaimResult:
    """A query that depended on the whole sentence would change with the other tokens."""
    X, layer = draw.normal(1, n, heads * k), _attention(draw, heads, k)
    others = torch.cat([X[:, :1], draw.normal(1, n - 1, heads * k)], 1)
    changed = (layer.queries(others)[:, :, 0] - layer.queries(X)[:, :, 0]).abs().max()
    shape = torch.tensor(layer.head_first()[0][0].shape)
    return ClaimResult(more(changed, 0.0), corrected=same(shape, torch.tensor([heads * k, k])))


@statement("S4.44", "§1.2.2, (7)", TYPO).says(
    r"$\operatorname{MultiHead}(Q, K, V) = \operatorname{Concat}(head_1, \ldots, head_h) W_c$ with $W_c$ of dimension "
    r"$(H \times k, d)$",
    correction=r"The last index is $H$. Then it equals $\sum_h head_h W_{c,h}$.",
    compares="columns of $h < H$ heads, and rows of $W_c$; corrected: concatenated heads times $W_c$, and our output",
)
@between(n=(1, 13), h=(1, 5), more_heads=(1, 3), k=(1, 7))
def heads_side_by_side(draw: Draws, n: int = 5, h: int = 2, more_heads: int = 1, k: int = 7) -> ClaimResult:
    heads = h + more_heads
    X, layer = draw.normal(1, n, heads * k), _attention(draw, heads, k)
    head = layer.attend(layer.queries(X), *layer.keys_values(X), Mask()).Y[0]
    W_c = layer.head_first()[3]
    printed, concat = torch.cat([*head[:h]], 1), torch.cat([*head], 1)
    both = torch.stack([concat @ W_c.flatten(0, 1), (head @ W_c).sum(0)])
    return ClaimResult(same(printed.shape[1], W_c.flatten(0, 1).shape[0]), corrected=same(both, layer(X)[0]))


@statement("S4.45", "§1.2.2", CONDITION).says(
    "The number of heads is $H = d/k$.",
    correction="If $k$ divides $d$.",
    compares="blocks of $k$ columns in $W_q$, and $d/k$; without: the same where $k$ does not divide $d$",
)
@between(heads=(1, 5), k=(2, 7))
def number_of_heads(draw: Draws, heads: int = 3, k: int = 5) -> ClaimResult:
    """With up to k - 1 columns too many, no whole number of heads is that wide."""
    d = heads * k
    left_over = int(draw.integers(1, below=k - 1)) + 1
    whole, not_whole = draw.normal(d, d), draw.normal(d + left_over, d + left_over)
    wide = [sum(block.shape[1] == k for block in W.split(k, 1)) for W in (whole, not_whole)]
    return ClaimResult(same(wide[0], d / k), without=same(wide[1], (d + left_over) / k))


@statement("S4.51", "§1.2.4", FALSE).says(
    r"The parameter $\gamma$ is used to avoid division by 0.",
    correction=r"$\epsilon$ is; $\gamma$ is the learned gain.",
    compares=r"finite entries of the norm of a constant row with $\gamma$ alone, and $d$; corrected: with $\epsilon$, "
    "and $d$",
)
@between(d=(2, 17), scale=(1e-3, 1e3), eps=(1e-12, 1e-3))
def division_by_zero(draw: Draws, d: int = 7, scale: float = 1.0, eps: float = _NORM_EPS) -> ClaimResult:
    """A constant row, whose sigma is 0: with gamma alone no entry is a number."""
    constant = torch.zeros(d, dtype=torch.float64)
    norm = filled(draw, lambda: LayerNorm(d, "documented", eps), scale=scale)
    safe = norm(constant).isfinite().sum()
    norm.eps = 0.0
    return ClaimResult(same(norm(constant).isfinite().sum(), d), corrected=same(safe, d))


@statement("S4.52", "§1.2.4", HOLDS).says(
    r"$U = \gamma_1 \frac{X + U' - \mu_{x,u}}{\sigma_{x,u} + \epsilon} + \beta_1 \in \mathbb R^{n \times d}$",
    correction=r"$\mu$ and $\sigma$ are those of each row.",
    compares="entry of the printed $U$, and of our block after attention",
)
@between(n=(1, 13), heads=(1, 5), k=(1, 7), scale=(1e-3, 1e3))
def norm_after_attention(draw: Draws, n: int = 5, heads: int = 3, k: int = 2, scale: float = 1.0) -> ClaimResult:
    X, block = draw.normal(1, n, heads * k, scale=scale), _block(draw, heads, k, 7)
    norm = block.attention_residual.norm
    assert norm is not None
    U = norm.gamma * _printed_norm(X + block.attention(X)) + norm.beta
    return ClaimResult(same(U, block.attention_residual.add(X, block.attention(X))))


@statement("S4.53", "§1.2.4", HOLDS).says(
    r"$z'_i = \max(0; u_i W_1 + b_1) W_2 + b_2$",
    correction="With biases of as many entries as S4.34 says.",
    compares="entry of the formula, and of our feed-forward network",
)
@between(n=(1, 13), d=(2, 17), m=(2, 17), scale=(1e-3, 1e3))
def feed_forward(draw: Draws, n: int = 5, d: int = 7, m: int = 11, scale: float = 1.0) -> ClaimResult:
    u, mlp = draw.normal(n, d, scale=scale), filled(draw, lambda: FeedForward(d, m))
    return ClaimResult(same((u @ mlp.W_1 + mlp.b_1).clamp_min(0) @ mlp.W_2 + mlp.b_2, mlp(u)))


@statement("S4.156", "§1.2.2", FALSE).says(
    r"The parameter $\theta$ consists of the entries of the weight matrices $W$ along with the parameters of "
    "LayerNorm.",
    correction=r"$b_1 \in \mathbb R^m$ and $b_2 \in \mathbb R^d$ of the feed-forward network are missing.",
    compares="entries of all $W$ and of both norms, and parameters of our block; corrected: with $m + d$ more, and "
    "parameters of our block",
)
@between(heads=(1, 5), k=(1, 7), m=(1, 13))
def parameters_of_a_block(draw: Draws, heads: int = 3, k: int = 2, m: int = 11) -> ClaimResult:
    """Our block is the documented one: no biases in attention."""
    sizes = {name: parameter.numel() for name, parameter in _block(draw, heads, k, m).named_parameters()}
    listed = sum(size for name, size in sizes.items() if name.split(".")[-1].startswith(("W_", "gamma", "beta")))
    everything = sum(sizes.values())
    return ClaimResult(same(listed, everything), corrected=same(listed + m + heads * k, everything))


@statement("S4.159", "§1.2.2", HOLDS).says(
    r"The block is a function $f_\theta: \mathbb R^{n \times d} \to \mathbb R^{n \times d}$: domain and codomain are "
    "the same.",
    correction=r"For every length $n$ with the same $\theta$, so that blocks can be stacked. Not every matrix is "
    r"reached: rows that leave the last norm have a fixed mean and spread before $\gamma_2$ and $\beta_2$.",
    compares="rows (or columns) after one block and after two, and before",
)
@between(n=(1, 13), longer=(1, 13), heads=(1, 5), k=(1, 7), m=(1, 13))
def domain_and_codomain(
    draw: Draws, n: int = 5, longer: int = 7, heads: int = 3, k: int = 2, m: int = 11
) -> ClaimResult:
    d, block = heads * k, _block(draw, heads, k, m)
    shapes = []
    for length in (n, n + longer):
        once = block(draw.normal(1, length, d))
        shapes += [torch.tensor([Z[0].shape[0] / length, Z[0].shape[1] / d]) for Z in (once, block(once))]
    return ClaimResult(same(torch.stack(shapes), 1.0))


def _attention(draw: Draws, heads: int, k: int) -> MultiHead:
    """As documented: d = H k, and no biases."""
    return drawn_layer(draw, heads * k, heads, k, k, scale=0.5)


def _block(draw: Draws, heads: int, k: int, m: int) -> Block:
    attention = AttentionConfig(heads=heads, d_k=k, d_v=k, bias=False)
    wiring = Wiring(norm_kind="documented", norm_eps=_NORM_EPS)
    return filled(draw, lambda: Block(heads * k, wiring, self_attention=(Slot("encoder", 0), attention), d_ff=m))


def _by_torch(layer: MultiHead, X: Float[Tensor, "n e"]) -> Float[Tensor, "n e"]:
    """The same weights in torch's own multi-head attention."""
    *inwards, W_c = layer.head_first()
    heads, e = len(W_c), X.shape[-1]
    joined = torch.cat([W.mT.flatten(0, 1) for W in inwards])
    return F.multi_head_attention_forward(
        X, X, X, e, heads, joined, None, None, None, False, 0.0, W_c.flatten(0, 1).T, None, need_weights=False
    )[0]


def _printed_norm(z: Float[Tensor, "*a d"], k: int | None = None) -> Float[Tensor, "*a d"]:
    """(2) without gain and bias, mu and sigma over the first k entries."""
    first = z[..., :k]
    mu = first.mean(-1, keepdim=True)
    return (z - mu) / ((first - mu).square().mean(-1, keepdim=True).sqrt() + _NORM_EPS)
