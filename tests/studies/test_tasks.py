"""Tasks of long sequences: always the same, never both in training and in test, with labels that are true."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.studies.tasks import TASKS, ByteText, ListOps, LongRangeTask, Recall, Split, TaskBatch
from attnworks.studies.tasks.contract import draw_lengths
from attnworks.studies.tasks.listops import CLOSE, LISTOPS_WORDS, MAX, MEDIAN, MIN, SUM
from tests.helpers import unchecked

SIZE = 13
EVERY = pytest.mark.parametrize("name", list(TASKS))


def rows(task: LongRangeTask, split: Split, length: int, steps: int = 5, size: int = 101) -> set[tuple[int, ...]]:
    drawn = (task.batch(seed, step, split=split, size=size, length=length) for seed in (0, 1) for step in range(steps))
    return {
        tuple(tokens[real].tolist()) for batch in drawn for tokens, real in zip(batch.tokens, batch.real, strict=True)
    }


@EVERY
@pytest.mark.parametrize("length", [37, 128])
def test_a_batch_is_whole_and_always_the_same(name: str, length: int) -> None:
    task = TASKS[name]
    batch, again = (task.batch(3, 5, size=SIZE, length=length) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(batch, again, strict=True))
    tokens, real, labels = batch
    assert tokens.shape == real.shape == (SIZE, length) and labels.shape == (SIZE,)
    assert tokens.dtype == labels.dtype == torch.int64 and real.dtype == torch.bool
    assert int(tokens.min()) >= 0 and int(tokens.max()) < task.vocabulary and int(labels.max()) < task.classes
    lengths = real.sum(1)
    assert torch.equal(real, torch.arange(length) < lengths[:, None]) and int(lengths.min()) >= 0.7 * length
    others = (task.batch(4, 5, size=SIZE, length=length), task.batch(3, 6, size=SIZE, length=length))
    assert not any(torch.equal(tokens, other.tokens) for other in others)


@EVERY
def test_no_sequence_is_in_both_splits(name: str) -> None:
    """At the least length, where chance would bring some of them together."""
    task = Recall(keys=1, values=2, pairs=1, noise=2) if name == "recall" else TASKS[name]
    train, test = (rows(task, split, task.min_length) for split in ("train", "test"))
    assert train and test and not train & test


@pytest.mark.parametrize("name", ["listops", "bytes"])
@pytest.mark.parametrize("length", [64, 67])
def test_lengths_are_even_in_training_and_odd_in_test(name: str, length: int) -> None:
    task = TASKS[name]
    for remainder, batch in enumerate(
        (task.batch(0, 0, size=SIZE, length=length), task.batch(0, 0, split="test", size=SIZE, length=length))
    ):
        assert set((batch.real.sum(1) % 2).tolist()) == {remainder}
    kinds = (draw_lengths, type(TASKS["listops"]), type(TASKS["bytes"]))
    for told in (" ".join(str(kind.__doc__).split()) for kind in kinds):
        assert told.index("even") < told.index("training") < told.index("odd") < told.index("test"), told


@EVERY
@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_are_balanced(name: str, split: Split) -> None:
    task, many = TASKS[name], 2000
    counts = task.batch(0, 0, split=split, size=many, length=32).labels.bincount(minlength=task.classes)
    expected = many / task.classes
    assert float((counts - expected).abs().max()) < 4.5 * expected**0.5


@EVERY
def test_what_has_no_room_is_refused(name: str) -> None:
    task = TASKS[name]
    with pytest.raises(UsageError, match=f"{task.min_length} tokens or more"):
        task.batch(0, 0, length=task.min_length - 1)
    with unchecked(), pytest.raises(UnknownNameError, match="split 'valid'"):
        task.batch(0, 0, split="valid")  # pyright: ignore[reportArgumentType]


def test_the_queried_pair_stands_in_the_first_half_and_nowhere_else() -> None:
    task = Recall(keys=7, values=5, pairs=3, noise=11)
    batch = task.batch(0, 0, size=SIZE, length=53)
    for tokens, label in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        *before, query = tokens
        pairs = [divmod(token - 11 - 7, 5) for token in before if token >= 11 + 7]
        assert len(pairs) == 3 and len({key for key, _ in pairs}) == 3
        assert dict(pairs)[query - 11] == label
        assert all(token < 11 for token in before[26:])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MEDIAN 9 1 4 ]", 4),
        ("[MEDIAN 9 1 4 5 ]", 4),
        ("[SUM 7 6 9 ]", 2),
        ("[MAX 2 [SUM 7 6 ] 1 ]", 3),
        ("[MIN [MAX 1 [MEDIAN 3 8 8 ] ] [SUM 9 [MIN 9 5 ] 5 ] ]", 8),
    ],
)
def test_expressions_have_the_value_worked_out_by_hand(text: str, value: int) -> None:
    assert evaluate_listops([LISTOPS_WORDS.index(word) for word in text.split()]) == value


VALUE_OF = {
    MIN: min,
    MAX: max,
    MEDIAN: lambda values: sorted(values)[(len(values) - 1) // 2],
    SUM: lambda values: sum(values) % 10,
}


def evaluate_listops(tokens: list[int]) -> int:
    """The value of an expression; of an even number of arguments, MEDIAN is the lower one in the middle."""
    open_operations: list[tuple[int, list[int]]] = [(CLOSE, [])]
    for token in tokens:
        if token in VALUE_OF:
            open_operations.append((token, []))
            continue
        if token == CLOSE:
            operation, values = open_operations.pop()
            token = VALUE_OF[operation](values)
        open_operations[-1][1].append(token)
    ((_, (value,)),) = open_operations
    return value


@given(st.integers(0, 9), st.integers(4, 300), st.integers(4, 12), st.integers(1, 11), st.integers(0, 99))
def test_expressions_meet_value_and_length_exactly(value: int, length: int, most: int, nested: int, seed: int) -> None:
    tokens = ListOps(most, min(nested, most - 1)).expression(Random(seed), value, length)
    assert len(tokens) == length and evaluate_listops(tokens) == value


def test_labels_of_listops_are_the_values_of_its_expressions() -> None:
    for split in ("train", "test"):
        batch = TASKS["listops"].batch(0, 0, split=split, size=101, length=130)
        for tokens, real, label in zip(*batch, strict=True):
            assert evaluate_listops(tokens[real].tolist()) == label


@pytest.mark.parametrize("knobs", [{"arguments": 3, "nested": 2}, {"nested": 0}, {"arguments": 5, "nested": 5}])
def test_listops_without_room_for_arguments_are_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="arguments from 4"):
        ListOps(**knobs)


def test_recall_without_noise_or_keys_is_refused() -> None:
    with pytest.raises(UsageError, match="two kinds of noise"):
        Recall(noise=1)


def test_bytes_have_a_title_and_two_paragraphs_and_the_label_compares_first_and_last() -> None:
    batch = ByteText(dominance=1.0).batch(0, 0, size=101, length=256)
    labels: set[int] = set()
    for tokens, real, label in zip(*batch, strict=True):
        text = bytes(tokens[real].tolist())
        title, between, end = text.decode(errors="ignore").split("\n")
        assert len(title) <= len(text) // 4 and text.rindex(b"\n") + 1 == len(text) // 2 and between
        spoken = [language_of(title), language_of(end)]
        if None not in spoken:
            assert (spoken[0] == spoken[1]) == bool(label)
            labels.add(int(label))
    assert labels == {0, 1}


def language_of(text: str) -> str | None:
    """By small words that the other language does not have; None where they do not decide."""
    words = set(text.lower().split())
    found = [
        language
        for language, own in (("en", {"the", "is", "and"}), ("it", {"il", "la", "è"}))
        if words & own
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def test_a_bag_of_bytes_does_not_tell_the_label_of_bytes() -> None:
    """Logistic regression on counts, by Newton's method with a ridge; see below what it can do."""
    train, test = (
        ByteText().batch(0, 0, split="train", size=3000, length=256),
        ByteText().batch(0, 0, split="test", size=1000, length=256),
    )
    accuracy = logistic_accuracy(*((bags(batch), batch.labels.double().numpy()) for batch in (train, test)))
    assert accuracy < 0.6


