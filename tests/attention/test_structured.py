"""Structured attention: the grammar of members, their pictures, masks, both ways to compute it, weights, models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import attnworks
from attnworks.attention import AttentionCost, Context, Geometry, Mask, MechanismSpec
from attnworks.attention.fixed_maps import MAX_FIXED_MAPS, MapMember, MapMembers, member_tables, read_members
from attnworks.attention.structured import Structured
from attnworks.core.errors import UsageError
from attnworks.models.folder import load_model, save_model
from tests.helpers import H, assert_close, build, qkv, unchecked
from tests.model_helpers import SOURCE, TARGET, TARGET_VOCABULARY, VOCABULARY, tokens, transformer_config

ALL = "structured:members=-1..2/first/last/mean/block3,error=-3/4,eps=0.1"
GEOMETRY = Geometry(H, 11, 13)


@pytest.fixture(params=["table", "shifts"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the table that is quicker for short sequences, and without it."""
    monkeypatch.setattr(Structured, "few_pairs", 10**9 if request.param == "table" else 0)


both_ways = pytest.mark.usefixtures("either_way")


def structured(text: str = ALL, heads: int = H) -> Structured:
    mechanism = build(text, GEOMETRY._replace(heads=heads))
    assert isinstance(mechanism, Structured)
    return mechanism


def single(member: MapMember) -> Structured:
    return structured(f"structured:members={member},error=none", heads=1)


def drawn(*rows: str) -> Tensor:
    return torch.tensor([[float(mark == "#") for mark in row] for row in rows], dtype=torch.float64)


def map_of(mechanism: Structured, mask: Mask, n: int = 5, queries: int | None = None) -> Tensor:
    """P of one sentence and the first head, read off the outputs: the values are the unit vectors."""
    V = torch.eye(n, dtype=torch.float64).expand(1, mechanism.mix.shape[0], n, n)
    return mechanism(V[:, :, n - (queries or n) :], V, V, mask).Y[0, 0]


# --- members ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "members"),
    [
        ("-2..2", (-2, -1, 0, 1, 2)),
        ("first/-1/mean/3..3/block12/last", ("first", -1, "mean", 3, "block12", "last")),
        ("+1/ 0 ", (1, 0)),
        (-3, (-3,)),
        ((0, "first", "-2..-1"), (0, "first", -2, -1)),
        (["block2"], ("block2",)),
    ],
)
def test_members_are_read(given: MapMembers, members: tuple[MapMember, ...]) -> None:
    assert read_members(given, "members") == members
    assert read_members(members, "members") == members


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("", "''"),
        ("-2..2/", "''"),
        ("frist", "'frist'"),
        ("2..-2", "'2..-2'"),
        ("1.5", "'1.5'"),
        (1.5, "1.5"),
        (True, "True"),
        (None, "None"),
        ("block", "'block'"),
        ("block0", "'block0'"),
        ("block1", "'block1'"),
        ("block-4", "'block-4'"),
        ("-2-2", "'-2-2'"),
        ((0, (1, 2)), "(1, 2)"),
    ],
)
def test_what_is_no_member_is_refused(given: object, got: str) -> None:
    with unchecked(), pytest.raises(UsageError) as caught:
        Structured(members=given)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        f"structured with members={' '.join(str(given).split())}: expected -1, -2..2, first, last, "
        f"mean or block4, got {got}; separate members by /, as in "
        "-2..2/first/last/mean/block4"
    )


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("-2..2/first/1", "1 more than once"),
        ("mean/0/mean", "mean more than once"),
        ((), "0"),
        (f"1..{MAX_FIXED_MAPS + 1}", "1,025"),
        ("-999999999..999999999", "1,999,999,999"),
    ],
)
def test_members_come_once_and_are_not_too_many(given: MapMembers, got: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_members(given, "these")
    assert str(caught.value) == (
        f"these: expected 1 to 1,024 members, each once, got {got}; write for instance -2..2/first/last/mean/block4"
    )
    assert len(read_members(f"1..{MAX_FIXED_MAPS}", "these")) == MAX_FIXED_MAPS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "error=0/5",
            "with error=0/5: expected offsets other than those of members, got 0; leave it out, or write error=none",
        ),
        ("error=first", "with error=first: expected offsets other than those of members, got first; leave it out"),
        ("error=5/5", "with error=5/5: expected 1 to 1,024 members, each once, got 5 more than once; write"),
        ("eps=1.5", "with eps=1.5: expected a number from 0 to 1, got 1.5; write for instance structured:eps=0.02"),
        ("eps=true", "with eps=True: expected a number from 0 to 1, got True; write"),
        ("eps=-0.1", "with eps=-0.1: expected a number from 0 to 1, got -0.1; write"),
        ("eps=NaN", "with eps=nan: expected a number from 0 to 1, got nan; write"),
        ("learned=1", "with learned=1: expected true or false, got 1; write learned=false"),
    ],
)
def test_other_options_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with unchecked(), pytest.raises(UsageError) as caught:
        MechanismSpec.parse(f"structured:{text}").build(GEOMETRY)
    assert str(caught.value).startswith(f"structured {message}") and "\n" not in str(caught.value)


