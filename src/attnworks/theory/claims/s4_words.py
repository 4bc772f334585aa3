"""S4.1-S4.17, S4.160: words as vectors, the probability of a sentence, its loss, decoding, and recurrent attention."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.attention import Context, Geometry, Mask, MechanismSpec
from attnworks.attention.softmax import bahdanau_additive
from attnworks.models import AttentionConfig, RecurrentConfig, TransformerConfig, build
from attnworks.models.layers import Embedding
from attnworks.theory.cases import Draw, filled
from attnworks.theory.claims.s4_decoder import Toy, beginnings, trap
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.sides import more, same, together
from attnworks.training.objectives.seq2seq import linear_cross_entropy

Vocabulary = Annotated[int, Between(2, 23)]
Width = Annotated[int, Between(1, 17)]
Words = Annotated[int, Between(2, 4)]
Length = Annotated[int, Between(1, 5)]
Positions = Annotated[int, Between(1, 13)]
Several = Annotated[int, Between(2, 13)]

SCORES = ("luong-dot", "luong-multiplicative", "bahdanau-additive")


@statement(
    "S4.1",
    where="§1",
    says=r"An embedding is a function $E: w \to \mathbb R^d$, so that the vocabulary is a matrix "
    r"$M \in \mathbb R^{l \times d}$.",
    verdict=Verdict.TYPO,
    correction=r"$E: V \to \mathbb R^d$: every word of the vocabulary has a row of $M$. "
    r"One word $w$ alone would make a matrix of one row.",
    compares="rows of the matrix that one word $w$ makes, and words; corrected: entry of a word's code, and of its "
    "row of $M$",
)
def one_row_for_each_word(draw: Draw, words: Vocabulary = 7, d: Width = 5) -> Finding:
    embedding = filled(draw, lambda: Embedding(words, d))
    one, every = (embedding(torch.arange(count)[None])[0] / math.sqrt(d) for count in (1, words))
    return Finding(same(len(one), len(embedding.weight)), corrected=same(every, embedding.weight))


@statement(
    "S4.2",
    where="§1",
    says=r"Words as unit vectors $e_i$ are orthogonal and so independent: $v_i \cdot v_j = 0$.",
    verdict=Verdict.HOLDS,
    correction=r"For $i \neq j$. All distances are $\sqrt 2$: no two words are more alike than any others.",
    compares="rank of the vectors, and words; products of pairs against 0 and squared distances against 2 as well",
)
def unit_vectors_of_words(draw: Draw, words: Vocabulary = 7) -> Finding:
    E = F.one_hot(draw.permutation(words), words).double()
    apart = ~torch.eye(words, dtype=torch.bool)
    products, squares = (E @ E.T)[apart], (E[:, None] - E).square().sum(-1)[apart]
    figures = {"least distance": float(squares.min().sqrt()), "largest distance": float(squares.max().sqrt())}
    return Finding(
        same(
            together(torch.linalg.matrix_rank(E), products, squares),
            together(words, torch.zeros_like(products), torch.full_like(squares, 2.0)),
        ),
        figures=figures,
    )


not_computed(
    "S4.3",
    where="§1",
    says='Words should be near to similar words, and language refers to itself ("Luca is studying in Spain. He is '
    'very happy.").',
    why_not="no formal claim",
)


@statement(
    "S4.4",
    where="§1.1",
    says=r"Wanted is the most probable target given the input, $y^* = \operatorname{argmax}_y p(y \mid x)$.",
    verdict=Verdict.HOLDS,
    compares="probability of the text that a full search finds, and the largest of all texts",
)
def most_probable_text(draw: Draw, words: Words = 3, length: Length = 3) -> Finding:
    toy = Toy.endless(draw.normal(beginnings(words, length), words, scale=2.0))
    (best,) = toy.beam(words ** (length - 1), length)
    return Finding(same(math.exp(best.logprob), toy.every_text(length).max().exp()))


@statement(
    "S4.5",
    where="§1.1",
    says=r"$p(y_1, \ldots, y_{n'}) = p(y_1)\, p(y_2 \mid y_1) \cdots p(y_{n'} \mid y_1, \ldots, y_{n'-1}) "
    r"= \prod_t p(y_t \mid y_t)$",
    verdict=Verdict.TYPO,
    correction=r"$\prod_t p(y_t \mid y_{<t})$. As printed every factor is $p(y_t \mid y_t) = 1$.",
    compares="product as printed for one text, and its probability; corrected: product of conditionals, and its "
    "probability",
)
def product_of_conditionals(draw: Draw, words: Words = 3, length: Length = 3) -> Finding:
    joint = draw.stochastic(words**length, sharpness=2.0)
    table = joint.reshape([words] * length)
    printed = torch.ones_like(table)
    for t in range(length):
        p_t = table.sum([axis for axis in range(length) if axis != t]) if length > 1 else table
        given_itself = torch.diag(p_t).sum(0) / p_t
        printed = printed * given_itself.reshape([words if axis == t else 1 for axis in range(length)])
    figures = {"sum of the printed product over all texts": float(printed.sum())}
    product = Toy.of_joint(joint, words, length).every_text(length).exp()
    return Finding(same(printed, table), corrected=same(product, joint), figures=figures)


@statement(
    "S4.6",
    where="§1.1",
    says=r"$y^* = \operatorname{argmax}_y \prod_{t=1}^{n'} p(y_t \mid y_{<t}, x)$",
    verdict=Verdict.HOLDS,
    compares="probability of the text found by its conditionals, and the largest of the joint distribution",
)
def most_probable_by_conditionals(draw: Draw, words: Words = 3, length: Length = 3) -> Finding:
    joint = draw.stochastic(words**length, sharpness=2.0)
    (best,) = Toy.of_joint(joint, words, length).beam(words ** (length - 1), length)
    return Finding(same(math.exp(best.logprob), joint.max()))


@statement(
    "S4.7",
    where="§1.1",
    says=r"At step $t$ a model predicts the distribution $p^{(t)} = p(* \mid y_1, \ldots, y_{t-1}, x_1, \ldots, x_n)$; "
    r"the target is $p^* = \operatorname{onehot}(y_t)$.",
    verdict=Verdict.HOLDS,
    compares="probability of a word after later words of the target were changed, and before",
)
def prediction_from_what_came_before(
    draw: Draw, n: Positions = 5, length: Several = 7, words: Vocabulary = 11
) -> Finding:
    config = TransformerConfig(
        vocabulary=words,
        d_e=6,
        d_ff=7,
        attention=AttentionConfig(heads=2, d_k=3, d_v=3),
        encoder_layers=1,
        decoder_layers=1,
    )
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
    return Finding(same(later, p), figures=figures)


@statement(
    "S4.8",
    where="§1.1",
    says=r"$\operatorname{Loss}(p^*, p) = -p^* \log(p) = -\sum_{i=1}^{\lvert V \rvert} p_i^* \log(p_i)$",
    verdict=Verdict.HOLDS,
    correction=r"$-p^* \log(p)$ is a dot product.",
    compares=r"loss as trained on, and $-\sum_i p_i^* \log p_i$, both summed over the positions",
)
def cross_entropy(
    draw: Draw,
    n: Positions = 5,
    words: Vocabulary = 7,
    d: Width = 3,
    smoothing: Annotated[float, Between(0.0, 1.0)] = 0.0,
) -> Finding:
    X, M, gold = draw.normal(n, d), draw.normal(words, d), draw.integers(n, below=words)
    wanted = (1 - smoothing) * F.one_hot(gold, words).double() + smoothing / words
    return Finding(same(linear_cross_entropy(X, M, None, gold, smoothing), -(wanted * (X @ M.T).log_softmax(-1)).sum()))


@statement(
    "S4.9",
    where="§1.1",
    says=r"$\operatorname{Loss}(p^*, p) = \log(p_{y_t}) = -\log(p(y_t \mid y_{<t}, x))$",
    verdict=Verdict.TYPO,
    correction=r"$\operatorname{Loss} = -\log(p_{y_t})$; the first sign is missing.",
    compares=r"$\log p_{y_t}$ summed over the positions, and the loss; corrected: $-\log p_{y_t}$, and the loss",
)
def sign_of_the_loss(draw: Draw, n: Positions = 5, words: Vocabulary = 7, d: Width = 3) -> Finding:
    X, M, gold = draw.normal(n, d), draw.normal(words, d), draw.integers(n, below=words)
    loss = linear_cross_entropy(X, M, None, gold)
    log_p = (X @ M.T).softmax(-1).gather(1, gold[:, None]).log().sum()
    return Finding(same(log_p, loss), corrected=same(-log_p, loss))


@statement(
    "S4.10",
    where="§1.1",
    says=r"There are $\lvert V \rvert^n$ feasible solutions.",
    verdict=Verdict.TYPO,
    correction=r"$\lvert V \rvert^{n'}$, with the length $n'$ of the output; $n$ is that of the input.",
    compares=r"different texts that a search finds, and $\lvert V \rvert^n$; corrected: the same, and $\lvert V "
    r"\rvert^{n'}$",
)
def number_of_texts(
    draw: Draw, words: Words = 3, length: Annotated[int, Between(1, 4)] = 3, longer: Annotated[int, Between(1, 5)] = 2
) -> Finding:
    """An input with `longer` words more than the output; the search is asked for one text more than there are."""
    toy, texts = Toy.endless(draw.normal(beginnings(words, length), words)), words**length
    found = {hypothesis.tokens for hypothesis in toy.beam(texts + 1, length, n_best=texts + 1)}
    n = length + longer
    return Finding(same(len(found), words**n), corrected=same(len(found), texts))


@statement(
    "S4.11",
    where="§1.1",
    says=r"$\operatorname{argmax}_y \prod_t p(y_t \mid y_{<t}, x) \neq \prod_t \operatorname{argmax}_{y_t} "
    r"p(y_t \mid y_{<t}, x)$: greedy decoding is not exact.",
    verdict=Verdict.CONDITION,
    correction="Of different types as printed, a sequence and a product. It means that the greedy sequence need not be "
    "the argmax; it is one, for example, where no word depends on those before.",
    compares="probability of the best text, and of the greedy one; without: the same where no word depends on others",
)
def greedy_is_not_exact(draw: Draw, words: Words = 3, length: Length = 3) -> Finding:
    trapped = trap()
    best, greedy = float(trapped.every_text(2).max()), trapped.greedy(2).logprob
    levels = [draw.normal(words).expand(words**t, words) for t in range(length)]
    independent = Toy.endless(torch.cat(levels))
    return Finding(
        more(math.exp(best), math.exp(greedy)),
        without=more(independent.every_text(length).max().exp(), math.exp(independent.greedy(length).logprob)),
    )


@statement(
    "S4.12",
    where="§1.1",
    says="Beam search goes on with the $N$ most probable hypotheses at each step, against what greedy decoding misses.",
    verdict=Verdict.CONDITION,
    correction=r"It is surely exact only if $N \ge \lvert V \rvert^{T-1}$ for texts of $T$ words; $N = 1$ is greedy "
    "decoding.",
    compares=r"probability found by $\lvert V \rvert^{T-1}$ beams, and the largest (one beam, and greedy); without: "
    "by one beam fewer, and the largest",
)
def beam_search(draw: Draw, words: Words = 3, length: Annotated[int, Between(2, 4)] = 3) -> Finding:
    """One beam too few loses the least probable beginning, and with it the one word that is sure to follow there."""
    beams = words ** (length - 1)
    toy = Toy.endless(draw.normal(beginnings(words, length), words, scale=2.0))
    scores = torch.zeros(beginnings(words, length), words, dtype=torch.float64)
    scores[:, -1] = -0.1
    scores[-1, 0] = 30.0
    hidden = Toy.endless(scores)
    (found,), (alone,), (missed,) = toy.beam(beams, length), toy.beam(1, length), hidden.beam(beams - 1, length)
    best, best_hidden = (model.every_text(length).max().exp() for model in (toy, hidden))
    greedy = math.exp(toy.greedy(length).logprob)
    return Finding(
        same(together(math.exp(found.logprob), math.exp(alone.logprob)), together(best, greedy)),
        without=same(math.exp(missed.logprob), best_hidden),
        figures={"beams": beams, "probability by greedy decoding": greedy, "largest probability": float(best)},
    )


@statement(
    "S4.13",
    where="§1.1.1",
    says=r"$a_{t,k} = \frac{\exp(\operatorname{score}(h_t, s_k))}{\sum_{i=1}^n \exp(\operatorname{score}(h_t, s_i))}$ "
    "for the encoder states $s_1, \\ldots, s_n$ and the decoder state $h_t$",
    verdict=Verdict.HOLDS,
    compares="weight of an encoder state by our mechanism, and by the formula in loops",
)
def weights_of_encoder_states(
    draw: Draw, n: Positions = 5, steps: Annotated[int, Between(1, 5)] = 3, d: Width = 7
) -> Finding:
    H, states = draw.normal(1, 1, steps, d), draw.normal(1, 1, n, d)
    kinds = [filled(draw, partial(MechanismSpec.parse(name).build, Geometry(1, d, d))) for name in SCORES]
    ours = torch.stack([_given(attend(H, states, states, weights=True).P) for attend in kinds])
    by_loops = [_given(attend.reference(H, states, states, Mask(), Context()).P) for attend in kinds]
    return Finding(same(ours, torch.stack(by_loops)))


@statement(
    "S4.14",
    where="§1.1.1",
    says=r"Scores: $h^\top s$ (Luong dot), $h^\top W_a s$ (Luong multiplicative), $v_a^\top \tanh W_a [h; s]$ "
    "(Bahdanau).",
    verdict=Verdict.TYPO,
    correction=r"$v_a^\top \tanh(W_a [h; s])$: without brackets it reads $v_a^\top \tanh(W_a) [h; s]$. The encoder "
    r'states are called $\hat h_s$ here and $s_k$ before; "multiplicative" is what Luong calls "general"; Bahdanau '
    "scores the decoder state before.",
    compares=r"$v_a^\top \tanh(W_a) [h; s]$, and our additive score; corrected: $v_a^\top \tanh(W_a [h; s])$, and our "
    "score",
)
def brackets_of_the_additive_score(draw: Draw, n: Positions = 5, d: Width = 7, hidden: Width = 3) -> Finding:
    h, states = draw.normal(d), draw.normal(n, d)
    W_h, W_s, v = draw.normal(d, hidden), draw.normal(d, hidden), draw.normal(hidden)
    W = torch.cat([W_h, W_s]).T
    both = torch.cat([h.expand(n, d), states], 1)
    ours = bahdanau_additive(h[None, None, None], states[None, None], W_h[None], W_s[None], v[None])[0, 0, 0]
    return Finding(same(both @ (v @ W.tanh()), ours), corrected=same((both @ W.T).tanh() @ v, ours))


@statement(
    "S4.15",
    where="§1.1.1",
    says=r"$c_t = a_{t,1} s_1 + \ldots + a_{t,m} s_m = \sum_{i=1}^m a_{t,i} s_i$",
    verdict=Verdict.TYPO,
    correction="The sum runs over all $n$ encoder states, not over $m$.",
    compares="entry of the sum over $m$ states, and of the context; corrected: of the sum over all $n$, and of the "
    "context",
)
def context_of_all_states(
    draw: Draw, m: Positions = 5, missing: Annotated[int, Between(1, 7)] = 2, d: Width = 3
) -> Finding:
    h, states = draw.normal(1, 1, 1, d), draw.normal(1, 1, m + missing, d)
    c, P = MechanismSpec.parse("luong-dot").build(Geometry(1, d, d))(h, states, states, weights=True)
    a, s = _given(P)[0, 0, 0], states[0, 0]
    return Finding(same(a[:m] @ s[:m], c[0, 0, 0]), corrected=same(a @ s, c[0, 0, 0]))


@statement(
    "S4.16",
    where="§1.1.1",
    says="The output word comes from $W [c_t; h_t]$.",
    verdict=Verdict.CONDITION,
    correction=r"In Luong's model $\tanh(W_c [c_t; h_t])$ is projected to the vocabulary, and softmax follows.",
    compares=r"probability of a word from $\tanh(W_c [c_t; h_t])$, and from our model; without: without the $\tanh$, "
    "and from our model",
)
def output_of_context_and_state(
    draw: Draw, n: Positions = 5, steps: Annotated[int, Between(1, 5)] = 3, d: Width = 7, words: Vocabulary = 11
) -> Finding:
    config = RecurrentConfig(vocabulary=words, d_e=3, d_h=d, mechanism="luong-dot")
    model = filled(draw, lambda: build(config))
    H, states = draw.normal(1, steps, d), draw.normal(1, n, d)
    assert model.attention is not None and model.combine is not None
    c = model.attention(H[:, None], states[:, None], states[:, None]).Y[:, 0]
    combined = model.combine(torch.cat([c, H], -1))
    p = model.scores(model.read(H, states)).softmax(-1)
    return Finding(
        same((combined.tanh() @ model.output.weight.T).softmax(-1), p),
        without=same((combined @ model.output.weight.T).softmax(-1), p),
    )


@statement(
    "S4.17",
    where="§1.2",
    says=r"One-hot tokens $X$ become $X W^E$ with $W^E \in \mathbb R^{l \times d}$ and $d = 512$.",
    verdict=Verdict.HOLDS,
    correction="It equals looking up rows.",
    compares="entry of $X W^E$, and of the row that is looked up",
)
def product_with_one_hot_rows(
    draw: Draw, n: Positions = 5, words: Vocabulary = 7, d: Annotated[int, Between(1, 512)] = 512
) -> Finding:
    embedding, tokens = filled(draw, lambda: Embedding(words, d)), draw.integers(1, n, below=words)
    X = F.one_hot(tokens, words).double()
    return Finding(same(X @ embedding.weight, embedding(tokens) / math.sqrt(d)))


@statement(
    "S4.160",
    where="§1.1.1",
    says="In the simplest architecture an encoder RNN reads the source, and its final state is the initial state of "
    "the decoder RNN.",
    verdict=Verdict.HOLDS,
    correction="Of an LSTM the final state is the pair of hidden state and cell.",
    compares="score of a word by cells that take over the last state of the source, and by our model without attention",
)
def final_state_starts_the_decoder(
    draw: Draw, n: Positions = 5, steps: Annotated[int, Between(1, 5)] = 3, d: Width = 7, words: Vocabulary = 11
) -> Finding:
    """Token by token through PyTorch's cells, which know no sequences; another start gives other scores."""
    model = filled(draw, lambda: build(RecurrentConfig(vocabulary=words, d_e=3, d_h=d)))
    source, target = draw.integers(1, n, below=words), draw.integers(1, steps, below=words)
    zero = torch.zeros(1, d, dtype=torch.float64)
    _, last = _by_cells(model.encoder, model.source_embedding(source)[0], (zero, zero))
    states, fresh = (
        _by_cells(model.decoder, model.target_embedding(target)[0], start)[0] for start in (last, (zero, zero))
    )
    scores = model(source, target)[0]
    figures = {"change if the decoder starts from zero": float((model.scores(fresh) - scores).abs().max())}
    return Finding(same(states @ model.output.weight.T, scores), figures=figures)


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