def test_the_baseline_of_bags_is_not_blind() -> None:
    """The same baseline tells the language of the second paragraph, so it would see a label that hangs on letters."""
    told = []
    for step, size in ((0, 1000), (1, 500)):
        batch = ByteText(dominance=1.0).batch(0, step, size=size, length=256)
        ends = [bytes(tokens.tolist()).rpartition(b"\n")[2].lower() for tokens in batch.tokens]
        told.append((bags(batch), np.array([b" is " in text or b" the " in text for text in ends], float)))
    assert logistic_accuracy(*told) > 0.8


def bags(batch: TaskBatch) -> np.ndarray:
    """Frequencies of bytes in each text."""
    counts = torch.zeros(len(batch.tokens), 256, dtype=torch.float64)
    counts.scatter_add_(1, batch.tokens, batch.real.double())
    return (counts / batch.real.sum(1, keepdim=True)).numpy()


def logistic_accuracy(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> float:
    centre, spread = train[0].mean(0), train[0].std(0) + 1e-3
    X, Z = (np.c_[(counts - centre) / spread, np.ones(len(counts))] for counts, _ in (train, test))
    w, ridge = np.zeros(X.shape[1]), 10 * np.eye(X.shape[1])
    for _ in range(8):
        p = 1 / (1 + np.exp(-X @ w))
        w += np.linalg.solve((X.T * (p * (1 - p))) @ X + ridge, X.T @ (train[1] - p) - ridge @ w)
    return float(((Z @ w > 0) == (test[1] > 0.5)).mean())
