"""What one attention layer is computed from, head by head, and which projection reads its heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.hf.evidence.cut_graph import AttentionCall, CutPass, ModuleCall
from attnworks.hf.evidence.reach import (
    columns_of,
    head_reach,
    jvp,
    live,
    noise_like,
    one_to_one,
    one_to_one_back,
    vjp,
)
from attnworks.hf.head_modules import QUERIES_AND_KEYS, is_empty
from attnworks.hf.layout import AttentionLayout, ColumnSource, HeadColumns, ProjectionRole
from attnworks.hf.linear import matrix_of

NEXT_CALLS = 40
"""The number of module calls after attention among which its output projection is looked for."""
ROLES: tuple[ProjectionRole, ...] = ("query", "key", "value")
ROTATION_ROUNDING = 1e-3
"""Relative error of the length of a vector that was turned by cosines and sines in half precision."""
NOT_LINEAR = "they are not linear in the output of a projection (a norm lies between)"


@dataclass(frozen=True, eq=False)
class _Origin:
    """A leaf that a layer is computed from: the output of a module, or a parameter of another module."""

    path: str
    leaf: Tensor
    call: ModuleCall | None

    def entries(self, reach: Bool[Tensor, "h ..."]) -> Bool[Tensor, "h ..."]:
        """The reach of its columns, or of the entries of a parameter."""
        if self.call is None:
            return reach
        return columns_of(reach.movedim(2, -1) if isinstance(self.call.module, nn.Conv1d) else reach)


@dataclass(eq=False)
class _Reaches:
    """The reach of every origin, collected by path: a module may be called several times for one layer."""

    total: dict[str, Tensor] = field(default_factory=dict)
    roles: dict[str, dict[ProjectionRole, Tensor]] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)

    def add(self, origin: _Origin, reach: Tensor, role: ProjectionRole | None = None) -> None:
        if origin.call is None:
            self.parameters.add(origin.path)
        if role is not None:
            roles = self.roles.setdefault(origin.path, {})
            roles[role] = roles[role] | reach if role in roles else reach
        if role is None or role == "gate":
            self.total[origin.path] = self.total[origin.path] | reach if origin.path in self.total else reach

    def of_heads(self, role: ProjectionRole, held: Bool[Tensor, " g"]) -> _Reaches:
        """The same with some heads of queries, keys or values alone."""
        roles = {path: {**of, role: of[role][held]} if role in of else of for path, of in self.roles.items()}
        return replace(self, roles=roles)

    def sources(self) -> tuple[ColumnSource, ...]:
        return tuple(
            ColumnSource(path, path in self.parameters, reach, self.roles.get(path, {}))
            for path, reach in self.total.items()
        )


def layer_layout(cut: CutPass, call: AttentionCall, slot: Slot) -> AttentionLayout:
    """The layout of the layer of one attention call."""
    origins, reaches, problems = _origins(cut, call.time), _Reaches(), dict[str, str]()
    for origin, reach in _reached(call.Y, origins):
        reaches.add(origin, reach)
    tensors: Mapping[ProjectionRole, Tensor] = {"query": call.Q, "key": call.K, "value": call.V}
    owners: dict[ProjectionRole, list[_Origin]] = {}
    for role, T in tensors.items():
        found = _reached(T, origins)
        owners[role] = [origin for origin, _ in found]
        for origin, reach in found:
            reaches.add(origin, reach, role)
    key_of = _key_heads(call)
    output, output_path, output_reach = _output(cut, call, reaches, problems)
    maps = {role: _columns_of_all(role, call, tensors[role], owners[role], reaches, problems) for role in ROLES}
    query, key, value = (None if (found := maps[role]) is None else found.columns for role in ROLES)
    key, value = (_of_heads(columns, key_of) for columns in (key, value))
    factors = [None if (found := maps[role]) is None else found.factor for role in ("query", "key")]
    scale = scale_of(call)
    c_q, c_k = factors
    found = AttentionLayout(
        path=call.path,
        slots=(slot,),
        heads=call.Y.shape[1],
        shares=_shares(call, key_of, value, reaches),
        key_of=key_of,
        widths=(call.Q.shape[-1], call.V.shape[-1]),
        query=query,
        key=key,
        value=value,
        turned=any(found is not None and found.turned for found in maps.values()),
        output=output,
        output_path=output_path,
        output_reach=output_reach,
        factor=None if c_q is None or c_k is None else scale * c_q * c_k,
        sources=reaches.sources(),
        interface="weights" not in call.options,
        problems=problems,
    )
    return _without_heads(found) if is_empty(call.module) else found


def scale_of(call: AttentionCall) -> float:
    """The factor of Q K^T in the scores of a call."""
    scaling = call.options.get("scaling")
    return float(scaling) if isinstance(scaling, int | float) else call.Q.shape[-1] ** -0.5


def _without_heads(layout: AttentionLayout) -> AttentionLayout:
    """The layout of a layer that has lost all its heads. It computes one head of zeros, which is no head of its own."""
    maps = (layout.query, layout.key, layout.value, layout.output)
    query, key, value, output = (
        None if columns is None else HeadColumns(columns.path, columns.index[:0]) for columns in maps
    )
    return replace(layout, heads=0, shares=(), key_of=(), query=query, key=key, value=value, output=output, sources=())


def same_reach(cut: CutPass, call: AttentionCall, layout: AttentionLayout) -> bool:
    """Whether the first head of a call reaches the same entries of the same sources as the layout says."""
    if call.Y.shape[1] != layout.heads or is_empty(call.module):
        return False
    cotangent = torch.zeros_like(call.Y)
    cotangent[:, 0] = noise_like(call.Y)[:, 0]
    origins, found = _origins(cut, call.time), dict[str, Tensor]()
    for origin, T in zip(origins, vjp(call.Y, [origin.leaf for origin in origins], cotangent), strict=True):
        if T is not None and bool(T.any()):
            reach = origin.entries((T != 0)[None])[0]
            found[origin.path] = found[origin.path] | reach if origin.path in found else reach
    expected = {source.path: source.reach[0] for source in layout.sources if {*source.roles} != {"gate"}}
    expected = {path: reach for path, reach in expected.items() if bool(reach.any()) or path in found}
    return found.keys() == expected.keys() and all(torch.equal(found[path], expected[path]) for path in found)


def _origins(cut: CutPass, time: int) -> list[_Origin]:
    """The leaves that are there before some time, and the parameters that are in no module with a matrix."""
    before = [_Origin(call.path, call.leaf, call) for call in cut.modules if call.time < time]
    return before + [_Origin(path, parameter, None) for path, parameter in cut.parameters.items()]


def _reached(target: Tensor, origins: Sequence[_Origin]) -> list[tuple[_Origin, Tensor]]:
    """The origins that a target [b h i k] depends on, with the columns that reach each head."""
    alive = [origins[number] for number in live(target, [origin.leaf for origin in origins])]
    reach = head_reach(target, [origin.leaf for origin in alive])
    return [(origin, origin.entries(of)) for origin, of in zip(alive, reach, strict=True) if of is not None]


def _key_heads(call: AttentionCall) -> tuple[int, ...]:
    """For each head the number of its head of keys and values."""
    heads, groups = call.Y.shape[1], call.V.shape[1]
    if heads == groups:
        return tuple(range(heads))
    (reach,) = head_reach(call.Y, [call.V])
    if reach is None:
        return tuple(head * groups // heads for head in range(heads))
    by_group = reach.transpose(1, 2).flatten(2).any(2)  # [h b g ..] -> [h g]
    return tuple(int(row.int().argmax()) for row in by_group)


def _of_heads(columns: HeadColumns | None, key_of: Sequence[int]) -> HeadColumns | None:
    return None if columns is None else HeadColumns(columns.path, columns.index[list(key_of)])


def _shares(
    call: AttentionCall, key_of: Sequence[int], value: HeadColumns | None, reaches: _Reaches
) -> tuple[tuple[int, ...], ...]:
    """Heads that share keys and values: one tensor for several heads, or the same columns repeated before the call."""
    keys: list[object] = list(key_of)
    if len({*key_of}) == len(key_of) and call.K.shape[1] == len(key_of):
        rows: list[tuple[object, ...]] = [() for _ in key_of]
        for path, roles in reaches.roles.items():
            for role in ("key", "value"):
                if role in roles and path not in reaches.parameters and roles[role].shape[0] == len(rows):
                    rows = [
                        (*row, path, *columns.nonzero().flatten().tolist())
                        for row, columns in zip(rows, roles[role], strict=True)
                    ]
        owned = value is not None and len({tuple(row) for row in value.index.tolist()}) < len(rows)
        keys = list(rows) if owned else keys
    groups: dict[object, list[int]] = {}
    for head, key in enumerate(keys):
        groups.setdefault(key, []).append(head)
    return tuple(map(tuple, groups.values()))


# --- projections ---


@dataclass(frozen=True, eq=False)
class _Map:
    """Columns of a projection; `factor` is what they are multiplied by, None if it is not one number."""

    columns: HeadColumns
    factor: float | None
    turned: bool


def _columns_of_all(
    role: ProjectionRole,
    call: AttentionCall,
    T: Tensor,
    owners: Sequence[_Origin],
    reaches: _Reaches,
    problems: dict[str, str],
) -> _Map | None:
    """The same as `_columns`, with -1 for channels of queries and keys whose columns are not stored any more."""
    paths: dict[str, str] = getattr(call.module, QUERIES_AND_KEYS, {})
    if role not in paths:
        return _columns(role, T, owners, reaches, problems)
    held = torch.zeros(T.shape[1], dtype=torch.bool, device=T.device)
    for path, roles in reaches.roles.items():
        if role in roles and path not in reaches.parameters:
            held |= roles[role].any(1)
    if not bool(held.any()):
        return _Map(HeadColumns(paths[role], torch.full((T.shape[1], T.shape[3]), -1)), 1.0, False)
    some = _columns(role, T[:, held], owners, reaches.of_heads(role, held), problems)
    if some is None or bool(held.all()):
        return some
    index = some.columns.index.new_full((T.shape[1], T.shape[3]), -1)
    index[held] = some.columns.index
    return replace(some, columns=HeadColumns(some.columns.path, index))


def _columns(
    role: ProjectionRole, T: Tensor, owners: Sequence[_Origin], reaches: _Reaches, problems: dict[str, str]
) -> _Map | None:
    """Where the columns of queries, keys or values [b g i k] come from; None, and a problem, if no one map has them."""
    modules = [origin for origin in owners if origin.call is not None]
    if len(modules) != 1:
        problems[role] = "they come from no projection" if not modules else f"they come from {len(modules)} projections"
        return None
    (origin,) = modules
    assert origin.call is not None
    if not _is_linear(origin.call):
        problems[role] = f"their projection is no linear map ({type(origin.call.module).__name__})"
        return None
    moved = one_to_one(T, origin.leaf)
    if moved is not None and _same_at_all_positions(moved.columns):
        factor = _one_number(moved.factors, 1e-5)
        if role == "value" and factor != 1.0:
            problems[role] = "they are multiplied by a factor before attention"
            return None
        if factor is None:
            problems[role] = "each channel is scaled by itself"
        return _Map(HeadColumns(origin.path, moved.columns[0, :, 0]), factor, False)
    if role == "value":
        problems[role] = NOT_LINEAR
        return None
    reach = reaches.roles[origin.path][role]
    if not bool((reach.sum(1) == T.shape[-1]).all()):
        problems[role] = "several heads share their columns, as under a norm over all heads"
        return None
    index = torch.stack([row.nonzero().flatten() for row in reach])
    if not _is_linear_in(T, origin.leaf):
        problems[role] = NOT_LINEAR
        return _Map(HeadColumns(origin.path, index), None, False)
    return _Map(HeadColumns(origin.path, index), _turned_factor(T, origin.leaf, index), True)


def _same_at_all_positions(columns: Int[Tensor, "b g i k"]) -> bool:
    return bool((columns == columns[:1, :, :1]).all())


def _is_linear(call: ModuleCall) -> bool:
    """Whether a module computed x W + b."""
    linear = matrix_of(call.module)
    if linear is None or call.input is None or call.input.shape[-1] != linear.weight.shape[0]:
        return False
    with torch.no_grad():
        y = call.input.detach().to(linear.weight.dtype) @ linear.weight
        y = y if linear.bias is None else y + linear.bias
        error, size = (y - call.output).abs().max(), call.output.abs().max()
    return y.shape == call.output.shape and bool(error <= 10 * tolerance(y.dtype).rtol * size)


def _is_linear_in(T: Tensor, leaf: Tensor) -> bool:
    """Whether T = J leaf with J its own Jacobian, which holds for linear maps and not for norms."""
    found = jvp(T, leaf, [leaf.detach()])
    if found is None:
        return False
    error, size = (found[0] - T).detach().abs().max(), T.detach().abs().max()
    return bool(error <= 100 * tolerance(T.dtype).rtol * size)


def _turned_factor(T: Tensor, leaf: Tensor, index: Int[Tensor, "g k"]) -> float | None:
    """|T| / |leaf| over the columns of each head, which a rotation leaves alone; None if it is not one number."""
    rows = leaf.detach().reshape(T.shape[0], T.shape[2], -1) if leaf.numel() % (T.shape[0] * T.shape[2]) == 0 else None
    if rows is None:
        return None
    lengths = rows[:, :, index].norm(dim=-1).transpose(1, 2)  # [b g i]
    return _one_number(T.detach().norm(dim=-1) / lengths, ROTATION_ROUNDING)


def _one_number(numbers: Tensor, rounding: float) -> float | None:
    """The number that all of these are, up to rounding; None if they differ."""
    spread = (numbers - 1).abs().max()
    if bool(spread <= rounding):
        return 1.0
    first = numbers.flatten()[0]
    return float(first) if bool((numbers - first).abs().max() <= rounding * first.abs()) else None


# --- the output projection ---


def _output(
    cut: CutPass, call: AttentionCall, reaches: _Reaches, problems: dict[str, str]
) -> tuple[HeadColumns | None, str | None, Tensor | None]:
    """The first module after attention that reads its output: its columns by head, its path, what heads reach in it."""
    taker = _taker(cut, call)
    if taker is None or taker.input is None:
        problems["output"] = "no projection reads the heads"
        return None, None, None
    if any(other.path == taker.path and _reads_no_attention(cut, other) for other in cut.modules):
        problems["output"] = "an output projection that reads attention which is not observed, too"
        return None, None, None
    X, columns = taker.input, None
    found = one_to_one_back(X, call.leaf)
    if found is not None and _same_at_all_positions(found.columns):
        columns = HeadColumns(taker.path, found.columns[0, :, 0])
        reach = torch.zeros(call.Y.shape[1], X.shape[-1], dtype=torch.bool, device=X.device)
        reach.scatter_(1, columns.index, True)
        if not bool((found.factors == 1).all()):
            problems["gate"] = "the heads are multiplied by gates or factors before the output projection"
    else:
        problems["output"] = "the heads are mixed before a module reads them"
        reach = _reach_of_heads(X, call.leaf)
    if columns is not None and not _is_linear(taker):
        problems["output"] = f"their output projection is no linear map ({type(taker.module).__name__})"
    if reach is not None:
        _add_gates(cut, X, reach, reaches, taker.time)
    return columns, taker.path, reach


def _taker(cut: CutPass, call: AttentionCall) -> ModuleCall | None:
    after = [other for other in cut.modules if other.time > call.time][:NEXT_CALLS]
    for other in after:
        if other.input is None or not other.input.requires_grad:
            continue
        (back,) = vjp(other.input, [call.leaf], noise_like(other.input))
        if back is not None and bool(back.any()):
            return other
    return None


def _reads_no_attention(cut: CutPass, run: ModuleCall) -> bool:
    """Whether the input of a module depends on no observed call of attention, as far as autograd records it."""
    if run.input is None or not run.input.requires_grad:
        return False
    return not live(run.input, [call.leaf for call in cut.attention if call.time < run.time])


def _reach_of_heads(X: Tensor, leaf: Tensor) -> Tensor | None:
    """Which columns of X [*a c] each head of a leaf [b h i v] reaches: [h c]."""
    noise = noise_like(leaf)
    tangents = [torch.zeros_like(noise) for _ in range(leaf.shape[1])]
    for head, tangent in enumerate(tangents):
        tangent[:, head] = noise[:, head]
    found = jvp(X, leaf, tangents)
    return None if found is None else torch.stack([(T != 0).flatten(0, -2).any(0) for T in found])


def _add_gates(cut: CutPass, X: Tensor, reach: Bool[Tensor, "h c"], reaches: _Reaches, time: int) -> None:
    """What is multiplied into, or added to, the columns of each head between attention and the output projection."""
    origins = _origins(cut, time)
    alive = [origins[number] for number in live(X, [origin.leaf for origin in origins])]
    if not alive:
        return
    noise = noise_like(X)
    leaves = [origin.leaf for origin in alive]
    rows = [vjp(X, leaves, noise * columns.to(X)) for columns in reach]
    for number, origin in enumerate(alive):
        found = [row[number] for row in rows]
        found = [torch.zeros_like(origin.leaf) if T is None else T for T in found]
        reaches.add(origin, origin.entries(torch.stack([T != 0 for T in found])), "gate")
