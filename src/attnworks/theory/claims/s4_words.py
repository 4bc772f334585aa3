"""S4: Conti 2024 on word vectors, the loss of a sentence, decoding and recurrent attention (S4.1-S4.17, S4.160)."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.attention import Context, Geometry, Mask, MechanismSpec
from attnworks.attention.softmax import bahdanau_additive
from attnworks.models import AttentionConfig, RecurrentConfig, TransformerConfig, build
from attnworks.models.layers import Embedding
from attnworks.theory.cases import Draws, filled
from attnworks.theory.claims.s4_decoder import ToyLanguageModel, beginnings, greedy_trap
from attnworks.theory.contract import CONDITION, HOLDS, NOT_CHECKABLE, TYPO, ClaimResult, between, statement
from attnworks.theory.sides import more, same, stacked
from attnworks.training.objectives.language import linear_cross_entropy

_SCORE_MECHANISMS = ("luong-dot", "luong-multiplicative", "bahdanau-additive")


@statement("S4.1", "§1", TYPO).says(
    r"An embedding is a function $E: w \to \mathbb R^d$, so that the vocabulary is a matrix $M \in \mathbb R^{l \times "
    "d}$.",
    correction=r"$E: V \to \mathbb R^d$: every word of the vocabulary has a row of $M$. One word $w$ alone would make "
    "a matrix of one row.",
    compares="rows of the matrix that one word $w$ makes, and words; corrected: entry of a word's code, and of its row "
    "of $M$",
)
@between(words=(2, 23), d=(1, 17))
def one_row_for_each_word(draw: Draws, words: int = 7, d: int = 5) -> ClaimResult:
    embedding = filled(draw, lambda: Embedding(words, d))
    one, every = (embedding(torch.arange(count)[None])[0] / math.sqrt(d) for count in (1, words))
    return ClaimResult(same(len(one), len(embedding.weight)), corrected=same(every, embedding.weight))


@statement("S4.2", "§1", HOLDS).says(
    r"Words as unit vectors $e_i$ are orthogonal and so independent: $v_i \cdot v_j = 0$.",
    correction=r"For $i \neq j$. All distances are $\sqrt 2$: no two words are more alike than any others.",
    compares="rank of the vectors, and words; products of pairs against 0 and squared distances against 2 as well",
)
@between(words=(2, 23))
def unit_vectors_of_words(draw: Draws, words: int = 7) -> ClaimResult:
    E = F.one_hot(draw.permutation(words), words).double()
    apart = ~torch.eye(words, dtype=torch.bool)
    # [w w]: inner products and squared distances of all pairs of words
    products, squares = (E @ E.T)[apart], (E[:, None] - E).square().sum(-1)[apart]
    figures = {"least distance": float(squares.min().sqrt()), "largest distance": float(squares.max().sqrt())}
    return ClaimResult(
        same(
            stacked(torch.linalg.matrix_rank(E), products, squares),
            stacked(words, torch.zeros_like(products), torch.full_like(squares, 2.0)),
        ),
        figures=figures,
    )


statement("S4.3", "§1", NOT_CHECKABLE).not_computed(
    'Words should be near to similar words, and language refers to itself ("Luca is studying in Spain. He is very '
    'happy.").',
    why_not="no formal claim",
)


@statement("S4.4", "§1.1", HOLDS).says(
    r"Wanted is the most probable target given the input, $y^* = \operatorname{argmax}_y p(y \mid x)$.",
    compares="probability of the text that a full search finds, and the largest of all texts",
)
@between(words=(2, 4), length=(1, 5))
def most_probable_text(draw: Draws, words: int = 3, length: int = 3) -> ClaimResult:
    toy = ToyLanguageModel.endless(draw.normal(beginnings(words, length), words, scale=2.0))
    (best,) = toy.beam(words ** (length - 1), length)
    return ClaimResult(same(math.exp(best.logprob), toy.every_text(length).max().exp()))


@statement("S4.5", "§1.1", TYPO).says(
    r"$p(y_1, \ldots, y_{n'}) = p(y_1)\, p(y_2 \mid y_1) \cdots p(y_{n'} \mid y_1, \ldots, y_{n'-1}) = \prod_t p(y_t "
    r"\mid y_t)$",
    correction=r"$\prod_t p(y_t \mid y_{<t})$. As printed every factor is $p(y_t \mid y_t) = 1$.",
    compares="product as printed for one text, and its probability; corrected: product of conditionals, and its "
    "probability",
)
@between(words=(2, 4), length=(1, 5))
def product_of_conditionals(draw: Draws, words: int = 3, length: int = 3) -> ClaimResult:
    joint = draw.stochastic(words**length, sharpness=2.0)
    table = joint.reshape([words] * length)
    printed = torch.ones_like(table)
    for t in range(length):
        p_t = table.sum([axis for axis in range(length) if axis != t]) if length > 1 else table
        given_itself = torch.diag(p_t).sum(0) / p_t
        printed = printed * given_itself.reshape([words if axis == t else 1 for axis in range(length)])
    figures = {"sum of the printed product over all texts": float(printed.sum())}
    product = ToyLanguageModel.of_joint(joint, words, length).every_text(length).exp()
    return ClaimResult(same(printed, table), corrected=same(product, joint), figures=figures)


@statement("S4.6", "§1.1", HOLDS).says(
    r"$y^* = \operatorname{argmax}_y \prod_{t=1}^{n'} p(y_t \mid y_{<t}, x)$",
    compares="probability of the text found by its conditionals, and the largest of the joint distribution",
)
@between(words=(2, 4), length=(1, 5))
def most_probable_by_conditionals(draw: Draws, words: int = 3, length: int = 3) -> ClaimResult:
    joint = draw.stochastic(words**length, sharpness=2.0)
    (best,) = ToyLanguageModel.of_joint(joint, words, length).beam(words ** (length - 1), length)
    return ClaimResult(same(math.exp(best.logprob), joint.max()))


@statement("S4.7", "§1.1", HOLDS).says(
    r"At step $t$ a model predicts the distribution $p^{(t)} = p(* \mid y_1, \ldots, y_{t-1}, x_1, \ldots, x_n)$; the "
    r"target is $p^* = \operatorname{onehot}(y_t)$.",
    compares="probability of a word after later words of the target were changed, and before",
)
@between(n=(1, 13), length=(2, 13), words=(2, 23))
def prediction_from_what_came_before(draw: Draws, n: int = 5, length: int = 7, words: int = 11) -> ClaimResult:
    heads = AttentionConfig(heads=2, d_k=3, d_v=3)
    config = TransformerConfig(vocabulary=words, d_e=6, d_ff=7, attention=heads, encoder_layers=1, decoder_layers=1)
    model = filled(draw, lambda: build(config), scale=0.5)
    x, y = draw.integers(1, n, below=words), draw.integers(1, length, below=words)
    t = int(draw.integers(1, below=length - 1)) + 1
    other_end, other_start, other_x = y.clone(), y.clone(), (x + 1) % words
    other_end[:, t:] = (y[:, t:] + 1) % words
    other_start[:, 0] = (y[:, 0] + 1) % words
    p, later, earlier = (model(x, target).softmax(-1)[0, :t] for target in (y, other_end, other_start))
    figures = {
        "change by an earlier word": float((earlier - p).abs().max()),
        "change by the input": float((model(other_x, y).softmax(-1)[0, :t] - p).abs().max()),
    }
    return ClaimResult(same(later, p), figures=figures)


@statement("S4.8", "§1.1", HOLDS).says(
    r"$\operatorname{Loss}(p^*, p) = -p^* \log(p) = -\sum_{i=1}^{\lvert V \rvert} p_i^* \log(p_i)$",
    correction=r"$-p^* \log(p)$ is a dot product.",
    compares=r"loss as trained on, and $-\sum_i p_i^* \log p_i$, both summed over the positions",
)
@between(n=(1, 13), words=(2, 23), d=(1, 17), smoothing=(0.0, 1.0))
def cross_entropy(draw: Draws, n: int = 5, words: int = 7, d: int = 3, smoothing: float = 0.0) -> ClaimResult:
    X, M, gold = draw.normal(n, d), draw.normal(words, d), draw.integers(n, below=words)
    wanted = (1 - smoothing) * F.one_hot(gold, words).double() + smoothing / words
    formula = -(wanted * (X @ M.T).log_softmax(-1)).sum()
    return ClaimResult(same(linear_cross_entropy(X, M, None, gold, smoothing), formula))


@statement("S4.9", "§1.1", TYPO).says(
    r"$\operatorname{Loss}(p^*, p) = \log(p_{y_t}) = -\log(p(y_t \mid y_{<t}, x))$",
    correction=r"$\operatorname{Loss} = -\log(p_{y_t})$; the first sign is missing.",
    compares=r"$\log p_{y_t}$ summed over the positions, and the loss; corrected: $-\log p_{y_t}$, and the loss",
)
@between(n=(1, 13), words=(2, 23), d=(1, 17))
def sign_of_the_loss(draw: Draws, n: int = 5, words: int = 7, d: int = 3) -> ClaimResult:
    X, M, gold = draw.normal(n, d), draw.normal(words, d), draw.integers(n, below=words)
    loss = linear_cross_entropy(X, M, None, gold)
    log_p = (X @ M.T).softmax(-1).gather(1, gold[:, None]).log().sum()
    return ClaimResult(same(log_p, loss), corrected=same(-log_p, loss))


@statement("S4.10", "§1.1", TYPO).says(
    r"There are $\lvert V \rvert^n$ feasible solutions.",
    correction=r"$\lvert V \rvert^{n'}$, with the length $n'$ of the output; $n$ is that of the input.",
    compares=r"different texts that a search finds, and $\lvert V \rvert^n$; corrected: the same, and $\lvert V "
    r"\rvert^{n'}$",
)
@between(words=(2, 4), length=(1, 4), longer=(1, 5))
def number_of_texts(draw: Draws, words: int = 3, length: int = 3, longer: int = 2) -> ClaimResult:
    """The input has `longer` words more than the output; beam search should return one text more than exist."""
    toy, texts = ToyLanguageModel.endless(draw.normal(beginnings(words, length), words)), words**length
    found = {hypothesis.tokens for hypothesis in toy.beam(texts + 1, length, n_best=texts + 1)}
    n = length + longer
    return ClaimResult(same(len(found), words**n), corrected=same(len(found), texts))


@statement("S4.11", "§1.1", CONDITION).says(
    r"$\operatorname{argmax}_y \prod_t p(y_t \mid y_{<t}, x) \neq \prod_t \operatorname{argmax}_{y_t} p(y_t \mid "
    "y_{<t}, x)$: greedy decoding is not exact.",
    correction="Of different types as printed, a sequence and a product. It means that the greedy sequence need not be "
    "the argmax; it is one, for example, where no word depends on those before.",
    compares="probability of the best text, and of the greedy one; without: the same where no word depends on others",
)
@between(words=(2, 4), length=(1, 5))
def greedy_is_not_exact(draw: Draws, words: int = 3, length: int = 3) -> ClaimResult:
    trapped = greedy_trap()
    best, greedy = float(trapped.every_text(2).max()), trapped.greedy(2).logprob
    levels = [draw.normal(words).expand(words**t, words) for t in range(length)]
    independent = ToyLanguageModel.endless(torch.cat(levels))
    return ClaimResult(
        more(math.exp(best), math.exp(greedy)),
        without=more(independent.every_text(length).max().exp(), math.exp(independent.greedy(length).logprob)),
    )


@statement("S4.12", "§1.1", CONDITION).says(
    "Beam search continues with the $N$ most probable hypotheses at each step, against what greedy decoding misses.",
    correction=r"It is surely exact only if $N \ge \lvert V \rvert^{T-1}$ for texts of $T$ words; $N = 1$ is greedy "
    "decoding.",
    compares=r"probability found by $\lvert V \rvert^{T-1}$ beams, and the largest (one beam, and greedy); without: by "
    "one beam fewer, and the largest",
)
@between(words=(2, 4), length=(2, 4))
def beam_search(draw: Draws, words: int = 3, length: int = 3) -> ClaimResult:
    """One beam too few loses the least probable beginning, and with it the one word that is sure to follow there."""
    beams = words ** (length - 1)
    toy = ToyLanguageModel.endless(draw.normal(beginnings(words, length), words, scale=2.0))
    scores = torch.zeros(beginnings(words, length), words, dtype=torch.float64)
    scores[:, -1] = -0.1
    scores[-1, 0] = 30.0
    hidden = ToyLanguageModel.endless(scores)
    (found,), (alone,), (missed,) = toy.beam(beams, length), toy.beam(1, length), hidden.beam(beams - 1, length)
    best, best_hidden = (model.every_text(length).max().exp() for model in (toy, hidden))
    greedy = math.exp(toy.greedy(length).logprob)
    return ClaimResult(
        same(stacked(math.exp(found.logprob), math.exp(alone.logprob)), stacked(best, greedy)),
        without=same(math.exp(missed.logprob), best_hidden),
        figures={"beams": beams, "probability by greedy decoding": greedy, "largest probability": float(best)},
    )


@statement("S4.13", "§1.1.1", HOLDS).says(
    r"$a_{t,k} = \frac{\exp(\operatorname{score}(h_t, s_k))}{\sum_{i=1}^n \exp(\operatorname{score}(h_t, s_i))}$ for "
    r"the encoder states $s_1, \ldots, s_n$ and the decoder state $h_t$",
    compares="weight of an encoder state by our mechanism, and by the formula in loops",
)
@between(n=(1, 13), steps=(1, 5), d=(1, 17))
def weights_of_encoder_states(draw: Draws, n: int = 5, steps: int = 3, d: int = 7) -> ClaimResult:
    H, states = draw.normal(1, 1, steps, d), draw.normal(1, 1, n, d)
    kinds = [filled(draw, partial(MechanismSpec.parse(name).build, Geometry(1, d, d))) for name in _SCORE_MECHANISMS]
    ours = torch.stack([_given(attend(H, states, states, weights=True).P) for attend in kinds])
    by_loops = [_given(attend.reference(H, states, states, Mask(), Context()).P) for attend in kinds]
    return ClaimResult(same(ours, torch.stack(by_loops)))


@statement("S4.14", "§1.1.1", TYPO).says(
    r"Scores: $h^\top s$ (Luong dot), $h^\top W_a s$ (Luong multiplicative), $v_a^\top \tanh W_a [h; s]$ (Bahdanau).",
    correction=r"$v_a^\top \tanh(W_a [h; s])$: without brackets it reads $v_a^\top \tanh(W_a) [h; s]$. The encoder "
    r'states are called $\hat h_s$ here and $s_k$ before; "multiplicative" is what Luong calls "general"; Bahdanau '
    "scores the decoder state before.",
    compares=r"$v_a^\top \tanh(W_a) [h; s]$, and our additive score; corrected: $v_a^\top \tanh(W_a [h; s])$, and our "
    "score",
)
@between(n=(1, 13), d=(1, 17), hidden=(1, 17))
def brackets_of_the_additive_score(draw: Draws, n: int = 5, d: int = 7, hidden: int = 3) -> ClaimResult:
    h, states = draw.normal(d), draw.normal(n, d)
    W_h, W_s, v = draw.normal(d, hidden), draw.normal(d, hidden), draw.normal(hidden)
    W = torch.cat([W_h, W_s]).T
    both = torch.cat([h.expand(n, d), states], 1)
    # one batch, one head, one query
    ours = bahdanau_additive(h[None, None, None], states[None, None], W_h[None], W_s[None], v[None])[0, 0, 0]
    return ClaimResult(same(both @ (v @ W.tanh()), ours), corrected=same((both @ W.T).tanh() @ v, ours))


@statement("S4.15", "§1.1.1", TYPO).says(
    r"$c_t = a_{t,1} s_1 + \ldots + a_{t,m} s_m = \sum_{i=1}^m a_{t,i} s_i$",
    correction="The sum runs over all $n$ encoder states, not over $m$.",
    compares="entry of the sum over $m$ states, and of the context; corrected: of the sum over all $n$, and of the "
    "context",
)
@between(m=(1, 13), missing=(1, 7), d=(1, 17))
def context_of_all_states(draw: Draws, m: int = 5, missing: int = 2, d: int = 3) -> ClaimResult:
    h, states = draw.normal(1, 1, 1, d), draw.normal(1, 1, m + missing, d)
    c, P = MechanismSpec.parse("luong-dot").build(Geometry(1, d, d))(h, states, states, weights=True)
    a, s = _given(P)[0, 0, 0], states[0, 0]
    return ClaimResult(same(a[:m] @ s[:m], c[0, 0, 0]), corrected=same(a @ s, c[0, 0, 0]))


@statement("S4.16", "§1.1.1", CONDITION).says(
    "The output word comes from $W [c_t; h_t]$.",
    correction=r"In Luong's model $\tanh(W_c [c_t; h_t])$ is projected to the vocabulary, and softmax follows.",
    compares=r"probability of a word from $\tanh(W_c [c_t; h_t])$, and from our model; without: without the $\tanh$, "
    "and from our model",
)
@between(n=(1, 13), steps=(1, 5), d=(1, 17), words=(2, 23))
def output_of_context_and_state(draw: Draws, n: int = 5, steps: int = 3, d: int = 7, words: int = 11) -> ClaimResult:
    config = RecurrentConfig(vocabulary=words, d_e=3, d_h=d, mechanism="luong-dot")
    model = filled(draw, lambda: build(config))
    H, states = draw.normal(1, steps, d), draw.normal(1, n, d)
    assert model.attention is not None and model.combine is not None
    c = model.attention(H[:, None], states[:, None], states[:, None]).Y[:, 0]
    combined = model.combine(torch.cat([c, H], -1))
    p = model.logits(model.read(H, states)).softmax(-1)
    return ClaimResult(
        same((combined.tanh() @ model.output.weight.T).softmax(-1), p),
        without=same((combined @ model.output.weight.T).softmax(-1), p),
    )


@statement("S4.17", "§1.2", HOLDS).says(
    r"One-hot tokens $X$ become $X W^E$ with $W^E \in \mathbb R^{l \times d}$ and $d = 512$.",
    correction="It equals looking up rows.",
    compares="entry of $X W^E$, and of the row that is looked up",
)
@between(n=(1, 13), words=(2, 23), d=(1, 512))
def product_with_one_hot_rows(draw: Draws, n: int = 5, words: int = 7, d: int = 512) -> ClaimResult:
    embedding, tokens = filled(draw, lambda: Embedding(words, d)), draw.integers(1, n, below=words)
    X = F.one_hot(tokens, words).double()
    return ClaimResult(same(X @ embedding.weight, embedding(tokens) / math.sqrt(d)))


@statement("S4.160", "§1.1.1", HOLDS).says(
    "In the simplest architecture an encoder RNN reads the source, and its final state is the initial state of the "
    "decoder RNN.",
    correction="Of an LSTM the final state is the pair of hidden state and cell.",
    compares="score of a word by cells that take over the last state of the source, and by our model without attention",
)
@between(n=(1, 13), steps=(1, 5), d=(1, 17), words=(2, 23))
def final_state_starts_the_decoder(draw: Draws, n: int = 5, steps: int = 3, d: int = 7, words: int = 11) -> ClaimResult:
    """Token by token through PyTorch's cells, which know no sequences; another start gives other scores."""
    model = filled(draw, lambda: build(RecurrentConfig(vocabulary=words, d_e=3, d_h=d)))
    source, target = draw.integers(1, n, below=words), draw.integers(1, steps, below=words)
    zero = torch.zeros(1, d, dtype=torch.float64)
    _, last = _by_cells(model.encoder, model.source_embedding(source)[0], (zero, zero))
    states, fresh = (
        _by_cells(model.decoder, model.target_embedding(target)[0], start)[0] for start in (last, (zero, zero))
    )
    scores = model(source, target)[0]
    figures = {"change if the decoder starts from zero": float((model.logits(fresh) - scores).abs().max())}
    return ClaimResult(same(states @ model.output.weight.T, scores), figures=figures)


def _by_cells(recurrent: nn.RNNBase, X: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The hidden states of one layer of LSTM cells over the rows of X, and the last pair."""
    cell = nn.LSTMCell(recurrent.input_size, recurrent.hidden_size, dtype=torch.float64).requires_grad_(False)
    cell.load_state_dict({name: getattr(recurrent, f"{name}_l0") for name in cell.state_dict()})
    hidden = []
    for x in X:
        state = cell(x[None], state)
        hidden.append(state[0][0])
    return torch.stack(hidden), state


def _given(P: Tensor | None) -> Tensor:
    assert P is not None
    return P
