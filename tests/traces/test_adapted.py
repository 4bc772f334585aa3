"""A module of one's own: what it shows is examined like any other model, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnworks
from attnworks.attention import Mask
from attnworks.core.errors import AttnworksError, UnknownNameError, UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.models import Observation, Transformer
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import from_texts
from attnworks.text.tokenizers import VocabularyReader, readers_of
from attnworks.text.tokens import Batch
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.adapted import AdaptedSubject, LayerReporter
from attnworks.traces.edits import HeadsOffHook, OpenGatesHook
from attnworks.traces.own import OwnSubject
from attnworks.traces.rows import rows_of
from attnworks.traces.subject import wrap
from attnworks.training.objectives.contract import Outputs
from tests.helpers import unchecked
from tests.model_helpers import attention_config, the, transformer
from tests.traces.trace_helpers import Keep, dense_map, random_batch

B, HEADS, WIDTH, VALUE = 4, 6, 5, 3
SOURCE, TARGET = (7, 7, 5, 3), (5, 11, 3, 2)
QUERIES, KEYS = 7, 11
ONE, BOTH = random_batch(SOURCE, words=17), random_batch(SOURCE, TARGET, words=17)
KINDS = {"encoder": {"decoder_layers": 0}, "decoder": {"encoder_layers": 0}, "encoder-decoder": {}}


def adapted(model: Transformer, kind: str, *, give_output: bool = True) -> AdaptedSubject:
    """A Transformer of attnworks as if it were unknown."""
    own = OwnSubject(model)

    def forward(batch: Batch, show: LayerReporter) -> Outputs:
        def observe(seen: Observation) -> Tensor | None:
            Y = seen.Y if give_output else None
            weights = own._weight_readers[seen.slot]()
            Z = seen.Z if seen.slot.crosses else None
            if seen.scale is None:
                return show(
                    str(seen.slot), seen.Q, seen.K, seen.V, seen.mask, None, seen.X, weights, Y=Y, Z=Z, P=seen.P
                )
            return show(str(seen.slot), seen.Q, seen.K, seen.V, seen.mask, seen.scale, seen.X, weights, Y=Y, Z=Z)

        source, target = batch.source, batch.target
        given: Any = (source.ids, None, source.real, None)
        if kind == "decoder":
            given = (None, source.ids, None, source.real)
        elif target is not None:
            given = (source.ids, target.ids, source.real, target.real)
        hidden = model.hidden(*given, observe=observe)
        return Outputs(hidden, model.logits(hidden))

    return AdaptedSubject(model, forward, "mine", kind, vocabulary=True)


@torch.no_grad()
@pytest.mark.parametrize("give_output", [True, False])
@pytest.mark.parametrize("mechanism", ["dense", "luong-dot", "bahdanau-additive"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapted_model_shows_what_the_known_one_shows(kind: str, mechanism: str, give_output: bool) -> None:
    model = transformer(attention=attention_config(mechanism=mechanism), **KINDS[kind]).eval()
    batch = BOTH if kind == "encoder-decoder" else ONE
    own, mine = OwnSubject(model), adapted(model, kind, give_output=give_output)
    expected, got = Keep(), Keep()
    plain = own.run(batch, expected)
    outputs = mine.run(batch, got, logits=True)
    torch.testing.assert_close(outputs.hidden, plain.hidden)
    assert torch.equal(mine.run(batch).hidden, plain.hidden) and outputs.logits is not None
    assert mine.abilities.kind == own.abilities.kind and mine.blocks is None
    for one, other in zip(got.traces, expected.traces, strict=True):
        assert one.slot == other.slot and one.bilinear is other.bilinear and one.scale == other.scale
        assert one.queries is other.queries and one.keys is other.keys and one.weights is not None
        assert torch.equal(the(one.X), the(other.X)) and torch.equal(the(one.Z), the(other.Z))
        real = one.queries.real[:, None, :, None]
        torch.testing.assert_close(one.Y * real, other.Y * real)
        torch.testing.assert_close(dense_map(one), dense_map(other))
        assert torch.equal(rows_of(one, 3).visible, rows_of(other, 3).visible)


@torch.no_grad()
def test_heads_are_switched_off_where_the_model_takes_what_comes_back() -> None:
    model = transformer(decoder_layers=0).eval()
    own, mine, slot = OwnSubject(model), adapted(model, "encoder"), Slot("encoder", 1)
    torch.testing.assert_close(
        mine.run(ONE, HeadsOffHook([HeadId(slot, 2)])).hidden, own.run(ONE, HeadsOffHook([HeadId(slot, 2)])).hidden
    )
    assert not torch.allclose(mine.run(ONE, HeadsOffHook([HeadId(slot, 2)])).hidden, mine.run(ONE).hidden)


def test_gates_are_differentiable_also_where_no_output_is_given() -> None:
    model = transformer(decoder_layers=0).eval()
    grads = []
    for give_output in (True, False):
        gates = OpenGatesHook()
        mine = adapted(model, "encoder", give_output=give_output)
        loss = mine.run(ONE, gates).hidden[ONE.source.real].square().sum()
        grads.append(torch.autograd.grad(loss, list(gates.gates.values())))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().min() > 0


def test_examining_an_adapted_model_reads_the_same() -> None:
    passages = grammar_passages(23)
    vocabulary = Vocabulary.train("word", [passage.source.text.split() for passage in passages])
    model = transformer(torch.float32, vocabulary=len(vocabulary), decoder_layers=0).eval()
    measures = ["saturation", "sinks", "roles"]
    own, mine = (
        attnworks.examine(subject, passages, tokenizer=vocabulary, measures=measures)
        for subject in (model, adapted(model, "encoder"))
    )
    assert mine.model["name"] == "mine" and mine.model["heads"] == own.model["heads"]
    assert set(mine.readings) == set(own.readings) and len(mine.readings) > 5
    for name in own.readings:
        for one, other in zip(mine[name].value, own[name].value, strict=True):
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                torch.testing.assert_close(one, other, equal_nan=True)
            else:
                assert one == other


# --- what a module may show -------------------------------------------------------------------------------------------


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(i: int = QUERIES, j: int = QUERIES, *, groups: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    return drawn(B, HEADS, i, WIDTH), drawn(B, groups, j, WIDTH, seed=1), drawn(B, groups, j, VALUE, seed=2)


Showing = Callable[[LayerReporter], object]


def run(showing: Showing, kind: str = "encoder", batch: Batch = ONE, **more: Any) -> Keep:
    i = (batch.source if batch.target is None else batch.target).ids.shape[1]

    def forward(batch: Batch, show: LayerReporter) -> Tensor:
        showing(show)
        return drawn(B, i, 2)

    keep = Keep()
    AdaptedSubject(nn.Linear(2, 2), forward, "mine", kind).run(batch, keep, **more)
    return keep


def plain_map(Q: Tensor, K: Tensor, allowed: Tensor, added: Tensor | None = None) -> Tensor:
    S = WIDTH**-0.5 * Q @ K.repeat_interleave(HEADS // K.shape[1], 1).mT
    S = S if added is None else S + added
    return S.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()


REAL = ONE.source.real
SEEN = REAL[:, None, None, :] & REAL[:, None, :, None]
PAST = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()


@pytest.mark.parametrize("groups", [6, 3, 1])
def test_without_a_mask_real_tokens_are_seen(groups: int) -> None:
    Q, K, V = layer(groups=groups)
    (trace,) = run(lambda show: show("enc.0", Q, K, V)).traces
    torch.testing.assert_close(dense_map(trace), plain_map(Q, K, SEEN))
    torch.testing.assert_close(trace.Y * REAL[:, None, :, None], dense_map(trace) @ V.repeat_interleave(6 // groups, 1))
    assert trace.weights is None and trace.X is None and not trace.bilinear
    (trace,) = run(lambda show: show("dec.0", Q, K, V), "decoder").traces
    torch.testing.assert_close(dense_map(trace), plain_map(Q, K, SEEN & PAST))


def test_masks_of_every_kind() -> None:
    Q, K, V = layer()
    band = PAST & ~torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril(-3)
    added = drawn(HEADS, QUERIES, QUERIES, seed=5)
    for mask, allowed, summand in (
        (band, SEEN & band, None),
        (Mask(dense=band), SEEN & band, None),
        (Mask(REAL, causal=True), SEEN & PAST, None),
        (added, SEEN, added),
        (Mask(dense=added.masked_fill(~band, -torch.inf)), SEEN & band, added),
    ):
        (trace,) = run(lambda show, mask=mask: show("enc.0", Q, K, V, mask)).traces
        torch.testing.assert_close(dense_map(trace), plain_map(Q, K, allowed, summand))


def test_cross_attention_looks_at_the_source() -> None:
    Q, K, V = layer(KEYS, QUERIES)
    (trace,) = run(lambda show: show("cross.0", Q, K, V), "encoder-decoder", BOTH).traces
    assert trace.queries is BOTH.target and trace.keys is BOTH.source and trace.Z is None
    allowed = REAL[:, None, None] & the(BOTH.target).real[:, None, :, None]
    torch.testing.assert_close(dense_map(trace), plain_map(Q, K, allowed))


def test_streams() -> None:
    X = drawn(B, QUERIES, 13)

    def showing(show: LayerReporter) -> None:
        show.stream("encoder", 0, X)
        show("enc.0", *layer())
        show.stream("encoder", 1, X + 1)

    keep = run(showing)
    assert [(stream.kind, stream.depth) for stream in keep.streams] == [("encoder", 0), ("encoder", 1)]
    assert torch.equal(keep.streams[1].X, X + 1) and keep.streams[0].tokens is ONE.source


def test_nothing_is_computed_where_nobody_looks() -> None:
    show = LayerReporter("mine", "encoder", ONE, None, set())
    Y = drawn(2)
    wrong: Any = (drawn(1), drawn(1), drawn(1))
    with unchecked():
        assert show("nonsense", *wrong, Y=Y) is Y and show("nonsense", *wrong) is None
        show.stream("decoder", 7, drawn(1))
    assert not show.seen


# --- what does not fit ------------------------------------------------------------------------------------------------


def twice(show: LayerReporter) -> None:
    for _ in range(2):
        show("enc.0", *layer())


def stream_twice(show: LayerReporter) -> None:
    for _ in range(2):
        show.stream("encoder", 0, drawn(B, QUERIES, 2))


Q, K, V = layer()
WRONG: dict[str, tuple[Showing, str]] = {
    "nothing": (lambda show: None, "no layer; call it there"),
    "twice": (twice, "'enc.0' of mine: expected every layer once"),
    "name": (lambda show: show("layer0", Q, K, V), r"'layer0' of mine: expected enc\.L"),
    "number": (lambda show: show("enc.first", Q, K, V), r"expected enc\.L"),
    "zeros": (lambda show: show("enc.00", Q, K, V), r"expected enc\.L"),
    "kind": (lambda show: show("dec.0", Q, K, V), "kind='encoder-decoder'"),
    "flat Q": (lambda show: show("enc.0", Q.transpose(1, 2).flatten(2), K, V), r"Q of enc\.0: expected shape \[4, \*"),
    "Q turned": (lambda show: show("enc.0", Q.transpose(1, 2), K, V), r"\[4, \*, 7, \*\], got shape \[4, 7, 6, 5\]"),
    "K of other width": (lambda show: show("enc.0", Q, drawn(B, HEADS, QUERIES, 2), V), r"K of enc\.0"),
    "K of other length": (lambda show: show("enc.0", Q, drawn(B, HEADS, KEYS, WIDTH), V), r"\[4, \*, 7, 5\]"),
    "V of other heads": (lambda show: show("enc.0", Q, K, drawn(B, 2, QUERIES, VALUE)), r"V of enc\.0"),
    "groups": (lambda show: show("enc.0", Q, drawn(B, 4, QUERIES, WIDTH), V[:, :4]), "divides the 6 of Q"),
    "X": (lambda show: show("enc.0", Q, K, V, X=drawn(QUERIES, 2)), r"X of enc\.0: expected shape \[4, 7, \*\]"),
    "Z": (lambda show: show("enc.0", Q, K, V, Z=drawn(B, KEYS, 2)), r"Z of enc\.0"),
    "Y": (lambda show: show("enc.0", Q, K, V, Y=drawn(B, QUERIES, 18)), r"Y of enc\.0"),
    "P": (lambda show: show("enc.0", Q, K, V, P=drawn(B, QUERIES, QUERIES)), r"P of enc\.0"),
    "other Y": (lambda show: show("enc.0", Q, K, V, Y=2 * V), "away from it; give the scale and mask"),
    "mask": (lambda show: show("enc.0", Q, K, V, torch.ones(B, QUERIES, dtype=torch.bool)), "dense mask"),
    "whole numbers": (lambda show: show("enc.0", Q, K, V, torch.ones(QUERIES, QUERIES, dtype=torch.int64)), "booleans"),
    "padding": (lambda show: show("enc.0", Q, K, V, Mask(~REAL)), "hides tokens"),
    "stream": (lambda show: show.stream("encoder", 0, drawn(QUERIES, 2)), r"at depth 0: expected shape \[4, 7, \*\]"),
    "stream twice": (stream_twice, "depth 0: expected one call"),
}  # fmt: skip


def test_what_is_computed_at_padding_does_not_count() -> None:
    right = plain_map(Q, K, SEEN) @ V
    odd = right.masked_fill(~REAL[:, None, :, None], torch.nan)
    (trace,) = run(lambda show: show("enc.0", Q, K, V, Y=odd)).traces
    assert trace.Y is odd
    with pytest.raises(UsageError, match="a Y that is nan away"):
        run(lambda show: show("enc.0", Q, K, V, Y=right.masked_fill(REAL[:, None, :, None], torch.nan)))


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused(what: str) -> None:
    showing, message = WRONG[what]
    with unchecked(), pytest.raises(UsageError, match=message) as error:
        run(showing)
    assert "\n" not in str(error.value)


def test_other_mistakes() -> None:
    with pytest.raises(UnknownNameError, match="stack of mine 'decoder'"):
        run(lambda show: show.stream("decoder", 0, drawn(B, QUERIES, 2)))
    with pytest.raises(UnknownNameError, match="did you mean 'encoder'"):
        AdaptedSubject(nn.Linear(2, 2), lambda batch, show: drawn(1), kind="encode")
    with pytest.raises(UsageError, match="logits of mine"):
        run(lambda show: show("enc.0", *layer()), logits=True)
    flat = AdaptedSubject(nn.Linear(2, 2), lambda batch, show: drawn(B, 2), "mine")
    with (
        unchecked(),
        pytest.raises(UsageError, match=r"forward of mine returns: expected shape \[4, 7, \*\], got shape \[4, 2\]"),
    ):
        flat.run(ONE)


# --- readers ----------------------------------------------------------------------------------------------------------


def test_who_reads() -> None:
    english = Vocabulary.train("word", [["Luca", "is", "happy"]])
    italian = Vocabulary.train("word", [["Luca", "è", "felice"]])
    side = from_texts(["Luca is happy"])[0][0].source
    source, target = readers_of("encoder", english)
    assert target is None and source.read(side).ids[-1] == 3 and source.token(4) == "Luca"
    assert readers_of("decoder", english)[0].read(side).ids[0] == 2
    source, target = readers_of("encoder-decoder", (english, italian), max_tokens=5)
    assert target is not None and target.token(italian.encode(["felice"])[0]) == "felice"
    assert source.max_tokens == 5
    reader = VocabularyReader(english)
    assert readers_of("encoder", reader)[0] is reader
    with pytest.raises(UsageError, match="tokenizer of the source: expected a Vocabulary"):
        readers_of("encoder", None)


def test_a_subject_that_reads_text_stays_as_it_is() -> None:
    vocabulary = Vocabulary.train("word", [["Luca", "is", "happy"]])
    subject = adapted(transformer(decoder_layers=0).eval(), "encoder").with_tokenizer(VocabularyReader(vocabulary))
    assert wrap(subject) is subject


def test_texts_without_targets_are_refused_by_an_adapted_decoder() -> None:
    vocabulary = Vocabulary.train("word", [["Luca", "is", "happy"]])
    subject = adapted(transformer(torch.float32).eval(), "encoder-decoder")
    with pytest.raises(AttnworksError, match="passages with a target each"):
        attnworks.examine(subject, ["Luca is happy"], tokenizer=vocabulary)