def test_a_spec_says_everything() -> None:
    text = "structured:members=-2..2/first/last/mean,error=-8/-4/4/8,eps=0.02,learned=true"
    assert str(MechanismSpec.parse(text)) == text
    spelled, plain = MechanismSpec.parse(text).build(GEOMETRY), MechanismSpec.parse("structured").build(GEOMETRY)
    for mechanism in (spelled, plain):
        assert isinstance(mechanism, Structured)
        assert mechanism.members == (-2, -1, 0, 1, 2, "first", "last", "mean") and mechanism.error == (-8, -4, 4, 8)
        assert {name: tuple(p.shape) for name, p in mechanism.named_parameters()} == {
            "log_mix": (H, 8),
            "raw_error": (H, 4),
        }
        assert_close(mechanism.errors, torch.full((H, 4), 0.01))
        assert mechanism.mix.shape == (H, 8) and (mechanism.mix[0] - mechanism.mix[1]).abs().max() > 1e-2
    for none in ("none", "null"):
        assert structured(f"structured:error={none}").error == ()
    assert Structured(error="").error == Structured(error=()).error == ()


# --- pictures ---------------------------------------------------------------------------------------------------------

FULL: dict[MapMember, Tensor] = {
    -2: drawn(".....", ".....", "#....", ".#...", "..#.."),
    0: drawn("#....", ".#...", "..#..", "...#.", "....#"),
    1: drawn(".#...", "..#..", "...#.", "....#", "....."),
    7: torch.zeros(5, 5, dtype=torch.float64),
    "first": drawn(*["#...."] * 5),
    "last": drawn(*["....#"] * 5),
    "mean": drawn(*["#####"] * 5) / 5,
    "block2": drawn("#....", "#....", "..#..", "..#..", "....#"),
    "block4": drawn("#....", "#....", "#....", "#....", "....#"),
    "block9": drawn(*["#...."] * 5),
}
CAUSAL: dict[MapMember, Tensor] = FULL | {
    1: FULL[7],
    "last": FULL[0],
    "mean": drawn("#....", "##...", "###..", "####.", "#####") / torch.arange(1, 6)[:, None],
}
# The first, fourth and last of six keys are padding.
HOLES: dict[MapMember, Tensor] = {
    -1: drawn("......", "......", ".#....", "..#...", "......", "....#."),
    2: drawn("..#...", "......", "....#.", "......", "......", "......"),
    "first": drawn(*[".#...."] * 6),
    "last": drawn(*["....#."] * 6),
    "mean": drawn(*[".##.#."] * 6) / 3,
    "block2": drawn("......", "......", "..#...", "..#...", "....#.", "....#."),
    "block3": torch.zeros(6, 6, dtype=torch.float64),
}
HOLES_CAUSAL: dict[MapMember, Tensor] = HOLES | {
    2: HOLES["block3"],
    "first": drawn("......", *[".#...."] * 5),
    "last": drawn("......", ".#....", "..#...", "..#...", "....#.", "....#."),
    "mean": drawn("......", ".#....", ".##...", ".##...", ".##.#.", ".##.#.")
    / torch.tensor([1, 1, 2, 2, 3, 3])[:, None],
}
REAL = torch.tensor([[0, 1, 1, 0, 1, 0]]).bool()


