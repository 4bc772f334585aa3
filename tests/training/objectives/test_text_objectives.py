"""Losses of text: one per sentence, by loops in float64; padding never counts; what does not fit is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.text.tokens import Batch, TokenRow, Tokens, collate
from attnworks.training.objectives import choose_objective, fitting_objectives
from attnworks.training.objectives.contract import OBJECTIVES, Abilities, Objective, Outputs
from attnworks.training.objectives.language import MaskedToken, NextTargetToken, NextToken
from attnworks.training.objectives.sentences import (
    ClassLabels,
    FunctionObjective,
    SentenceEmbedding,
    embeddings,
    read_labels,
)
from tests.helpers import assert_close, unchecked

WORDS, WIDTH, CLASSES, MASK, PAD = 29, 7, 3, 28, 0
CLS, SEP = 1, 2
LENGTHS = (5, 3, 1, 11)
ROWS = torch.tensor([4, 0, 2, 3])
LABELS = [2, 0, 1, 1, 0]


def sentence(length: int, start: int = 3) -> TokenRow:
    """[CLS], so many different words, [SEP]."""
    words = tuple(start + place for place in range(length))
    return TokenRow((CLS, *words, SEP), (True, *[False] * length, True), (-1, *range(length), -1))


def plain(*ids: int) -> TokenRow:
    return TokenRow(ids, (False,) * len(ids), tuple(range(len(ids))))


def tokens(*lengths: int) -> Tokens:
    return collate([sentence(length) for length in lengths], PAD)


SOURCE, TARGET = tokens(*LENGTHS), tokens(2, 13, 7, 3)
BATCH = Batch(SOURCE)
PAIRS = Batch(SOURCE, TARGET)


def outputs(side: Tokens, scores: int | None = WORDS, dtype: torch.dtype = torch.float64, *, seed: int = 23) -> Outputs:
    b, i = side.ids.shape
    source = torch.Generator().manual_seed(seed)
    hidden = torch.randn(b, i, WIDTH, dtype=torch.float64, generator=source)
    shape = (b, i, WORDS) if scores == WORDS else (b, CLASSES)
    drawn = None if scores is None else 3 * torch.randn(shape, dtype=torch.float64, generator=source)
    return Outputs(hidden.to(dtype), None if drawn is None else drawn.to(dtype))


CASES: dict[str, tuple[Objective, Batch, Outputs]] = {
    "lm": (NextToken(), BATCH, outputs(SOURCE)),
    "mlm": (MaskedToken(MASK, 5), BATCH, outputs(SOURCE)),
    "seq2seq": (NextTargetToken(), PAIRS, outputs(TARGET)),
    "embedding": (SentenceEmbedding(5), BATCH, outputs(SOURCE, None)),
    "labels": (ClassLabels(LABELS), BATCH, outputs(SOURCE, CLASSES)),
    "own": (FunctionObjective(lambda out, batch: out.hidden[:, 0].square().sum(-1)), BATCH, outputs(SOURCE)),
}


def with_grad(out: Outputs) -> Outputs:
    return Outputs(
        out.hidden.clone().requires_grad_(), None if out.logits is None else out.logits.clone().requires_grad_()
    )


# --- every objective --------------------------------------------------------------------------------------------------


def test_every_registered_objective_is_tested() -> None:
    assert set(OBJECTIVES) == set(CASES) - {"own"}
    assert all(OBJECTIVES[name].name == name and OBJECTIVES[name].description for name in OBJECTIVES)


@pytest.mark.parametrize("name", CASES)
def test_one_finite_loss_per_sentence_with_a_gradient(name: str) -> None:
    objective, batch, out = CASES[name]
    out = with_grad(out)
    losses = objective.losses(out, batch, ROWS)
    assert losses.shape == (len(LENGTHS),) and losses.isfinite().all()
    read = out.hidden if name in ("embedding", "own") else out.logits
    assert read is not None
    (gradient,) = torch.autograd.grad(losses.sum(), read)
    assert (gradient.flatten(1) != 0).any(-1).all() and gradient.isfinite().all()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_are_float32_at_least(name: str, dtype: torch.dtype) -> None:
    objective, batch, out = CASES[name]
    rounded = Outputs(out.hidden.to(dtype), None if out.logits is None else out.logits.to(dtype))
    exact = Outputs(rounded.hidden.double(), None if rounded.logits is None else rounded.logits.double())
    losses = objective.losses(rounded, batch, ROWS)
    assert losses.dtype == torch.float32
    coarse = dtype if name == "own" else torch.float32
    assert_close(losses, objective.losses(exact, batch, ROWS), coarse)


def alone(side: Tokens, row: int) -> Tokens:
    length = int(side.lengths[row])
    return side.part(slice(row, row + 1), slice(length))


@pytest.mark.parametrize("name", CASES)
def test_a_sentence_is_judged_alike_alone_and_in_a_padded_batch(name: str) -> None:
    objective, batch, out = CASES[name]
    own_side = batch.sides("decoder")[0]
    together = objective.losses(out, batch, ROWS)
    for row, length in enumerate(own_side.lengths.tolist()):
        single = Batch(alone(batch.source, row), None if batch.target is None else alone(batch.target, row))
        scores = out.logits
        if scores is not None:
            scores = scores[row : row + 1] if scores.dim() == 2 else scores[row : row + 1, :length]
        cropped = Outputs(out.hidden[row : row + 1, :length], scores)
        assert_close(objective.losses(cropped, single, ROWS[row : row + 1]), together[row : row + 1])


@pytest.mark.parametrize("name", ["lm", "mlm", "seq2seq", "embedding"])
def test_padding_may_be_anything(name: str) -> None:
    objective, batch, out = CASES[name]
    real = ~batch.sides("decoder")[0].real.unsqueeze(-1)
    odd = with_grad(
        Outputs(
            out.hidden.masked_fill(real, torch.nan),
            None if out.logits is None else out.logits.masked_fill(real, torch.nan),
        )
    )
    losses = objective.losses(odd, batch, ROWS)
    assert torch.equal(losses, objective.losses(out, batch, ROWS))
    read = odd.hidden if odd.logits is None else odd.logits
    (gradient,) = torch.autograd.grad(losses.sum(), read)
    assert gradient.isfinite().all() and (gradient.masked_select(real) == 0).all()


@pytest.mark.parametrize("name", sorted(set(CASES) - {"embedding"}))
def test_distance_is_the_difference_of_losses(name: str) -> None:
    objective, batch, whole = CASES[name]
    other = outputs(batch.sides("decoder")[0], CLASSES if name == "labels" else WORDS, seed=29)
    want = objective.losses(other, batch, ROWS) - objective.losses(whole, batch, ROWS)
    target = objective.target(whole, batch, ROWS)
    assert_close(objective.distance(other, target, batch, ROWS), want)
    assert (objective.distance(whole, target, batch, ROWS) == 0).all()


@pytest.mark.parametrize("name", ["lm", "mlm", "seq2seq", "labels"])
def test_without_logits_there_is_no_cross_entropy(name: str) -> None:
    objective, batch, out = CASES[name]
    with pytest.raises(UsageError, match="expected a model with logits, got hidden states alone"):
        objective.losses(Outputs(out.hidden), batch, ROWS)


# --- next tokens ------------------------------------------------------------------------------------------------------


def surprise(scores: Tensor, gold: int) -> float:
    exponentials = [math.exp(float(score)) for score in scores]
    return -math.log(exponentials[gold] / sum(exponentials))


@pytest.mark.parametrize("name", ["lm", "seq2seq"])
def test_each_position_predicts_the_next_token(name: str) -> None:
    objective, batch, out = CASES[name]
    side = batch.sides("decoder")[0]
    assert out.logits is not None
    want = []
    for row, length in enumerate(side.lengths.tolist()):
        terms = [surprise(out.logits[row, t], int(side.ids[row, t + 1])) for t in range(length - 1)]
        want.append(sum(terms) / len(terms))
    assert_close(objective.losses(out, batch, ROWS), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("longest", [1, 5])
def test_a_sentence_of_one_token_has_loss_zero_and_no_gradient(longest: int) -> None:
    side = collate([plain(7), plain(*range(3, 3 + longest))], PAD)
    out = with_grad(outputs(side))
    assert out.logits is not None
    losses = NextToken().losses(out, Batch(side), torch.arange(2))
    (gradient,) = torch.autograd.grad(losses.sum(), out.logits)
    assert losses[0] == 0 and (gradient[0] == 0).all()
    assert (losses[1] > 0) == (longest > 1)


def test_the_last_score_is_read_by_nobody() -> None:
    out = with_grad(outputs(SOURCE))
    assert out.logits is not None
    (gradient,) = torch.autograd.grad(NextToken().losses(out, BATCH, ROWS).sum(), out.logits)
    last = (SOURCE.lengths - 1).tolist()
    assert all((gradient[row, place] == 0).all() for row, place in enumerate(last))
    assert all((gradient[row, place - 1] != 0).all() for row, place in enumerate(last))


def test_the_end_of_a_sentence_counts() -> None:
    """-1/n (sum_{t < n} log p(y_{t+1}) + log p(end | all)); a target that holds its end already has n - 1 terms."""
    end, out = 5, outputs(TARGET)
    ids = TARGET.ids.clone()
    ids[ids == end] = 6
    ids[1, int(TARGET.lengths[1]) - 1] = end
    target = replace(TARGET, ids=ids)
    found = NextTargetToken(end).losses(out, Batch(SOURCE, target), ROWS)
    assert out.logits is not None
    logs = out.logits.log_softmax(-1)
    for row, n in enumerate(TARGET.lengths.tolist()):
        terms = [logs[row, t, ids[row, t + 1]] for t in range(n - 1)]
        terms += [logs[row, n - 1, end]] * (row != 1)
        assert_close(found[row], -torch.stack(terms).mean())


def test_seq2seq_asks_for_targets() -> None:
    with pytest.raises(UsageError, match="a target to each source, got sources alone"):
        NextTargetToken().losses(outputs(SOURCE), BATCH, ROWS)


# --- hidden words -----------------------------------------------------------------------------------------------------


def test_hidden_words_are_predicted_from_what_is_left() -> None:
    objective = MaskedToken(MASK, 5)
    prepared = objective.prepare(BATCH).source
    changed = prepared.ids != SOURCE.ids
    assert torch.equal(changed, objective.hidden(SOURCE)) and (prepared.ids[changed] == MASK).all()
    assert SOURCE.special is not None
    assert not (changed & (SOURCE.special | ~SOURCE.real)).any()
    assert changed.sum(-1).tolist() == [1, 1, 1, 2]
    out = outputs(SOURCE)
    assert out.logits is not None
    want = []
    for row in range(len(LENGTHS)):
        terms = [
            surprise(out.logits[row, t], int(SOURCE.ids[row, t])) for t in changed[row].nonzero().flatten().tolist()
        ]
        want.append(sum(terms) / len(terms))
    assert_close(objective.losses(out, BATCH, ROWS), torch.tensor(want, dtype=torch.float64))


@given(lengths=st.lists(st.integers(0, 43), min_size=1, max_size=5), seed=st.integers(0, 2**40))
def test_what_is_hidden_depends_on_the_sentence_and_the_seed_alone(lengths: list[int], seed: int) -> None:
    rows = [plain(*range(3, 3 + length % 23), *[5] * (length - length % 23)) for length in [*lengths, 47]]
    objective = MaskedToken(MASK, seed)
    together = objective.hidden(collate(rows, PAD))
    for row, here in zip(rows[:-1], together, strict=False):
        number = len(row)
        assert int(here.sum()) == (max(1, round(0.15 * number)) if number else 0)
        if number:
            single = MaskedToken(MASK, seed).hidden(collate([row], PAD + 17))
            assert torch.equal(single[0], here[:number]) and not here[number:].any()


def test_seeds_and_sentences_differ_in_what_is_hidden() -> None:
    one = collate([plain(*range(3, 26))], PAD)
    choices = {tuple(MaskedToken(MASK, seed).hidden(one)[0].nonzero().flatten().tolist()) for seed in range(31)}
    assert len(choices) > 20
    assert {place for choice in choices for place in choice} == set(range(23))
    others = collate([plain(*range(3, 25), last) for last in range(3, 26)], PAD)
    assert len({tuple(row) for row in MaskedToken(MASK, 0).hidden(others).tolist()}) > 15


def test_what_is_hidden_never_changes() -> None:
    """Written down once: a change would make old numbers incomparable."""
    assert MaskedToken(MASK, 0).hidden(tokens(23))[0].nonzero().flatten().tolist() == [3, 5, 18]


def test_special_tokens_alone_have_nothing_to_hide() -> None:
    side = collate([sentence(0), sentence(3), TokenRow((MASK,), (False,), (0,))], PAD)
    objective = MaskedToken(MASK)
    losses = objective.losses(outputs(side), Batch(side), torch.arange(3))
    assert losses[0] == 0 and losses[1] > 0 and losses[2] == 0
    assert torch.equal(objective.prepare(Batch(side)).source.ids[[0, 2]], side.ids[[0, 2]])


# --- embeddings -------------------------------------------------------------------------------------------------------


def embedding_by_hand(out: Outputs, side: Tokens) -> Tensor:
    rows = []
    for hidden, length in zip(out.hidden, side.lengths.tolist(), strict=True):
        mean = sum(hidden[place] for place in range(length)) / length
        assert isinstance(mean, Tensor)
        rows.append(mean / math.sqrt(sum(float(x) ** 2 for x in mean)))
    return torch.stack(rows)


def test_embeddings_are_normalised_means_over_real_tokens() -> None:
    out = outputs(SOURCE, None)
    assert_close(embeddings(out, BATCH), embedding_by_hand(out, SOURCE))
    decoded = outputs(TARGET, None)
    assert_close(embeddings(decoded, PAIRS), embedding_by_hand(decoded, TARGET))


def test_the_loss_is_the_embedding_in_a_fixed_direction() -> None:
    objective, out = SentenceEmbedding(5), outputs(SOURCE, None)
    u = objective.directions(ROWS, WIDTH)
    assert_close(u.norm(dim=-1), torch.ones(4))
    assert_close(objective.losses(out, BATCH, ROWS), (u * embedding_by_hand(out, SOURCE)).sum(-1))
    assert torch.equal(objective.directions(ROWS.flip(0), WIDTH).flip(0), u)
    assert (SentenceEmbedding(7).directions(ROWS, WIDTH) != u).all()
    assert (objective.directions(ROWS + 5, WIDTH) != u).all()


def test_directions_are_spread_evenly() -> None:
    """E |<u, v>| = |v| Gamma(d/2) / (sqrt(pi) Gamma((d + 1)/2)), whatever v."""
    number = 10007
    u = SentenceEmbedding().directions(torch.arange(number), WIDTH)
    want = math.gamma(WIDTH / 2) / (math.sqrt(math.pi) * math.gamma((WIDTH + 1) / 2))
    for v in (torch.eye(WIDTH)[3], torch.ones(WIDTH) / math.sqrt(WIDTH)):
        values = (u @ v.double()).abs()
        assert abs(float(values.mean()) - want) < 5 * float(values.std()) / math.sqrt(number)
    assert (u.mean(0).abs() < 5 / math.sqrt(number * WIDTH)).all()


def test_distance_is_one_minus_the_cosine() -> None:
    objective, whole, other = SentenceEmbedding(5), outputs(SOURCE, None), outputs(SOURCE, None, seed=29)
    cosine = (embedding_by_hand(whole, SOURCE) * embedding_by_hand(other, SOURCE)).sum(-1)
    target = objective.target(whole, BATCH, ROWS)
    assert_close(objective.distance(other, target, BATCH, ROWS), 1 - cosine)
    assert (objective.distance(whole, target, BATCH, ROWS) == 0).all()
    turned = Outputs(-whole.hidden)
    assert_close(objective.distance(turned, target, BATCH, ROWS), torch.full((4,), 2.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_small_distances_keep_their_digits(dtype: torch.dtype) -> None:
    """An angle of 1e-5 is 1 - cos = 5e-11, far below what float32 knows of 1."""
    angle, side = 1e-5, tokens(3)
    whole = torch.zeros(1, 5, 2, dtype=dtype)
    whole[..., 0] = 1
    turned = torch.tensor([1.0, angle], dtype=dtype).expand(1, 5, 2)
    objective, read = SentenceEmbedding(), (Batch(side), torch.zeros(1).long())
    got = objective.distance(Outputs(turned), objective.target(Outputs(whole), *read), *read)
    assert abs(float(got) / (angle**2 / 2) - 1) < 1e-4


def test_embeddings_of_zeros() -> None:
    objective, whole = SentenceEmbedding(5), outputs(SOURCE, None)
    nothing = Outputs(torch.zeros_like(whole.hidden).requires_grad_())
    assert_close(objective.distance(nothing, objective.target(whole, BATCH, ROWS), BATCH, ROWS), torch.ones(4))
    assert (objective.distance(nothing, objective.target(nothing, BATCH, ROWS), BATCH, ROWS) == 0).all()
    losses = objective.losses(nothing, BATCH, ROWS)
    assert (losses == 0).all()


# --- labels -----------------------------------------------------------------------------------------------------------

NAMES = {0: "good", 1: "2", 2: "so so"}


def write(folder: Path, text: str) -> Path:
    path = folder / "labels.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_labels_belong_to_sentences_of_the_corpus() -> None:
    out = outputs(SOURCE, CLASSES)
    assert out.logits is not None
    want = [surprise(out.logits[place], LABELS[row]) for place, row in enumerate(ROWS.tolist())]
    assert_close(ClassLabels(LABELS).losses(out, BATCH, ROWS), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("text", ["0\n1\n2\n", "0\n1\n2", "0\r\n1\r\n 2 \r\n", "\ufeff0\n01\n2\n", "good\n2\nso so\n"])
def test_labels_are_read_by_number_or_name(tmp_path: Path, text: str) -> None:
    names = NAMES if "good" in text else None
    assert read_labels(write(tmp_path, text), 3, names, sentences=3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n1\n", "expected 3, one per sentence, got 2"),
        ("0\n1\n2\n0\n", "expected 3, one per sentence, got 4"),
        ("", "expected 3, one per sentence, got 0"),
        ("0\n3\n1\n", "line 2 of .*: expected a number from 0 to 2 or one of good, 2, so so, got '3'"),
        ("0\n1\nbad\n", "line 3 of .*got 'bad'"),
        ("0\n\n1\n", "line 2 of .*got ''"),
        ("-1\n0\n1\n", "line 1 of .*got '-1'"),
        ("0\n1\n²\n", "line 3"),
    ],
)
def test_wrong_labels_are_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_labels(write(tmp_path, text), 3, NAMES, sentences=3)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe0\n")
    for path, got in ((tmp_path / "missing", "No such file"), (tmp_path, "Is a directory"), (binary, "other bytes")):
        with pytest.raises(UsageError, match=f"labels from .*expected a text file in UTF-8, got {got}"):
            read_labels(path, 3)


# --- functions of the user --------------------------------------------------------------------------------------------


def test_an_own_function_is_asked_with_outputs_and_batch() -> None:
    def longest_word(out: Outputs, batch: Batch) -> Tensor:
        return (out.hidden.norm(dim=-1) * batch.source.real).amax(-1)

    out = outputs(SOURCE)
    assert_close(FunctionObjective(longest_word).losses(out, BATCH, ROWS), longest_word(out, BATCH))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda out, batch: out.hidden.sum(), r"expected a tensor of 4 floats, one per sentence, got shape \[\]"),
        (lambda out, batch: out.hidden[..., 0], r"got shape \[4, 13\] of torch.float64"),
        (lambda out, batch: out.hidden[0, :, 0], r"got shape \[13\] of torch.float64"),
        (lambda out, batch: batch.source.lengths, r"got shape \[4\] of torch.int64"),
        (lambda out, batch: 3.0, "got float"),
        (lambda out, batch: out.hidden[:, 0, 0].detach(), "got a tensor without gradient"),
        (lambda out, batch: out.hidden[:, 0, 0] / torch.tensor([1, 1, 0, 1]), "got -?inf for sentence 2"),
        (lambda out, batch: out.hidden[:, 0, 0] * torch.nan, "got nan for sentence 4"),
    ],
)
def test_what_an_own_function_may_not_give(function: Callable[..., Tensor], message: str) -> None:
    with unchecked(), pytest.raises(UsageError, match=f"losses of <lambda>: .*{message}"):
        FunctionObjective(function).losses(with_grad(outputs(SOURCE)), BATCH, ROWS)


# --- choosing ---------------------------------------------------------------------------------------------------------

GPT = Abilities("decoder", vocabulary=True)
BERT = Abilities("encoder", vocabulary=True, mask_id=MASK)
MARIAN = Abilities("encoder-decoder", vocabulary=True)
MINILM = Abilities("encoder", vocabulary=False, mask_id=MASK)
CLASSIFIER = Abilities("encoder", vocabulary=False, classes=CLASSES, mask_id=MASK)
HEADLESS = Abilities("decoder", vocabulary=False)


@pytest.mark.parametrize(
    ("abilities", "name"),
    [
        (GPT, "lm"),
        (BERT, "mlm"),
        (MARIAN, "seq2seq"),
        (MINILM, "embedding"),
        (CLASSIFIER, "embedding"),
        (HEADLESS, "embedding"),
        (Abilities("encoder", vocabulary=True), "embedding"),
        (Abilities("encoder-decoder", vocabulary=False), "embedding"),
    ],
)
def test_the_default_is_that_of_the_model(abilities: Abilities, name: str) -> None:
    assert choose_objective(None, abilities).name == name == fitting_objectives(abilities)[0]


def test_what_is_asked_for_is_built_with_its_knowledge(tmp_path: Path) -> None:
    masked = choose_objective("mlm", BERT, seed=11)
    assert isinstance(masked, MaskedToken) and (masked.mask_id, masked.seed) == (MASK, 11)
    embedding = choose_objective("embedding", GPT, seed=13)
    assert isinstance(embedding, SentenceEmbedding) and embedding.seed == 13
    path = write(tmp_path, "so so\n0\n")
    labels = choose_objective(f"labels:{path}", CLASSIFIER, sentences=2, class_names=NAMES)
    assert isinstance(labels, ClassLabels) and labels.labels.tolist() == [2, 0]
    assert isinstance(choose_objective(lambda out, batch: out.hidden[:, 0, 0], GPT), FunctionObjective)


@pytest.mark.parametrize(
    ("asked", "abilities", "message"),
    [
        ("lm", BERT, "expected mlm, embedding or .*got an encoder, where decoder is needed; choose 'mlm'"),
        ("mlm", GPT, "expected lm, embedding or .*got a decoder, where encoder is needed; choose 'lm'"),
        ("seq2seq", GPT, "got a decoder, where encoder-decoder is needed"),
        ("lm", MARIAN, "got an encoder-decoder, where decoder is needed; choose 'seq2seq'"),
        ("lm", HEADLESS, "got a decoder without logits over a vocabulary; choose 'embedding'"),
        ("mlm", Abilities("encoder", vocabulary=True), "got an encoder without a token for hidden words"),
        ("mlm", CLASSIFIER, "expected embedding, labels:FILE or .*got an encoder without logits over a vocabulary"),
        ("labels:x", BERT, "got an encoder that does not score two or more classes"),
        ("labels:x", Abilities("encoder", vocabulary=False, classes=1), "two or more classes"),
        ("labels", CLASSIFIER, "expected a file with one label per line, got no file; write labels:FILE"),
        ("lm:x", GPT, "expected the name alone, got 'x'; write lm"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(asked: str, abilities: Abilities, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_objective(asked, abilities)


def test_unknown_objectives() -> None:
    with pytest.raises(UnknownNameError, match="one of embedding, labels, lm, mlm, seq2seq, got an unknown name"):
        choose_objective("ml", BERT)
