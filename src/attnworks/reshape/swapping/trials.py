"""Try other mechanisms in each attention layer of a model: their error on text, their time, their FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Context, Geometry, Mask
from attnworks.attention.heads import HeadGroups, carry_over, grouped
from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.core.timing import Interval, interleave_within
from attnworks.hf.swappable import NO_SCORES, SEES_MORE
from attnworks.models.anatomy import Part
from attnworks.models.modes import inference_mode
from attnworks.models.multihead import MultiHead
from attnworks.reshape.contract import run_over_text
from attnworks.reshape.surgery import (
    attention_parts,
    groups_in,
    layers_alike,
    mechanisms_of,
    refusal_to_swap,
    scale_of_scores,
)
from attnworks.traces.layer import LayerTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook

NEW_PARAMETERS_SEED = 0
"""Seed of the parameters of new mechanisms, in trials and in the new model."""
PRESENT = ""
"""The key of the present mechanisms among the times of a layer."""


ByHead = tuple[str, ...]
"""The mechanism of each head of a layer."""
Candidates = Mapping[Slot, Mapping[str, ByHead]]
"""Layer -> name -> mechanisms to try there."""
SwapPlace = tuple[Slot, str]
"""A layer and the name of a candidate for it."""


@dataclass(frozen=True)
class SwapTrial:
    """A mechanism in the place of those of a layer.

    error          |(Y' - Y) W_O|_F / |Y W_O|_F over the text, for outputs Y of the present heads and Y' of the new ones
                   (without W_O where heads are gated or mixed before the output projection)
    seconds        of its core, (Q, K, V) -> Y, on one sequence
    flops          of the core, as the mechanism counts them
    reason         why it cannot be in the layer, in words; then there are no numbers
    time_interval  95 % interval of seconds / seconds of the present mechanisms
    """

    slot: str
    spec: str
    error: float | None = None
    seconds: float | None = None
    flops: int | None = None
    reason: str | None = None
    time_interval: Interval | None = None


@dataclass(frozen=True)
class Present:
    """The present mechanisms of a layer, and their cost."""

    slot: str
    by_head: ByHead
    seconds: float
    flops: int


class Timed(NamedTuple):
    """Seconds of a core, and the 95 % interval of their ratio to those of what the layer has."""

    seconds: float
    interval: Interval


@dataclass(frozen=True, eq=False)
class SwapLayer:
    """An attention layer, and all that a mechanism must fit.

    scale    factor of the scores that the model sets, if not 1/sqrt(k)
    W_O      output projection of each head; None where heads are gated or mixed before it
    alike    the layers that share their weights with it, itself included; they have the same mechanisms
    """

    model: nn.Module
    slot: Slot
    part: Part
    now: ByHead
    geometry: Geometry
    scale: float | None
    W_O: Float[Tensor, "h v e"] | None
    alike: tuple[Slot, ...]

    @property
    def causal(self) -> bool:
        return self.slot.causal

    def present(self) -> HeadGroups:
        """The mechanisms that the layer has."""
        return groups_in(self.part) or HeadGroups(grouped(self.now), *self.geometry[1:])

    def groups(self, by_head: ByHead, like: Tensor) -> HeadGroups:
        """Other mechanisms in their place; those that stay keep their parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(NEW_PARAMETERS_SEED)
            groups = HeadGroups(grouped(by_head), *self.geometry[1:]).to(like).eval()
        old = groups_in(self.part)
        if old is not None:
            carry_over(old, groups)
        return groups

    def global_qkv(self, groups: HeadGroups, trace: LayerTrace) -> tuple[Tensor, Tensor, Tensor] | None:
        """Q, K and V of global tokens, if the layer has its own projections for them and a mechanism uses these."""
        attention = self.part.attention
        kept = any(mechanism.has_global_projections for mechanism in groups.mechanisms)
        if not isinstance(attention, MultiHead) or not attention.has_global_projections or not kept or trace.X is None:
            return None
        return attention.project_global(trace.X)

    def flops(self, groups: HeadGroups, n: int) -> int:
        """Of one sequence of n positions, or of n queries and n keys."""
        return sum(
            mechanism.cost(n, n, self.geometry._replace(heads=len(heads)), causal=self.causal).flops
            for mechanism, heads in zip(groups.mechanisms, groups.heads, strict=True)
        )

    def refusal(self, by_head: ByHead) -> str | None:
        """Why these mechanisms cannot be in the layer, judged without running it; None if they can."""
        return refusal_to_swap(self.model, self.slot, by_head)

    def new_heads(self, by_head: ByHead) -> list[int]:
        """The heads whose mechanism changes."""
        return [head for head, spec in enumerate(by_head) if spec != self.now[head]]

    def size(self, Y: Float[Tensor, "b h i v"], real: Bool[Tensor, "b i"]) -> float:
        """|Y W_O|_F^2 over real queries, or |Y|_F^2 where the output projection is not applied to Y itself."""
        U = Y.transpose(1, 2).flatten(2) if self.W_O is None else torch.einsum("bhiv,hve->bie", Y, self.W_O)
        return float((U.double().square().sum(-1) * real).sum())


def swap_layers(model: nn.Module) -> dict[Slot, SwapLayer]:
    """Every attention layer whose heads are known, cross-attention included."""
    parts, alike, layers = attention_parts(model, cross=True), layers_alike(model), dict[Slot, SwapLayer]()
    for slot, now in ((slot, now) for slot, now in mechanisms_of(model, cross=True).items() if now):
        part, scale = parts[slot], scale_of_scores(model, slot)
        layers[slot] = SwapLayer(model, slot, part, now, part.geometry(), scale, part.W_O(), alike[slot])
    return layers


def _in_words(error: UsageError) -> str:
    return f"expects {error.expected}, got {error.got}"


def try_mechanisms(
    text_loss: TextLoss, wanted: Candidates, length: int, *, tell: Progress = silent
) -> tuple[list[Present], list[SwapTrial]]:
    """What all layers that run have, and each mechanism that is `wanted` tried on a layer's true Q, K, V and mask.

    length    positions at which time is measured; FLOPs are predicted for as many

    Errors are those of each layer alone, on the inputs that it has in the unchanged model. Parameters of mechanisms
    (Linformer, structured forms) are drawn with a fixed seed: these errors are those of an untrained mechanism.
    """
    model = text_loss.original.model
    like = next(model.parameters())
    layers = swap_layers(model)
    tried = SwapTrialHook(layers, wanted, like)
    run_over_text(text_loss, tried, "trying mechanisms", tell)
    with inference_mode(model):
        errors = tried.errors()
        times = measure_times(tried, length, like, tell)
    present = [
        Present(str(slot), layer.now, times[slot, PRESENT].seconds, layer.flops(layer.present(), length))
        for slot, layer in layers.items()
        if slot in tried.seen
    ]
    trials: list[SwapTrial] = []
    for place in ((slot, name) for slot in wanted for name in wanted[slot]):
        trial = SwapTrial(str(place[0]), place[1], reason=tried.reasons.get(place))
        if trial.reason is None:
            flops, (seconds, interval) = layers[place[0]].flops(tried.groups[place], length), times[place]
            trial = replace(trial, error=errors[place], seconds=seconds, flops=flops, time_interval=interval)
        trials.append(trial)
    return present, trials


class SwapTrialHook(LayerHook):
    """Sums up |(Y' - Y) W_O|_F^2 of every candidate, and |Y W_O|_F^2, over real queries.

    seen      layers that were run
    biased    layers in which something is added to scores, such as T5's positions
    """

    def __init__(self, layers: Mapping[Slot, SwapLayer], wanted: Candidates, like: Tensor) -> None:
        self.layers = layers
        self.groups: dict[SwapPlace, HeadGroups] = {}
        self.reasons: dict[SwapPlace, str] = {}
        self.biased: set[Slot] = set()
        self.whole = dict.fromkeys(layers, 0.0)
        self.seen: set[Slot] = set()
        self.changed: dict[SwapPlace, float] = {}
        self.by_head = {(slot, name): by_head for slot in wanted for name, by_head in wanted[slot].items()}
        for place, by_head in self.by_head.items():
            reason = layers[place[0]].refusal(by_head)
            try:
                if reason is None:
                    self.groups[place], self.changed[place] = layers[place[0]].groups(by_head, like), 0.0
            except UsageError as error:
                reason = _in_words(error)
            if reason is not None:
                self.reasons[place] = reason

    def attention(self, trace: LayerTrace) -> None:
        slot = trace.slot
        if slot not in self.layers:
            return
        self.seen.add(slot)
        layer, every = self.layers[slot], slice(None)
        mask = trace.mask.by_rows(trace.Q.shape[2], trace.K.shape[2], last=slot.causal)
        K, V = trace.shared(trace.K, every), trace.shared(trace.V, every)
        if mask.dense is not None:
            self.biased.add(slot)
        self.whole[slot] += layer.size(trace.Y, trace.queries.real)
        for place, groups in self.groups.items():
            if place[0] != slot or place in self.reasons:
                continue
            if mask.dense is not None and not all("dense" in kind.supported_masks for kind in groups.mechanisms):
                self.reasons[place] = NO_SCORES if mask.additive() is not None else SEES_MORE
                continue
            context = Context(scale=layer.scale, global_qkv=layer.global_qkv(groups, trace))
            new = layer.new_heads(self.by_head[place])
            try:
                changed = torch.zeros_like(trace.Y)
                changed[:, new] = (groups(trace.Q, K, V, mask, context).Y - trace.Y)[:, new]
                self.changed[place] += layer.size(changed, trace.queries.real)
            except UsageError as error:
                self.reasons[place] = _in_words(error)

    def errors(self) -> dict[SwapPlace, float]:
        """Of all that has no reason against it."""
        found: dict[SwapPlace, float] = {}
        for place in (place for place in self.changed if place[0] not in self.seen):
            self.reasons[place] = "would be in a layer that this text never runs"
        for place in (place for place in self.changed if place not in self.reasons):
            changed, whole = self.changed[place], self.whole[place[0]]
            error = math.sqrt(changed / whole) if whole else math.inf if changed else 0.0
            if math.isfinite(error):
                found[place] = error
            else:
                self.reasons[place] = "gives numbers that are not finite"
        return found


def measure_times(tried: SwapTrialHook, n: int, like: Tensor, tell: Progress = silent) -> dict[SwapPlace, Timed]:
    """Time of the core of what each layer has (`PRESENT`), and of all candidates against it, on n positions.

    Candidates run in turns; the seconds of a candidate are those of the present mechanisms times the median ratio of
    the rounds. Equal layers are timed once. A candidate that cannot run on n positions gets a reason instead.
    """
    alike: dict[object, list[Slot]] = {}
    for slot, layer in tried.layers.items():
        alike.setdefault((layer.geometry, layer.causal, layer.now, layer.scale, slot in tried.biased), []).append(slot)
    times: dict[SwapPlace, Timed] = {}
    for number, slots in enumerate(alike.values()):
        tell("timing mechanisms", number, len(alike))
        layer = tried.layers[slots[0]]
        run = _runner(layer, n, like, slots[0] in tried.biased)
        places = [place for place in tried.groups if place[0] in slots and place not in tried.reasons]
        modules = {PRESENT: layer.present(), **{name: tried.groups[slot, name] for slot, name in reversed(places)}}
        found, failed = _race({name: partial(run, groups) for name, groups in modules.items()})
        tried.reasons.update({place: failed[place[1]] for place in places if place[1] in failed})
        times.update({(slot, PRESENT): found[PRESENT] for slot in slots})
        times.update({place: found[place[1]] for place in places if place[1] in found})
    return times


def _runner(layer: SwapLayer, n: int, like: Tensor, biased: bool) -> Callable[[HeadGroups], None]:
    """A function that runs mechanisms once, on random Q, K and V of n positions."""
    source, (h, k, v) = torch.Generator().manual_seed(NEW_PARAMETERS_SEED), layer.geometry
    Q, K, V = (torch.randn(1, h, n, width, generator=source).to(like) for width in (k, k, v))
    mask = Mask(causal=layer.causal, dense=Q.new_zeros(1, n, n) if biased else None)

    def run(groups: HeadGroups) -> None:
        groups(Q, K, V, mask, Context(scale=layer.scale))
        if like.device.type == "cuda":
            torch.cuda.synchronize(like.device)

    return run


def _race(candidates: Mapping[str, Callable[[], object]]) -> tuple[dict[str, Timed], dict[str, str]]:
    """Times of those that run, and why others do not."""
    able: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    for name, run in candidates.items():
        try:
            run()
        except UsageError as error:
            if name == PRESENT:
                raise
            failed[name] = _in_words(error)
        else:
            able[name] = run
    race = interleave_within(able)
    return {
        name: Timed(race.median(PRESENT) * race.time_ratio(name, to=PRESENT), race.time_interval(name, to=PRESENT))
        for name in able
    }, failed
