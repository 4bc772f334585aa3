"""S4: Conti 2024 on the scale of embeddings and on codes of positions (S4.18-S4.30, S4.157)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Complex128, Float, Int
from torch import Tensor

from attnworks.core.checks import integer
from attnworks.models import AttentionConfig, MultiHead, TransformerConfig, build, preset
from attnworks.models.layers import Embedding, Positions, frequencies, position_angles, sinusoid
from attnworks.theory.cases import Draws, filled
from attnworks.theory.claims.s3_heads import drawn_layer
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.sides import more, same, stacked


def shift_matrix(s: float, d: int, base: float = 10_000.0) -> Float[Tensor, "d d"]:
    """The orthogonal R_s with f(t + s) = R_s f(t): a 2 x 2 rotation [[c, s], [-s, c]] for each frequency.

    Source: Conti 2024, section 1.2.1 (S4.23-S4.25).
    Departs: the document writes a sin(omega t) + b with constants a, b; b contains cos(omega t).
    """
    angles = s * frequencies(d, base)
    c, s_ = angles.cos(), angles.sin()
    blocks = torch.stack([torch.stack([c, s_], -1), torch.stack([-s_, c], -1)], -2)
    return torch.block_diag(*blocks)


def sinusoid_complex(
    t: Int[Tensor, "*a"] | Float[Tensor, "*a"], d: int, base: float = 10_000.0
) -> Complex128[Tensor, "*a k"]:
    """exp(i omega_k t) for each frequency, [*a d/2] in complex128: imaginary parts are the sines of `sinusoid`, real
    parts its cosines.

    Source: Conti 2024, section 1.2.1 (S4.21).
    Departs: the document divides t by omega_k instead of multiplying it.
    """
    angles = position_angles(t, d, base)
    return torch.polar(torch.ones_like(angles), angles)


def least_distance(n: int, d: int, base: float = 10_000.0) -> float:
    """The distance of those two among n >= 2 positions whose codes are nearest to each other.

        ||f(t) - f(s)|| = 2 sqrt(sum_k sin(omega_k (t - s) / 2)^2)
    Source: Conti 2024, section 1.2.1 (S4.22, S4.27). Never zero, as omega_0 = 1 and no whole number but 0 is a multiple
    of 2 pi. It depends on t - s alone, so that n - 1 differences are computed.
    """
    integer("n", n, 2, remedy="one position has no distance to another")
    halves = torch.arange(1, n, dtype=torch.float64).unsqueeze(-1) * frequencies(d, base) / 2
    return float(2 * halves.sin().norm(dim=-1).min())


def longest_wavelength(d: int, base: float = 10_000.0) -> float:
    """2 pi base^((d - 2) / d), after which the slowest pair comes back; what `base` has to be large for (S4.22)."""
    return float(2 * torch.pi / frequencies(d, base)[-1])


_REORDERED_SENTENCES = (
    "Luca did not won the football tournament and he was happy",
    "Luca won the football tournament and he was not happy",
)
_PAPER_BASE = 10_000.0
"""N of (1) in the 2017 paper."""


@statement("S4.18", "§1.2", CONDITION).says(
    r"$X W^E$ is multiplied by $\sqrt{512}$ for stability reasons.",
    correction=r"The factor $\sqrt d$ is in the 2017 paper, the reason is not. It brings entries of variance $1/d$ to "
    r"variance 1, near the mean square $\frac 12$ of the position code; entries of another variance it does not.",
    compares="mean square of an entry after the factor, and 1; without: the same for entries of variance 1 before it",
)
@between(d=(2, 512), words=(200, 400))
def scale_of_embeddings(draw: Draws, d: int = 512, words: int = 211) -> ClaimResult:
    """The square of a standard normal number has variance 2: 6 standard errors are allowed."""
    embedding, tokens = filled(draw, lambda: Embedding(words, d), scale=d**-0.5), torch.arange(words)[None]
    squares = embedding(tokens).square()
    slack = 6 * math.sqrt(2 / squares.numel())
    embedding.weight.mul_(math.sqrt(d))
    figures = {
        "mean square of an entry before": float(squares.mean()) / d,
        "mean square of an entry of the position code": float(sinusoid(tokens, 2 * d).square().mean()),
    }
    too_large = embedding(tokens).square().mean()
    return ClaimResult(
        same(squares.mean(), 1.0, slack=slack), without=same(too_large, 1.0, slack=slack), figures=figures
    )


@statement("S4.19", "§1.2.1", HOLDS).says(
    "Adding the index $i$ grows with the length of the sequence; adding $i/n$ gives one position different codes in "
    "sequences of different lengths.",
    compares="$i/n$ in the shorter sequence, and in the longer one; last index of the longer sequence, and of the "
    "shorter one",
)
@between(n=(2, 101), longer=(1, 50))
def index_codes(draw: Draws, n: int = 5, longer: int = 2) -> ClaimResult:
    i = int(draw.integers(1, below=n - 1)) + 1
    grown = [_added("index", length)[-1] for length in (n, n + longer)]
    normalised = [_added("normalised-index", length)[i] for length in (n, n + longer)]
    later = torch.stack([grown[1], normalised[0]])
    return ClaimResult(more(later, torch.stack([grown[0], normalised[1]])))


@statement("S4.20", "§1.2.1, (1)", HOLDS).says(
    r"$f(t)^{(2k)} = \sin(\omega_k t)$ and $f(t)^{(2k+1)} = \cos(\omega_k t)$ with $\omega_k = N^{-2k/d}$",
    correction=r"For even $d$, entries counted from 0. Then $\lVert f(t) \rVert^2 = d/2$ and $f(t) \cdot f(s) = \sum_k "
    r"\cos(\omega_k (t - s))$.",
    compares="entry of our position code, and of the formula",
)
@between(n=(2, 101), pairs=(1, 32), base=(2.0, 1e5))
def code_by_entries(draw: Draws, n: int = 53, pairs: int = 7, base: float = _PAPER_BASE) -> ClaimResult:
    t, d = draw.integers(n, below=1000), 2 * pairs
    f = sinusoid(t, d, base)
    entries = [(math.sin, math.cos)[i % 2](base ** (-2 * (i // 2) / d) * at) for at in t.tolist() for i in range(d)]
    # [n n]: inner products of two codes, a sum over d / 2 frequencies
    products = ((t[:, None] - t)[..., None] * frequencies(d, base)).cos().sum(-1)
    figures = {
        "error of the norm": float((f.square().sum(-1) - d / 2).abs().max()),
        "error of the products": float((f @ f.T - products).abs().max()),
    }
    return ClaimResult(same(f.flatten(), torch.tensor(entries, dtype=torch.float64)), figures=figures)


@statement("S4.21", "§1.2.1", TYPO).says(
    r"As a complex function $f(t)^{(i)} = e^{it/\omega_k}$, $k = 0, \ldots, d/2 - 1$.",
    correction=r"$e^{i \omega_k t}$ with the imaginary unit $i$, which is no index: sines are its imaginary parts, "
    "cosines its real parts.",
    compares=r"entry of the code by $e^{it/\omega_k}$, and of (1); corrected: by $e^{i \omega_k t}$, and of (1)",
)
@between(n=(2, 101), pairs=(2, 32), base=(10.0, 1e5))
def code_as_complex_numbers(draw: Draws, n: int = 53, pairs: int = 7, base: float = _PAPER_BASE) -> ClaimResult:
    t, d = draw.integers(n, below=1000) + 1, 2 * pairs
    f = sinusoid(t, d, base)
    # [n d/2], complex
    printed = torch.exp(1j * t[:, None] / frequencies(d, base))
    ours = sinusoid_complex(t, d, base)
    return ClaimResult(same(_interleaved(printed), f), corrected=same(_interleaved(ours), f))


@statement("S4.22", "§1.2.1", FALSE).says(
    "$N$ is a free parameter that should be significantly larger than the biggest $k$, $d/2 - 1$.",
    correction=r"$N$ is compared with positions, not with $k$: the longest wavelength is $2\pi N^{(d-2)/d}$. Whole "
    r"positions have distinct codes for every $N$, as $\omega_0 = 1$. That $N$ is below $d/2 - 1$ says nothing of "
    r"their distance: for $d \ge 24$, $N = 10$ keeps the first 5000 codes further apart than 10000 does; for $d = 8$, "
    "$N = 2$ brings them nearer (0.410 against 0.645).",
    compares="least distance of two codes with $N = 10000$, and with $N = 10$; corrected: the other way round (or with "
    "$d = 8$ and $N = 10000$, and $N = 2$)",
)
@between(pairs=(12, 128), n=(2, 5000))
def base_below_the_number_of_pairs(draw: Draws, pairs: int = 32, n: int = 5000) -> ClaimResult:
    """N = 10 is below the largest k, and keeps codes further apart than N = 10000; N = 2 with d = 8 does not."""
    d, small, large = 2 * pairs, 10.0, _PAPER_BASE
    figures = {
        "longest wavelength of the paper (d = 512)": longest_wavelength(512),
        "longest wavelength here with 10": longest_wavelength(d, small),
        "least distance of codes with d = 2": least_distance(5000, 2),
    }
    near, far = least_distance(n, d, large), least_distance(n, d, small)
    narrow = [least_distance(5000, 8, base) for base in (large, 2.0)]
    figures |= {"least distance with d = 8, N = 10000": narrow[0], "least distance with d = 8, N = 2": narrow[1]}
    other_way_round = more(stacked(far, narrow[0]), stacked(near, narrow[1]))
    return ClaimResult(more(near, far), corrected=other_way_round, figures=figures)


@statement("S4.23", "§1.2.1", FALSE).says(
    r"$\sin(\omega_k (t + s)) = a \sin(\omega_k t) + b$",
    correction=r"$b$ contains $\cos(\omega_k t)$. With $c = \cos \omega_k s$ and $\sigma = \sin \omega_k s$ the pair "
    r"is rotated: $\sin(\omega_k (t + s)) = c \sin(\omega_k t) + \sigma \cos(\omega_k t)$ and $\cos(\omega_k (t + s)) "
    r"= -\sigma \sin(\omega_k t) + c \cos(\omega_k t)$.",
    compares=r"the best $a \sin(\omega_k t) + b$, and $\sin(\omega_k (t + s))$; corrected: sine of the rotated pair, "
    "and the same",
)
@between(s=(1, 400), n=(3, 101), pairs=(1, 32))
def shifted_sines(draw: Draws, s: int = 7, n: int = 53, pairs: int = 8) -> ClaimResult:
    """The best constants for each frequency, by least squares over the positions, leave an error."""
    return _shifted_by_constants(draw, s, n, pairs, first=0)


@statement("S4.24", "§1.2.1", FALSE).says(
    r"$\cos(\omega_k (t + s)) = a' \cos(\omega_k t) + b'$",
    correction=r"$b'$ contains $\sin(\omega_k t)$: the same rotation as of the sine.",
    compares=r"the best $a' \cos(\omega_k t) + b'$, and $\cos(\omega_k (t + s))$; corrected: cosine of the rotated "
    "pair, and the same",
)
@between(s=(1, 400), n=(3, 101), pairs=(1, 32))
def shifted_cosines(draw: Draws, s: int = 7, n: int = 53, pairs: int = 8) -> ClaimResult:
    """The best constants for each frequency, by least squares over the positions, leave an error."""
    return _shifted_by_constants(draw, s, n, pairs, first=1)


@statement("S4.25", "§1.2.1", HOLDS).says(
    "For a fixed offset $s$, position $t + s$ is a linear function of position $t$.",
    correction=r"By an orthogonal $d \times d$ matrix that depends on $s$ alone.",
    compares="entry of the code of $t$ times a matrix, and of the code of $t + s$",
)
@between(s=(1, 400), n=(2, 101), pairs=(1, 32), base=(2.0, 1e5))
def shift_is_linear(draw: Draws, s: int = 7, n: int = 53, pairs: int = 8, base: float = _PAPER_BASE) -> ClaimResult:
    t, d = draw.integers(n, below=1000), 2 * pairs
    R = shift_matrix(float(s), d, base)
    figures = {"error of orthogonality": float((R @ R.T - torch.eye(d, dtype=torch.float64)).abs().max())}
    return ClaimResult(same(sinusoid(t, d, base) @ R.T, sinusoid(t + s, d, base)), figures=figures)


@statement("S4.26", "§1.2.1", TYPO).says(
    r"The code of position $t$ is $(\sin(\omega_1 t), \ldots, \sin(\omega_d t))$.",
    correction=r"$(\sin \omega_0 t, \cos \omega_0 t, \ldots, \sin \omega_{d/2-1} t, \cos \omega_{d/2-1} t)$",
    compares="entry of the code as printed, and of (1); corrected: of the code with sines and cosines, and of (1)",
)
@between(pairs=(1, 32), base=(2.0, 1e5))
def code_of_a_position(draw: Draws, pairs: int = 7, base: float = _PAPER_BASE) -> ClaimResult:
    t, d = draw.integers(1, below=1000) + 1, 2 * pairs
    printed = (t * base ** (-2 * torch.arange(1, d + 1, dtype=torch.float64) / d)).sin()
    omega = [base ** (-2 * k / d) for k in range(pairs)]
    meant = [wave(w * int(t)) for w in omega for wave in (math.sin, math.cos)]
    f = sinusoid(t, d, base)[0]
    return ClaimResult(same(printed, f), corrected=same(torch.tensor(meant, dtype=torch.float64), f))


@statement("S4.27", "§1.2.1", HOLDS).says(
    "Another $t$ gives another vector.",
    correction=r"For whole $t$: $\omega_0 = 1$, and $\pi$ is irrational.",
    compares="least distance of the codes of two positions, and 0",
)
@between(n=(2, 5000), pairs=(1, 32), base=(1.0, 1e5))
def codes_are_distinct(draw: Draws, n: int = 5000, pairs: int = 1, base: float = _PAPER_BASE) -> ClaimResult:
    return ClaimResult(more(least_distance(n, 2 * pairs, base), 0.0))


@statement("S4.28", "§1.2.1", CONDITION).says(
    r"$P \in \mathbb R^{N \times d}$ is added as $X W^E + P[:n, :]$.",
    correction="$N$ is the largest length here, at least $n$, and not the $N$ of (1).",
    compares="entry of $X W^E + P[:n, :]$, and of our model's input; without: rows of a table of $N = 10$, and tokens",
)
@between(n=(11, 101), spare=(0, 50), pairs=(1, 32))
def rows_of_the_position_table(draw: Draws, n: int = 13, spare: int = 4, pairs: int = 3) -> ClaimResult:
    """With the N of (1) as its number of rows, here 10, the table is too short for the sentence."""
    X, base, d = draw.normal(1, n, 2 * pairs), 10, 2 * pairs
    P = sinusoid(torch.arange(n + spare), d, base)
    added = Positions("sinusoid", d, base, n)(X)
    return ClaimResult(same(X + P[:n], added), without=same(len(P[:base][:n]), n))


@statement("S4.29", "§1.2.1", HOLDS).says(
    "A dropout of 0.1 is applied after positions are added.",
    correction="As in the base model of the 2017 paper.",
    compares="share of the entries dropped before the first block, and 0.1",
)
@between(n=(50, 101), pairs=(25, 32))
def dropout_of_positions(draw: Draws, n: int = 53, pairs: int = 32) -> ClaimResult:
    """What enters the first block of a model in training: all n d entries but those that are dropped are embedding
    plus position over 0.9, which our dropout rounds to 16 bits. Up to 6 standard errors are allowed.
    """
    words, d, p = 7, 2 * pairs, preset("base").dropout
    heads = AttentionConfig(heads=1, d_k=2, d_v=2)
    config = TransformerConfig(
        vocabulary=words, d_e=d, d_ff=3, attention=heads, encoder_layers=1, decoder_layers=0, dropout=p
    )
    model, tokens, entering = filled(draw, lambda: build(config)), draw.integers(1, n, below=words), []
    assert model.source_embedding is not None
    X = model.positions(model.source_embedding(tokens))
    model.encoder[0].register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(draw.integers(1, below=2**31)))
        model.train().encode(tokens)
    kept = (0.9 * entering[0] / X - 1).abs() <= 2**-16
    return ClaimResult(same((~kept).double().mean(), 0.1, slack=6 * math.sqrt(0.1 * 0.9 / X.numel())))


@statement("S4.30", "§1.2.1", CONDITION).says(
    'Without positions the sentences "Luca did not won the football tournament and he was happy" and "Luca won the '
    'football tournament and he was not happy" might be treated similarly.',
    correction="Without positions self-attention turns permuted tokens into permuted outputs, so that true "
    'permutations are not told apart. The two sentences are none: only one has "did".',
    compares="output for permuted tokens, and permuted output; without: mean output of one sentence, and of the other",
)
@between(n=(1, 23))
def sentences_without_positions(draw: Draws, n: int = 7) -> ClaimResult:
    kinds = {word: kind for kind, word in enumerate(dict.fromkeys(" ".join(_REORDERED_SENTENCES).split()))}
    one, other = (torch.tensor([[kinds[word] for word in sentence.split()]]) for sentence in _REORDERED_SENTENCES)
    config = TransformerConfig(
        vocabulary=len(kinds),
        d_e=6,
        d_ff=7,
        attention=AttentionConfig(heads=2, d_k=3, d_v=3),
        encoder_layers=2,
        decoder_layers=0,
        positions="none",
    )
    model = filled(draw, lambda: build(config), scale=0.5)
    tokens, order = draw.integers(1, n, below=len(kinds)), draw.permutation(n)
    return ClaimResult(
        same(model.encode(tokens[:, order]), model.encode(tokens)[:, order]),
        without=same(model.encode(one).mean(1), model.encode(other).mean(1)),
    )


@statement("S4.157", "§1.2.1", CONDITION).says(
    "As matrix operations and exponentials follow, adding the index can lead to exploding gradients.",
    correction="If no norm comes between, and attention does not look at the first tokens alone: the gradient of the "
    r"weights of values and outputs then grows as $n^2$. LayerNorm of $x_i + i \mathbf 1$ is that of $x_i$, so that a "
    "norm takes the index out altogether. The exponentials themselves saturate: what passes through them vanishes.",
    compares="growth of the gradient from one length to a longer one, and of the length; without: the same after a "
    "LayerNorm",
)
@between(n=(8, 24), longer=(4, 8), d=(4, 7))
def gradients_with_an_index(draw: Draws, n: int = 16, longer: int = 8, d: int = 5) -> ClaimResult:
    """One head on 16 sequences, and half of the mean square of the rows that it gives.

    Its keys have the weights of its queries: the index adds i j |1^T W_Q|^2 to the scores, which rise with both.
    """
    layer = drawn_layer(draw, d, 1, d, d)
    layer.W_K.copy_(layer.W_Q)
    X = draw.normal(16, longer * n, d)
    Z = X + _added("index", longer * n)[None, :, None]
    gradients = {
        name: [_gradient_norm(layer, T[:, :length]) for length in (n, longer * n)]
        for name, T in (("index", Z), ("norm", F.layer_norm(Z, (d,))), ("no index", X))
    }
    growth = {name: after / before for name, (before, after) in gradients.items()}
    return ClaimResult(
        more(growth["index"], longer),
        without=more(growth["norm"], longer),
        figures={"growth without an index": growth["no index"], "gradient with the index": gradients["index"][1]},
    )


def _gradient_norm(layer: MultiHead, X: Tensor) -> float:
    """Of half of the mean square of the rows, by all weights."""
    weights = [weight.detach().requires_grad_() for weight in layer.parameters()]
    named = dict(zip(dict(layer.named_parameters()), weights, strict=True))
    Y = torch.func.functional_call(layer, named, (X,))
    parts = torch.autograd.grad(Y.square().sum(-1).mean() / 2, weights)
    return float(torch.stack([part.square().sum() for part in parts]).sum().sqrt())


def _added(kind: str, length: int) -> Tensor:
    """What is added to the embeddings of one feature."""
    assert kind in ("index", "normalised-index")
    return Positions(kind, 1, _PAPER_BASE, length)(torch.zeros(1, length, 1, dtype=torch.float64))[0, :, 0]


def _interleaved(z: Tensor) -> Tensor:
    """Sines and cosines in turn, as in (1)."""
    return torch.stack([z.imag, z.real], -1).flatten(-2)


def _shifted_by_constants(draw: Draws, s: int, n: int, pairs: int, first: int) -> ClaimResult:
    """f(t + s) against the best a f(t) + b of each sine (first = 0) or cosine (first = 1), and against R_s f(t)."""
    t, d = int(draw.integers(1, below=100)) + torch.arange(n), 2 * pairs
    before, after = sinusoid(t, d), sinusoid(t + s, d)
    wave, shifted = before[:, first::2].T[..., None], after[:, first::2].T[..., None]
    regressors = torch.cat([wave, torch.ones_like(wave)], -1)
    fitted = regressors @ torch.linalg.lstsq(regressors, shifted).solution
    rotated = (before @ shift_matrix(float(s), d).T)[:, first::2]
    figures = {"largest error of the best constants": float((fitted - shifted).abs().max())}
    return ClaimResult(same(fitted, shifted), corrected=same(rotated, after[:, first::2]), figures=figures)
