"""The form of a head: candidates and names, sums over rows of all sentences, the nearest mix and the error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnworks.attention import MechanismSpec
from attnworks.attention.fixed_maps import MapMember, member_tables
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.reshape.projection.forms import ERROR_SPAN_TOKENS, Form, FormHook, FormSums, candidates, read_form
from attnworks.reshape.surgery import attention_groups
from attnworks.traces import maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook
from tests.helpers import assert_close
from tests.model_helpers import randn
from tests.reshape.reshape_helpers import context_of, heads_of, model_of, subject_of
from tests.traces.trace_helpers import dense_map


def test_candidates_look_left_only_under_causality() -> None:
    assert candidates(2, False) == (-2, -1, 0, 1, 2, "first", "last", "mean")
    assert candidates(2, True) == (-2, -1, 0, "first", "mean")
    assert candidates(0, False) == (0, "first", "last", "mean")


@pytest.mark.parametrize(
    ("form", "members"),
    [
        ("auto", None),
        ("mix", None),
        ("band", (-3, -2, -1, 0, 1, 2, 3)),
        ("previous", (-1,)),
        ("self", (0,)),
        ("next", (1,)),
        ("first", ("first",)),
        ("previous/first", (-1, "first")),
        ("-2..-1/mean/block4", (-2, -1, "mean", "block4")),
    ],
)
def test_forms_by_name(form: str, members: tuple[MapMember, ...] | None) -> None:
    assert read_form(form, 3) == members


@pytest.mark.parametrize("form", ["prevous", "", "1..", "first/first", "2..1", "mean,first"])
def test_forms_that_are_none(form: str) -> None:
    with pytest.raises(UsageError) as error:
        read_form(form, 2)
    assert f"form {form!r}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("members", "mix", "words"),
    [
        ((-1,), (1.0,), "previous"),
        ((-3,), (1.0,), "3 before"),
        ((-1, 2, "mean"), (0.08, 0.3, 0.62), "62 % mean, 30 % 2 after, 8 % previous"),
        ((0, 1), (0.5, 0.5), "50 % self, 50 % next"),
    ],
)
def test_words(members: tuple[MapMember, ...], mix: tuple[float, ...], words: str) -> None:
    assert str(Form(members, mix, (), (), 0.02, 0.0)) == words


@pytest.mark.parametrize("eps", [0.0, 0, 0.02, 1.0, 1e-7, 0.0100001234])
def test_the_mechanism_of_a_form(eps: float) -> None:
    """Every digit of eps is written, and the text is the one that the mechanism gives back."""
    for error, offsets in (((), "none"), ((-5, 3), "-5/3")):
        spec = Form((-1, "first"), (0.5, 0.5), error, (0.0,) * len(error), eps, 0.0).spec
        parsed = MechanismSpec.parse(spec)
        assert parsed.options == {"members": "-1/first", "error": offsets, "eps": eps} and str(parsed) == spec


# Sums ----------------------------------------------------------------------------------------------------------------

MEMBERS = {Slot.parse("enc.0"): candidates(1, False), Slot.parse("dec.1"): candidates(2, True)}


class Both(LayerHook):
    """The sums, and beside them every map of a layer by itself."""

    def __init__(self, overlaps: FormHook) -> None:
        self.overlaps, self.maps = overlaps, {slot: [] for slot in overlaps.members}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        assert self.overlaps.attention(trace) is None
        if trace.slot in self.maps:
            lengths = trace.queries.lengths.tolist()
            self.maps[trace.slot] += [P[:, :n, :n] for P, n in zip(dense_map(trace), lengths, strict=True)]
        return None


def look() -> Both:
    """All sentences, in several batches of several lengths, through a model whose heads are dense."""
    context = context_of(subject_of(model_of()))
    both = Both(FormHook(MEMBERS))
    assert len(context.calibration.text.batches) > 1
    with torch.no_grad():
        for number in range(len(context.calibration.text.batches)):
            context.subject.run(context.calibration.text.batch(number)[0], both)
    return both


@pytest.fixture(scope="module")
def looked() -> Both:
    return look()


def test_maps_may_come_a_head_at_a_time(looked: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "WEIGHTS_AT_ONCE", 1)
    one, other = look().overlaps, looked.overlaps
    for table in ("gram", "with_heads", "squares", "heads_at", "members_at", "rows_at"):
        for slot in MEMBERS:
            assert_close(getattr(one.sums[slot], table), getattr(other.sums[slot], table), message=table)


def distance(looked: Both, slot: Slot, head: int, mix: Tensor) -> float:
    """Sum over all rows where every member has a key of ||P_i - mix_i||^2, map by map."""
    total = 0.0
    for P in looked.maps[slot]:
        F = member_tables(MEMBERS[slot], P.shape[-1], causal=slot.causal)
        rows = [i for i in range(P.shape[-1]) if all(bool(one[i].any()) for one in F)]
        total += float((P[head] - torch.einsum("m,mij->ij", mix, F))[rows].square().sum())
    return total


@pytest.mark.parametrize("slot", MEMBERS)
@pytest.mark.parametrize("head", [0, 1])
def test_the_mix_is_nearest_over_whole_rows(looked: Both, slot: Slot, head: int) -> None:
    form = looked.overlaps.form(HeadId(slot, head), "mix", 0.0, 0)
    squares = distance(looked, slot, head, torch.zeros(len(MEMBERS[slot]), dtype=torch.float64))
    mix = torch.zeros(len(MEMBERS[slot]), dtype=torch.float64)
    mix[[MEMBERS[slot].index(member) for member in form.members]] = torch.tensor(form.mix, dtype=torch.float64)
    best = distance(looked, slot, head, mix)
    assert sum(form.mix) == pytest.approx(1) and min(form.mix) > 0 and form.errors == form.error == ()
    assert form.distance == pytest.approx(best / squares, rel=1e-9)
    for other in (*torch.eye(len(mix), dtype=torch.float64), *randn(11, len(mix)).softmax(-1)):
        assert best <= distance(looked, slot, head, other) * (1 + 1e-3), "members below a hundredth are left out"


@pytest.mark.parametrize("slot", MEMBERS)
def test_the_error_is_what_the_mix_leaves(looked: Both, slot: Slot) -> None:
    """Of the mean weight at an offset, what the members put there is taken away first."""
    causal = slot.causal
    for eps in (1.0, 0.05):
        form = looked.overlaps.form(HeadId(slot, 1), "mix", eps, 4)
        mix = torch.tensor(form.mix, dtype=torch.float64)
        left: dict[int, tuple[float, int]] = {}
        for P in looked.maps[slot]:
            F = member_tables(form.members, len(P[1]), causal=causal)
            rest = P[1] - torch.einsum("m,mij->ij", mix, F)
            for offset in range(-len(P[1]) + 1, len(P[1])):
                old = left.get(offset, (0.0, 0))
                entries = rest.diagonal(offset)
                left[offset] = old[0] + float(entries.sum()), old[1] + len(entries)
        usable = [offset for offset in left if offset not in form.members and abs(offset) <= ERROR_SPAN_TOKENS]
        wanted = sorted((offset for offset in usable if left[offset][0] > 1e-6), key=lambda offset: -left[offset][0])
        assert form.error == tuple(sorted(wanted[:4])) and form.error
        means = [left[offset][0] / left[offset][1] for offset in form.error]
        assert form.errors == pytest.approx([min(mean, 0.95 * eps) for mean in means], rel=1e-6)
    assert looked.overlaps.form(HeadId(slot, 1), "mix", 0.0, 4).error == ()


@pytest.mark.parametrize("member", ["mean", "first", "last"])
def test_a_head_that_is_its_form_has_no_error(member: str) -> None:
    spec = f"structured:members={member},error=none"
    context = context_of(subject_of(model_of(slots={"enc.0": heads_of(spec, "dense")})))
    overlaps = FormHook({Slot.parse("enc.0"): candidates(2, False)})
    with torch.no_grad():
        context.subject.run(context.calibration.text.batch(0)[0], overlaps)
    form = overlaps.form(HeadId.parse("enc.0.0"), "auto", 0.02, 3)
    assert form.members == (member,) and form.error == ()


def test_members_that_nobody_has_a_key_for(looked: Both) -> None:
    context = context_of(subject_of(model_of()))
    overlaps = FormHook({Slot.parse("dec.1"): (-1, 0, 1, 2), Slot.parse("enc.0"): (500,)})
    with torch.no_grad():
        context.subject.run(context.calibration.text.batch(0)[0], overlaps)
    assert overlaps.form(HeadId.parse("dec.1.0"), "band", 0.0, 0).members == (-1, 0)
    with pytest.raises(UsageError, match="members that at least one token can attend to, got 500 after"):
        overlaps.form(HeadId.parse("enc.0.0"), "500", 0.0, 0)


def test_members_are_left_out_beside_the_largest_and_never_all() -> None:
    sums = FormSums(tuple(range(-64, 65)), 1, causal=False)
    sums.gram, sums.squares[0] = torch.eye(129, dtype=torch.float64), 1 / 129
    sums.with_heads[0] = 1 / 129
    overlaps = FormHook({})
    overlaps.sums[Slot.parse("enc.0")] = sums
    assert len(overlaps.form(HeadId.parse("enc.0.0"), "mix", 0.0, 0).members) == 129


def test_a_fixed_form_keeps_all_its_members() -> None:
    overlaps = FormHook({Slot.parse("enc.0"): (-1, 0, 1)})
    context = context_of(subject_of(model_of(slots={"enc.0": heads_of("structured:members=0,error=none", "dense")})))
    with torch.no_grad():
        context.subject.run(context.calibration.text.batch(0)[0], overlaps)
    assert overlaps.form(HeadId.parse("enc.0.0"), "band", 0.0, 0).mix == pytest.approx(
        (0.01 / 1.02, 1 / 1.02, 0.01 / 1.02)
    )
    assert overlaps.form(HeadId.parse("enc.0.0"), "auto", 0.0, 0).members == (0,)
    assert overlaps.form(HeadId.parse("enc.0.0"), "auto", 0.0, 0).distance == pytest.approx(0, abs=1e-12)
    assert attention_groups(context.model)[Slot.parse("enc.0")].content_heads == (1,)


def test_a_single_member_must_be_nearly_as_near() -> None:
    """Its squared distance is at most a twentieth larger than that of the best mix."""
    head, F, found = HeadId.parse("enc.0.1"), member_tables("first/mean", 7), set[bool]()
    overlaps = FormHook({})
    sums = overlaps.sums[Slot.parse("enc.0")] = FormSums(("first", "mean"), 2, causal=False)
    sums.gram = torch.einsum("mij,nij->mn", F, F)
    away = 0.2 * torch.tensor([0, 1, -1, 1, -1, 1, -1]).double()  # no mix of these two comes near to it
    for share in (0.0, 0.02, 0.1, 0.3):
        P = (1 - share) * F[0] + share * F[1] + away
        sums.with_heads[1] = torch.einsum("mij,ij->m", F, P)
        sums.squares[1] = squares = P.square().sum()
        auto, mix = (overlaps.form(head, name, 0.0, 0) for name in ("auto", "mix"))
        first = float((F[0] - P).square().sum() / squares)
        found.add(first <= 1.05 * mix.distance)
        assert (auto.members == ("first",)) == (first <= 1.05 * mix.distance)
        assert auto.distance == pytest.approx(first if len(auto.members) == 1 else mix.distance)
    assert found == {True, False}