@both_ways
@pytest.mark.parametrize("member", FULL)
@pytest.mark.parametrize("causal", [False, True])
def test_pictures_of_members(member: MapMember, causal: bool) -> None:
    want = (CAUSAL if causal else FULL)[member]
    assert_close(member_tables((member,), 5, causal=causal), want[None])
    assert_close(map_of(single(member), Mask(causal=causal)), want)


@both_ways
@pytest.mark.parametrize("member", HOLES)
@pytest.mark.parametrize("causal", [False, True])
def test_pictures_of_members_with_holes(member: MapMember, causal: bool) -> None:
    want, mechanism = (HOLES_CAUSAL if causal else HOLES)[member], single(member)
    assert_close(map_of(mechanism, Mask(REAL, causal), 6), want)
    dense = REAL.expand(6, 6).tril() if causal else REAL.expand(6, 6)
    assert_close(map_of(mechanism, Mask(dense=dense), 6), want)


@both_ways
@pytest.mark.parametrize("real", [None, REAL])
@pytest.mark.parametrize("queries", [1, 2, 4])
def test_the_last_queries_are_the_last_rows(real: Tensor | None, queries: int) -> None:
    mechanism, mask = structured(), Mask(real, causal=True)
    assert_close(map_of(mechanism, mask, 6, queries), map_of(mechanism, mask, 6)[-queries:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tables_are_stacked_in_order(dtype: torch.dtype) -> None:
    F = member_tables("mean/-2/block2", 5, causal=True, dtype=dtype)
    assert F.dtype == dtype
    for table, member in zip(F, ("mean", -2, "block2"), strict=True):
        assert_close(table, CAUSAL[member])


@both_ways
def test_sides_of_padding_do_not_matter_to_those_who_look_for_tokens() -> None:
    """A sentence padded on either side: the same rows, moved."""
    mechanism = structured("structured:members=-1..1/first/last/mean,error=2")
    for causal in (False, True):
        want = map_of(mechanism, Mask(causal=causal), 5)
        for left in (0, 1, 3):
            real = torch.zeros(1, 8, dtype=torch.bool)
            real[:, left : left + 5] = True
            got = map_of(mechanism, Mask(real, causal), 8)
            assert_close(got[left : left + 5, left : left + 5], want)
            assert got[:, ~real[0]].abs().max() == 0


# --- the mix ----------------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_weights_are_the_mix_of_tables_and_errors_over_their_sum(n: int, causal: bool) -> None:
    mechanism = structured()
    both = torch.cat([mechanism.mix, mechanism.errors], 1)
    W = torch.einsum("hm,mij->hij", both, member_tables((*mechanism.members, *mechanism.error), n, causal=causal))
    want = W / W.sum(-1, keepdim=True)
    Q, K, V = qkv(i=n, j=n)
    got = mechanism(Q, K, V, Mask(causal=causal), weights=True)
    assert_close(got.P, want.expand(3, -1, -1, -1))
    assert_close(got.P.sum(-1), torch.ones(3, H, n))
    assert_close(mechanism(Q, K, V, Mask(causal=causal)).Y, want @ V)


def test_errors_stay_within_their_bound() -> None:
    mechanism = structured()
    assert mechanism.raw_error is not None
    with torch.no_grad():
        mechanism.raw_error.copy_(torch.tensor([[-50.0, 50.0], [0.0, 1.0]]))
    assert (mechanism.errors >= 0).all() and (mechanism.errors <= 0.1).all()
    assert_close(mechanism.errors[0], torch.tensor([0.0, 0.1], dtype=torch.float64))


@both_ways
def test_a_query_with_keys_but_no_weight_gives_zeros() -> None:
    mechanism = single(-1)
    Y = map_of(mechanism, Mask())
    assert (Y[0] == 0).all() and (Y[1:].sum(-1) == 1).all()
    V = torch.eye(1, dtype=torch.float64)[None, None].requires_grad_()
    Y, P = mechanism(V, V, V, weights=True)
    assert (mechanism(V, V, V).Y == 0).all() and (Y == 0).all() and (P == 0).all()
    assert torch.autograd.grad(Y.sum(), V)[0] == 0


@both_ways
def test_queries_and_keys_are_not_looked_at() -> None:
    mechanism, (Q, K, V) = structured(), qkv(i=7)
    nothing = torch.full_like(Q, torch.nan), torch.full_like(K, torch.nan)
    for weights in (False, True):
        assert torch.equal(mechanism(*nothing, V, weights=weights).Y, mechanism(Q, K, V, weights=weights).Y)
    assert not Structured.by_content


def test_an_additive_mask_multiplies_by_its_exponential() -> None:
    mechanism, inputs = structured(), qkv(i=7)
    M = torch.randn(7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    plain = mechanism(*inputs, weights=True).P
    want = plain * M.exp() / (plain * M.exp()).sum(-1, keepdim=True)
    for shift in (0.0, 1e3, -1e3):
        assert_close(mechanism(*inputs, Mask(dense=M + shift), weights=True).P, want)
    # A key far above all others, but without a weight, takes nothing.
    far = torch.zeros(7, 7, dtype=torch.float64)
    far[:, 6] = 1e3
    P = structured("structured:members=-1..0,error=none")(*inputs, Mask(dense=far), weights=True).P
    assert_close(P.sum(-1), torch.ones(3, H, 7))


# --- both ways --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("i", "j"), [(61, 61), (37, 67), (1, 71)])
def test_shifts_and_table_agree_in_values_and_gradients(
    i: int, j: int, causal: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not causal and i < j:
        return
    real = torch.ones(3, j, dtype=torch.bool)
    real[0, :5] = real[1, j // 2 :] = real[2, ::3] = False
    mask, mechanism, inputs = Mask(real if padded else None, causal), structured(), qkv(i=i, j=j, grad=True)
    leaves = [inputs.V, *mechanism.parameters()]
    G = torch.randn(3, H, i, 13, dtype=torch.float64)
    found = []
    for few in (0, 10**9):
        monkeypatch.setattr(Structured, "few_pairs", few)
        Y = mechanism(*inputs, mask).Y
        found.append((Y, *torch.autograd.grad((Y * G).sum(), leaves)))
    for shifts, table in zip(*found, strict=True):
        assert shifts.abs().max() > 0
        assert_close(shifts, table)


@both_ways
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_the_weights_equal_the_reference(causal: bool) -> None:
    mechanism, inputs, mask = structured(), qkv(b=1, i=7), Mask(torch.tensor([[1, 1, 0, 1, 1, 1, 1]]).bool(), causal)
    G, leaves = torch.randn(1, H, 7, 13, dtype=torch.float64), [mechanism.log_mix, mechanism.raw_error]
    results = mechanism(*inputs, mask), mechanism.reference(*inputs, mask, Context())
    gradients = [torch.autograd.grad((result.Y * G).sum(), leaves) for result in results]
    for got, want in zip(*gradients, strict=True):
        assert got.abs().max() > 1e-4
        assert_close(got, want)


def test_members_alone_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families of offsets only, and of none, go without a table too."""
    monkeypatch.setattr(Structured, "few_pairs", 0)
    for members in ("-1..1", "first/mean", "block3", "last"):
        mechanism, inputs = structured(f"structured:members={members},error=none"), qkv(i=7)
        for mask in (Mask(), Mask(causal=True)):
            assert_close(mechanism(*inputs, mask).Y, mechanism(*inputs, mask, weights=True).Y)


# --- given weights ----------------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("learned", ["true", "false"])
def test_given_weights_are_taken_up_to_a_factor(learned: str) -> None:
    mechanism = structured(f"structured:members=-1..0/mean,error=2/3,eps=0.1,learned={learned}")
    mix, error = torch.tensor([[1, 3, 0], [0, 0, 7]]).double(), torch.tensor([[0, 5], [2.5, 1]]).double() / 50
    mechanism.set_weights(mix, error)
    assert_close(mechanism.mix, torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64))
    assert_close(mechanism.errors, error)
    before = mechanism.mix
    mechanism.set_weights(5 * mix)
    assert_close(mechanism.mix, before)
    assert (mechanism.errors == 0).all()
    assert_close(mechanism(*qkv(i=7), weights=True).P[0, 1], torch.full((7, 7), 1 / 7, dtype=torch.float64))


@both_ways
def test_weights_of_zero_keep_gradients_finite() -> None:
    mechanism = structured("structured:members=-1..0/mean,error=2/3,eps=0.1")
    mechanism.set_weights(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 7.0]]), torch.tensor([[0.0, 0.1], [0.0, 0.0]]))
    inputs = qkv(i=7, grad=True)
    for mask in (Mask(), Mask(dense=torch.zeros(7, 7))):
        Y = mechanism(*inputs, mask).Y
        for gradient in torch.autograd.grad(Y.square().sum(), [inputs.V, *mechanism.parameters()]):
            assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("mix", "error", "message"),
    [
        ([1.0, 2.0], None, "mix: expected {mix}, of shape [2, 2], got shape [2]; give a row for each head"),
        ([[1.0, 2.0], [0.0, 0.0]], None, "mix: expected {mix}, of shape [2, 2], got others; give"),
        ([[1.0, 2.0], [-1.0, 2.0]], None, "mix: expected {mix}, of shape [2, 2], got others; give"),
        ([[1.0, 2.0], [1.0, torch.inf]], None, "mix: expected {mix}, of shape [2, 2], got others; give"),
        ([[1.0, 2.0], [1.0, torch.nan]], None, "mix: expected {mix}, of shape [2, 2], got others; give"),
        ([[1.0, 2.0], [1.0, 2.0]], [[0.2], [0.0]], "error: expected {error}, of shape [2, 1], got others; give"),
        ([[1.0, 2.0], [1.0, 2.0]], [[-0.1], [0.0]], "error: expected {error}, of shape [2, 1], got others; give"),
        ([[1.0, 2.0], [1.0, 2.0]], [[0.0]], "error: expected {error}, of shape [2, 1], got shape [1, 1]; give"),
    ],
)
def test_weights_that_make_no_sense_are_refused(
    mix: list[list[float]], error: list[list[float]] | None, message: str
) -> None:
    mechanism = structured("structured:members=0/mean,error=-2,eps=0.1")
    before = {name: tensor.clone() for name, tensor in mechanism.state_dict().items()}
    with unchecked(), pytest.raises(UsageError) as caught:
        mechanism.set_weights(torch.tensor(mix), None if error is None else torch.tensor(error))
    words = {"mix": "finite numbers from 0, not all 0 in any head", "error": "numbers from 0 to 0.1"}
    assert str(caught.value).startswith(f"structured with this {message.format(**words)}")
    assert all(torch.equal(tensor, before[name]) for name, tensor in mechanism.state_dict().items())


@pytest.mark.parametrize(
    ("options", "parameters", "buffers"),
    [
        ("learned=true", {"log_mix", "raw_error"}, set()),
        ("learned=false", set(), {"log_mix", "raw_error"}),
        ("error=none", {"log_mix"}, set()),
        ("error=none,learned=false", set(), {"log_mix"}),
        ("eps=0", {"log_mix"}, {"raw_error"}),
        ("members=-1", {"raw_error"}, {"log_mix"}),
    ],
)
def test_what_can_learn_is_a_parameter(options: str, parameters: set[str], buffers: set[str]) -> None:
    mechanism = structured(f"structured:{options}")
    assert {name for name, _ in mechanism.named_parameters()} == parameters
    assert {name for name, _ in mechanism.named_buffers()} == buffers
    assert set(mechanism.state_dict()) == parameters | buffers


def test_a_bound_of_zero_is_no_error() -> None:
    mechanism = structured("structured:eps=0")
    mechanism.set_weights(torch.ones(H, 8), torch.zeros(H, 4))
    assert (mechanism.errors == 0).all()


# --- in models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["structured", ALL, "structured:members=-1/first,error=none,learned=false"])
def test_a_transformer_learns_with_it_everywhere_but_across(spec: str) -> None:
    config = transformer_config().with_mechanism(spec)
    used = {slot: config.slot(slot).mechanism for slot in config.slot_names()}
    assert used == {slot: "dense" if slot.crosses else spec for slot in used}
    model = attnworks.build(config, seed=3)
    real = torch.arange(SOURCE) < torch.tensor([[7], [3], [5]])
    logits = model(tokens(VOCABULARY, 3, SOURCE), tokens(TARGET_VOCABULARY, 3, TARGET), real)
    logits.square().mean().backward()
    own = [p for layer in model.modules() if isinstance(layer, Structured) for p in layer.parameters()]
    assert len(own) == (0 if "learned=false" in spec else 8)
    for parameter in own:
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0


@pytest.mark.parametrize("spec", [ALL, "structured:members=-1..0/block3,error=none,learned=false"])
def test_folders_keep_its_weights(spec: str, tmp_path: Path) -> None:
    model = attnworks.build(transformer_config().with_mechanism(spec), seed=3)
    layers = [layer for layer in model.modules() if isinstance(layer, Structured)]
    for number, layer in enumerate(layers):
        layer.set_weights(torch.rand(layer.mix.shape) + (torch.arange(layer.mix.shape[1]) == number % 3))
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    for before, after in zip(layers, (m for m in again.modules() if isinstance(m, Structured)), strict=True):
        assert torch.equal(before.mix, after.mix) and torch.equal(before.errors, after.errors)
        assert [name for name, _ in before.named_parameters()] == [name for name, _ in after.named_parameters()]
    source, target = tokens(VOCABULARY, 3, SOURCE), tokens(TARGET_VOCABULARY, 3, TARGET)
    assert torch.equal(model.eval()(source, target), again.eval()(source, target))


@both_ways
def test_decoding_step_by_step_is_one_pass() -> None:
    model = attnworks.build(transformer_config().with_mechanism(ALL), seed=3).double().eval()
    source, written = tokens(VOCABULARY, 3, SOURCE), tokens(TARGET_VOCABULARY, 3, 11)
    whole, state = model(source, written), model.start(source)
    for position in range(11):
        scores, state = model.step(written[:, position, None], state)
        assert_close(scores[:, 0], whole[:, position])


# --- cost -------------------------------------------------------------------------------------------------------------


def test_costs_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry(2, 11, 13)
    mechanism = structured("structured:members=-1/2/first/mean,error=-4")
    # 7 positions: 6 have one before, 5 one two after, all a first and a mean, 3 one four before.
    assert mechanism.cost(7, 7, geometry).flops == 2 * 2 * 49 * (13 + 5), "so short that it takes a table"
    monkeypatch.setattr(type(mechanism), "few_pairs", 0)
    assert mechanism.cost(7, 7, geometry) == AttentionCost(2 * 28, (4 * 28 + 2 * 7) * 14, 8 * (14 * 14 + 7 * 13))
    assert mechanism.cost(7, 7, geometry, causal=True).edges == 2 * 23
    assert mechanism.cost(2, 7, geometry, causal=True).edges == 2 * 8
    short, long = (structured().cost(n, n, geometry) for n in (10_000, 20_000))
    assert long.flops == pytest.approx(2 * short.flops, rel=1e-3) and long.edges < 20_000 * 2 * 10 + 1
